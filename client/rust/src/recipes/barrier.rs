//! [`Barrier`]: holds clients back while raised. The znode exists exactly while the barrier is raised, as
//! with Curator's `DistributedBarrier` and kazoo's `Barrier`.

use std::time::Duration;

use bytes::Bytes;
use rowlock_proto::{CreateMode, ErrorCode};

use super::plain::{insist, within};
use super::site::{Kind, Site};
use crate::client::Client;
use crate::error::Error;
use crate::znode::Watched;

/// Holds all waiters back until removed. A barrier has no owner: the barrier outlives the client that raised
/// it, and any client may remove the barrier.
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

    /// The barrier at this path, for sharing with Curator's `DistributedBarrier` or kazoo's `Barrier`.
    pub fn barrier_at(&self, path: impl AsRef<str>) -> Barrier {
        Barrier { site: Site::at(self, path.as_ref()) }
    }
}

impl Barrier {
    /// Path of the barrier's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Raises the barrier; succeeds if the barrier is raised already.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Rejected`] (NoAuth); the end of the session. A lost connection is no
    /// error: raising again does no harm.
    /// # Cancel safety
    /// A dropped future may or may not have raised the barrier.
    pub async fn raise(&self) -> Result<(), Error> {
        self.site.make(Bytes::new(), CreateMode::Persistent).await
    }

    /// Removes the barrier and releases the waiters; succeeds if no barrier is raised.
    ///
    /// # Errors
    /// The errors of [`Barrier::raise`].
    /// # Cancel safety
    /// A dropped future may or may not have removed the barrier.
    pub async fn remove(&self) -> Result<(), Error> {
        let path = self.site.usable()?;
        match insist(|| self.site.client().delete(path, None)).await {
            Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads the state of the barrier, not older than this call.
    ///
    /// # Errors
    /// The errors of [`Barrier::raise`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn is_raised(&self) -> Result<bool, Error> {
        let path = self.site.usable()?;
        Ok(self.site.fresh(|| self.site.client().exists(path)).await?.is_some())
    }

    /// Waits until the barrier is down; returns at once if no barrier is raised.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended, and no event would arrive.
    /// Otherwise as [`Barrier::raise`].
    /// # Cancel safety
    /// Cancel safe.
    /// # Ordering
    /// The barrier was down at some moment during this call, and may have been raised again since.
    pub async fn wait(&self) -> Result<(), Error> {
        let path = self.site.usable()?;
        loop {
            let Watched { value: raised, mut watch } =
                self.site.fresh(|| self.site.client().exists_watched(path)).await?;
            if raised.is_none() {
                return Ok(());
            }
            // The event does not name the change: read again.
            watch.changed().await?;
        }
    }

    /// [`Barrier::wait`] for at most `patience` altogether; `false`: the barrier was still raised.
    ///
    /// # Errors
    /// The errors of [`Barrier::wait`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_timeout(&self, patience: Duration) -> Result<bool, Error> {
        within(patience, self.wait()).await
    }
}
