//! From apply to the history's thread: a bounded buffer that apply never waits for.
//!
//! In the flow: apply tells the [`Recorder`] each event of a log entry, which appends it to a buffer, and then that the
//! entry is over. The thread takes the buffer now and then, and gives an empty one for it. When there is too much,
//! events are dropped and counted, and the thread writes down that there is a gap.
//!
//! Must never do: wait, touch the disk, keep more than its bounds, or wake the thread for every log entry.

use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::worker::Worker;
use rowlock_proto::Zxid;
use rowlock_state::outcome::LockEvent;

use super::block::push_frame;
use super::record::{GapReason, Key, Record};
use super::worker::Job;
use crate::limits::{HISTORY_PRESSING_BYTES, HISTORY_QUEUE_MAX_BYTES, HISTORY_QUEUE_MAX_RECORDS};
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

/// What log entries did to locks.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Frames (`block.rs`), in order.
    pub frames: Vec<u8>,
    /// How many frames.
    records: usize,
    /// Where snapshots replaced the state: behind so many bytes, and when that was.
    pub installed: Vec<(usize, Key)>,
}

impl Buffer {
    /// Makes it empty. What it has grown to is kept for the next time, unless it was an exception.
    fn clear(&mut self) {
        self.frames.clear();
        self.frames.shrink_to(2 * HISTORY_PRESSING_BYTES);
        self.records = 0;
        self.installed.clear();
    }
}

/// What the two ends share.
#[derive(Default)]
pub(super) struct Backlog(Mutex<Shared>);

#[derive(Default)]
struct Shared {
    filling: Buffer,
    /// What of `filling` belongs to log entries that are over.
    ///
    /// Invariant: the thread takes nothing beyond, so the events of one command come to it together, and a part of
    /// the history that is sealed behind one of them has all of them.
    complete: Size,
    /// What the thread has taken and not yet written.
    in_hand: Size,
    missed: Option<Missed>,
    /// Of the last event.
    last: Key,
    told: Told,
}

#[derive(Clone, Copy, Default)]
struct Size {
    bytes: usize,
    records: usize,
}

/// What the thread knows of the buffer that is being filled.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    #[default]
    Nothing,
    /// That there is something in it.
    Something,
    /// That there is much.
    Much,
}

impl Shared {
    fn has_room(&self) -> bool {
        self.filling.records + self.in_hand.records < HISTORY_QUEUE_MAX_RECORDS
            && self.filling.frames.len() + self.in_hand.bytes < HISTORY_QUEUE_MAX_BYTES
    }

    fn entry_is_over(&mut self) {
        self.complete = Size { bytes: self.filling.frames.len(), records: self.filling.records };
    }

    fn miss(&mut self, missed: Missed) {
        self.missed = Some(self.missed.map_or(missed, |earlier| earlier.and(missed)));
    }
}

impl Backlog {
    /// Changes `empty` for what log entries that are over have left, and gives what had to be dropped until now.
    pub fn take(&self, empty: &mut Buffer) -> Option<Missed> {
        let mut shared = self.0.lock();
        std::mem::swap(&mut shared.filling, empty);
        shared.in_hand = std::mem::take(&mut shared.complete);
        let Size { bytes, records } = shared.in_hand;
        shared.filling.frames.extend_from_slice(&empty.frames[bytes..]);
        shared.filling.records = empty.records - records;
        empty.frames.truncate(bytes);
        empty.records = records;
        shared.told = Told::Nothing;
        shared.missed.take()
    }

    /// The thread has done with what it took.
    pub fn done(&self, taken: &mut Buffer) {
        taken.clear();
        self.0.lock().in_hand = Size::default();
    }
}

/// Apply's end.
pub struct Recorder {
    worker: Worker<Job>,
    backlog: Arc<Backlog>,
    metrics: Arc<Metrics>,
    /// Up to here it is in the files already: the log is applied again after a restart.
    recorded: Zxid,
}

impl Recorder {
    pub(super) fn new(
        worker: Worker<Job>,
        backlog: Arc<Backlog>,
        metrics: Arc<Metrics>,
        recorded: Zxid,
    ) -> Recorder {
        Recorder { worker, backlog, metrics, recorded }
    }

    /// Has the thread look at the buffer, if it has to. What it does not hear, it hears with the next log entry.
    fn tell(&self, shared: &mut Shared) {
        let due = match shared.filling.frames.len() {
            0 => Told::Nothing,
            bytes if bytes < HISTORY_PRESSING_BYTES => Told::Something,
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
        if event.zxid <= self.recorded {
            return;
        }
        let mut shared = self.backlog.0.lock();
        let ordinal = if shared.last.zxid == event.zxid { shared.last.ordinal + 1 } else { 0 };
        let key = Key { time_ms: event.time_ms, zxid: event.zxid, ordinal };
        shared.last = key;
        let record = if shared.has_room() { Record::of(event) } else { None };
        if record.is_some_and(|record| push_frame(&mut shared.filling.frames, key, record)) {
            shared.filling.records += 1;
        } else {
            self.metrics.history_dropped_total.inc();
            shared.miss(Missed::one(key, GapReason::TooFast));
        }
    }

    fn applied(&self) {
        let mut shared = self.backlog.0.lock();
        shared.entry_is_over();
        self.tell(&mut shared);
    }

    fn frozen(&self, zxid: Zxid) {
        // Not heard: the next snapshot is. Until then a crash leaves a gap that is longer than it had to be.
        drop(self.worker.submit(Job::Frozen(zxid)));
    }

    fn installed(&self, zxid: Zxid, time_ms: i64) {
        let mut shared = self.backlog.0.lock();
        shared.entry_is_over();
        let at = shared.filling.frames.len();
        // With nothing between two of them the later one skips what both did, so this list is bounded, too.
        let installed = &mut shared.filling.installed;
        installed.pop_if(|(before, _)| *before == at);
        installed.push((at, Key { time_ms, zxid, ordinal: 0 }));
        drop(self.worker.submit(Job::Collect));
    }
}
