//! Conclusions of a starting node from the introductions of the other nodes. Pure.
//!
//! A node with a log asks half of the other voters: together with itself a quorum. If an answer names later
//! voters than the node's log, half of the later voters suffice. A node without a log may have lost its log:
//! the node asks more than half of the others, and these must be admitted themselves, unless all nodes are
//! empty.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rowlock_consensus::peer::Introduction;
use rowlock_env::decides;
use rowlock_proto::{Incarnation, NodeId};
use rowlock_wal::FolderState;
use rowlock_wal::advice::Heard;

use super::BootstrapError;

pub(super) type Answers = BTreeMap<NodeId, Introduction>;

/// A starting node's knowledge of itself.
#[derive(Clone, Debug)]
pub(super) struct OwnState {
    pub(super) node: NodeId,
    pub(super) state: FolderState,
    pub(super) is_learner: bool,
    /// Voters of the node's configuration.
    pub(super) founders: BTreeSet<NodeId>,
    pub(super) voters: BTreeSet<NodeId>,
    /// Index of the log entry that names the `voters`.
    pub(super) members_at: Option<u64>,
    pub(super) last_index: Option<u64>,
    pub(super) term: u64,
    /// Number of acknowledged entries that the log may lack, because the node has forgotten them and knows
    /// so.
    pub(super) may_lack: u64,
    /// The node lost its data, or may have: the leader removes the node from the members and adds the node
    /// again.
    pub(super) comes_again: bool,
}

