//! Queued writes of this node, taken from its connections in turn: fair queueing by bytes (Demers, Keshav and
//! Shenker, 1989). A write is due when each waiting connection could have sent as many bytes as the write
//! has, counted from when the write became the first of its connection. So a small write passes larger ones,
//! however many connections queue them, and a large write waits for its own number of bytes of each other
//! connection.
//!
//! Invariant: writes of one connection keep their order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::limits::FAIR_QUEUE_MAX;
use rowlock_consensus::batching::weight_of;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use tokio::sync::mpsc;

use super::Submission;

/// Key of a connection. Never compared between runs.
type Source = usize;

/// Clock steps per byte, so that the clock advances however many connections share one byte.
const STEPS: u64 = 1 << 10;

#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// Items and their bytes, oldest first. No queue in the map is empty.
    sources: BTreeMap<Source, VecDeque<(usize, T)>>,
    /// Each source once, with the due time of its first item; ties in the order in which the items became
    /// first.
    turns: BinaryHeap<Reverse<(u64, u64, Source)>>,
    /// Bytes that a permanently waiting source would have sent, in steps.
    clock: u64,
    /// Number of items that have become the first of their sources.
    nth: u64,
    len: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue { sources: BTreeMap::new(), turns: BinaryHeap::new(), clock: 0, nth: 0, len: 0 }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an item to the queue of its source.
    pub(super) fn push(&mut self, source: Source, bytes: usize, item: T) {
        self.len += 1;
        let source = if mutant::is(Mutant::FirstComeFirstServed) { 0 } else { source };
        let line = self.sources.entry(source).or_default();
        line.push_back((bytes, item));
        if decides!("source-gets-turn", line.len() == 1) {
            self.becomes_first(source, bytes, self.clock);
        }
    }

    fn becomes_first(&mut self, source: Source, bytes: usize, from: u64) {
        self.nth += 1;
        self.turns.push(Reverse((from + bytes as u64 * STEPS, self.nth, source)));
    }

    /// Takes the next item with its bytes. Returns `None` if the queue is empty or the item has more than
    /// `most` bytes.
    fn pop_within(&mut self, most: usize) -> Option<(usize, T)> {
        let Reverse((due, _, source)) = *self.turns.peek()?;
        let line = self.sources.get_mut(&source).expect("a source with a turn has a line");
        if decides!("next-write-is-too-large", line.front().is_some_and(|(bytes, _)| *bytes > most)) {
            return None;
        }
        let (bytes, item) = line.pop_front().expect("a line with a turn is not empty");
        let next = line.front().map(|(bytes, _)| *bytes);
        self.len = self.len.checked_sub(1).expect("each taken item was counted");
        self.clock += bytes as u64 * STEPS / self.turns.len() as u64;
        self.turns.pop();
        match next {
            Some(next) => self.becomes_first(source, next, due.max(self.clock)),
            None => drop(self.sources.remove(&source)),
        }
        Some((bytes, item))
    }
}

/// Submitted writes of all connections.
pub struct Submissions {
    pub(super) arriving: mpsc::Receiver<Submission>,
    pub(super) waiting: FairQueue<Submission>,
}

impl Submissions {
    /// Creates the queue behind the channel `arriving`.
    pub fn new(arriving: mpsc::Receiver<Submission>) -> Submissions {
        Submissions { arriving, waiting: FairQueue::default() }
    }

    /// Returns whether no write waits for its turn.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Waits for an arriving write and queues it, if the queue has room. Returns false when the channel is
    /// closed. Cancel safe.
    pub(super) async fn arrival(&mut self) -> bool {
        if self.waiting.len() >= FAIR_QUEUE_MAX {
            return std::future::pending().await;
        }
        self.arriving.recv().await.map(|arrived| self.wait(arrived)).is_some()
    }

    fn wait(&mut self, submission: Submission) {
        let bytes = weight_of(&submission.command, &submission.identities);
        self.waiting.push(submission.reply_to.key(), bytes, submission);
    }

    /// Returns the next write in turn with its bytes, if it has at most `most` bytes.
    pub(super) fn next(&mut self, most: usize) -> Option<(usize, Submission)> {
        while self.waiting.len() < FAIR_QUEUE_MAX
            && let Ok(arrived) = self.arriving.try_recv()
        {
            self.wait(arrived);
        }
        self.waiting.pop_within(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(queue: &mut FairQueue<(Source, usize)>, count: usize) -> Vec<(Source, usize)> {
        (0..count).map_while(|_| queue.pop_within(usize::MAX)).map(|(_, item)| item).collect()
    }

    #[test]
    fn a_quiet_connection_waits_for_few_writes_of_each_other_one() {
        let mut queue = FairQueue::default();
        for nth in 0..1_000 {
            (0..30).for_each(|source| queue.push(source, 150, (source, nth)));
        }
        queue.push(30, 150, (30, 0));
        let first = taken(&mut queue, 150);
        assert!(first.contains(&(30, 0)), "{first:?}");
        assert_eq!(queue.len(), 30_001 - 150);
        for source in 0..30 {
            let own: Vec<usize> = first.iter().filter(|(of, _)| *of == source).map(|(_, nth)| *nth).collect();
            assert_eq!(own, (0..own.len()).collect::<Vec<_>>(), "in their order");
            assert!((4..=5).contains(&own.len()), "{source}: {own:?}");
        }
        assert_eq!(taken(&mut queue, usize::MAX).len(), 30_001 - 150);
        assert!(queue.is_empty() && queue.sources.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn a_connection_that_begins_has_its_turn_behind_those_that_wait() {
        let mut queue = FairQueue::default();
        (0..3).for_each(|source| queue.push(source, 150, (source, 0)));
        assert_eq!(taken(&mut queue, usize::MAX), [(0, 0), (1, 0), (2, 0)]);
    }

    #[test]
    fn a_small_write_passes_large_ones_whose_turns_have_begun() {
        let mut queue = FairQueue::default();
        (0..8).for_each(|source| queue.push(source, 900_000, (source, 0)));
        taken(&mut queue, 1);
        for nth in 0..10 {
            queue.push(8, 150, (8, nth));
            assert_eq!(taken(&mut queue, 1), [(8, nth)], "of a connection with one at a time");
        }
        let many = 900_000 / 150;
        (10..10 + many).for_each(|nth| queue.push(8, 150, (8, nth)));
        let first = taken(&mut queue, many);
        assert!(first.contains(&(1, 0)), "a large one waits for its own bytes of small ones");
    }

    #[test]
    fn bytes_count_so_large_writes_do_not_pass_small_ones() {
        let mut queue = FairQueue::default();
        for nth in 0..4 {
            (0..8).for_each(|source| queue.push(source, 900_000, (source, nth)));
        }
        queue.push(8, 150, (8, 0));
        assert_eq!(taken(&mut queue, 1), [(8, 0)]);
        let order = taken(&mut queue, 16);
        for round in order.chunks(8) {
            let mut sources: Vec<Source> = round.iter().map(|(source, _)| *source).collect();
            sources.sort_unstable();
            assert_eq!(sources, (0..8).collect::<Vec<_>>(), "each once in a round");
        }
        assert_eq!(queue.pop_within(100_000), None, "it does not fit");
        assert_eq!(queue.len(), 16);
        assert!(queue.pop_within(900_000).is_some());
    }
}
