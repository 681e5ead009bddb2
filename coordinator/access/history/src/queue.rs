//! Bounded buffer from apply to the history's thread; apply never waits for the buffer.
//!
//! In the flow: apply passes each event of a log entry to the [`Recorder`], which encodes the event into a
//! buffer; then apply reports the end of the log entry. The thread takes the buffer periodically in exchange
//! for an empty buffer. A full buffer drops and counts events, and a gap replaces the dropped events.
//!
//! The recorder must never wait, touch the disk, exceed its bounds, or wake the thread for every log entry.

use std::cmp::Ordering;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::decides;
use rowlock_env::worker::Worker;
use rowlock_metrics::Metrics;
use rowlock_proto::Zxid;
use rowlock_proto::lock_event::{Gap, GapReason, HistoryEvent};
use rowlock_state::outcome::{EventContext, LockEvent};

use super::block::encode;
use super::record::{Entry, Key, Missing, Readers, Subject, merge};
use super::worker::Job;
use crate::limits::{
    HISTORY_PRESSING_BYTES, HISTORY_PRESSING_RECORDS, HISTORY_QUEUE_MAX_BYTES, HISTORY_QUEUE_MAX_RECORDS,
};

/// Receiver of lock events. Called by apply, in order: no function may wait or fail.
pub trait HistorySink: Send + Sync + 'static {
    /// Records an event of a queue position.
    fn lock(&self, event: &LockEvent<&str>, context: &EventContext<'_>);
    /// Marks the end of a log entry.
    fn applied(&self);
    /// Announces a snapshot of the present state: afterwards the log may be purged up to `zxid`.
    fn frozen(&self, zxid: Zxid);
    /// Records that a snapshot has replaced the state.
    fn installed(&self, zxid: Zxid, time_ms: i64);
}

/// Sink without effect: the history is off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Off;

impl HistorySink for Off {
    fn lock(&self, _: &LockEvent<&str>, _: &EventContext<'_>) {}
    fn applied(&self) {}
    fn frozen(&self, _: Zxid) {}
    fn installed(&self, _: Zxid, _: i64) {}
}

/// Encoded lock events of log entries (`block.rs`).
#[derive(Debug, Default)]
pub(super) struct Buffer {
    pub bytes: Vec<u8>,
    records: usize,
    /// Size of the complete log entries.
    ///
    /// Invariant: the thread takes only complete log entries, so the events of a command stay together, and a
    /// segment closed after any of them has all of them.
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

    /// Appends an entry. Returns false for an entry above the length bound.
    fn append(&mut self, key: Key, entry: &Entry<&str>) -> bool {
        let is_appended = encode(key, entry, &mut self.bytes);
        self.records += usize::from(is_appended);
        is_appended
    }

    fn entry_is_over(&mut self) {
        self.whole = self.size();
    }

    /// Moves the complete log entries into the empty buffer `out`.
    fn move_whole_into(&mut self, out: &mut Buffer) {
        std::mem::swap(self, out);
        // The beginning of an unfinished log entry stays here.
        self.bytes.extend_from_slice(&out.bytes[out.whole.bytes..]);
        self.records = out.records - out.whole.records;
        out.bytes.truncate(out.whole.bytes);
        out.records = out.whole.records;
    }

    /// Empties the buffer. Keeps the memory for reuse, except after an exceptional size.
    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(2 * HISTORY_PRESSING_BYTES);
        (self.records, self.whole) = (0, Size::default());
    }
}

/// State shared by apply and the thread.
#[derive(Default)]
pub(super) struct Backlog(Mutex<Shared>);

#[derive(Default)]
struct Shared {
    filling: Buffer,
    /// Entries taken by the thread but not yet written.
    taken: Size,
    /// Events dropped after the buffered events.
    missed: Option<Missing>,
    /// Key of the last event. All events up to its zxid have been passed.
    last: Key,
    notified: Notified,
}

/// Last notification of the thread about the current buffer.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Notified {
    #[default]
    Nothing,
    Something,
    Much,
}

impl Shared {
    fn has_room(&self) -> bool {
        self.filling.records + self.taken.records < HISTORY_QUEUE_MAX_RECORDS
            && self.filling.bytes.len() + self.taken.bytes < HISTORY_QUEUE_MAX_BYTES
    }

