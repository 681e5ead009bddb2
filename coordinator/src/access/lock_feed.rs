//! The newest lock events, in memory, shared by all clients that watch locks over HTTP.
//!
//! In the flow: apply adds events while it holds the write lock of the state, and publishes a batch at its
//! end. Each reader has its own position, and copies events from there on.
//!
//! Invariant: apply never waits for a reader. A reader behind by more than `limits::LOCK_FEED_MAX` events, or
//! their bytes, misses events and learns that. Without readers the feed keeps nothing.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::busy::{self, Work};
use rowlock_env::decides;
use rowlock_env::sync::watch;
use rowlock_history::Readers;
use rowlock_proto::Zxid;
use rowlock_proto::report::{Gap, GapReason, HistoryEntry, HistoryEvent};
use rowlock_state::Machine;
use rowlock_state::command::Proposal;
use rowlock_state::outcome::{EventContext, LockEvent};

use crate::limits::{LOCK_FEED_MAX, LOCK_FEED_MAX_BYTES};
use crate::node::apply::Observer;

/// An event of the feed, with its readers.
pub(crate) struct FeedEvent {
    pub(crate) readers: Readers,
    pub(crate) line: Arc<FeedEntry>,
}

/// An event in the form that clients receive.
#[derive(Debug)]
pub struct FeedEntry {
    pub entry: HistoryEntry,
    encoded: OnceLock<Bytes>,
}

impl FeedEvent {
    pub(crate) fn zxid(&self) -> Zxid {
        self.line.zxid
    }
}

impl From<HistoryEntry> for FeedEntry {
    fn from(entry: HistoryEntry) -> FeedEntry {
        FeedEntry { entry, encoded: OnceLock::new() }
    }
}

impl Deref for FeedEntry {
    type Target = HistoryEntry;

    fn deref(&self) -> &HistoryEntry {
        &self.entry
    }
}

impl FeedEntry {
    /// Returns the encoded entry. `encode` is called once for all readers.
    pub fn encoded(&self, encode: impl FnOnce(&HistoryEntry) -> Vec<u8>) -> &Bytes {
        self.encoded.get_or_init(|| {
            let bytes = Bytes::from(encode(&self.entry));
            busy::spend(Work::EncodedByte, bytes.len() as u64);
            bytes
        })
    }
}

/// Size of an event without its texts, in bytes.
const EVENT_BYTES: usize = 256;

pub(crate) struct LockFeed {
    readers: AtomicUsize,
    ring: Mutex<Ring>,
    /// Number of readable events so far.
    end: watch::Sender<u64>,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<(usize, Arc<FeedEvent>)>,
    /// Number of the first kept event.
    first: u64,
    /// Number of the first event that is not readable yet.
    end: u64,
    bytes: usize,
    last: Zxid,
}

pub(crate) struct Reading {
    feed: Arc<LockFeed>,
    at: u64,
    end: watch::Receiver<u64>,
}

/// Events for a reader from a single call.
#[derive(Default)]
pub(crate) struct Piece {
    pub(crate) events: Vec<Arc<FeedEvent>>,
    /// Events before these were dropped unread.
    pub(crate) has_missed: bool,
    /// No further event is readable.
    pub(crate) is_last: bool,
    /// The last event completes its command.
    pub(crate) is_whole: bool,
}

impl Default for LockFeed {
    fn default() -> Self {
        LockFeed { readers: AtomicUsize::new(0), ring: Mutex::default(), end: watch::channel(0).0 }
    }
}

impl Observer for LockFeed {
    fn lock(&self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        if decides!("lock-feed-has-readers", self.readers.load(SeqCst) > 0) {
            self.ring.lock().push(event, context);
        }
    }

    fn applied(&self, _: u64, _: &[Proposal], _: &Machine) {
        self.publish();
    }

    /// Records a gap: a snapshot has replaced the state, with unknown events in between.
    fn installed(&self, machine: &Machine) {
        if self.readers.load(SeqCst) > 0 {
            self.ring.lock().gap(machine.last_zxid(), machine.time_ms());
            self.publish();
        }
    }
}

impl LockFeed {
    /// Makes the events of the finished batch readable.
    fn publish(&self) {
        if self.readers.load(SeqCst) == 0 {
            return;
        }
        let end = self.ring.lock().publish();
        self.end.send_if_modified(|seen| std::mem::replace(seen, end) != end);
    }

    /// Creates a reader at the end of the feed. Called between two batches: a caller that holds the read lock
    /// of the state knows the zxid of that end.
    pub(crate) fn read(self: &Arc<Self>) -> Reading {
        self.readers.fetch_add(1, SeqCst);
        let at = self.ring.lock().end;
        Reading { feed: self.clone(), at, end: self.end.subscribe() }
    }
}

impl Ring {
    fn push(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        let address = event.address.map_or(0, str::len);
        let bytes = EVENT_BYTES + 2 * event.path.len() + event.label.len() + address;
        let event = HistoryEvent::Lock(event.map(|text| text.to_string()));
        let entry = HistoryEntry { time_ms: context.time_ms, zxid: context.zxid, event };
        self.add(bytes, entry, Readers::of(context));
    }

