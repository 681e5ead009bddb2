//! Entry point for taking locks of every kind on every server: the lock's specification, and the choice of
//! the recipe.
//!
//! A Rowlock server keeps the queues and pushes the grants ([`super::served`]); on plain ZooKeeper the recipe
//! of watches takes over ([`super::watched`]).

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::Owner;
use tracing::Instrument as _;
use tracing::field::Empty;

use super::guard::{Guard, WaitStats};
use super::names::Kind;
use super::{served, watched};
use crate::client::Client;
use crate::error::{Error, NameError};
use crate::limits::LOCKS_AT_ONCE;
use crate::observer::{WaitMeasure, WaitOutcome};

#[derive(Clone, Debug)]
pub(crate) struct LockSpec {
    /// Path of the lock's znode, absolute.
    pub lock: String,
    pub kind: Kind,
    /// Number of permits of the semaphore; 0 accepts the existing number.
    pub limit: u32,
}

/// Options of a request.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub label: String,
    pub meta: String,
    pub owner: Owner,
    pub max_hold: Option<Duration>,
    pub lock_delay: Duration,
    pub min_hold: Duration,
    pub min_hold_lapses: bool,
    pub metrics_name: Option<String>,
}

impl Terms {
    pub(crate) fn new(client: &Client) -> Self {
        Terms {
            label: client.config().label.clone(),
            meta: String::new(),
            owner: Owner::Unnamed,
            max_hold: None,
            lock_delay: Duration::ZERO,
            min_hold: Duration::ZERO,
            min_hold_lapses: false,
            metrics_name: None,
        }
    }

    pub(crate) fn data(&self) -> Bytes {
        crate::party::data(&self.label, &self.meta).into()
    }

    /// Refuses requests that plain ZooKeeper servers cannot serve.
    fn check_for_plain_servers(&self) -> Result<(), Error> {
        if !self.lock_delay.is_zero() {
            return Err(Error::Unsupported("lock-delay"));
        }
        if !self.min_hold.is_zero() {
            return Err(Error::Unsupported("minimum hold"));
        }
        if self.owner != Owner::Unnamed {
            return Err(Error::Unsupported("deadlock detection by owner"));
        }
        Ok(())
    }
}

/// Progress of the wait, for the error of a timeout and the statistics of a guard.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    entered_at: Option<usize>,
    pub wakeups: u32,
    pub position: Option<usize>,
    pub holder: Option<String>,
    measure: Option<WaitMeasure>,
}

impl Progress {
    pub(crate) fn new(measure: Option<WaitMeasure>) -> Self {
        let started = time::now();
        Progress { started, entered_at: None, wakeups: 0, position: None, holder: None, measure }
    }

    pub(crate) fn stand(&mut self, lock: &str, position: usize, holder: Option<String>) {
        tracing::debug!(lock, position, holder, "waiting");
        self.entered_at.get_or_insert(position);
        if let Some(measure) = &mut self.measure {
            measure.contend();
        }
        self.position = Some(position);
        self.holder = holder;
    }

    pub(crate) fn stats(&self) -> WaitStats {
        WaitStats {
            position: self.entered_at.unwrap_or(0),
            wakeups: self.wakeups,
            waited: time::now() - self.started,
        }
    }

    pub(crate) fn timeout(&mut self) -> Error {
        Error::Timeout { position: self.position, holder: self.holder.take() }
    }

    /// Ends the measure of the wait, and begins that of the hold.
    pub(crate) fn end(
        &mut self,
        mut acquired: Result<Option<Vec<Guard>>, Error>,
    ) -> Result<Option<Vec<Guard>>, Error> {
        let Some(measure) = &mut self.measure else { return acquired };
        let hold = measure.end(match &acquired {
            Ok(Some(_)) => WaitOutcome::Granted,
            Ok(None) => WaitOutcome::Busy,
            Err(error) => WaitOutcome::of(error),
        });
        if let Ok(Some(guards)) = &mut acquired {
            guards.iter_mut().for_each(|guard| guard.observe(Some(hold.clone())));
        }
        acquired
    }
}

/// Takes all of the locks, or none: `None` if a lock is not free and `wait` is false. Returns guards in the
/// order of `wanted`.
pub(crate) async fn acquire(
    client: &Client,
    wanted: &[LockSpec],
    terms: &Terms,
    wait: bool,
    progress: &mut Progress,
) -> Result<Option<Vec<Guard>>, Error> {
    check(wanted)?;
    let lock = wanted[0].lock.as_str();
    let locks = wanted.len();
    let span = tracing::debug_span!("rowlock.acquire", lock, locks, token = Empty, position = Empty);
    let acquired = acquire_in(client, wanted, terms, wait, progress).instrument(span.clone()).await;
    if let Ok(Some(guards)) = &acquired
        && let Some(first) = guards.first()
    {
        span.record("token", first.token().0).record("position", first.wait_stats().position);
    }
    acquired
}

async fn acquire_in(
    client: &Client,
    wanted: &[LockSpec],
    terms: &Terms,
    wait: bool,
    progress: &mut Progress,
) -> Result<Option<Vec<Guard>>, Error> {
    if client.extensions().await?.has_locks() {
        match served::acquire(client, wanted, terms, wait, progress).await {
            // The session has moved to a server that does not keep queues.
            Err(Error::Unsupported(_)) => {}
            result => return result,
        }
    }
    terms.check_for_plain_servers()?;
    acquire_one_by_one(client, wanted, terms, wait, progress).await
}

fn check(wanted: &[LockSpec]) -> Result<(), Error> {
    if wanted.is_empty() || wanted.len() > LOCKS_AT_ONCE {
        return Err(NameError::Count { count: wanted.len(), max: LOCKS_AT_ONCE }.into());
    }
    if wanted.len() == 1 {
        return Ok(());
    }
    let mut locks: Vec<&str> = wanted.iter().map(|wanted| wanted.lock.as_str()).collect();
    locks.sort_unstable();
    match locks.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(NameError::Twice(pair[0].to_owned()).into()),
        None => Ok(()),
    }
}

/// Acquires in the order of paths: two clients with the same locks never wait for each other.
async fn acquire_one_by_one(
    client: &Client,
    wanted: &[LockSpec],
    terms: &Terms,
    wait: bool,
    progress: &mut Progress,
) -> Result<Option<Vec<Guard>>, Error> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|at| &wanted[*at].lock);
    let mut guards: Vec<Option<Guard>> = wanted.iter().map(|_| None).collect();
    for at in order {
        match watched::acquire(client, &wanted[at], terms, wait, progress).await? {
            Some(guard) => guards[at] = Some(guard),
            None => {
                // Nothing is left behind when this returns; a lock that was lost meanwhile is gone as well.
                for guard in guards.into_iter().flatten() {
                    let _ = guard.release().await;
                }
                return Ok(None);
            }
        }
    }
    Ok(Some(guards.into_iter().flatten().collect()))
}
