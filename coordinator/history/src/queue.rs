//! From apply to the history's thread: a bounded buffer that apply never waits for.
//!
//! In the flow: apply tells the [`Recorder`] each event of a log entry, which puts it into the builder of
//! a chunk, and then that the entry is over. The thread takes builder and finished chunks now and then,
//! and gives an empty buffer for them. When there is too much, events are dropped and counted, and the
//! thread writes down that there is a gap.
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

use super::chunk_builder::{ChunkBuilder, Put};
use super::record::{GapReason, Key};
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
    /// Finished chunks (`chunk.rs`), in order.
    pub chunks: Vec<u8>,
    /// What comes behind them.
    builder: ChunkBuilder,
    /// How many events, in all.
    records: usize,
    /// What of the chunks belongs to log entries that are over.
    ///
    /// Invariant: the thread takes nothing beyond, so the events of one command come to it together, and a
    /// part of the history that is closed behind one of them has all of them. Where this is not all of the
    /// chunks, there is nothing in the builder that belongs to entries that are over.
    whole: Size,
    /// Where snapshots replaced the state: behind this number of bytes, and when that was.
    pub installed: Vec<(usize, Key)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bytes: usize,
    records: usize,
}

impl Buffer {
    fn bytes(&self) -> usize {
        self.chunks.len() + self.builder.bytes()
    }

    fn are_chunks_whole(&self) -> bool {
        self.whole.bytes == self.chunks.len()
    }

    /// Adds an event. False: it is too long.
    fn put(&mut self, key: Key, event: &LockEvent<'_>) -> bool {
        let mut put = self.builder.put(key, event);
        if put == Put::Full {
            self.finish_whole();
            self.builder.finish(&mut self.chunks);
            put = self.builder.put(key, event);
        }
        self.records += usize::from(put == Put::Done);
        put == Put::Done
    }

    fn entry_is_over(&mut self) {
        self.builder.entry_is_over();
        if !self.are_chunks_whole() {
            // The entry had more than one chunk takes.
            self.builder.finish(&mut self.chunks);
            self.whole = Size { bytes: self.chunks.len(), records: self.records };
        }
    }

    /// Makes a chunk of what of the builder belongs to log entries that are over.
    fn finish_whole(&mut self) {
        if self.are_chunks_whole() {
            self.whole.records += self.builder.finish_whole(&mut self.chunks);
            self.whole.bytes = self.chunks.len();
        }
    }

    /// Changes the empty buffer `out` for what belongs to log entries that are over.
    fn give(&mut self, out: &mut Buffer) {
        std::mem::swap(self, out);
        if out.are_chunks_whole() && out.builder.is_whole() {
            return;
        }
        // An entry goes on: its beginning stays here.
        out.finish_whole();
        let Size { bytes, records } = out.whole;
        self.chunks.extend_from_slice(&out.chunks[bytes..]);
        out.chunks.truncate(bytes);
        std::mem::swap(&mut self.builder, &mut out.builder);
        self.records = out.records - records;
        out.records = records;
    }

    /// Makes it empty. What it has grown to is kept for the next time, unless it was an exception.
    fn clear(&mut self) {
        self.chunks.clear();
        self.chunks.shrink_to(2 * HISTORY_PRESSING_BYTES);
        self.records = 0;
        self.whole = Size::default();
        self.installed.clear();
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
    missed: Option<Missed>,
    /// Of the last event.
    last: Key,
    told: Told,
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
            && self.filling.bytes() + self.in_hand.bytes < HISTORY_QUEUE_MAX_BYTES
    }

    fn miss(&mut self, missed: Missed) {
        self.missed = Some(self.missed.map_or(missed, |earlier| earlier.and(missed)));
    }
}

impl Backlog {
    /// Changes `empty` for what log entries that are over have left, and gives what had to be dropped until
    /// now.
    pub fn take(&self, empty: &mut Buffer) -> Option<Missed> {
        let missed = {
            let mut shared = self.0.lock();
            shared.filling.give(empty);
            shared.in_hand = Size { bytes: empty.bytes(), records: empty.records };
            shared.told = Told::Nothing;
            shared.missed.take()
        };
        // Apply need not wait for this.
        empty.finish_whole();
        missed
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

    /// Has the thread look at the buffer, if it has to. What it does not hear, it hears with the next log
    /// entry.
    fn tell(&self, shared: &mut Shared) {
        let due = match (shared.filling.records, shared.filling.bytes()) {
            (0, _) => Told::Nothing,
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
        if event.zxid <= self.recorded {
            return;
        }
        let shared = &mut *self.backlog.0.lock();
        let ordinal = match event.zxid.cmp(&shared.last.zxid) {
            Ordering::Greater => 0,
            Ordering::Equal => shared.last.ordinal + 1,
            // It is there already.
            Ordering::Less => return,
        };
        let key = Key { time_ms: event.time_ms, zxid: event.zxid, ordinal };
        shared.last = key;
        if !shared.has_room() || !shared.filling.put(key, event) {
            self.metrics.history_dropped_total.inc();
            shared.miss(Missed::one(key, GapReason::TooFast));
        }
    }

    fn applied(&self) {
        let shared = &mut *self.backlog.0.lock();
        shared.filling.entry_is_over();
        self.tell(shared);
    }

    fn frozen(&self, zxid: Zxid) {
        // Not heard: the next snapshot is. Until then a crash leaves a gap that is longer than it had to be.
        drop(self.worker.submit(Job::Frozen(zxid)));
    }

    fn installed(&self, zxid: Zxid, time_ms: i64) {
        let mut shared = self.backlog.0.lock();
        shared.filling.entry_is_over();
        shared.filling.finish_whole();
        let at = shared.filling.chunks.len();
        // With nothing between two of them the later one skips what both did, so this list is bounded, too.
        let installed = &mut shared.filling.installed;
        installed.pop_if(|(before, _)| *before == at);
        installed.push((at, Key { time_ms, zxid, ordinal: 0 }));
        drop(self.worker.submit(Job::Collect));
    }
}