    fn gap(&mut self, zxid: Zxid, time_ms: i64) {
        let gap = Gap { reason: GapReason::Snapshot, from_zxid: self.last, missing: None };
        let entry = HistoryEntry { time_ms, zxid, event: HistoryEvent::Gap(gap) };
        self.add(EVENT_BYTES, entry, Readers::Anyone);
    }

    fn add(&mut self, bytes: usize, entry: HistoryEntry, readers: Readers) {
        assert!(self.last <= entry.zxid, "apply goes forward");
        self.last = entry.zxid;
        self.bytes += bytes;
        let line = Arc::new(FeedEntry::from(entry));
        self.events.push_back((bytes, Arc::new(FeedEvent { readers, line })));
        while self.events.len() > LOCK_FEED_MAX || self.bytes > LOCK_FEED_MAX_BYTES {
            let Some((bytes, _)) = self.events.pop_front() else { break };
            self.bytes -= bytes;
            self.first += 1;
        }
    }

    fn publish(&mut self) -> u64 {
        self.end = self.first + self.events.len() as u64;
        self.end
    }

    fn clear(&mut self) {
        self.first = self.publish();
        self.bytes = 0;
        self.events = VecDeque::new();
    }
}

impl Reading {
    /// Returns the number of readers of the feed, with this one.
    pub(crate) fn streams(&self) -> usize {
        self.feed.readers.load(SeqCst)
    }

    /// Takes at most `most` of the next events; the events of one command may be split.
    pub(crate) fn take(&mut self, most: usize) -> Piece {
        assert!(most > 0, "a piece of nothing is never the last one");
        let ring = self.feed.ring.lock();
        assert!(self.at <= ring.end, "a reader is not ahead of the feed");
        let has_missed = self.at < ring.first;
        self.at = self.at.max(ring.first);
        let skip = usize::try_from(self.at - ring.first).unwrap_or(usize::MAX);
        let count = usize::try_from(ring.end.saturating_sub(self.at)).unwrap_or(usize::MAX).min(most);
        let events: Vec<_> = ring.events.iter().skip(skip).take(count).map(|(_, one)| one.clone()).collect();
        self.at += events.len() as u64;
        let next = ring
            .events
            .get(skip + events.len())
            .filter(|_| decides!("lock-feed-has-next", self.at < ring.end));
        let is_whole = next.map(|(_, one)| one.zxid()) != events.last().map(|one| one.zxid());
        Piece { is_last: next.is_none(), is_whole: is_whole || next.is_none(), events, has_missed }
    }

    /// Waits for further events. May return without any. Cancel safe.
    pub(crate) async fn ready(&mut self) {
        // The feed lives as long as this reader, so the channel stays open.
        let _ = self.end.changed().await;
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut ring = self.feed.ring.lock();
        if self.feed.readers.fetch_sub(1, SeqCst) == 1 {
            ring.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::lock::Mode;
    use rowlock_proto::{FencingToken, SessionId};
    use rowlock_state::outcome::LockEventKind;

    use super::*;

    fn happen(feed: &LockFeed, zxid: i64, label: &str) {
        let event = LockEvent {
            kind: LockEventKind::Requested { ahead: 0 },
            lock: "/a",
            path: "/a/b",
            token: FencingToken(zxid),
            session: SessionId(1),
            label,
            address: None,
            mode: Mode::Exclusive,
            acquired: true,
        };
        feed.lock(&event, &EventContext { zxid: Zxid(zxid), time_ms: 1, acl: &[], lock_acl: &[] });
    }

    fn zxids(piece: &Piece) -> Vec<i64> {
        piece.events.iter().map(|event| event.zxid().0).collect()
    }

    #[tokio::test]
    async fn readers_get_later_events_at_the_end_of_each_batch() {
        let feed = Arc::new(LockFeed::default());
        happen(&feed, 1, "");
        feed.publish();
        let mut one = feed.read();
        happen(&feed, 2, "");
        assert!(one.take(9).events.is_empty(), "the batch is not over");
        feed.publish();
        one.ready().await;
        let mut two = feed.read();
        happen(&feed, 3, "");
        happen(&feed, 3, "");
        feed.publish();
        let piece = one.take(2);
        assert_eq!((zxids(&piece), piece.is_last), (vec![2, 3], false));
        let piece = one.take(2);
        assert_eq!((zxids(&piece), piece.is_last), (vec![3], true));
        assert_eq!(zxids(&two.take(9)), [3, 3]);
        drop((one, two));
        assert!(feed.ring.lock().events.is_empty(), "nobody wants it");
    }

    #[test]
    fn a_slow_reader_learns_of_missed_events_and_memory_is_bounded() {
        let feed = Arc::new(LockFeed::default());
        let mut slow = feed.read();
        let last = i64::try_from(LOCK_FEED_MAX).unwrap() + 10;
        for zxid in 1..=last {
            happen(&feed, zxid, "");
        }
        feed.publish();
        let piece = slow.take(1);
        assert_eq!((zxids(&piece), piece.has_missed), (vec![11], true));
        assert!(!slow.take(1).has_missed, "it is told once");
        let label = "x".repeat(1 << 20);
        for zxid in last..last + 100 {
            happen(&feed, zxid, &label);
        }
        let ring = feed.ring.lock();
        assert!(ring.bytes <= LOCK_FEED_MAX_BYTES && ring.events.len() < 9);
    }
}
