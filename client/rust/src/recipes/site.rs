//! Shared parts of the recipes on plain znodes: creating and reading the recipe's znode, and requests
//! repeated until answered ([`insist`]). These recipes use only the public calls of the client, and work on
//! every server.
//!
//! [`Site`]: path of a handle's znode. All handles have a `Site`, and all checks of names are here. Locks are
//! below the lock base, elections below the folder `@elections`: recipes with a queue have names with levels
//! ([`rowlock_proto::name`]), hence the lock `@elections/x` is the queue of the election `x`. Recipes on
//! plain znodes have a folder per kind, also with a leading `@`. Their children are members, or their
//! existence alone counts, hence a name is a single level there, with encoded slashes.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::{Acl, CreateMode, ErrorCode, name, path};

use crate::client::Client;
use crate::error::{Error, NameError};
use crate::limits::REFUSED_PAUSE;
use crate::path::lineage;

impl Site {
    /// Creates the znode and the ancestors unless present.
    pub(crate) async fn make(&self, data: Bytes, mode: CreateMode) -> Result<(), Error> {
        let path = self.usable()?;
        let mut mode = mode;
        loop {
            let create = || self.client().create(path, Some(data.clone()), mode, Acl::open());
            match insist(create).await {
                Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => return Ok(()),
                Err(Error::Rejected(ErrorCode::NoNode)) => self.make_ancestors(path).await?,
                // Servers before ZooKeeper 3.5.
                Err(Error::Rejected(ErrorCode::Unimplemented)) if mode == CreateMode::Container => {
                    mode = CreateMode::Persistent;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn make_ancestors(&self, path: &str) -> Result<(), Error> {
        let mut not_ours = false;
        for ancestor in lineage(path).filter(|ancestor| ancestor.len() < path.len()) {
            let create =
                || self.client().create(ancestor, Some(Bytes::new()), CreateMode::Persistent, Acl::open());
            match insist(create).await {
                Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => {}
                // An ancestor without access may exist all the same; the next znode decides.
                Err(Error::Rejected(ErrorCode::NoAuth)) => not_ours = true,
                Err(Error::Rejected(ErrorCode::NoNode)) if not_ours => {
                    return Err(Error::Rejected(ErrorCode::NoAuth));
                }
                // An ancestor was removed in between: the caller comes again.
                Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the znode including everything committed before the call, on every server: a sync precedes the
    /// read, in the same round trip.
    pub(crate) async fn fresh<T, F>(&self, mut read: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let path = self.usable()?;
        insist(|| {
            let (synced, read) = (self.client().sync(path), read());
            async {
                let (synced, read) = tokio::join!(biased; synced, read);
                synced.and(read)
            }
        })
        .await
    }
}

/// Repeats a retryable request until answered or until the session has ended.
pub(crate) async fn insist<T, F>(mut call: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        match call().await {
            Err(error) => pause_or_fail(error).await?,
            answered => return answered,
        }
    }
}

/// Returns when the request may be tried again; fails for an error that a retry cannot cure.
pub(crate) async fn pause_or_fail(error: Error) -> Result<(), Error> {
    match error {
        // The next request waits for the next connection.
        Error::ConnectionLoss => Ok(()),
        error if error.is_retryable() => {
            time::sleep(REFUSED_PAUSE).await;
            Ok(())
        }
        error => Err(error),
    }
}

/// Waits for at most `patience`; `false`: the time was over.
pub(crate) async fn within(
    patience: Duration,
    wait: impl Future<Output = Result<(), Error>>,
) -> Result<bool, Error> {
    match time::timeout(patience, wait).await {
        Ok(waited) => waited.map(|()| true),
        Err(time::Elapsed) => Ok(false),
    }
}

/// Kind of recipe, by which names are resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    Latch,
    Lock,
}

impl Kind {
    /// Below the lock base.
    fn folder(self) -> Option<&'static str> {
        match self {
            Kind::Barrier => Some("@barriers"),
            Kind::Counter => Some("@counters"),
            Kind::DoubleBarrier => Some("@double-barriers"),
            Kind::Election => Some("@elections"),
            Kind::Latch => Some("@latches"),
            Kind::Lock => None,
        }
    }
}

/// Znode of a handle, on a session. Making a site does nothing.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    client: Client,
    /// Path of the application, without the chroot.
    path: String,
    /// Reason for refusing every use.
    refusal: Option<Error>,
}

impl Site {
    pub(crate) fn named(client: &Client, kind: Kind, name: &str) -> Site {
        let base = &client.config().lock_base;
        let folder = kind.folder().map_or_else(|| base.clone(), |folder| path::join(base, folder));
        let path = match kind {
            Kind::Lock | Kind::Election => name::path_below(&folder, name),
            Kind::Barrier | Kind::Counter | Kind::DoubleBarrier | Kind::Latch => {
                name::path_of_one_level(&folder, name)
            }
        };
        let refusal = path.as_ref().err().map(|rule| Error::InvalidName(rule.clone().into()));
        let path = path.unwrap_or_else(|_| path::join(&folder, &name::escape(name)));
        Site { client: client.clone(), path, refusal }
    }

    pub(crate) fn at(client: &Client, path: &str) -> Site {
        let refusal = match path::validate(path) {
            Ok(()) if path != "/" => None,
            Ok(()) => Some(NameError::Root),
            Err(error) => Some(NameError::Path(error)),
        };
        Site { client: client.clone(), path: path.to_owned(), refusal: refusal.map(Error::InvalidName) }
    }

    /// Makes every use of the site fail with `error`.
    pub(crate) fn refused(self, error: Error) -> Site {
        Site { refusal: self.refusal.or(Some(error)), ..self }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Path of the znode, valid or not.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Path of the znode, or the reason for a refusal.
    pub(crate) fn usable(&self) -> Result<&str, Error> {
        match &self.refusal {
            None => Ok(&self.path),
            Some(error) => Err(error.clone()),
        }
    }

    /// Path on the server, or the reason for a refusal.
    pub(crate) fn absolute(&self) -> Result<String, Error> {
        Ok(self.client.absolute(self.usable()?))
    }
}
