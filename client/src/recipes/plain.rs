//! What the recipes on plain znodes share: where their znode is ([`Site`]), and requests that are repeated
//! until they are answered ([`insist`]). They use the public calls of [`Client`] only, so that they work on
//! every server.
//!
//! Everything of theirs is below the lock base, in one folder per kind. A folder's name begins with `@`,
//! which no escaped name does: a counter `x` and a lock `x` do not meet, nor do a counter and a lock
//! `@counters/x`.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::{Acl, CreateMode, ErrorCode, path};

use super::names;
use crate::client::Client;
use crate::error::Error;
use crate::limits::REFUSED_PAUSE;
use crate::path::lineage;

/// Which recipe a name belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    Latch,
}

impl Kind {
    fn folder(self) -> &'static str {
        match self {
            Kind::Barrier => "@barriers",
            Kind::Counter => "@counters",
            Kind::DoubleBarrier => "@double-barriers",
            Kind::Election => "@elections",
            Kind::Latch => "@latches",
        }
    }
}

/// A znode of a recipe, on a session. Making one does nothing.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    client: Client,
    /// As the application would write it, without the chroot; or why there is none.
    path: Result<String, Error>,
}

impl Site {
    pub(crate) fn named(client: &Client, kind: Kind, name: &str) -> Site {
        let base = &client.config().lock_base;
        let path = names::escape(name).map(|name| path::join(&path::join(base, kind.folder()), &name));
        Site { client: client.clone(), path }
    }

    pub(crate) fn at(client: &Client, path: &str) -> Site {
        let path = match path::validate(path) {
            Ok(()) if path != "/" => Ok(path.to_owned()),
            Ok(()) => Err(Error::InvalidName("the root cannot be one".to_owned())),
            Err(error) => Err(Error::InvalidName(error.to_string())),
        };
        Site { client: client.clone(), path }
    }

    /// The same, but every use of it fails like this.
    pub(crate) fn refused(self, error: Error) -> Site {
        Site { path: Err(error), ..self }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn path(&self) -> Result<&str, Error> {
        self.path.as_deref().map_err(Clone::clone)
    }

    /// Makes the znode and what is above it, if it is not there.
    pub(crate) async fn make(&self, data: Bytes, mode: CreateMode) -> Result<(), Error> {
        let path = self.path()?;
        let mut mode = mode;
        loop {
            let create = || self.client.create(path, Some(data.clone()), mode, Acl::open());
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
                || self.client.create(ancestor, Some(Bytes::new()), CreateMode::Persistent, Acl::open());
            match insist(create).await {
                Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => {}
                // An ancestor that we may not touch may well be there; what matters is what follows.
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

    /// A read of the znode that sees everything that was committed before it was asked for, on every server:
    /// a sync goes before it, in the same round trip.
    pub(crate) async fn fresh<T, F>(&self, mut read: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let path = self.path()?;
        insist(|| {
            let (synced, read) = (self.client.sync(path), read());
            async {
                let (synced, read) = tokio::join!(biased; synced, read);
                synced.and(read)
            }
        })
        .await
    }
}

/// Repeats a request that may be repeated until it is answered or the session has ended.
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

/// Returns when the request may be tried again; fails if it would not help.
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
