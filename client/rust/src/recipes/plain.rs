//! Shared parts of the recipes on plain znodes: creating and reading the recipe's znode, and requests
//! repeated until answered ([`insist`]). These recipes use only the public calls of the client, and work on
//! every server.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time;
use rowlock_proto::{Acl, CreateMode, ErrorCode};

use super::site::Site;
use crate::error::Error;
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
