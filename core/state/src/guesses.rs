//! Hints for lookups: the last position found, by a hash of the key. Callers confirm a hint before use.
//!
//! A repeated lookup takes as many steps among a million items as among ten. A wrong or displaced hint costs
//! the ordinary search: names chosen for equal hashes make nothing slower than a lookup without hints.
//!
//! Invariant: hints affect only the duration of a search. Clones of the state begin without hints.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const WAYS: usize = 4;
const BUCKETS_MIN: usize = 4;

/// A part of the hash and the position, in one number; 0: no hint.
type Entry = AtomicU64;

#[derive(Debug, Default)]
pub(crate) struct LookupHints {
    /// Empty, or a power of two in length.
    buckets: Box<[[Entry; WAYS]]>,
}

impl Clone for LookupHints {
    fn clone(&self) -> Self {
        LookupHints::default()
    }
}

/// Returns the kept part of a hash. Never 0.
fn tag(hash: u64) -> u64 {
    (hash & !(u64::from(u32::MAX))) | 1 << 32
}

impl LookupHints {
    /// Makes room for two hints per item.
    #[inline]
    pub(crate) fn fit(&mut self, things: usize) {
        if self.buckets.len() * WAYS < 2 * things {
            self.grow(things);
        }
    }

    /// Drops all hints. Growth is rare, and the next searches record their hints again.
    #[cold]
    fn grow(&mut self, things: usize) {
        let buckets = (4 * things / WAYS).next_power_of_two().max(BUCKETS_MIN);
        let empty = || [const { AtomicU64::new(0) }; WAYS];
        self.buckets = std::iter::repeat_with(empty).take(buckets).collect();
    }

    fn bucket(&self, hash: u64) -> Option<&[Entry; WAYS]> {
        self.buckets.get(hash as usize & self.buckets.len().wrapping_sub(1))
    }

    /// Returns the hint for this hash if `is_it` confirms the hint.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let entries = self.bucket(hash)?.iter().map(|entry| entry.load(Relaxed));
        let mut hints = entries.filter(|entry| entry ^ tag(hash) <= u64::from(u32::MAX));
        hints.find(|guess| is_it(*guess as u32)).map(|guess| guess as u32)
    }

    /// Records the position of an item with this hash. Displaces the oldest hint of its bucket.
    pub(crate) fn record(&self, hash: u64, place: u32) {
        let Some(bucket) = self.bucket(hash) else { return };
        let mut next = tag(hash) | u64::from(place);
        for entry in bucket {
            let before = entry.load(Relaxed);
            entry.store(next, Relaxed);
            if before == 0 || before == tag(hash) | u64::from(place) {
                return;
            }
            next = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found_until_others_of_its_bucket_come() {
        let mut hints = LookupHints::default();
        hints.record(1 << 40, 7);
        assert_eq!(hints.find(1 << 40, |_| true), None, "there is no room before it is made");
        hints.fit(8);
        for n in 0..5 {
            hints.record((n + 1) << 40, n as u32);
        }
        let found = (0..5).map(|n| hints.find((n + 1) << 40, |_| true)).collect::<Vec<_>>();
        assert_eq!(found, [None, Some(1), Some(2), Some(3), Some(4)], "the oldest has gone");
        assert_eq!(hints.find(2 << 40, |_| false), None, "it was not confirmed");
        assert_eq!(hints.find(2 << 40 | 1, |_| true), None, "another bucket");
        assert_eq!(hints.clone().find(2 << 40, |_| true), None);
    }
}
