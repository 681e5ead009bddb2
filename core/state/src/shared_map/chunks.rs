//! The list of a map's chunks, if there are several, with a hint for the next search.
//!
//! Chunks are full after inserts, and few after removals. An insert into a full chunk moves entries into the
//! previous chunk if that chunk has room, and splits the chunk otherwise. So rising names and ids leave full
//! chunks behind, also in the middle of the map: a session's id begins with its node, so sessions of each
//! node arrive in front of the next node's sessions.

use std::cmp::Ordering;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use triomphe::Arc;

use super::{CHUNK_MAX, Chunk, MERGE_MAX};
use crate::arena::unshared;

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

/// Least room in the previous chunk: with less, the next move would follow too soon.
const SHIFT_MIN: usize = CHUNK_MAX / 4;

pub(super) fn single<K, V>(entry: (K, V)) -> Chunk<K, V> {
    Chunk::from_buf([entry])
}

/// Inserts an entry. Returns its final chunk and index.
pub(super) fn insert_into<K: Clone, V: Clone>(
    chunks: &mut Vec<Arc<Chunk<K, V>>>,
    chunk: usize,
    at: usize,
    entry: (K, V),
) -> (usize, usize) {
    assert!(at <= chunks[chunk].len(), "an entry belongs into its chunk or behind it");
    if chunks[chunk].len() < CHUNK_MAX {
        unshared(&mut chunks[chunk]).insert(at, entry);
        return (chunk, at);
    }
    if chunk + 1 == chunks.len() && at == CHUNK_MAX {
        // Sequential names arrive at the end: a new chunk keeps the old one full.
        chunks.push(Arc::new(single(entry)));
        return (chunk + 1, 0);
    }
    let room_before = chunk.checked_sub(1).map_or(0, |before| CHUNK_MAX - chunks[before].len());
    if room_before >= SHIFT_MIN {
        let place = shift(chunks, chunk, at, entry, room_before);
        // The rest may fit together with the next chunk; nothing in front moves then.
        merge(chunks, chunk);
        return place;
    }
    let left = unshared(&mut chunks[chunk]);
    let mut right: Chunk<K, V> = left.drain(CHUNK_MAX / 2..).collect();
    let place = match at.checked_sub(left.len()) {
        Some(at) => {
            right.insert(at, entry);
            (chunk + 1, at)
        }
        None => {
            left.insert(at, entry);
            (chunk, at)
        }
    };
    chunks.insert(chunk + 1, Arc::new(right));
    place
}

/// Inserts into a full chunk after moving entries from its front to the previous chunk, which has this much
/// room.
fn shift<K: Clone, V: Clone>(
    chunks: &mut [Arc<Chunk<K, V>>],
    chunk: usize,
    at: usize,
    entry: (K, V),
    room: usize,
) -> (usize, usize) {
    let [.., left, right] = &mut chunks[..=chunk] else { unreachable!("there is a chunk before") };
    let (left, right) = (unshared(left), unshared(right));
    assert_eq!((left.len() + room, right.len()), (CHUNK_MAX, CHUNK_MAX), "a full chunk fills the one before");
    let place = match at.checked_sub(room) {
        Some(at) => {
            left.extend(right.drain(..room));
            right.insert(at, entry);
            (chunk, at)
        }
        None => {
            // The new entry is among the moved ones.
            left.extend(right.drain(..room - 1));
            let at = CHUNK_MAX - room + at;
            left.insert(at, entry);
            (chunk - 1, at)
        }
    };
    assert_eq!(left.len(), CHUNK_MAX, "the chunk before is full now");
    assert!(!right.is_empty(), "no chunk is empty");
    place
}

/// Restores the invariant after a removal from `chunk`.
pub(super) fn merge<K: Clone, V: Clone>(chunks: &mut Vec<Arc<Chunk<K, V>>>, chunk: usize) {
    if chunks[chunk].is_empty() {
        chunks.remove(chunk);
        return;
    }
    for left in [chunk, chunk.wrapping_sub(1)] {
        let Some(right) = chunks.get(left.wrapping_add(1)) else { continue };
        if left < chunks.len() && chunks[left].len() + right.len() <= MERGE_MAX {
            let right = chunks.remove(left + 1);
            let entries = Arc::unwrap_or_clone(right);
            unshared(&mut chunks[left]).extend(entries);
            assert!(chunks[left].len() <= MERGE_MAX, "a chunk of two is no larger than they were");
            return;
        }
    }
}
