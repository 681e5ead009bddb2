//! Random numbers of simulations, scripts and mutations: xoshiro256** seeded by SplitMix64 (Blackman and
//! Vigna, public domain). Implemented here so that a seed always means the same run, whatever a dependency
//! changes.

#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Rng(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    pub fn u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number below `n`. The bias of the multiplication method is below 2^-32 for the small `n`
    /// used here.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "nothing to choose from");
        ((u128::from(self.u64()) * n as u128) >> 64) as usize
    }

    /// Returns true with a probability of `percent`.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Returns an index, chosen in proportion to its weight.
    pub fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut at = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if at < *weight {
                return index;
            }
            at -= weight;
        }
        unreachable!("at is below the sum of the weights")
    }

    /// Returns one of `items`, chosen in proportion to its weight, the first element of each pair.
    pub fn pick_weighted<T: Copy>(&mut self, items: &[(usize, T)]) -> T {
        let weights: Vec<usize> = items.iter().map(|(weight, _)| *weight).collect();
        items[self.weighted(&weights)].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut rng = Rng::new(1);
        let first: Vec<u64> = (0..3).map(|_| rng.u64()).collect();
        assert_eq!(first, [0xb3f2_af6d_0fc7_10c5, 0x853b_5596_4736_4cea, 0x92f8_9756_082a_4514]);
    }

    #[test]
    fn below_and_weighted_reach_exactly_their_range() {
        let mut rng = Rng::new(7);
        let mut seen = [0; 5];
        for _ in 0..1_000 {
            seen[rng.below(5)] += 1;
        }
        assert!(seen.iter().all(|n| (100..300).contains(n)), "{seen:?}");
        let mut seen = [0; 3];
        for _ in 0..1_000 {
            seen[rng.weighted(&[1, 0, 9])] += 1;
            assert_ne!(rng.pick_weighted(&[(1, 'a'), (0, 'b')]), 'b');
        }
        assert!(seen[1] == 0 && seen[0] > 50 && seen[2] > 800, "{seen:?}");
    }
}
