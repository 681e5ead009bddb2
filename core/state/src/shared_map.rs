//! An ordered map whose clones share structure: the children of a znode, the sessions, a session's
//! ephemerals.
//!
//! Sorted chunks behind `Arc`s contain the entries. A clone costs one reference count, and a change after a
//! clone copies one chunk and the list of chunks: a snapshot of a queue with a million waiters does not delay
//! the next command. A clone of a plain `BTreeMap` copies everything.

mod chunks;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::cmp::Ordering;

use smallvec::SmallVec;
use triomphe::Arc;

use crate::arena::unshared;
use chunks::{Chunks, insert_into, merge, single};

/// Limit of entries per chunk. A larger chunk raises the cost of the first change after a clone, a smaller
/// one the size of the list.
const CHUNK_MAX: usize = 64;
/// Neighbors that fit together into this size merge, so that removals leave no trail of tiny chunks.
const MERGE_MAX: usize = CHUNK_MAX / 2;

/// One entry, the usual number in queues and sessions, lies in the chunk itself.
type Chunk<K, V> = SmallVec<[(K, V); 1]>;

/// Position of an entry, or of a key to insert: chunk, and index within the chunk. Valid until an insert or a
/// removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    chunk: u32,
    at: u32,
}

impl Slot {
    fn new(chunk: usize, at: usize) -> Self {
        Slot { chunk: chunk as u32, at: at as u32 }
    }

    fn indices(self) -> (usize, usize) {
        (self.chunk as usize, self.at as usize)
    }

    /// Returns the number for [`Slot::from_raw`]; the number of the first entry if the slot does not fit.
    pub(crate) fn raw(self) -> u32 {
        let (chunk, at) = self.indices();
        if at < CHUNK_MAX { u32::try_from(chunk * CHUNK_MAX + at).unwrap_or_default() } else { 0 }
    }

    /// Returns the slot with this number.
    pub(crate) fn from_raw(raw: u32) -> Self {
        Slot::new(raw as usize / CHUNK_MAX, raw as usize % CHUNK_MAX)
    }
}

/// Invariant: no chunk is larger than `CHUNK_MAX`, none of several is empty, and any two neighbors together
/// are larger than `MERGE_MAX`; keys rise strictly within and across chunks.
#[derive(Debug, Default)]
pub(crate) enum SharedMap<K, V> {
    /// No chunk: most znodes have no children, and need no allocation.
    #[default]
    Empty,
    /// One chunk, without a list: most maps with entries are small. The chunk stays after the removal of the
    /// last entry, unless shared or larger than one entry: an entry that comes and goes repeatedly, such as a
    /// lock's holder, needs no allocation.
    One(Arc<Chunk<K, V>>),
    /// Two or more chunks, and the number of entries.
    Many(u32, Arc<Chunks<K, V>>),
}

impl<K, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> Self {
        match self {
            SharedMap::One(chunk) if !chunk.is_empty() => SharedMap::One(chunk.clone()),
            SharedMap::Empty | SharedMap::One(_) => SharedMap::Empty,
            SharedMap::Many(len, chunks) => SharedMap::Many(*len, chunks.clone()),
        }
    }
}

impl<K, V> SharedMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        match self {
            SharedMap::Empty => 0,
            SharedMap::One(chunk) => chunk.len(),
            SharedMap::Many(len, _) => *len as usize,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the entry with the smallest key.
    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// Returns the entry with the largest key.
    pub(crate) fn last(&self) -> Option<(&K, &V)> {
        self.chunks().last()?.last().map(|(key, value)| (key, value))
    }

    pub(crate) fn last_key(&self) -> Option<&K> {
        Some(self.last()?.0)
    }