impl OwnState {
    /// Returns whether the node is empty and no other node has confirmed a new number yet.
    pub(super) fn is_newcomer(&self) -> bool {
        decides!("node-is-newcomer", self.state == FolderState::Unknown && self.last_index.is_none())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    TakePart,
    /// Not yet: the answers of these nodes may be needed.
    WaitFor(Vec<NodeId>),
}

/// Decides whether the node may take part.
pub(super) fn decide(own: &OwnState, answers: &Answers) -> Result<Verdict, BootstrapError> {
    for (node, answer) in answers {
        check_log(own, *node, answer)?;
    }
    if own.is_newcomer() { decide_newcomer(own, answers) } else { Ok(decide_known(own, answers)) }
}

fn decide_newcomer(own: &OwnState, answers: &Answers) -> Result<Verdict, BootstrapError> {
    check_membership(own, answers)?;
    let Some(newest) = newest(answers) else {
        // All nodes are empty. A majority of founders may begin; a learner waits for the founders.
        let others: Vec<NodeId> = own.founders.iter().filter(|node| **node != own.node).copied().collect();
        let here = others.iter().filter(|node| answers.contains_key(node)).count();
        if decides!("founders-are-here", !own.is_learner && (here + 1) * 2 > own.founders.len()) {
            return Ok(Verdict::TakePart);
        }
        return Ok(Verdict::WaitFor(without(&others, answers)));
    };
    let others: Vec<NodeId> = newest.voters.iter().filter(|node| **node != own.node).copied().collect();
    let vouches = |node: &&NodeId| answers.get(node).is_some_and(|answer| answer.is_admitted);
    let needed = if others.is_empty() { 0 } else { others.len() / 2 + 1 };
    if decides!("newcomer-is-vouched-for", others.iter().filter(vouches).count() >= needed) {
        return Ok(Verdict::TakePart);
    }
    Ok(Verdict::WaitFor(others.iter().filter(|node| !vouches(node)).copied().collect()))
}

fn decide_known(own: &OwnState, answers: &Answers) -> Verdict {
    let known_voters = if own.voters.is_empty() { own.founders.clone() } else { own.voters.clone() };
    // The log may end before a change of members. The voters in the log may be gone for good while the later
    // voters elect leaders.
    let later = newest(answers).filter(|known| known.members_at > own.members_at);
    let later = later.map(|known| known.voters.iter().copied().collect::<BTreeSet<NodeId>>());
    let later = later.filter(|voters| voters.contains(&own.node));
    let suffices = |voters: &BTreeSet<NodeId>| {
        let here = voters.iter().filter(|node| **node != own.node && answers.contains_key(node)).count();
        // With half of the voters and itself, a voter has a quorum. A node that does not vote needs no other
        // node.
        here >= if voters.contains(&own.node) { voters.len() / 2 } else { 0 }
    };
    if decides!("known-voters-are-here", suffices(&known_voters) || later.as_ref().is_some_and(suffices)) {
        return Verdict::TakePart;
    }
    let others = later.unwrap_or(known_voters).into_iter().filter(|node| *node != own.node);
    Verdict::WaitFor(without(&others.collect::<Vec<_>>(), answers))
}

fn without(nodes: &[NodeId], answers: &Answers) -> Vec<NodeId> {
    nodes.iter().filter(|node| !answers.contains_key(node)).copied().collect()
}

/// Records the nodes that are empty and wait. A node that answers no more may have given up, but stays
/// recorded.
pub(super) fn record_empty(empty: &mut BTreeSet<NodeId>, answers: &Answers) {
    for (node, answer) in answers {
        if decides!("answering-node-is-empty", answer.is_fresh() && !answer.is_admitted) {
            empty.insert(*node);
        } else {
            empty.remove(node);
        }
    }
}

/// Returns the empty voters of the configuration, this node among them, if the other voters are no majority:
/// the data of a majority is lost.
pub(super) fn majority_is_empty(own: &OwnState, empty: &BTreeSet<NodeId>) -> Option<Vec<NodeId>> {
    let is_empty = |node: &&NodeId| **node == own.node || empty.contains(node);
    let empty: Vec<NodeId> = own.founders.iter().filter(is_empty).copied().collect();
    ((own.founders.len() - empty.len()) * 2 <= own.founders.len()).then_some(empty)
}

/// Returns the incarnations of nodes that `me` has not met, as reported by others. The answer with the newest
/// members wins. Hearsay never replaces the incarnation of a met node.
pub(super) fn hearsay(
    me: NodeId,
    met: &[(NodeId, Incarnation)],
    answers: &Answers,
) -> BTreeMap<NodeId, Incarnation> {
    let mut newest_first: Vec<&Introduction> = answers.values().collect();
    newest_first.sort_by_key(|answer| Reverse(answer.members_at));
    let mut hearsay = BTreeMap::new();
    for (node, incarnation) in newest_first.into_iter().flat_map(|answer| &answer.known) {
        if *node != me && !met.iter().any(|(met, _)| met == node) {
            hearsay.entry(*node).or_insert(*incarnation);
        }
    }
    hearsay
}

/// Returns the introduction with the newest membership, among nodes with a log.
pub(super) fn newest(answers: &Answers) -> Option<&Introduction> {
    let established = answers.values().filter(|answer| !answer.is_fresh());
    established.max_by_key(|answer| answer.members_at)
}

/// Returns whether a majority of the voters has answered and has the data, without `me`.
pub(super) fn heard(me: NodeId, answers: &Answers) -> Heard {
    let Some(newest) = newest(answers) else { return Heard::Nothing };
    let has_data = |node: &&NodeId| {
        **node != me && answers.get(node).is_some_and(|answer| answer.is_admitted && !answer.is_fresh())
    };
    let count = newest.voters.iter().filter(has_data).count();
    if decides!("cluster-quorum-is-heard", count * 2 > newest.voters.len()) {
        Heard::Quorum
    } else {
        Heard::Nothing
    }
}

/// Returns whether the leader that the answers name has answered itself: the leader knows most. True also if
/// the answers name no leader.
pub(super) fn leader_has_answered(own: &OwnState, answers: &Answers) -> bool {
    let named = answers.values().filter(|answer| answer.leader.is_some()).max_by_key(|answer| answer.term);
    named
        .and_then(|answer| answer.leader)
        .is_none_or(|leader| leader == own.node || answers.contains_key(&leader))
}

/// Refuses a node that an existing cluster does not have as a member; such a node must join as a learner.
pub(super) fn check_membership(own: &OwnState, answers: &Answers) -> Result<(), BootstrapError> {
    match newest(answers) {
        Some(known)
            if !own.is_learner
                && !own.comes_again
                && !known.voters.contains(&own.node)
                && !known.learners.contains(&own.node) =>
        {
            Err(BootstrapError::NotAMember { node: own.node })
        }
        _ => Ok(()),
    }
}

/// Returns whether the others know a later membership without this node.
pub(super) fn was_removed(own: &OwnState, answers: &Answers) -> bool {
    newest(answers).is_some_and(|known| {
        known.members_at >= own.members_at
            && !known.voters.contains(&own.node)
            && !known.learners.contains(&own.node)
    })
}

/// Refuses a log with an end before this node's acknowledgement to `leader`.
pub(super) fn check_log(own: &OwnState, leader: NodeId, answer: &Introduction) -> Result<(), BootstrapError> {
    let Some(acknowledged) = answer.acknowledged else { return Ok(()) };
    // A later leader may have made the node truncate its log.
    let end = own.last_index.map_or(0, |last| last + 1).saturating_add(own.may_lack);
    let is_behind = own.term < answer.term || (own.term == answer.term && end <= acknowledged);
    if decides!("own-log-is-whole", !is_behind) {
        return Ok(());
    }
    if own.last_index.is_none() {
        let heard = Heard::Nothing;
        return Err(BootstrapError::DataLost { node: own.node, witness: leader, heard });
    }
    let (node, term, last) = (own.node, answer.term, own.last_index.unwrap_or(0));
    Err(BootstrapError::RolledBack { node, leader, term, acknowledged, last, heard: Heard::Nothing })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(nodes: &[u64]) -> BTreeSet<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn newcomer(node: u64, founders: &[u64]) -> OwnState {
        OwnState {
            node: NodeId(node),
            state: FolderState::Unknown,
            is_learner: false,
            founders: set(founders),
            voters: BTreeSet::new(),
            members_at: None,
            last_index: None,
            term: 0,
            may_lack: 0,
            comes_again: false,
        }
    }

    fn member(voters: &[u64]) -> Introduction {
        let voters = voters.iter().copied().map(NodeId).collect();
        Introduction {
            voters,
            members_at: Some(0),
            last_index: Some(9),
            is_admitted: true,
            term: 2,
            ..Default::default()
        }
    }

    fn wait_for(nodes: &[u64]) -> Result<Verdict, BootstrapError> {
        Ok(Verdict::WaitFor(nodes.iter().copied().map(NodeId).collect()))
    }

    #[test]
    fn a_majority_with_the_data_has_entries_and_excludes_this_node() {
        let (data, fresh) = (member(&[1, 2, 3]), Introduction::default());
        let empty = Introduction { is_admitted: false, ..data.clone() };
        let logged_at = |answers: &[(u64, &Introduction)]| {
            heard(
                NodeId(1),
                &answers.iter().map(|(node, logged_at)| (NodeId(*node), (*logged_at).clone())).collect(),
            )
        };
        assert_eq!(logged_at(&[(2, &data), (3, &data)]), Heard::Quorum);
        for nothing in [
            &[][..],
            &[(2, &data)],
            &[(1, &data), (2, &data)],
            &[(2, &data), (3, &fresh)],
            &[(2, &data), (3, &empty)],
            &[(2, &data), (4, &data)],
        ] {
            assert_eq!(logged_at(nothing), Heard::Nothing, "{nothing:?}");
        }
    }

    #[test]
    fn a_majority_of_empty_founders_begins_and_fewer_wait() {
        let own = newcomer(1, &[1, 2, 3]);
        assert_eq!(decide(&own, &Answers::new()), wait_for(&[2, 3]));
        let fresh = Introduction::default();
        assert_eq!(decide(&own, &[(NodeId(2), fresh.clone())].into()), Ok(Verdict::TakePart));
        let formed = Introduction { last_index: Some(0), ..member(&[1, 2, 3]) };
        assert_eq!(decide(&own, &[(NodeId(2), formed)].into()), Ok(Verdict::TakePart), "it waits for votes");
        let learner = OwnState { is_learner: true, ..newcomer(4, &[1, 2, 3]) };
        assert_eq!(decide(&learner, &[(NodeId(2), fresh)].into()), wait_for(&[1, 3]));
        assert_eq!(
            decide(&newcomer(1, &[1]), &Answers::new()),
            Ok(Verdict::TakePart),
            "nobody else is there"
        );
        assert_eq!(decide(&newcomer(1, &[1, 2]), &Answers::new()), wait_for(&[2]), "half is no majority");
    }

    #[test]
    fn an_empty_node_of_a_cluster_waits_for_most_of_the_others() {
        let own = newcomer(3, &[1, 2, 3]);
        let known = member(&[1, 2, 3]);
        assert_eq!(decide(&own, &[(NodeId(2), known.clone())].into()), wait_for(&[1]));
        let empty = Introduction::default();
        let answers = [(NodeId(1), empty), (NodeId(2), known.clone())].into();
        assert_eq!(decide(&own, &answers), wait_for(&[1]), "one that waits itself says nothing for others");
        let answers = [(NodeId(1), known.clone()), (NodeId(2), known)].into();
        assert_eq!(decide(&own, &answers), Ok(Verdict::TakePart));
        let (own, known) = (newcomer(5, &[1, 2, 3, 4, 5]), member(&[1, 2, 3, 4, 5]));
        let answers = |nodes: &[u64]| nodes.iter().map(|node| (NodeId(*node), known.clone())).collect();
        assert_eq!(decide(&own, &answers(&[1, 2])), wait_for(&[3, 4]));
        assert_eq!(decide(&own, &answers(&[1, 2, 4])), Ok(Verdict::TakePart));
    }

    #[test]
    fn a_learner_needs_also_those_that_vote_since_it_was_configured() {
        let own = OwnState { is_learner: true, ..newcomer(5, &[1, 2, 3]) };
        let known = member(&[1, 2, 3, 4]);
        let of = |nodes: &[u64]| nodes.iter().map(|node| (NodeId(*node), known.clone())).collect();
        assert_eq!(decide(&own, &of(&[2, 3])), wait_for(&[1, 4]), "two of four are not enough");
        assert_eq!(decide(&own, &of(&[2, 3, 4])), Ok(Verdict::TakePart));
    }

    /// Seed 60,239 of the simulated members: a wiped node met another wiped node, recorded hearsay of its old
    /// folder, and refused the node for ever.
    #[test]
    fn hearsay_counts_for_unmet_nodes_newest_members_first() {
        let says = |members_at, known: &[(u64, u128)]| {
            let known = known.iter().map(|(node, folder)| (NodeId(*node), Incarnation(*folder))).collect();
            Introduction { members_at: Some(members_at), known, ..member(&[1, 2, 3]) }
        };
        let answers = Answers::from([
            (NodeId(1), says(3, &[(2, 20), (4, 40), (5, 50)])),
            (NodeId(3), says(7, &[(2, 20), (4, 41)])),
        ]);
        let hearsay = hearsay(NodeId(2), &[(NodeId(5), Incarnation(51))], &answers);
        assert_eq!(hearsay, [(NodeId(4), Incarnation(41))].into(), "5 was met, and 2 is this node");
    }

    #[test]
    fn the_newest_membership_counts_and_outsiders_are_refused() {
        let old = member(&[1, 2, 3]);
        let new = Introduction { members_at: Some(7), ..member(&[1, 4, 5]) };
        let answers = Answers::from([(NodeId(1), new.clone()), (NodeId(2), old.clone())]);
        let missing = BootstrapError::NotAMember { node: NodeId(3) };
        assert_eq!(decide(&newcomer(3, &[1, 2, 3]), &answers), Err(missing));
        let learner = OwnState { is_learner: true, ..newcomer(6, &[1, 2, 3]) };
        assert_eq!(decide(&learner, &answers), wait_for(&[4, 5]));
    }

    #[test]
    fn two_wiped_nodes_are_a_minority_of_five_and_not_of_three() {
        let mut empty = BTreeSet::new();
        let mut note = |answer: Introduction| {
            record_empty(&mut empty, &[(NodeId(3), answer)].into());
            empty.clone()
        };
        let admitted = Introduction { is_admitted: true, ..Introduction::default() };
        assert_eq!(note(Introduction::default()), set(&[3]));
        assert_eq!(note(admitted), set(&[]), "it has been taken in meanwhile");
        assert_eq!(note(Introduction::default()), set(&[3]));
        assert_eq!(note(Introduction { is_admitted: false, ..member(&[1, 2, 3]) }), set(&[]), "it has a log");
        let own = newcomer(2, &[1, 2, 3]);
        assert_eq!(majority_is_empty(&own, &set(&[])), None);
        assert_eq!(majority_is_empty(&own, &set(&[3])), Some(vec![NodeId(2), NodeId(3)]));
        assert_eq!(majority_is_empty(&newcomer(2, &[1, 2, 3, 4, 5]), &set(&[3])), None);
    }

    #[test]
    fn a_node_that_comes_again_is_no_member_for_a_while() {
        let own = OwnState { comes_again: true, ..newcomer(3, &[1, 2, 3]) };
        let without = Introduction { members_at: Some(7), ..member(&[1, 2]) };
        let answers = |nodes: &[u64]| nodes.iter().map(|node| (NodeId(*node), without.clone())).collect();
        assert_eq!(decide(&own, &answers(&[1])), wait_for(&[2]));
        assert_eq!(decide(&own, &answers(&[1, 2])), Ok(Verdict::TakePart));
    }

    #[test]
    fn a_node_with_a_log_needs_as_many_as_a_quorum_does() {
        let own =
            OwnState { state: FolderState::Member, last_index: Some(4), term: 2, ..newcomer(3, &[1, 2, 3]) };
        assert_eq!(decide(&own, &Answers::new()), wait_for(&[1, 2]));
        assert_eq!(decide(&own, &[(NodeId(2), Introduction::default())].into()), Ok(Verdict::TakePart));
        let names = Introduction { leader: Some(NodeId(1)), ..member(&[1, 2, 3]) };
        let mut answers = Answers::from([(NodeId(2), names.clone())]);
        assert!(!leader_has_answered(&own, &answers));
        answers.insert(NodeId(1), names);
        assert!(leader_has_answered(&own, &answers));
    }

    #[test]
    fn a_log_before_a_member_change_needs_the_new_quorum() {
        let own = OwnState {
            state: FolderState::Member,
            voters: set(&[1, 2, 3]),
            members_at: Some(3),
            last_index: Some(4),
            ..newcomer(2, &[1, 2, 3, 5])
        };
        // Node 1 was removed while node 2 was down, and node 3 was lost later.
        let at = |members_at| Introduction { members_at: Some(members_at), ..member(&[2, 3, 5]) };
        assert_eq!(decide(&own, &[(NodeId(5), at(7))].into()), Ok(Verdict::TakePart));
        assert_eq!(decide(&own, &[(NodeId(5), at(2))].into()), wait_for(&[1, 3]), "its own are newer");
        let later = Introduction { members_at: Some(7), ..member(&[2, 4, 5, 6]) };
        assert_eq!(decide(&own, &[(NodeId(5), later)].into()), wait_for(&[4, 6]));
        let without_us = Introduction { members_at: Some(7), ..member(&[3, 4, 5]) };
        assert_eq!(decide(&own, &[(NodeId(5), without_us)].into()), wait_for(&[1, 3]));
    }

    #[test]
    fn a_log_behind_its_acknowledgement_is_refused_unless_truncated() {
        let own =
            OwnState { state: FolderState::Member, last_index: Some(4), term: 2, ..newcomer(3, &[1, 2, 3]) };
        let logged_at = |term, index| {
            let answer = Introduction { acknowledged: Some(index), term, ..member(&[1, 2, 3]) };
            decide(&own, &[(NodeId(1), answer)].into())
        };
        assert_eq!(logged_at(2, 4), Ok(Verdict::TakePart));
        assert!(matches!(logged_at(2, 5), Err(BootstrapError::RolledBack { acknowledged: 5, last: 4, .. })));
        assert!(
            matches!(logged_at(3, 1), Err(BootstrapError::RolledBack { term: 3, .. })),
            "it had voted since"
        );
        assert_eq!(logged_at(1, 9), Ok(Verdict::TakePart), "a later leader may have cut it");
        let answer = Introduction { acknowledged: Some(5), ..member(&[1, 2, 3]) };
        let lost = BootstrapError::DataLost { node: NodeId(3), witness: NodeId(1), heard: Heard::Nothing };
        assert_eq!(decide(&newcomer(3, &[1, 2, 3]), &[(NodeId(1), answer)].into()), Err(lost));
    }
}
