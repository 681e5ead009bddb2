//! Machines that run nodes, and the role of each node as far as the operator knows.
//!
//! Invariant: a machine whose node was lost or removed is never used again. So no node returns under a number
//! whose votes the node has forgotten.

use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_proto::NodeId;

use super::node::address;
use super::node_statuses::node_id;
use super::shape::Shape;

/// Use of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machine {
    /// No node has run here yet.
    Spare,
    /// Runs a node, possibly down for a while.
    InUse,
    /// The node was lost or removed.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Voter,
    /// A member without a vote.
    Learner,
    Stranger,
    /// The operator gave up a request about the node. The request may have been carried out.
    Unknown,
}

/// Remains of a node's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    Whole,
    /// An older copy. The node may refuse to start, and is restarted repeatedly.
    Older,
    /// No data. The node may refuse to start.
    Gone,
}

#[derive(Clone, Copy)]
struct Entry {
    machine: Machine,
    /// Role that the operator has requested.
    part: Part,
    /// Whether the cluster began with the node as a voter.
    is_founder: bool,
    /// Whether bits on the disk have flipped. If so, the node may refuse to start with an error.
    is_damaged: bool,
    data: Data,
    /// Number of changes of the node's peer port.
    moves: u16,
}

impl Entry {
    fn new(machine: Machine, part: Part) -> Entry {
        let is_founder = part == Part::Voter;
        Entry { machine, part, is_founder, is_damaged: false, data: Data::Whole, moves: 0 }
    }

    fn has_forgotten(&self) -> bool {
        self.data != Data::Whole
    }
}

/// One entry per place. Clones share the membership.
#[derive(Clone)]
pub struct Membership {
    entries: Arc<Mutex<Vec<Entry>>>,
    /// Whether the cluster removes and readmits nodes that lost their data.
    readmits: bool,
}

impl Membership {
    /// Creates the founders, in use, followed by `spares` unused machines.
    pub fn new(shape: &Shape, spares: usize) -> Self {
        let part = |place| if place < shape.voters { Part::Voter } else { Part::Learner };
        let founders = (0..shape.nodes()).map(|place| Entry::new(Machine::InUse, part(place)));
        let spares = (0..spares).map(|_| Entry::new(Machine::Spare, Part::Stranger));
        let entries = founders.chain(spares).collect();
        Membership { entries: Arc::new(Mutex::new(entries)), readmits: shape.readmits }
    }

    /// Returns the places whose nodes should serve when no fault is active.
    pub fn in_use(&self) -> Vec<usize> {
        self.places(|entry| entry.machine == Machine::InUse)
    }

    /// Returns whether a process may run at `place`.
    pub fn is_in_use(&self, place: usize) -> bool {
        self.entries.lock().get(place).is_some_and(|entry| entry.machine == Machine::InUse)
    }

    /// Takes a machine into use. Returns false if the machine is not a spare.
    pub fn take_into_use(&self, place: usize) -> bool {
        let mut entries = self.entries.lock();
        let spare = entries.get_mut(place).filter(|entry| entry.machine == Machine::Spare);
        spare.is_some_and(|entry| {
            entry.machine = Machine::InUse;
            true
        })
    }

    /// Marks the machine at this place as gone for good.
    pub fn lose(&self, place: usize) {
        self.entries.lock()[place].machine = Machine::Gone;
    }

    /// Marks the disk as damaged by flipped bits.
    pub fn damage(&self, place: usize) {
        self.entries.lock()[place].is_damaged = true;
    }

    /// Moves the node to another peer port from its next start.
    pub fn move_to_another_port(&self, place: usize) {
        self.entries.lock()[place].moves += 1;
    }

    /// Marks the node as returning with less data than before.
    pub fn forget(&self, place: usize, left: Data) {
        self.entries.lock()[place].data = left;
    }

    /// Returns whether the node came back with less data than before.
    pub fn has_forgotten(&self, place: usize) -> bool {
        self.entries.lock()[place].has_forgotten()
    }

    /// Returns the founder that lost all its data and must vote again. There is such a node only if no other
    /// disk has lost data.
    pub fn votes_again(&self) -> Option<usize> {
        let forgetful = self.places(|entry| entry.machine == Machine::InUse && entry.has_forgotten());
        let entries = self.entries.lock();
        let is_certain = |entry: &Entry| {
            let may_vote = entry.part != Part::Voter || entry.machine == Machine::InUse;
            !entry.is_damaged && entry.part != Part::Unknown && may_vote
        };
        let &[one] = &*forgetful else { return None };
        let is_owed = self.readmits && entries.iter().all(is_certain);
        let Entry { data, part, is_founder, .. } = entries[one];
        (is_owed && data == Data::Gone && part == Part::Voter && is_founder).then_some(one)
    }

    /// Returns whether damage may make the node refuse to start.
    pub fn is_damaged(&self, place: usize) -> bool {
        self.entries.lock()[place].is_damaged
    }

    /// Begins a new cluster with `voters` as its only members. All remaining nodes have empty disks or are
    /// gone.
    pub fn found_new_cluster(&self, voters: &[usize]) {
        let mut entries = self.entries.lock();
        for (place, entry) in entries.iter_mut().enumerate() {
            entry.is_founder = voters.contains(&place);
            entry.part = if entry.is_founder { Part::Voter } else { Part::Stranger };
            (entry.is_damaged, entry.data) = (false, Data::Whole);
        }
    }

    /// Returns whether the present cluster began with the node at this place as a voter.
    pub fn is_founder(&self, place: usize) -> bool {
        self.entries.lock()[place].is_founder
    }

