//! Which links are cut, and by how many faults: a link works again when the last of these faults ends.

use std::collections::BTreeMap;

use rowlock_world::network::Network;
use rowlock_world::time::HostId;

/// A direction between two hosts.
pub type Link = (HostId, HostId);

/// The faults that lie on each link.
#[derive(Debug, Default)]
pub struct Cuts(BTreeMap<Link, u32>);

impl Cuts {
    /// One more fault on each of these links.
    pub fn cut(&mut self, network: &Network, links: &[Link]) {
        for link in links {
            let faults = self.0.entry(*link).or_default();
            *faults += 1;
            if *faults == 1 {
                network.cut(link.0, link.1);
            }
        }
    }

    /// One less.
    pub fn join(&mut self, network: &Network, links: &[Link]) {
        for link in links {
            let faults = self.0.get_mut(link).expect("Invariant: a link is joined as often as it was cut");
            *faults -= 1;
            if *faults == 0 {
                self.0.remove(link);
                network.join(link.0, link.1);
            }
        }
    }
}

/// All links from one group to the other, and back.
pub fn between(left: &[HostId], right: &[HostId]) -> Vec<Link> {
    let mut links = one_way(left, right);
    links.extend(one_way(right, left));
    links
}

/// All links from one group to the other.
pub fn one_way(from: &[HostId], to: &[HostId]) -> Vec<Link> {
    let pairs = from.iter().flat_map(|from| to.iter().map(|to| (*from, *to)));
    pairs.filter(|(from, to)| from != to).collect()
}
