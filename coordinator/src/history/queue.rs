//! From apply to the history's thread: a bounded queue that apply never waits for.
//!
//! In the flow: apply tells the [`Recorder`] each event of a log entry and then that the entry is over; what came
//! together goes to the thread as one [`Bundle`]. When the queue is full, events are dropped and counted, and the
//! thread writes down that there is a gap.
//!
//! Must never do: wait, touch the disk, or keep more than its bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use rowlock_env::worker::Worker;
use rowlock_proto::{SessionId, Zxid};
use rowlock_state::outcome::LockEvent;

use super::record::{Entry, GapReason, Key, Record};
use super::worker::Job;
use crate::limits::{HISTORY_QUEUE_MAX_BYTES, HISTORY_QUEUE_MAX_RECORDS};
use crate::metrics::Metrics;

/// Takes note of what happens to locks. Called by apply, in order: no function may wait or fail.
pub trait HistorySink: Send + Sync + 'static {
    /// Something happened to a place in a lock's queue.
    fn lock(&self, event: &LockEvent<'_>);
    /// The log entry is over.
    fn applied(&self);
    /// A snapshot of the state as it is now is being taken: behind it, the log before `zxid` may go.
    fn frozen(&self, zxid: Zxid);
    /// A snapshot has replaced the state.
    fn installed(&self, zxid: Zxid, time_ms: i64);
}

/// Keeps nothing: the history is off, or the world is simulated.
#[derive(Clone, Copy, Debug, Default)]
pub struct Off;

impl HistorySink for Off {
    fn lock(&self, _: &LockEvent<'_>) {}
    fn applied(&self) {}
    fn frozen(&self, _: Zxid) {}
    fn installed(&self, _: Zxid, _: i64) {}
}

/// What one log entry did to locks.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    items: Vec<Item>,
    /// Paths of locks and encoded entries, as the items cut them.
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    key: Key,
    session: SessionId,
    lock_at: usize,
    value_at: usize,
    end: usize,
}

/// One record of a bundle.
#[derive(Debug)]
pub(super) struct Recorded<'a> {
    pub key: Key,
    pub session: SessionId,
    pub lock: &'a str,
    /// The encoded [`Entry`].
    pub value: &'a [u8],
}

impl Bundle {
    fn push(&mut self, key: Key, record: Record<'_>) {
        let (session, lock_at) = (record.session, self.bytes.len());
        self.bytes.extend_from_slice(record.lock.as_bytes());
        let value_at = self.bytes.len();
        Entry::Lock(record).encode_into(&mut self.bytes);
        self.items.push(Item { key, session, lock_at, value_at, end: self.bytes.len() });
    }

    /// How many records.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// How many bytes they take.
    fn bytes(&self) -> usize {
        self.bytes.len() + self.items.len() * size_of::<Item>()
    }

    /// The records, in order.
    pub fn records(&self) -> impl Iterator<Item = Recorded<'_>> {
        self.items.iter().map(|item| Recorded {
            key: item.key,
            session: item.session,
            lock: std::str::from_utf8(&self.bytes[item.lock_at..item.value_at])
                .expect("Invariant: items cut the bytes where they were joined"),
            value: &self.bytes[item.value_at..item.end],
        })
    }
}

/// Events that were not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    /// The first of them is behind this.
    pub from: Zxid,
    /// The last of them.
    pub last: Key,
    /// How many, if that is known.
    pub count: Option<u64>,
    /// Why.
    pub why: GapReason,
}

impl Missed {
    /// One that was missed.
    pub fn one(key: Key, why: GapReason) -> Missed {
        Missed { from: Zxid(key.zxid.0 - 1), last: key, count: Some(1), why }
    }

    /// Both, as one gap.
    pub fn and(self, later: Missed) -> Missed {
        let count = self.count.zip(later.count).map(|(earlier, later)| earlier + later);
        let last = self.last.max(later.last);
        Missed { from: self.from.min(later.from), last, count, why: later.why }
    }
}

/// What the two ends of the queue share.
#[derive(Default)]
pub(super) struct Backlog {
    records: AtomicUsize,
    bytes: AtomicUsize,
    missed: Mutex<Option<Missed>>,
}

impl Backlog {
    fn has_room(&self) -> bool {
        self.records.load(Relaxed) < HISTORY_QUEUE_MAX_RECORDS
            && self.bytes.load(Relaxed) < HISTORY_QUEUE_MAX_BYTES
    }

    fn add(&self, bundle: &Bundle) {
        self.records.fetch_add(bundle.len(), Relaxed);
        self.bytes.fetch_add(bundle.bytes(), Relaxed);
    }

    /// The thread has done with a bundle.
    pub fn done(&self, bundle: &Bundle) {
        self.records.fetch_sub(bundle.len(), Relaxed);
        self.bytes.fetch_sub(bundle.bytes(), Relaxed);
    }

    fn miss(&self, missed: Missed) {
        let mut slot = self.missed.lock();
        *slot = Some(slot.map_or(missed, |earlier| earlier.and(missed)));
    }

    /// What has been missed since this was asked the last time.
    pub fn take_missed(&self) -> Option<Missed> {
        self.missed.lock().take()
    }
}

/// Apply's end of the queue.
pub struct Recorder {
    worker: Worker<Job>,
    backlog: Arc<Backlog>,
    metrics: Arc<Metrics>,
    /// Up to here it is in the files already: the log is applied again after a restart.
    recorded: Zxid,
    current: Mutex<Current>,
}

/// The log entry that is being applied.
#[derive(Default)]
struct Current {
    bundle: Bundle,
    /// Of the last event.
    last: Key,
}

impl Recorder {
    pub(super) fn new(
        worker: Worker<Job>,
        backlog: Arc<Backlog>,
        metrics: Arc<Metrics>,
        recorded: Zxid,
    ) -> Recorder {
        Recorder { worker, backlog, metrics, recorded, current: Mutex::default() }
    }

    fn drop_one(&self, key: Key) {
        self.metrics.history_dropped_total.inc();
        self.backlog.miss(Missed::one(key, GapReason::TooFast));
    }
}

impl HistorySink for Recorder {
    fn lock(&self, event: &LockEvent<'_>) {
        if event.zxid <= self.recorded {
            return;
        }
        let mut current = self.current.lock();
        let ordinal = if current.last.zxid == event.zxid { current.last.ordinal + 1 } else { 0 };
        let key = Key { time_ms: event.time_ms, zxid: event.zxid, ordinal };
        current.last = key;
        // One log entry may go beyond the bounds, so that they are looked at without being summed up here.
        if !self.backlog.has_room() {
            return self.drop_one(key);
        }
        match Record::of(event) {
            Some(record) => current.bundle.push(key, record),
            None => self.drop_one(key),
        }
    }

    fn applied(&self) {
        let mut current = self.current.lock();
        if current.bundle.len() == 0 {
            return;
        }
        let bundle = std::mem::take(&mut current.bundle);
        self.backlog.add(&bundle);
        if let Err(Job::Record(bundle)) = self.worker.submit(Job::Record(bundle)) {
            self.backlog.done(&bundle);
            bundle.records().for_each(|record| self.drop_one(record.key));
        }
    }

    fn frozen(&self, zxid: Zxid) {
        // Not heard: the next snapshot is. Until then a crash leaves a gap that is longer than it had to be.
        drop(self.worker.submit(Job::Frozen(zxid)));
    }

    fn installed(&self, zxid: Zxid, time_ms: i64) {
        drop(self.worker.submit(Job::Installed { zxid, time_ms }));
    }
}
