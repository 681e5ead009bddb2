//! Randomness for everything outside the replicated state: passwords, jitter, names.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use rand::RngExt;

/// 64 random bits.
pub fn u64() -> u64 {
    rand::rng().random()
}

/// A number below `n`, evenly distributed; 0 when `n` is 0.
pub fn below(n: u64) -> u64 {
    if n == 0 { 0 } else { rand::rng().random_range(0..n) }
}

/// Fills `bytes` from a cryptographic generator.
pub fn fill(bytes: &mut [u8]) {
    rand::rng().fill(bytes);
}

/// Puts `items` into random order.
pub fn shuffle<T>(items: &mut [T]) {
    for i in (1..items.len()).rev() {
        let j = usize::try_from(below(i as u64 + 1)).unwrap_or(0);
        items.swap(i, j);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn below_stays_below_and_shuffle_keeps_the_items() {
        assert!((0..1000).all(|_| super::below(7) < 7));
        assert_eq!(super::below(0), 0);
        let mut items: Vec<u32> = (0..50).collect();
        super::shuffle(&mut items);
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<u32>>());
    }
}
