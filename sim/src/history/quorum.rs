//! Quorums of a cluster whose voters may be changing.

use std::collections::BTreeSet;

/// Sets of voters; a quorum has a majority of each.
#[derive(Clone, Copy, Debug)]
pub struct Quorum<'a, T>(pub &'a [BTreeSet<T>]);

impl<T: Ord + Copy> Quorum<'_, T> {
    pub fn is_quorum(&self, nodes: &BTreeSet<T>) -> bool {
        !self.0.is_empty() && self.0.iter().all(|voters| Self::is_most(nodes, voters))
    }

    /// Returns whether these nodes are more than half of the voters.
    pub fn is_most(nodes: &BTreeSet<T>, voters: &BTreeSet<T>) -> bool {
        voters.intersection(nodes).count() * 2 > voters.len()
    }

    /// Returns the voters of all sets.
    pub fn voters(&self) -> BTreeSet<T> {
        self.0.iter().flatten().copied().collect()
    }

    /// Returns whether some quorum of these nodes is fully connected.
    pub fn has_core(&self, nodes: &BTreeSet<T>, is_clear: impl Fn(T, T) -> bool) -> bool {
        let nodes: Vec<T> = self.voters().intersection(nodes).copied().collect();
        self.extends_to_a_core(&mut BTreeSet::new(), &nodes, &is_clear)
    }

    /// Returns whether some of `others` extend `core`, which is fully connected, to a quorum.
    fn extends_to_a_core(
        &self,
        core: &mut BTreeSet<T>,
        others: &[T],
        is_clear: &impl Fn(T, T) -> bool,
    ) -> bool {
        if self.is_quorum(core) {
            return true;
        }
        let Some((next, others)) = others.split_first() else { return false };
        if core.iter().all(|node| is_clear(*node, *next)) {
            core.insert(*next);
            if self.extends_to_a_core(core, others, is_clear) {
                return true;
            }
            core.remove(next);
        }
        self.extends_to_a_core(core, others, is_clear)
    }
}
