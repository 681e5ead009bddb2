//! Corrupted input: valid bytes with parts changed, removed, doubled or moved. For the tests of code that
//! reads files, frames and requests from untrusted sources.

/// Values at which lengths and counts break.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xfb, 0xfc, 0xfd, 0xff];

/// Source of damage; the same seed damages the same bytes in the same way.
pub struct Spoiler(u64);

impl Spoiler {
    pub fn new(seed: u64) -> Spoiler {
        Spoiler(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % end.max(1) as u64).expect("less than a usize")
    }

    /// Returns `good` with one to four kinds of damage.
    pub fn spoil(&mut self, good: &[u8]) -> Vec<u8> {
        let mut bytes = good.to_vec();
        for _ in 0..=self.below(4) {
            self.damage(&mut bytes);
        }
        bytes
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let (one, other) = (self.below(bytes.len() + 1), self.below(bytes.len() + 1));
        let range = one.min(other)..one.max(other).min(one.min(other) + 64);
        match self.below(7) {
            0 => bytes.truncate(one),
            1 => drop(bytes.drain(range)),
            2 => {
                let again = bytes[range].to_vec();
                bytes.splice(one..one, again);
            }
            3 => {
                let edges = vec![EDGES[self.below(EDGES.len())]; self.below(12)];
                bytes.splice(one..one, edges);
            }
            4 => bytes[range].reverse(),
            5 if one < bytes.len() => bytes[one] = EDGES[self.below(EDGES.len())],
            _ if one < bytes.len() => bytes[one] ^= 1 << self.below(8),
            _ => bytes.push(EDGES[other % EDGES.len()]),
        }
    }
}
