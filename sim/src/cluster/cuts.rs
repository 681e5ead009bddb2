//! Counts the faults on each link: a cut or distrusted link recovers when the last of its faults ends.

use std::collections::BTreeMap;

use rowlock_world::network::Network;
use rowlock_world::time::HostId;

/// One direction between two hosts.
pub type Link = (HostId, HostId);

/// Number of faults on each link.
#[derive(Debug, Default)]
struct Counts(BTreeMap<Link, u32>);

impl Counts {
    /// Adds a fault. Returns whether this is the first fault on the link.
    fn add(&mut self, link: Link) -> bool {
        let faults = self.0.entry(link).or_default();
        *faults += 1;
        *faults == 1
    }

    /// Removes a fault. Returns whether this was the last fault on the link.
    fn take(&mut self, link: Link) -> bool {
        let faults = self.0.get_mut(&link).expect("Invariant: a fault on a link ends as often as it begins");
        *faults -= 1;
        let is_last = *faults == 0;
        if is_last {
            self.0.remove(&link);
        }
        is_last
    }
}

/// Links whose two hosts do not trust each other.
#[derive(Debug, Default)]
pub struct Distrusts(Counts);

impl Distrusts {
    /// Adds a fault to each link: resets connections and makes handshakes fail.
    pub fn begin(&mut self, network: &Network, links: &[Link]) {
        for (from, to) in links.iter().copied() {
            if self.0.add((from, to)) {
                network.distrust(from, to);
            }
            network.reset_between(from, to);
        }
    }

    pub fn end(&mut self, network: &Network, links: &[Link]) {
        for (from, to) in links.iter().copied() {
            if self.0.take((from, to)) {
                network.trust(from, to);
            }
        }
    }
}

/// Cuts on each link.
#[derive(Debug, Default)]
pub struct Cuts(Counts);

impl Cuts {
    /// Adds a cut to each link.
    pub fn cut(&mut self, network: &Network, links: &[Link]) {
        for link in links {
            if self.0.add(*link) {
                network.cut(link.0, link.1);
            }
        }
    }

    pub fn join(&mut self, network: &Network, links: &[Link]) {
        for link in links {
            if self.0.take(*link) {
                network.join(link.0, link.1);
            }
        }
    }
}

/// Returns all links between two groups, in both directions.
pub fn between(left: &[HostId], right: &[HostId]) -> Vec<Link> {
    let mut links = one_way(left, right);
    links.extend(one_way(right, left));
    links
}

/// Returns all links from one group to another.
pub fn one_way(from: &[HostId], to: &[HostId]) -> Vec<Link> {
    let pairs = from.iter().flat_map(|from| to.iter().map(|to| (*from, *to)));
    pairs.filter(|(from, to)| from != to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_recovers_when_its_last_fault_ends() {
        let (mut counts, link) = (Counts::default(), (HostId(1), HostId(2)));
        assert!(counts.add(link) && !counts.add(link) && counts.add((link.1, link.0)));
        assert!(!counts.take(link) && counts.take(link) && counts.take((link.1, link.0)));
        assert!(counts.0.is_empty());
    }
}
