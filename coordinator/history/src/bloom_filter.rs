//! Tells which locks and sessions are surely not in a segment or in a block of one, so that a question about
//! one of them does not have to open every segment and look through every block there is. (A Bloom filter.)

use rowlock_proto::SessionId;
use serde::{Deserialize, Serialize};

/// Of a segment, 8 KiB: with 5,000 names in it, one question in 400 reads it for nothing.
pub(super) const SEGMENT_BYTES: usize = 8 << 10;
/// Of a block, 2 KiB: with 1,200 names in it, one question in 400 reads it for nothing.
pub(super) const BLOCK_BYTES: usize = 2 << 10;
/// Bits of each name.
const MARKS: u32 = 6;
/// An odd number whose bits look like chance (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A lock or a session, as Bloom filters know it: different ones may rarely have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name(pub u32);

impl Name {
    /// Of a lock's path.
    pub fn of_lock(path: &[u8]) -> Name {
        Name(crc32fast::hash(path))
    }

    pub fn of_session(session: SessionId) -> Name {
        let spread = session.0.cast_unsigned().wrapping_mul(SPREAD) >> 32;
        Name(u32::try_from(spread).expect("Invariant: 32 bits are left of 64"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BloomFilter(Vec<u8>);

impl BloomFilter {
    /// Of nothing, with `len` bytes.
    pub fn new(len: usize) -> BloomFilter {
        BloomFilter(vec![0; len])
    }

    /// Puts a name in.
    pub fn add(&mut self, name: Name) {
        let bits = self.bits();
        for bit in marks(name, bits) {
            self.0[bit / 8] |= 1 << (bit % 8);
        }
    }

    /// False: it was not put in.
    pub fn may_hold(&self, name: Name) -> bool {
        marks(name, self.bits())
            .all(|bit| self.0.get(bit / 8).is_none_or(|byte| byte & (1 << (bit % 8)) != 0))
    }

    fn bits(&self) -> u32 {
        u32::try_from(self.0.len() * 8).unwrap_or(u32::MAX)
    }
}

fn marks(name: Name, bits: u32) -> impl Iterator<Item = usize> {
    let spread = (u64::from(name.0) + 1).wrapping_mul(SPREAD);
    let spread = (spread ^ (spread >> 29)).wrapping_mul(SPREAD);
    let (first, step) = (spread >> 32, spread & 0xffff_ffff);
    // The upper bits of a product by the size fall evenly into it, which spares a division.
    (0..u64::from(MARKS))
        .map(move |i| (((first + i * (step | 1)) & 0xffff_ffff) * u64::from(bits)) >> 32)
        .map(|bit| usize::try_from(bit).expect("Invariant: it is below a number of 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_there_is_denied_and_little_else_is_promised() {
        for (names, len) in [(2_500, SEGMENT_BYTES), (600, BLOCK_BYTES)] {
            let mut bloom = BloomFilter::new(len);
            let lock = |n: i64| Name::of_lock(format!("/locks/{n}").as_bytes());
            let session = |n: i64| Name::of_session(SessionId(0x0100_0000_0000_0000 + n));
            for n in 0..names {
                bloom.add(lock(n));
                bloom.add(session(n));
            }
            assert!((0..names).all(|n| bloom.may_hold(lock(n)) && bloom.may_hold(session(n))));
            let others = names..names + 10_000;
            let in_vain = others.filter(|n| bloom.may_hold(lock(*n)) || bloom.may_hold(session(*n))).count();
            assert!(in_vain < 100, "{in_vain} of 20,000");
        }
    }
}
