//! Fingerprint of the whole state: a sum of one hash per znode and per session, maintained by subtraction and
//! addition. Nodes can compare replicas at any log index for the price of reading a number.
//!
//! The fingerprint detects accidental differences (bugs, flipped bits), not malice. Invariant: the function
//! never changes silently: snapshots contain the fingerprint, and golden files pin the function.

/// An odd number with mixed bits (the fraction of the golden ratio).
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;

/// Hashes a sequence of words and byte strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hasher(u64);

impl Hasher {
    /// Begins a hash; `domain` separates kinds of items.
    pub(crate) const fn new(domain: u64) -> Self {
        Hasher(SEED).word(domain)
    }

    pub(crate) const fn word(self, word: u64) -> Self {
        // Without the addition, a word equal to the state would erase all earlier words.
        let product = (self.0 ^ word) as u128 * MULTIPLIER as u128;
        Hasher(
            (product as u64 ^ (product >> 64) as u64).wrapping_add(self.0.rotate_left(23)).wrapping_add(SEED),
        )
    }

    /// Adds a signed number.
    pub(crate) fn int(self, number: i64) -> Self {
        self.word(number as u64)
    }

    /// Adds a byte string and its length.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        crate::steps::take(bytes.len() / 64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self = self.word(u64::from_le_bytes(*word));
        }
        let tail = match bytes.last_chunk::<8>() {
            // Bytes of the last eight that are not in a word yet, followed by zeros.
            Some(last) if !rest.is_empty() => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
            Some(_) => 0,
            None => rest.iter().rev().fold(0, |tail, byte| tail << 8 | u64::from(*byte)),
        };
        self.word(tail).word(bytes.len() as u64)
    }

    pub(crate) fn finish(self) -> u64 {
        let mut h = self.0;
        h ^= h >> 32;
        h = h.wrapping_mul(MULTIPLIER);
        h ^ (h >> 29)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_hash_as_words_a_zero_padded_rest_and_the_length() {
        let bytes: Vec<u8> = (1..=40).collect();
        for length in 0..=bytes.len() {
            let mut expected = Hasher::new(1);
            let mut padded = bytes[..length].to_vec();
            padded.resize(length / 8 * 8 + 8, 0);
            for word in padded.as_chunks::<8>().0 {
                expected = expected.word(u64::from_le_bytes(*word));
            }
            expected = expected.word(length as u64);
            assert_eq!(Hasher::new(1).bytes(&bytes[..length]).finish(), expected.finish(), "{length}");
        }
    }

    #[test]
    fn every_bit_and_every_boundary_counts() {
        let base = Hasher::new(1).bytes(b"rowlock").int(-1).finish();
        assert_eq!(base, Hasher::new(1).bytes(b"rowlock").int(-1).finish());
        assert_ne!(base, Hasher::new(2).bytes(b"rowlock").int(-1).finish());
        assert_ne!(base, Hasher::new(1).bytes(b"rowlocl").int(-1).finish());
        assert_ne!(base, Hasher::new(1).bytes(b"rowlock\0").int(-1).finish());
        assert_ne!(base, Hasher::new(1).bytes(b"rowlock").int(1).finish());
        assert_ne!(
            Hasher::new(1).bytes(b"ab").bytes(b"c").finish(),
            Hasher::new(1).bytes(b"a").bytes(b"bc").finish()
        );
    }
}
