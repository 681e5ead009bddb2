//! [`Mutex`]: the fair lock. Who asked first gets it first; a release wakes only the next one.
//!
//! The recipe: take a place in the queue; list the queue; first: the lock is ours; else watch the one directly before,
//! and when anything happens **list again**. Invariant: only a list that shows our own znode in the first place grants.
//! A wake-up alone means nothing: the one before may have been a waiter that gave up (or the connection may have).

use std::time::Duration;

use rowlock_env::time::{self, Instant};
use rowlock_proto::request::PathWatch;
use rowlock_proto::{ErrorCode, Request, path};

use super::guard::{Guard, WaitStats};
use super::names;
use super::place::Place;
use super::queue::Standing;
use crate::client::Client;
use crate::error::Error;
use crate::session::watches::WatchedBy;
use crate::watch::OneshotWatch;

/// A handle of a lock: a name on a session. Making one does nothing; clones are equal.
///
/// Not reentrant: a session that asks twice for one lock queues behind itself.
#[derive(Clone, Debug)]
pub struct Mutex {
    client: Client,
    /// The lock's znode, absolute; or why there is none.
    parent: Result<String, Error>,
}

/// What is known of the wait so far, for the error of a timeout and the statistics of a guard.
#[derive(Default)]
struct Progress {
    entered_at: Option<usize>,
    wakeups: u32,
    position: Option<usize>,
    holder: Option<String>,
}

impl Client {
    /// The lock of this name, below the lock base. Any non-empty text up to 512 bytes is a name; slashes, spaces and
    /// other letters than ASCII are percent-encoded in the znode's name, so that no two names meet.
    pub fn mutex(&self, name: &str) -> Mutex {
        let parent =
            names::escape(name).map(|name| self.absolute(&path::join(&self.config().lock_base, &name)));
        Mutex { client: self.clone(), parent }
    }

    /// The lock at this very path, for sharing it with programs that use other ZooKeeper clients (Curator's
    /// `InterProcessMutex`, kazoo's `Lock`).
    pub fn mutex_at(&self, path: &str) -> Mutex {
        let parent = match path::validate(path) {
            Ok(()) if path != "/" => Ok(self.absolute(path)),
            Ok(()) => Err(Error::InvalidName("the root cannot be a lock".to_owned())),
            Err(error) => Err(Error::InvalidName(error.to_string())),
        };
        Mutex { client: self.clone(), parent }
    }
}

impl Mutex {
    /// Waits for the lock.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended; nothing is held and nothing waits any more.
    /// [`Error::PlaceLost`]: somebody deleted our znode in the queue. [`Error::TooManyLocks`], [`Error::InvalidName`],
    /// [`Error::Rejected`] (NoAuth, quotas). A lost connection is no error here: the place in the queue is kept over
    /// reconnects.
    /// # Cancel safety
    /// Dropping the future at any point leaves the queue, also when the request to enter it is still on its way.
    /// # Ordering
    /// The place in the queue is taken when the server handles the first request, in the order of the session.
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.acquire(&mut Progress::default()).await
    }

    /// Waits for the lock for at most `patience` altogether, lost connections and all predecessors included.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last known position and holder; the queue is left then. Otherwise as
    /// [`Mutex::lock`].
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn lock_timeout(&self, patience: Duration) -> Result<Guard, Error> {
        let deadline = time::now() + patience;
        let mut progress = Progress::default();
        match time::timeout_at(deadline, self.acquire(&mut progress)).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout { position: progress.position, holder: progress.holder }),
        }
    }

    /// Takes the lock if nobody holds it or waits for it; `None` otherwise, and then nothing is left behind. Whether it
    /// is free is decided by the cluster, not by a read of one server.
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        let started = time::now();
        let mut place = self.place()?;
        let (stat, queue) = place.enter().await?;
        let queue = match queue {
            Some(queue) => queue,
            None => place.queue().await?,
        };
        match queue.standing(place.name()) {
            Standing::Holder => {
                let stats = WaitStats { position: 0, wakeups: 0, waited: time::now() - started };
                Guard::new(place, stat, stats).map(Some)
            }
            Standing::Behind { .. } => {
                place.leave().await?;
                Ok(None)
            }
            Standing::Absent => {
                place.forget();
                Err(Error::PlaceLost)
            }
        }
    }

    fn place(&self) -> Result<Place, Error> {
        Place::new(self.client.clone(), self.parent.clone()?)
    }

    async fn acquire(&self, progress: &mut Progress) -> Result<Guard, Error> {
        let started = time::now();
        let mut place = self.place()?;
        let (stat, mut listed) = place.enter().await?;
        loop {
            let attachments = self.client.vitals().attachments;
            let queue = match listed.take() {
                Some(queue) => queue,
                None => place.queue().await?,
            };
            match queue.standing(place.name()) {
                Standing::Holder => {
                    let stats = progress.stats(started);
                    return Guard::new(place, stat, stats);
                }
                Standing::Behind { position, predecessor, holder } => {
                    progress.stand(position, holder);
                    self.wait_for(&predecessor, attachments, progress).await?;
                }
                Standing::Absent => {
                    place.forget();
                    return Err(Error::PlaceLost);
                }
            }
        }
    }

    /// Returns when the queue deserves another look. Says nothing about who holds the lock.
    ///
    /// `attachments`: how often we were attached when the queue was listed.
    async fn wait_for(
        &self,
        predecessor: &str,
        attachments: u64,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let parent = self.parent.as_deref().map_err(Clone::clone)?;
        let path = path::join(parent, predecessor);
        // getData rather than exists: when the one before has just gone, it leaves no watch behind.
        let (mut watch, registration) = OneshotWatch::new(&self.client, WatchedBy::GetData, path.clone());
        let read = Request::GetData(PathWatch { path, watch: true });
        match self.client.submit(read, Some(registration)).await?.await {
            Ok(_) => {}
            Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(()),
            Err(Error::Rejected(code)) if !Error::Rejected(code).is_retryable() => {
                return Err(Error::Rejected(code));
            }
            Err(Error::ConnectionLoss) => return Ok(()),
            Err(error) if error.is_retryable() => {
                time::sleep(crate::limits::REFUSED_PAUSE).await;
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let mut vitals = self.client.watch_vitals();
        tokio::select! {
            biased;
            event = watch.changed() => {
                event?;
                progress.wakeups += 1;
                Ok(())
            }
            // Whatever happened while we were cut off, the list knows.
            _ = vitals.wait_for(|vitals| vitals.attachments != attachments || vitals.ending.is_some()) => {
                match self.client.vitals().ending {
                    Some(_) => Err(self.client.shared().ended()),
                    None => Ok(()),
                }
            }
        }
    }
}

impl Progress {
    fn stand(&mut self, position: usize, holder: String) {
        self.entered_at.get_or_insert(position);
        self.position = Some(position);
        self.holder = Some(holder);
    }

    fn stats(&self, started: Instant) -> WaitStats {
        WaitStats {
            position: self.entered_at.unwrap_or(0),
            wakeups: self.wakeups,
            waited: time::now() - started,
        }
    }
}
