//! Links that carry bytes now. Pure; `proxy.rs` obeys.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::SessionId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Nodes(usize, usize),
    /// Between a node and the client of a session; [`SessionId::NONE`] while there is none yet.
    Client(usize, SessionId),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// Unordered pairs of nodes, the smaller first.
    cut: BTreeSet<(usize, usize)>,
    paused: BTreeSet<usize>,
    without_clients: BTreeSet<usize>,
    /// Sessions whose clients exchange nothing with any node.
    isolated: BTreeSet<SessionId>,
    /// Number of times that the connections of a node's clients were closed.
    closed: BTreeMap<usize, u64>,
}

impl Rules {
    /// Reports that bytes of this link wait for `heal`.
    pub(super) fn holds(&self, link: Link) -> bool {
        match link {
            Link::Nodes(a, b) => {
                self.cut.contains(&(a.min(b), a.max(b)))
                    || self.paused.contains(&a)
                    || self.paused.contains(&b)
            }
            Link::Client(node, session) => {
                self.paused.contains(&node)
                    || self.without_clients.contains(&node)
                    || self.isolated.contains(&session)
            }
        }
    }

    /// Returns the link's generation: the proxy closes connections of an older generation.
    pub(super) fn generation(&self, link: Link) -> u64 {
        match link {
            Link::Nodes(..) => 0,
            Link::Client(node, _) => self.closed.get(&node).copied().unwrap_or_default(),
        }
    }

    /// Cuts every link between the two sides.
    pub(super) fn cut(&mut self, left: &[usize], right: &[usize]) {
        for a in left {
            self.cut.extend(right.iter().filter(|b| *b != a).map(|b| (*a.min(b), *a.max(b))));
        }
    }

    pub(super) fn pause(&mut self, node: usize) {
        self.paused.insert(node);
    }

    pub(super) fn resume(&mut self, node: usize) {
        self.paused.remove(&node);
    }

    pub(super) fn cut_clients(&mut self, node: usize) {
        self.without_clients.insert(node);
    }

    pub(super) fn isolate(&mut self, session: SessionId) {
        self.isolated.insert(session);
    }

    pub(super) fn close_clients(&mut self, node: usize) {
        *self.closed.entry(node).or_default() += 1;
    }

    pub(super) fn heal(&mut self) {
        *self = Rules { closed: std::mem::take(&mut self.closed), ..Rules::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_goes_both_ways_and_leaves_each_side_whole() {
        let mut rules = Rules::default();
        rules.cut(&[0], &[1, 2]);
        assert!(rules.holds(Link::Nodes(0, 2)) && rules.holds(Link::Nodes(1, 0)));
        assert!(!rules.holds(Link::Nodes(2, 1)), "one side");
        assert!(!rules.holds(Link::Client(0, SessionId(7))), "clients reach all");
        rules.heal();
        assert_eq!(rules, Rules::default());
    }

    #[test]
    fn a_paused_node_exchanges_nothing_and_an_isolated_session_reaches_nobody() {
        let mut rules = Rules::default();
        rules.pause(1);
        rules.isolate(SessionId(7));
        assert!(rules.holds(Link::Nodes(2, 1)) && rules.holds(Link::Client(1, SessionId(8))));
        assert!(rules.holds(Link::Client(0, SessionId(7))) && !rules.holds(Link::Client(0, SessionId(8))));
        rules.resume(1);
        assert!(!rules.holds(Link::Nodes(2, 1)));
    }

    #[test]
    fn closing_concerns_the_connections_that_are_open_then() {
        let mut rules = Rules::default();
        let link = Link::Client(2, SessionId(7));
        let before = rules.generation(link);
        rules.close_clients(2);
        assert_ne!(rules.generation(link), before);
        assert_eq!(rules.generation(Link::Client(1, SessionId(7))), before);
        rules.heal();
        assert_ne!(rules.generation(link), before, "healing brings no connection back");
    }
}
