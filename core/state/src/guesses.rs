//! Where something was found the last time, by a hash of what it was looked for by: a guess, to be
//! confirmed before it is used.
//!
//! So a thing that is asked for again is found in as many steps among a million as among ten. A guess that is
//! wrong, or has had to go for another one, costs the search that it would have spared: names that were
//! chosen to have hashes alike make nothing slower than it is without guesses.
//!
//! Invariant: guesses decide nothing but how long a search takes. Copies of the state begin without any.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Guesses that share a bucket.
const WAYS: usize = 4;
const BUCKETS_MIN: usize = 4;

/// A part of the hash, and where the thing was, in one number; 0: no guess.
type Entry = AtomicU64;

#[derive(Debug, Default)]
pub(crate) struct Guesses {
    /// None, or a power of two.
    buckets: Box<[[Entry; WAYS]]>,
}

impl Clone for Guesses {
    fn clone(&self) -> Self {
        Guesses::default()
    }
}

/// The part of a hash that is kept. Never 0.
fn tag(hash: u64) -> u64 {
    (hash & !(u64::from(u32::MAX))) | 1 << 32
}

impl Guesses {
    /// Makes room for the guesses of this many things: two places for each.
    #[inline]
    pub(crate) fn fit(&mut self, things: usize) {
        if self.buckets.len() * WAYS < 2 * things {
            self.grow(things);
        }
    }

    /// They all go: this comes seldom, and the next search for each notes it again.
    #[cold]
    fn grow(&mut self, things: usize) {
        let buckets = (4 * things / WAYS).next_power_of_two().max(BUCKETS_MIN);
        let empty = || [const { AtomicU64::new(0) }; WAYS];
        self.buckets = std::iter::repeat_with(empty).take(buckets).collect();
    }

    fn bucket(&self, hash: u64) -> Option<&[Entry; WAYS]> {
        self.buckets.get(hash as usize & self.buckets.len().wrapping_sub(1))
    }

    /// Returns the guess for this hash if `is_it` confirms it.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let entries = self.bucket(hash)?.iter().map(|entry| entry.load(Relaxed));
        let mut guesses = entries.filter(|entry| entry ^ tag(hash) <= u64::from(u32::MAX));
        guesses.find(|guess| is_it(*guess as u32)).map(|guess| guess as u32)
    }

    /// Notes where a thing with this hash was found. The oldest guess of its bucket goes.
    pub(crate) fn note(&self, hash: u64, place: u32) {
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
        let mut guesses = Guesses::default();
        guesses.note(1 << 40, 7);
        assert_eq!(guesses.find(1 << 40, |_| true), None, "there is no room before it is made");
        guesses.fit(8);
        for n in 0..5 {
            guesses.note((n + 1) << 40, n as u32);
        }
        let found = (0..5).map(|n| guesses.find((n + 1) << 40, |_| true)).collect::<Vec<_>>();
        assert_eq!(found, [None, Some(1), Some(2), Some(3), Some(4)], "the oldest has gone");
        assert_eq!(guesses.find(2 << 40, |_| false), None, "it was not confirmed");
        assert_eq!(guesses.find(2 << 40 | 1, |_| true), None, "another bucket");
        assert_eq!(guesses.clone().find(2 << 40, |_| true), None);
    }
}
