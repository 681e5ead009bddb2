//! The list of a map's chunks, if there are several, with a hint for the next search.

use std::cmp::Ordering;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use triomphe::Arc;

use super::{CHUNK_MAX, Chunk};

/// Two chunks or more.
#[derive(Debug)]
pub(crate) struct Chunks<K, V> {
    pub(super) list: Vec<Arc<Chunk<K, V>>>,
    /// Position of the last search, chunk and index in one number: one command asks for one key repeatedly.
    /// The hint affects only the duration of a search.
    guess: AtomicU32,
}

impl<K, V> Clone for Chunks<K, V> {
    fn clone(&self) -> Self {
        Chunks { list: self.list.clone(), guess: AtomicU32::new(self.guess.load(Relaxed)) }
    }
}

impl<K, V> Chunks<K, V> {
    pub(super) fn new(list: Vec<Arc<Chunk<K, V>>>) -> Self {
        assert!(list.len() > 1, "one chunk needs no list");
        Chunks { list, guess: AtomicU32::new(0) }
    }

    pub(super) fn record(&self, chunk: usize, at: usize) {
        if at < CHUNK_MAX
            && let Ok(guess) = u32::try_from(chunk * CHUNK_MAX + at)
        {
            self.guess.store(guess, Relaxed);
        }
    }

    /// Returns the result of a search if the last search ended at the same position.
    pub(super) fn guessed(
        &self,
        order: &impl Fn(&K) -> Ordering,
    ) -> Option<Result<(usize, usize), (usize, usize)>> {
        let guess = self.guess.load(Relaxed) as usize;
        let (chunk, at) = (guess / CHUNK_MAX, guess % CHUNK_MAX);
        let entries = self.list.get(chunk)?;
        let compare = |at: usize| Some(order(&entries.get(at)?.0));
        match compare(at)? {
            Ordering::Equal => Some(Ok((chunk, at))),
            Ordering::Greater if compare(at.checked_sub(1)?)? == Ordering::Less => Some(Err((chunk, at))),
            Ordering::Greater | Ordering::Less => None,
        }
    }
}
