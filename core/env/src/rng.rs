//! Randomness for everything outside the replicated state: passwords, jitter, names.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use rand::RngExt;

use crate::world;

pub fn u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Returns a number below `n`, or 0 for `n` = 0. The distribution is even up to an error of n / 2^64.
pub fn below(n: u64) -> u64 {
    let wide = u128::from(u64()) * u128::from(n);
    u64::try_from(wide >> 64).unwrap_or_default()
}

pub fn fill(bytes: &mut [u8]) {
    match world::current() {
        Some(world) => world.random(bytes),
        None => rand::rng().fill(bytes),
    }
}

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
