//! [`CountDownLatch`]: opens after a number of count-downs.
//!
//! The latch's znode holds the count (`count=3`); each count-down leaves a child with a random name. A
//! repeated count-down after a lost reply therefore never counts twice, on any server.
//!
//! [`Barrier`]: holds clients back while raised. The znode exists exactly while the barrier is raised, as
//! with Curator's `DistributedBarrier` and kazoo's `Barrier`.

use std::time::Duration;

use bytes::Bytes;
use rowlock_proto::{Acl, CreateMode, ErrorCode, Stat, Zxid, path};

use super::names;
use super::site::{Kind, Site, insist, within};
use crate::client::Client;
use crate::error::Error;
use crate::limits::LATCH_COUNT;
use crate::znode::{Children, Watched};

/// Gate that opens for good after `count` count-downs; any client may wait for the opening.
///
/// A count-down outlives the client: the latch counts finished work, not present clients (use
/// [`crate::DoubleBarrier`] for these). The latch's znodes last until [`CountDownLatch::remove`].
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), rowlock_client::Error> {
/// let imported = client.latch("import-2026-11", 3);
/// // In each of three workers, once its part is done:
/// imported.count_down().await?;
/// // In the client that needs all of it:
/// imported.wait().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CountDownLatch {
    site: Site,
    count: u32,
}

impl Client {
    /// The latch of this name, which opens after `count` (at most 1,000) count-downs. A handle only, no
    /// traffic; names as for [`Client::mutex`]. All clients must use the same count: the first client
    /// decides.
    pub fn latch(&self, name: impl AsRef<str>, count: u32) -> CountDownLatch {
        CountDownLatch::new(Site::named(self, Kind::Latch, name.as_ref()), count)
    }

    /// The latch at this path.
    pub fn latch_at(&self, path: impl AsRef<str>, count: u32) -> CountDownLatch {
        CountDownLatch::new(Site::at(self, path.as_ref()), count)
    }
}

struct LatchState {
    remaining: u32,
    /// Creation of the latch's znode: a new latch of the name has another zxid.
    created: Zxid,
}

impl CountDownLatch {
    fn new(mut site: Site, count: u32) -> Self {
        if count > LATCH_COUNT {
            site = site.refused(Error::InvalidArgument("the count of a latch is at most 1,000"));
        }
        CountDownLatch { site, count }
    }

    /// Path of the latch's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Reads the number of missing count-downs, not older than this call. 0: the latch is open.
    ///
    /// # Errors
    /// [`Error::CountIs`]: other clients use this latch with another count. [`Error::UnexpectedData`]: the
    /// znode is no latch. [`Error::InvalidName`], [`Error::InvalidArgument`], [`Error::Rejected`] (NoAuth);
    /// the end of the session.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn count(&self) -> Result<u32, Error> {
        Ok(self.seen().await?.remaining)
    }

    /// Counts down by one, and returns the number of missing count-downs, read right after. Does nothing when
    /// the latch is open.
    ///
    /// Counts once however often the connection breaks, on every server.
    ///
    /// # Errors
    /// The errors of [`CountDownLatch::count`]. At the end of the session the count-down may have taken
    /// effect.
    /// # Cancel safety
    /// A dropped future may or may not have counted.
    pub async fn count_down(&self) -> Result<u32, Error> {
        let tick = path::join(self.site.usable()?, &format!("tick-{}", names::random_id()));
        let client = self.site.client();
        loop {
            if self.seen().await?.remaining == 0 {
                return Ok(0);
            }
            let create = || client.create(&tick, Some(Bytes::new()), CreateMode::Persistent, Acl::open());
            match insist(create).await {
                // There already: by an earlier try whose reply was lost.
                Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => return self.count().await,
                // The latch was removed in between: the name begins afresh, with us.
                Err(Error::Rejected(ErrorCode::NoNode)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the latch is open.
    ///
    /// # Errors
    /// [`Error::Rejected`] with NoNode: another client removed the latch during the wait.
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended, and no event would arrive. Otherwise
    /// the errors of [`CountDownLatch::count`].
    /// # Cancel safety
    /// Cancel safe.
    /// # Ordering
    /// Every write of a client of this cluster before the client's count-down is visible after `wait`, behind
    /// a sync.
    pub async fn wait(&self) -> Result<(), Error> {
        let latch = self.seen().await?;
        if latch.remaining == 0 {
            return Ok(());
        }
        let (client, path) = (self.site.client(), self.site.usable()?);
        loop {
            let Watched { value: Children { names: ticks, stat }, mut watch } =
                insist(|| client.get_children_watched(path)).await?;
            if stat.czxid != latch.created {
                return Err(Error::Rejected(ErrorCode::NoNode));
            }
            if ticks.len() >= self.count as usize {
                return Ok(());
            }
            watch.changed().await?;
        }
    }

    /// [`CountDownLatch::wait`] for at most `patience` altogether; `false`: the latch was still closed.
    ///
    /// # Errors
    /// The errors of [`CountDownLatch::wait`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_timeout(&self, patience: Duration) -> Result<bool, Error> {
        within(patience, self.wait()).await
    }

    /// Removes the latch, open or not. The name begins again with the next use; waiters fail with NoNode.
    ///
    /// # Errors
    /// The errors of [`CountDownLatch::count`], without the conflicts. At the end of the session the latch
    /// may be half removed.
    /// # Cancel safety
    /// A dropped future may have removed a part: remove again.
    pub async fn remove(&self) -> Result<(), Error> {
        let (client, latch) = (self.site.client(), self.site.usable()?);
        loop {
            let Children { names: ticks, .. } = match self.site.fresh(|| client.get_children(latch)).await {
                Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(()),
                read => read?,
            };
            for tick in ticks {
                let tick = path::join(latch, &tick);
                gone(insist(|| client.delete(&tick, None)).await)?;
            }
            match gone(insist(|| client.delete(latch, None)).await) {
                // Another client counted down meanwhile.
                Err(Error::Rejected(ErrorCode::NotEmpty)) => {}
                result => return result,
            }
        }
    }

    /// Reads the latch; creates a missing latch.
    async fn seen(&self) -> Result<LatchState, Error> {
        let (client, path) = (self.site.client(), self.site.usable()?);
        loop {
            match self.site.fresh(|| client.get(path)).await {
                Ok(znode) => return self.evaluate(znode.bytes(), &znode.stat),
                Err(Error::Rejected(ErrorCode::NoNode)) => {
                    let data = Bytes::from(format!("count={}", self.count));
                    self.site.make(data, CreateMode::Persistent).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn evaluate(&self, data: &[u8], stat: &Stat) -> Result<LatchState, Error> {
        match count(data) {
            Some(count) if count == self.count => {
                let ticks = u32::try_from(stat.num_children).unwrap_or_default();
                Ok(LatchState { remaining: count.saturating_sub(ticks), created: stat.czxid })
            }
            Some(other) => Err(Error::CountIs(other)),
            None => Err(Error::UnexpectedData(self.path().to_owned())),
        }
    }
}

fn count(data: &[u8]) -> Option<u32> {
    std::str::from_utf8(data).ok()?.strip_prefix("count=")?.trim_end().parse().ok()
}

fn gone(deleted: Result<(), Error>) -> Result<(), Error> {
    match deleted {
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok(()),
        result => result,
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_text() {
        assert_eq!((count(b"count=3"), count(b"count=0\n")), (Some(3), Some(0)));
        assert_eq!(
            (count(b""), count(b"3"), count(b"count=-1"), count(b"permits=3")),
            (None, None, None, None)
        );
    }
}
