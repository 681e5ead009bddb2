//! From apply to the history's thread: a bounded buffer that apply never waits for.
//!
//! In the flow: apply tells the [`Recorder`] each event of a log entry, which encodes it into a buffer, and
//! then that the entry is over. The thread takes the buffer now and then, and gives an empty one for it. When
//! there is too much, events are dropped and counted, and a gap goes into the buffer in their place.
//!
//! Must never do: wait, touch the disk, keep more than its bounds, or wake the thread for every log entry.

use std::cmp::Ordering;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::worker::Worker;
use rowlock_proto::Zxid;
use rowlock_state::outcome::LockEvent;
use rowlock_types::limits::{
    HISTORY_PRESSING_BYTES, HISTORY_PRESSING_RECORDS, HISTORY_QUEUE_MAX_BYTES, HISTORY_QUEUE_MAX_RECORDS,
};
use rowlock_types::metrics::Metrics;

use super::block::encode;
use super::record::{Entry, Gap, GapReason, Key, Missing, Record, Subject, merge};
use super::worker::Job;

/// Takes note of what happens to locks. Called by apply, in order: no function may wait or fail.
pub trait HistorySink: Send + Sync + 'static {
    /// Something happened to a place in a lock's queue.
    fn lock(&self, event: &LockEvent<'_>);
    /// The log entry is over.
    fn applied(&self);
    /// A snapshot of the present state is being taken: behind it, the log before `zxid` may go.
    fn frozen(&self, zxid: Zxid);
    /// A snapshot has replaced the state.
    fn installed(&self, zxid: Zxid, time_ms: i64);
}

/// Keeps nothing: the history is off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Off;

impl HistorySink for Off {
    fn lock(&self, _: &LockEvent<'_>) {}
    fn applied(&self) {}
    fn frozen(&self, _: Zxid) {}
    fn installed(&self, _: Zxid, _: i64) {}
}

/// What log entries did to locks, encoded (`block.rs`).
#[derive(Debug, Default)]
pub(super) struct Buffer {
    pub bytes: Vec<u8>,
    records: usize,
    /// The part that belongs to log entries that are over.
    ///
    /// Invariant: the thread takes nothing beyond, so the events of one command come to it together, and a
    /// part of the history that is closed behind one of them has all of them.
    whole: Size,
}

#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bytes: usize,
    records: usize,
}

impl Buffer {
    fn size(&self) -> Size {
        Size { bytes: self.bytes.len(), records: self.records }
    }

    /// Returns false if the entry is too long.
    fn put(&mut self, key: Key, entry: &Entry<'_>) -> bool {
        let is_put = encode(key, entry, &mut self.bytes);
        self.records += usize::from(is_put);
        is_put
    }

    fn entry_is_over(&mut self) {
        self.whole = self.size();
    }

    /// Swaps the empty buffer `out` for what belongs to log entries that are over.
    fn give(&mut self, out: &mut Buffer) {
        std::mem::swap(self, out);
        // The beginning of an entry that goes on stays here.
        self.bytes.extend_from_slice(&out.bytes[out.whole.bytes..]);
        self.records = out.records - out.whole.records;
        out.bytes.truncate(out.whole.bytes);
        out.records = out.whole.records;
    }

    /// Makes it empty. Keeps its memory for the next time, unless that was an exception.
    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(2 * HISTORY_PRESSING_BYTES);
        (self.records, self.whole) = (0, Size::default());
    }
}

/// What the two ends share.
#[derive(Default)]
pub(super) struct Backlog(Mutex<Shared>);

#[derive(Default)]
struct Shared {
    filling: Buffer,
    /// What the thread has taken and not yet written.
    in_hand: Size,
    /// What was dropped behind what is in the buffer.
    missed: Option<Missing>,
    /// Of the last event. Up to its zxid everything was told.
    last: Key,
    told: Told,
}

/// What the thread knows of the buffer that is being filled.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    #[default]
    Nothing,
    Something,
    Much,
}

impl Shared {
    fn has_room(&self) -> bool {
        self.filling.records + self.in_hand.records < HISTORY_QUEUE_MAX_RECORDS
            && self.filling.bytes.len() + self.in_hand.bytes < HISTORY_QUEUE_MAX_BYTES
    }

    fn miss(&mut self, missed: Missing) {
        self.missed = Some(merge(self.missed, missed));
    }