    /// Records the node's role as the operator knows it.
    pub fn set_part(&self, place: usize, part: Part) {
        self.entries.lock()[place].part = part;
    }

    /// Returns the role of an entry; unknown while the cluster removes and readmits the node, because the
    /// role then depends on the peers.
    fn part_of(&self, entry: &Entry) -> Part {
        if self.readmits && entry.has_forgotten() { Part::Unknown } else { entry.part }
    }

    /// Returns the node's role, as far as the operator knows.
    pub fn part(&self, node: NodeId) -> Part {
        let entries = self.entries.lock();
        let place = usize::try_from(node.0).ok().and_then(|number| number.checked_sub(1));
        place.and_then(|place| entries.get(place)).map_or(Part::Stranger, |entry| self.part_of(entry))
    }

    /// Returns the nodes with a role.
    pub fn of_part(&self, part: Part) -> Vec<NodeId> {
        self.places(|entry| self.part_of(entry) == part).into_iter().map(node_id).collect()
    }

    /// Returns the nodes that a new node should know: all members, present and future.
    pub fn known(&self) -> Vec<usize> {
        self.places(|entry| entry.machine == Machine::InUse || self.part_of(entry) != Part::Stranger)
    }

    /// Returns the client address of the node at `place`.
    pub fn endpoint(&self, place: usize) -> String {
        format!("{}:2181", address(place))
    }

    /// Returns the peer address of the node at `place`.
    pub fn peer_addr(&self, place: usize) -> String {
        format!("{}:{}", address(place), self.peer_port(place))
    }

    /// Returns the port of the peer address.
    pub fn peer_port(&self, place: usize) -> u16 {
        2281 + self.entries.lock()[place].moves
    }

    /// Returns the applications' current connect string: all members.
    pub fn endpoints(&self) -> String {
        let members = self.places(|entry| matches!(self.part_of(entry), Part::Voter | Part::Learner));
        let all: Vec<String> = members.into_iter().map(|place| self.endpoint(place)).collect();
        all.join(",")
    }

    fn places(&self, is_wanted: impl Fn(&Entry) -> bool) -> Vec<usize> {
        let entries = self.entries.lock();
        entries.iter().enumerate().filter(|(_, entry)| is_wanted(entry)).map(|(place, _)| place).collect()
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Membership").field(&self.in_use()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_node_without_data_must_vote_again_if_peers_allow_it() {
        let membership = Membership { readmits: true, ..membership() };
        assert_eq!(membership.votes_again(), None);
        membership.forget(3, Data::Gone);
        assert_eq!(membership.votes_again(), None, "it did not vote before");
        membership.set_part(3, Part::Voter);
        assert_eq!(membership.votes_again(), None, "a learner by `cluster.toml` may wait for an operator");
        membership.forget(3, Data::Whole);
        membership.forget(2, Data::Gone);
        assert_eq!(membership.votes_again(), Some(2));
        membership.forget(2, Data::Older);
        assert_eq!(membership.votes_again(), None, "with older data it may stay away");
        membership.forget(2, Data::Gone);
        membership.set_part(1, Part::Unknown);
        assert_eq!(membership.votes_again(), None, "the voters are not known");
        membership.set_part(1, Part::Voter);
        membership.lose(1);
        assert_eq!(membership.votes_again(), None, "a voter is gone");
        membership.set_part(1, Part::Stranger);
        assert_eq!(membership.votes_again(), Some(2));
        membership.forget(0, Data::Gone);
        assert_eq!(membership.votes_again(), None, "two have lost theirs");
    }

    fn membership() -> Membership {
        Membership::new(&Shape { learners: 1, ..Shape::default() }, 1)
    }

    #[test]
    fn a_machine_is_used_once_and_never_after_its_loss() {
        let membership = membership();
        assert_eq!(membership.in_use(), [0, 1, 2, 3]);
        assert!(!membership.take_into_use(0) && !membership.take_into_use(5));
        assert!(membership.take_into_use(4) && !membership.take_into_use(4));
        membership.lose(4);
        assert!(!membership.take_into_use(4) && !membership.is_in_use(4));
    }

    #[test]
    fn the_role_of_a_readmitted_node_is_unknown() {
        let readmits = |readmits| Membership { readmits, ..membership() };
        for (membership, part) in [(readmits(true), Part::Unknown), (readmits(false), Part::Voter)] {
            membership.forget(3, Data::Gone);
            // The operator's job was begun before the node lost its data, and ends after that.
            membership.set_part(3, Part::Voter);
            assert_eq!(membership.part(NodeId(4)), part);
        }
    }

    #[test]
    fn applications_know_members_and_new_nodes_know_future_members() {
        let membership = membership();
        membership.take_into_use(4);
        membership.lose(1);
        assert_eq!(membership.endpoints(), "10.0.0.1:2181,10.0.0.2:2181,10.0.0.3:2181,10.0.0.4:2181");
        assert_eq!(membership.known(), [0, 1, 2, 3, 4]);
        membership.set_part(1, Part::Stranger);
        membership.set_part(4, Part::Voter);
        assert_eq!(membership.endpoints(), "10.0.0.1:2181,10.0.0.3:2181,10.0.0.4:2181,10.0.0.5:2181");
        assert_eq!(membership.known(), [0, 2, 3, 4]);
        assert_eq!(membership.of_part(Part::Learner), [NodeId(4)]);
        assert_eq!(membership.part(NodeId(2)), Part::Stranger);
    }
}