    /// Iterates in the order of the keys.
    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        Iter { chunks: self.chunks().iter(), current: [].iter() }
    }

    fn chunks(&self) -> &[Arc<Chunk<K, V>>] {
        match self {
            SharedMap::Empty => &[],
            SharedMap::One(chunk) => std::slice::from_ref(chunk),
            SharedMap::Many(_, chunks) => &chunks.list,
        }
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Returns the value of `key`.
    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (chunk, at) = self.locate(key).ok()?;
        Some(&self.chunks()[chunk][at].1)
    }

    pub(crate) fn get_entry<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|place| self.at(place))
    }

    /// Returns the value of `key` for a change; copies the chunk if a clone shares the chunk.
    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (chunk, at) = self.locate(key).ok()?;
        Some(&mut self.chunk_mut(chunk)[at].1)
    }

    /// Sets the value of `key`. Returns the previous value.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.locate(&key) {
            Ok((chunk, at)) => Some(std::mem::replace(&mut self.chunk_mut(chunk)[at].1, value)),
            Err((chunk, at)) => {
                self.insert_new(chunk, at, (key, value));
                None
            }
        }
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (chunk, at) = self.locate(key).ok()?;
        Some(self.remove_at(chunk, at).1)
    }

    /// Removes the entry with the smallest key.
    pub(crate) fn pop_first(&mut self) -> Option<(K, V)> {
        if self.is_empty() { None } else { Some(self.remove_at(0, 0)) }
    }

    fn remove_at(&mut self, chunk: usize, at: usize) -> (K, V) {
        match self {
            SharedMap::Empty => unreachable!("an entry was found"),
            SharedMap::One(only) if only.len() == 1 && (only.spilled() || !only.is_unique()) => {
                let SharedMap::One(only) = std::mem::take(self) else { unreachable!("just looked at") };
                Arc::unwrap_or_clone(only).pop().expect("just counted")
            }
            SharedMap::One(only) => unshared(only).remove(at),
            SharedMap::Many(len, chunks) => {
                *len -= 1;
                let left = *len as usize;
                let chunks = &mut unshared(chunks).list;
                let entry = unshared(&mut chunks[chunk]).remove(at);
                merge(chunks, chunk);
                if chunks.len() == 1 {
                    let only = chunks.pop().expect("just counted");
                    assert_eq!(only.len(), left, "the entries of a map are miscounted");
                    *self = SharedMap::One(only);
                }
                debug_assert!(self.is_right_around(chunk, at), "an entry goes, and the chunks are wrong");
                entry
            }
        }
    }

    /// Iterates over the entries from `key` on, in order.
    pub(crate) fn from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        self.starting_by(|known| known.borrow().cmp(key))
    }

    /// Iterates from the first entry that `order` places at or behind a key.
    pub(crate) fn starting_by(&self, order: impl Fn(&K) -> Ordering) -> Iter<'_, K, V> {
        let (Ok(place) | Err(place)) = self.find_by(order);
        self.starting_at(place)
    }

    /// Iterates over the entries from this slot on.
    pub(crate) fn starting_at(&self, place: Slot) -> Iter<'_, K, V> {
        let (chunk, at) = place.indices();
        match self.chunks().get(chunk..) {
            Some([first, rest @ ..]) => Iter { chunks: rest.iter(), current: first[at..].iter() },
            _ => Iter { chunks: [].iter(), current: [].iter() },
        }
    }

    /// Returns the number of entries in front of this slot. Visits each chunk.
    pub(crate) fn rank_of(&self, place: Slot) -> usize {
        let (chunk, at) = place.indices();
        self.chunks().iter().take(chunk).map(|before| before.len()).sum::<usize>() + at
    }

    /// Returns the slot behind this many entries, or behind the last entry. Visits each chunk.
    pub(crate) fn nth(&self, mut rank: usize) -> Slot {
        let mut chunk = 0;
        while let Some(before) = self.chunks().get(chunk).filter(|before| before.len() <= rank) {
            (chunk, rank) = (chunk + 1, rank - before.len());
        }
        Slot::new(chunk, rank)
    }

    /// Returns the slot of `key`, or the slot to insert `key` at.
    pub(crate) fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<Slot, Slot>
    where
        K: Borrow<Q>,
    {
        self.find_by(|known| known.borrow().cmp(key))
    }

    /// Returns the result of [`Self::find`]; faster if `guess` is the key's slot.
    pub(crate) fn find_near<Q: Ord + ?Sized>(&self, key: &Q, guess: Slot) -> Result<Slot, Slot>
    where
        K: Borrow<Q>,
    {
        let is_there = self.get_at(guess).is_some_and(|(known, _)| known.borrow() == key);
        debug_assert!(
            !is_there || self.search(|known| known.borrow().cmp(key)) == Ok(guess.indices()),
            "a guess finds a key where no search does"
        );
        if is_there { Ok(guess) } else { self.find(key) }
    }

    /// Finds a slot by `order`, which compares each key with the searched one.
    #[inline(always)]
    pub(crate) fn find_by(&self, order: impl Fn(&K) -> Ordering) -> Result<Slot, Slot> {
        match self.locate_by(order) {
            Ok((chunk, at)) => Ok(Slot::new(chunk, at)),
            Err((chunk, at)) => Err(Slot::new(chunk, at)),
        }
    }

    /// Returns the entry in a slot returned by [`Self::find`].
    #[inline(always)]
    pub(crate) fn at(&self, place: Slot) -> (&K, &V) {
        let (chunk, at) = place.indices();
        let (key, value) = &self.chunks()[chunk][at];
        (key, value)
    }

    /// Returns the entry in a slot that may be empty or have another key by now.
    #[inline(always)]
    pub(crate) fn get_at(&self, place: Slot) -> Option<(&K, &V)> {
        let (chunk, at) = place.indices();
        let (key, value) = self.chunks().get(chunk)?.get(at)?;
        Some((key, value))
    }

    /// Returns an entry for a change of its value; copies the chunk if a clone shares it.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, place: Slot) -> (&K, &mut V) {
        let (chunk, at) = place.indices();
        let (key, value) = &mut self.chunk_mut(chunk)[at];
        (key, value)
    }

    /// Removes the entry in a slot returned by [`Self::find`].
    pub(crate) fn take(&mut self, place: Slot) -> (K, V) {
        let (chunk, at) = place.indices();
        self.remove_at(chunk, at)
    }

    /// Inserts a new key at the slot returned by [`Self::find`]. Returns the final slot.
    pub(crate) fn insert_at(&mut self, place: Slot, key: K, value: V) -> Slot {
        let (chunk, at) = place.indices();
        debug_assert_eq!(self.search(|known| known.cmp(&key)), Err((chunk, at)), "a key belongs elsewhere");
        let (chunk, at) = self.insert_new(chunk, at, (key, value));
        Slot::new(chunk, at)
    }

    /// Returns the only entry, if there is one, for a change of key and value.
    pub(crate) fn only_mut(&mut self) -> Option<&mut (K, V)> {
        match self {
            SharedMap::One(chunk) if chunk.len() == 1 => unshared(chunk).first_mut(),
            SharedMap::Empty | SharedMap::One(_) | SharedMap::Many(..) => None,
        }
    }

    fn locate<Q: Ord + ?Sized>(&self, key: &Q) -> Result<(usize, usize), (usize, usize)>
    where
        K: Borrow<Q>,
    {
        self.locate_by(|known| known.borrow().cmp(key))
    }

    /// Returns chunk and index.
    #[inline(always)]
    fn locate_by(&self, order: impl Fn(&K) -> Ordering) -> Result<(usize, usize), (usize, usize)> {
        crate::steps::take(1);
        let SharedMap::Many(_, chunks) = self else { return self.search(order) };
        if let Some(place) = chunks.guessed(&order) {
            debug_assert_eq!(self.search(order), place, "a guess is not what a search finds");
            return place;
        }
        let place = self.search(order);
        let (Ok((chunk, at)) | Err((chunk, at))) = place;
        chunks.record(chunk, at);
        place
    }

    /// Searches without a hint.
    #[inline(always)]
    fn search(&self, order: impl Fn(&K) -> Ordering) -> Result<(usize, usize), (usize, usize)> {
        match self {
            SharedMap::Empty => Err((0, 0)),
            SharedMap::One(chunk) if chunk.len() <= 1 => match chunk.first().map(|(key, _)| order(key)) {
                Some(Ordering::Less) => Err((0, 1)),
                Some(Ordering::Equal) => Ok((0, 0)),
                Some(Ordering::Greater) | None => Err((0, 0)),
            },
            SharedMap::One(_) | SharedMap::Many(..) => self.search_chunks(order),
        }
    }

    fn search_chunks(&self, order: impl Fn(&K) -> Ordering) -> Result<(usize, usize), (usize, usize)> {
        let largest = |chunk: &Arc<Chunk<K, V>>| order(&chunk.last().expect("no chunk is empty").0);
        let Some((last, before)) = self.chunks().split_last() else { return Err((0, 0)) };
        // Names with numbers arrive behind all others: one comparison finds the slot.
        match largest(last) {
            Ordering::Less => return Err((before.len(), last.len())),
            Ordering::Equal => return Ok((before.len(), last.len() - 1)),
            Ordering::Greater => {}
        }
        let chunk = before.partition_point(|chunk| largest(chunk) == Ordering::Less);
        match self.chunks()[chunk].binary_search_by(|(known, _)| order(known)) {
            Ok(at) => Ok((chunk, at)),
            Err(at) => Err((chunk, at)),
        }
    }

    #[inline(always)]
    fn chunk_mut(&mut self, chunk: usize) -> &mut Chunk<K, V> {
        match self {
            SharedMap::Empty => unreachable!("a chunk was found"),
            SharedMap::One(only) => unshared(only),
            SharedMap::Many(_, chunks) => unshared(&mut unshared(chunks).list[chunk]),
        }
    }

    /// Inserts an entry at the position returned by [`Self::locate`]. Returns the final chunk and index.
    fn insert_new(&mut self, chunk: usize, at: usize, entry: (K, V)) -> (usize, usize) {
        let len = if cfg!(debug_assertions) { self.len() } else { 0 };
        let (chunk, at) = self.insert_any(chunk, at, entry);
        debug_assert_eq!(self.len(), len + 1, "a new entry is one more");
        debug_assert!(self.is_right_around(chunk, at), "an entry comes, and the chunks are wrong");
        (chunk, at)
    }

    fn insert_any(&mut self, chunk: usize, at: usize, entry: (K, V)) -> (usize, usize) {
        match self {
            SharedMap::Empty => *self = SharedMap::One(Arc::new(single(entry))),
            SharedMap::One(only) if only.len() < CHUNK_MAX => unshared(only).insert(at, entry),
            SharedMap::One(_) => {
                let SharedMap::One(only) = std::mem::take(self) else { unreachable!("just looked at") };
                let mut chunks = vec![only];
                let place = insert_into(&mut chunks, chunk, at, entry);
                *self = SharedMap::Many(CHUNK_MAX as u32 + 1, Arc::new(Chunks::new(chunks)));
                return place;
            }
            SharedMap::Many(len, chunks) => {
                *len += 1;
                let chunks = unshared(chunks);
                let (chunk, at) = insert_into(&mut chunks.list, chunk, at, entry);
                chunks.record(chunk, at);
                return (chunk, at);
            }
        }
        (chunk, at)
    }

    /// Checks the invariants above around an inserted or removed entry.
    fn is_right_around(&self, chunk: usize, at: usize) -> bool {
        let chunks = self.chunks();
        let near = &chunks[chunk.saturating_sub(1).min(chunks.len())..chunks.len().min(chunk + 2)];
        let (from, keys) = (at.saturating_sub(1), |at: usize| chunks.get(chunk)?.get(at));
        let neighbours = [from, from + 1, from + 2].map(keys);
        near.iter().all(|chunk| chunk.len() <= CHUNK_MAX && (chunks.len() == 1 || !chunk.is_empty()))
            && near.windows(2).all(|two| two[0].len() + two[1].len() > MERGE_MAX)
            && near.windows(2).all(|two| two[0].last().map(|last| &last.0) < two[1].first().map(|it| &it.0))
            && neighbours.windows(2).all(|two| two[0].zip(two[1]).is_none_or(|(one, next)| one.0 < next.0))
    }

    /// Checks the invariants above, for [`crate::Machine::check`].
    pub(crate) fn check(&self) -> Result<(), String> {
        let sizes = self.chunks().iter().map(|chunk| chunk.len());
        let least = usize::from(!matches!(self, SharedMap::One(_)));
        if sizes.clone().any(|size| size < least || size > CHUNK_MAX) || sizes.sum::<usize>() != self.len() {
            return Err(format!("a map of {} entries has chunks of wrong sizes", self.len()));
        }
        if matches!(self, SharedMap::One(chunk) if chunk.is_empty() && (chunk.spilled() || !chunk.is_unique()))
        {
            return Err("a map without entries keeps more than room for one".to_owned());
        }
        if matches!(self, SharedMap::Many(_, chunks) if chunks.list.len() < 2) {
            return Err(format!("a map of {} entries has a list for one chunk", self.len()));
        }
        if self.chunks().windows(2).any(|pair| pair[0].len() + pair[1].len() <= MERGE_MAX) {
            return Err(format!("a map of {} entries has neighbours that should be one chunk", self.len()));
        }
        if self.iter().zip(self.iter().skip(1)).any(|(a, b)| a.0 >= b.0) {
            return Err("a map is out of order".to_owned());
        }
        Ok(())
    }
}

/// Iterator over entries in the order of the keys.
pub(crate) struct Iter<'a, K, V> {
    chunks: std::slice::Iter<'a, Arc<Chunk<K, V>>>,
    current: std::slice::Iter<'a, (K, V)>,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.current.next() {
                return Some((key, value));
            }
            self.current = self.chunks.next()?.iter();
        }
    }
}