    /// Notes that everything up to `zxid` was told.
    fn told_up_to(&mut self, zxid: Zxid) {
        if zxid > self.last.zxid {
            self.last = Key { zxid, ordinal: u32::MAX, ..self.last };
        }
    }

    /// Puts a gap where events were dropped.
    fn put_missed(&mut self) {
        if let Some((key, gap)) = self.missed.take() {
            assert!(self.filling.put(key, &Entry::Gap(gap)), "Invariant: gaps are short");
        }
    }
}

impl Backlog {
    /// Everything up to `recorded` is in the files.
    pub fn behind(recorded: Zxid) -> Backlog {
        let mut shared = Shared::default();
        shared.told_up_to(recorded);
        Backlog(Mutex::new(shared))
    }

    /// Swaps `empty` for what log entries that are over have left.
    pub fn take(&self, empty: &mut Buffer) {
        let shared = &mut *self.0.lock();
        if shared.filling.whole.bytes == shared.filling.bytes.len() {
            shared.put_missed();
            shared.filling.entry_is_over();
        }
        shared.filling.give(empty);
        shared.in_hand = empty.size();
        shared.told = Told::Nothing;
    }

    /// The thread has done with what it took.
    pub fn done(&self, taken: &mut Buffer) {
        taken.clear();
        self.0.lock().in_hand = Size::default();
    }
}

pub struct Recorder {
    worker: Worker<Job>,
    backlog: Arc<Backlog>,
    metrics: Arc<Metrics>,
}

impl Recorder {
    pub(super) fn new(worker: Worker<Job>, backlog: Arc<Backlog>, metrics: Arc<Metrics>) -> Recorder {
        Recorder { worker, backlog, metrics }
    }

    /// Has the thread look at the buffer, if it has to. What it does not hear, it hears with the next log
    /// entry.
    fn tell(&self, shared: &mut Shared) {
        let due = match (shared.filling.records, shared.filling.bytes.len()) {
            (0, _) if shared.missed.is_none() => Told::Nothing,
            (records, bytes) if records < HISTORY_PRESSING_RECORDS && bytes < HISTORY_PRESSING_BYTES => {
                Told::Something
            }
            _ => Told::Much,
        };
        if due <= shared.told {
            return;
        }
        let told = match due {
            Told::Much => self.worker.submit(Job::Collect),
            _ => self.worker.submit_patiently(Job::Collect),
        };
        if told.is_ok() {
            shared.told = due;
        }
    }
}

impl HistorySink for Recorder {
    fn lock(&self, event: &LockEvent<'_>) {
        let shared = &mut *self.backlog.0.lock();
        let ordinal = match event.zxid.cmp(&shared.last.zxid) {
            Ordering::Greater => Some(0),
            Ordering::Equal => shared.last.ordinal.checked_add(1),
            Ordering::Less => None,
        };
        // It is in the files already: the log is applied again after a restart.
        let Some(ordinal) = ordinal else { return };
        let key = Key { time_ms: event.time_ms, zxid: event.zxid, ordinal };
        shared.last = key;
        // Behind an event that was dropped, the rest of its command is, too: a gap ends between two commands.
        let is_cut = shared.missed.is_some_and(|(last, _)| last.zxid == event.zxid);
        if !is_cut && shared.has_room() {
            shared.put_missed();
            if shared.filling.put(key, &Entry::Lock(Record::of(event))) {
                return;
            }
        }
        self.metrics.history_dropped_total.inc();
        let subject = Subject::Lock { lock: event.lock.as_bytes(), session: event.session };
        shared.miss(subject.missed(key, GapReason::TooFast));
    }

    fn applied(&self) {
        let shared = &mut *self.backlog.0.lock();
        shared.filling.entry_is_over();
        self.tell(shared);
    }

    fn frozen(&self, zxid: Zxid) {
        self.backlog.0.lock().told_up_to(zxid);
        // Not heard: the next snapshot is. Until then a crash leaves a gap that is longer than it had to be.
        drop(self.worker.submit(Job::Frozen(zxid)));
    }

    fn installed(&self, zxid: Zxid, time_ms: i64) {
        let shared = &mut *self.backlog.0.lock();
        if zxid > shared.last.zxid {
            let gap = Gap { from: shared.last.zxid, missing: None, why: GapReason::Snapshot };
            shared.miss((Key { time_ms, zxid, ordinal: u32::MAX }, gap));
            shared.told_up_to(zxid);
        }
        shared.filling.entry_is_over();
        self.tell(shared);
    }
}
