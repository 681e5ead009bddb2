//! [`Barrier`]: holds everybody back while it is raised. Its znode exists exactly while it is, as with
//! Curator's `DistributedBarrier` and kazoo's `Barrier`.

use std::time::Duration;

use bytes::Bytes;
use rowlock_proto::{CreateMode, ErrorCode};

use super::plain::{insist, within};
use super::site::{Kind, Site};
use crate::client::Client;
use crate::error::Error;
use crate::znode::Watched;

/// Holds all waiters back until it is removed. It has no owner: it outlives the
/// client that raised it, and anybody may remove it.
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), rowlock_client::Error> {
/// let migration = client.barrier("migration");
/// migration.raise().await?;
/// // ... meanwhile, in every worker, before each job: migration.wait().await?;
/// migration.remove().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    site: Site,
}

impl Client {
    /// The barrier of this name. A handle only, no traffic; names as for [`Client::mutex`].
    pub fn barrier(&self, name: impl AsRef<str>) -> Barrier {
        Barrier { site: Site::named(self, Kind::Barrier, name.as_ref()) }
    }

    /// The barrier at this very path, for sharing it with Curator's `DistributedBarrier` or kazoo's
    /// `Barrier`.
    pub fn barrier_at(&self, path: impl AsRef<str>) -> Barrier {
        Barrier { site: Site::at(self, path.as_ref()) }
    }
}

impl Barrier {
    /// The path of its znode. (Of a name that cannot be used, the one that it would have.)
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// It is raised when this returns, by us or already before.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Rejected`] (NoAuth); the end of the session. A lost connection is no
    /// error: raising again does no harm.
    /// # Cancel safety
    /// A dropped future may or may not have raised it.
    pub async fn raise(&self) -> Result<(), Error> {
        self.site.make(Bytes::new(), CreateMode::Persistent).await
    }

    /// It is not raised when this returns, and those who waited pass.
    ///
    /// # Errors
    /// As [`Barrier::raise`].
    /// # Cancel safety
    /// A dropped future may or may not have removed it.
    pub async fn remove(&self) -> Result<(), Error> {
        let path = self.site.usable()?;
        match insist(|| self.site.client().delete(path, None)).await {
            Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether it is raised, not from before this call.
    ///
    /// # Errors
    /// As [`Barrier::raise`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn is_raised(&self) -> Result<bool, Error> {
        let path = self.site.usable()?;
        Ok(self.site.fresh(|| self.site.client().exists(path)).await?.is_some())
    }

    /// Waits until it is not raised; at once if it is not.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended, and no event would arrive.
    /// Otherwise as [`Barrier::raise`].
    /// # Cancel safety
    /// Cancel safe.
    /// # Ordering
    /// There was a moment during this call at which it was not raised. It may have been raised again since.
    pub async fn wait(&self) -> Result<(), Error> {
        let path = self.site.usable()?;
        loop {
            let Watched { value: raised, mut watch } =
                self.site.fresh(|| self.site.client().exists_watched(path)).await?;
            if raised.is_none() {
                return Ok(());
            }
            // That something happened says nothing about what: look again.
            watch.changed().await?;
        }
    }

    /// [`Barrier::wait`] for at most `patience` altogether; `false`: it was still raised.
    ///
    /// # Errors
    /// As [`Barrier::wait`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_timeout(&self, patience: Duration) -> Result<bool, Error> {
        within(patience, self.wait()).await
    }
}
