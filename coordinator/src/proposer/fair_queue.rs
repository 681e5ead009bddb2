//! Writes that wait at this node, taken from connections in turn: deficit round robin (Shreedhar and
//! Varghese, 1995). In each round a connection may go on by [`QUANTUM`] bytes, so that a quiet one waits for
//! a few writes of each other connection, however many of them, and however large ones, the others have.
//!
//! Invariant: writes of one connection keep their order.

use std::collections::{BTreeMap, VecDeque};

use rowlock_env::mutant::{self, Mutant};

/// Bytes that a connection may go on by in a round. A small write has about 150.
const QUANTUM: usize = 512;

/// Which connection. Never compared between runs.
pub(super) type Source = usize;

#[derive(Debug)]
pub(super) struct FairQueue<T> {
    sources: BTreeMap<Source, SourceQueue<T>>,
    /// Each source once, in the order of their turns.
    turns: VecDeque<Source>,
    len: usize,
}

#[derive(Debug)]
struct SourceQueue<T> {
    /// Items and their bytes, oldest first.
    waiting: VecDeque<(usize, T)>,
    /// Bytes that it may go on by.
    credit: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue { sources: BTreeMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts one behind all others of its source.
    pub(super) fn push(&mut self, source: Source, bytes: usize, item: T) {
        self.len += 1;
        let source = if mutant::is(Mutant::FirstComeFirstServed) { 0 } else { source };
        let turns = &mut self.turns;
        let line = self.sources.entry(source).or_insert_with(|| {
            turns.push_back(source);
            SourceQueue { waiting: VecDeque::new(), credit: QUANTUM }
        });
        line.waiting.push_back((bytes, item));
    }

    /// The next one with its bytes, if it has at most this many. `None`: there is none, or it has more.
    pub(super) fn pop_within(&mut self, most: usize) -> Option<(usize, T)> {
        let mut rotated = 0;
        loop {
            let source = *self.turns.front()?;
            let line = self.sources.get_mut(&source).expect("a source with a turn has a line");
            let (bytes, _) = line.waiting.front().expect("a line with a turn is not empty");
            if *bytes <= line.credit {
                if *bytes > most {
                    return None;
                }
                assert!(self.len > 0, "what is taken was counted");
                line.credit -= bytes;
                let popped = line.waiting.pop_front();
                self.len -= 1;
                if line.waiting.is_empty() {
                    self.sources.remove(&source);
                    self.turns.pop_front();
                }
                return popped;
            }
            line.credit += QUANTUM;
            self.turns.rotate_left(1);
            rotated += 1;
            if rotated == self.turns.len() {
                rotated = 0;
                self.pass_rounds();
            }
        }
    }

    /// Gives all as many rounds as the first that can go on needs: where all writes are large, they are many.
    fn pass_rounds(&mut self) {
        let needed =
            |line: &SourceQueue<T>| line.waiting.front().map(|(bytes, _)| bytes.saturating_sub(line.credit));
        let least = self.sources.values().filter_map(needed).min().unwrap_or_default();
        let rounds = least / QUANTUM;
        self.sources.values_mut().for_each(|line| line.credit += rounds * QUANTUM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(queue: &mut FairQueue<(Source, usize)>, count: usize) -> Vec<(Source, usize)> {
        (0..count).map_while(|_| queue.pop_within(usize::MAX)).map(|(_, item)| item).collect()
    }

    #[test]
    fn a_quiet_connection_waits_for_a_few_writes_of_each_of_the_others() {
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
            assert!((3..=7).contains(&own.len()), "{source}: {own:?}");
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