    fn miss(&mut self, missed: Missing) {
        self.missed = Some(merge(self.missed, missed));
    }

    /// Records that all events up to `zxid` have been passed.
    fn cover_up_to(&mut self, zxid: Zxid) {
        if decides!("history-record-is-new", zxid > self.last.zxid) {
            self.last = Key { zxid, ordinal: u32::MAX, ..self.last };
        }
    }

    /// Appends a gap in place of the dropped events.
    fn append_missed_gap(&mut self) {
        if let Some((key, gap)) = self.missed.take() {
            assert!(self.filling.append(key, &gap.into()), "Invariant: gaps are short");
        }
    }
}

impl Backlog {
    /// Makes a backlog with all events up to `recorded` already in the files.
    pub fn behind(recorded: Zxid) -> Backlog {
        let mut shared = Shared::default();
        shared.cover_up_to(recorded);
        Backlog(Mutex::new(shared))
    }

    /// Moves the complete log entries into `empty`.
    pub fn take(&self, empty: &mut Buffer) {
        let shared = &mut *self.0.lock();
        if shared.filling.whole.bytes == shared.filling.bytes.len() {
            shared.append_missed_gap();
            shared.filling.entry_is_over();
        }
        shared.filling.move_whole_into(empty);
        shared.taken = empty.size();
        shared.notified = Notified::Nothing;
    }

    pub fn done(&self, taken: &mut Buffer) {
        taken.clear();
        self.0.lock().taken = Size::default();
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

    /// Notifies the thread of the buffer if due. A failed notification is repeated with the next log entry.
    fn notify_thread(&self, shared: &mut Shared) {
        let due = match (shared.filling.records, shared.filling.bytes.len()) {
            (0, _) if shared.missed.is_none() => Notified::Nothing,
            (records, bytes) if records < HISTORY_PRESSING_RECORDS && bytes < HISTORY_PRESSING_BYTES => {
                Notified::Something
            }
            _ => Notified::Much,
        };
        if due <= shared.notified {
            return;
        }
        let notified = match due {
            Notified::Much => self.worker.submit(Job::Collect),
            _ => self.worker.submit_patiently(Job::Collect),
        };
        if notified.is_ok() {
            shared.notified = due;
        }
    }
}

impl HistorySink for Recorder {
    fn lock(&self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        let shared = &mut *self.backlog.0.lock();
        let ordinal = match context.zxid.cmp(&shared.last.zxid) {
            Ordering::Greater => Some(0),
            Ordering::Equal => shared.last.ordinal.checked_add(1),
            Ordering::Less => None,
        };
        // The event is in the files already: after a restart the log is replayed.
        let Some(ordinal) = ordinal else { return };
        let key = Key { time_ms: context.time_ms, zxid: context.zxid, ordinal };
        shared.last = key;
        // After a dropped event the rest of the command is dropped, too: a gap ends between two commands.
        let is_cut = shared.missed.is_some_and(|(last, _)| last.zxid == context.zxid);
        if decides!("history-takes-record", !is_cut && shared.has_room()) {
            shared.append_missed_gap();
            let entry = Entry { event: HistoryEvent::Lock(*event), readers: Readers::of(context) };
            if shared.filling.append(key, &entry) {
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
        self.notify_thread(shared);
    }

    fn frozen(&self, zxid: Zxid) {
        self.backlog.0.lock().cover_up_to(zxid);
        // A failure is repaired by the next snapshot. Until then a crash leaves a longer gap than necessary.
        drop(self.worker.submit(Job::Frozen(zxid)));
    }

    fn installed(&self, zxid: Zxid, time_ms: i64) {
        let shared = &mut *self.backlog.0.lock();
        if zxid > shared.last.zxid {
            let gap = Gap { from_zxid: shared.last.zxid, missing: None, reason: GapReason::Snapshot };
            shared.miss((Key { time_ms, zxid, ordinal: u32::MAX }, gap));
            shared.cover_up_to(zxid);
        }
        shared.filling.entry_is_over();
        self.notify_thread(shared);
    }
}
