//! What the others' answers to a node that has been started mean. Pure.
//!
//! A node with a log asks half of the other voters: those that it needs for a quorum anyway. If an answer
//! names later voters than its log does, half of these suffice. A node without a log may have lost it: it
//! asks more than half of the others, who must take part themselves, unless no node has anything at all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rowlock_consensus::peer::Introduction;
use rowlock_proto::NodeId;
use rowlock_types::advice::Heard;
use rowlock_types::incarnation::Incarnation;
use rowlock_wal::FolderState;

use super::BootstrapError;

pub(super) type Answers = BTreeMap<NodeId, Introduction>;

/// What a node that has been started knows of itself.
#[derive(Clone, Debug)]
pub(super) struct Us {
    pub(super) node: NodeId,
    pub(super) state: FolderState,
    pub(super) is_learner: bool,
    /// The voters of its configuration.
    pub(super) founders: BTreeSet<NodeId>,
    pub(super) voters: BTreeSet<NodeId>,
    /// Index of the log entry that names them.
    pub(super) members_at: Option<u64>,
    /// End of its log.
    pub(super) last_index: Option<u64>,
    pub(super) term: u64,
    /// It lost its data, or may have: it is taken out of the members and in again, if it is one.
    pub(super) comes_again: bool,
}

impl Us {
    /// It has nothing, and no node has said yet that it never had.
    pub(super) fn is_newcomer(&self) -> bool {
        self.state == FolderState::Unknown && self.last_index.is_none()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    TakePart,
    /// Not yet: the answers of these may be needed.
    WaitFor(Vec<NodeId>),
}

/// Whether the node may take part.
pub(super) fn judge(us: &Us, answers: &Answers) -> Result<Verdict, BootstrapError> {
    for (node, answer) in answers {
        check_log(us, *node, answer)?;
    }
    if us.is_newcomer() { judge_newcomer(us, answers) } else { Ok(judge_known(us, answers)) }
}

fn judge_newcomer(us: &Us, answers: &Answers) -> Result<Verdict, BootstrapError> {
    check_membership(us, answers)?;
    let Some(newest) = newest(answers) else {
        // No node has anything. A majority of founders may begin; a learner waits for them.
        let others: Vec<NodeId> = us.founders.iter().filter(|node| **node != us.node).copied().collect();
        let here = others.iter().filter(|node| answers.contains_key(node)).count();
        if !us.is_learner && (here + 1) * 2 > us.founders.len() {
            return Ok(Verdict::TakePart);
        }
        return Ok(Verdict::WaitFor(without(&others, answers)));
    };
    let others: Vec<NodeId> = newest.voters.iter().filter(|node| **node != us.node).copied().collect();
    let vouches = |node: &&NodeId| answers.get(node).is_some_and(|answer| answer.is_admitted);
    let needed = if others.is_empty() { 0 } else { others.len() / 2 + 1 };
    if others.iter().filter(vouches).count() >= needed {
        return Ok(Verdict::TakePart);
    }
    Ok(Verdict::WaitFor(others.iter().filter(|node| !vouches(node)).copied().collect()))
}

fn judge_known(us: &Us, answers: &Answers) -> Verdict {
    let own = if us.voters.is_empty() { us.founders.clone() } else { us.voters.clone() };
    // The log may end before a change of members. The voters that it names may be gone for good, and the
    // later ones elect.
    let later = newest(answers).filter(|known| known.members_at > us.members_at);
    let later = later.map(|known| known.voters.iter().copied().collect::<BTreeSet<NodeId>>());
    let later = later.filter(|voters| voters.contains(&us.node));
    let suffices = |voters: &BTreeSet<NodeId>| {
        let here = voters.iter().filter(|node| **node != us.node && answers.contains_key(node)).count();
        // With as many, and itself, there is a quorum. One that does not vote needs no other.
        here >= if voters.contains(&us.node) { voters.len() / 2 } else { 0 }
    };
    if suffices(&own) || later.as_ref().is_some_and(suffices) {
        return Verdict::TakePart;
    }
    let others = later.unwrap_or(own).into_iter().filter(|node| *node != us.node);
    Verdict::WaitFor(without(&others.collect::<Vec<_>>(), answers))
}

fn without(nodes: &[NodeId], answers: &Answers) -> Vec<NodeId> {
    nodes.iter().filter(|node| !answers.contains_key(node)).copied().collect()
}

/// Takes note of who else has nothing and waits. One that does not answer any more may have given up.
pub(super) fn note_empty(empty: &mut BTreeSet<NodeId>, answers: &Answers) {
    for (node, answer) in answers {
        if answer.is_fresh() && !answer.is_admitted {
            empty.insert(*node);
        } else {
            empty.remove(node);
        }
    }
}

/// Which voters of the configuration have nothing, this node among them, if the others are no majority: the
/// data of a majority is lost.
pub(super) fn majority_is_empty(us: &Us, empty: &BTreeSet<NodeId>) -> Option<Vec<NodeId>> {
    let is_empty = |node: &&NodeId| **node == us.node || empty.contains(node);
    let empty: Vec<NodeId> = us.founders.iter().filter(is_empty).copied().collect();
    ((us.founders.len() - empty.len()) * 2 <= us.founders.len()).then_some(empty)
}

/// By which folders the others know nodes that `me` has not met. The answer with the newest members is
/// believed first. A word is no arrival: it says nothing of a node that was met by another folder.
pub(super) fn words(
    me: NodeId,
    met: &[(NodeId, Incarnation)],
    answers: &Answers,
) -> BTreeMap<NodeId, Incarnation> {
    let mut newest_first: Vec<&Introduction> = answers.values().collect();
    newest_first.sort_by_key(|answer| Reverse(answer.members_at));
    let mut words = BTreeMap::new();
    for (node, incarnation) in newest_first.into_iter().flat_map(|answer| &answer.known) {
        if *node != me && !met.iter().any(|(met, _)| met == node) {
            words.entry(*node).or_insert(*incarnation);
        }
    }
    words
}

/// Who knows the newest membership of a cluster in which anything has happened.
pub(super) fn newest(answers: &Answers) -> Option<&Introduction> {
    let established = answers.values().filter(|answer| !answer.is_fresh());
    established.max_by_key(|answer| answer.members_at)
}

/// Finds out whether a majority of the voters has answered and has the data, without `me`.
pub(super) fn heard(me: NodeId, answers: &Answers) -> Heard {
    let Some(newest) = newest(answers) else { return Heard::Nothing };
    let has_data = |node: &&NodeId| {
        **node != me && answers.get(node).is_some_and(|answer| answer.is_admitted && !answer.is_fresh())
    };
    let count = newest.voters.iter().filter(has_data).count();
    if count * 2 > newest.voters.len() { Heard::Quorum } else { Heard::Nothing }
}

/// Whether the leader that the answers name has answered itself, if they name one: it knows most.
pub(super) fn leader_has_answered(us: &Us, answers: &Answers) -> bool {
    let named = answers.values().filter(|answer| answer.leader.is_some()).max_by_key(|answer| answer.term);
    named
        .and_then(|answer| answer.leader)
        .is_none_or(|leader| leader == us.node || answers.contains_key(&leader))
}

/// A cluster that exists has its members; a node that is none of them joins as a learner.
pub(super) fn check_membership(us: &Us, answers: &Answers) -> Result<(), BootstrapError> {
    match newest(answers) {
        Some(known)
            if !us.is_learner
                && !us.comes_again
                && !known.voters.contains(&us.node)
                && !known.learners.contains(&us.node) =>
        {
            Err(BootstrapError::NotAMember { node: us.node })
        }
        _ => Ok(()),
    }
}

/// Whether others know a later membership than this node, and it is not in it.
pub(super) fn was_removed(us: &Us, answers: &Answers) -> bool {
    newest(answers).is_some_and(|known| {
        known.members_at >= us.members_at
            && !known.voters.contains(&us.node)
            && !known.learners.contains(&us.node)
    })
}

/// A leader that has this node's word for more than it has.
pub(super) fn check_log(us: &Us, leader: NodeId, answer: &Introduction) -> Result<(), BootstrapError> {
    let Some(acknowledged) = answer.acknowledged else { return Ok(()) };
    // Under a later leader the node may have cut off what it had.
    let is_behind = us.term < answer.term
        || (us.term == answer.term && us.last_index.is_none_or(|last| last < acknowledged));
    if !is_behind {
        return Ok(());
    }
    if us.last_index.is_none() {
        let heard = Heard::Nothing;
        return Err(BootstrapError::DataLost { node: us.node, witness: leader, heard });
    }
    let (node, term, last) = (us.node, answer.term, us.last_index.unwrap_or(0));
    Err(BootstrapError::RolledBack { node, leader, term, acknowledged, last, heard: Heard::Nothing })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(nodes: &[u64]) -> BTreeSet<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn newcomer(node: u64, founders: &[u64]) -> Us {
        Us {
            node: NodeId(node),
            state: FolderState::Unknown,
            is_learner: false,
            founders: set(founders),
            voters: BTreeSet::new(),
            members_at: None,
            last_index: None,
            term: 0,
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
    fn a_majority_with_the_data_is_one_that_answers_has_entries_and_is_not_this_node() {
        let (data, fresh) = (member(&[1, 2, 3]), Introduction::default());
        let empty = Introduction { is_admitted: false, ..data.clone() };
        let said = |answers: &[(u64, &Introduction)]| {
            heard(NodeId(1), &answers.iter().map(|(node, said)| (NodeId(*node), (*said).clone())).collect())
        };
        assert_eq!(said(&[(2, &data), (3, &data)]), Heard::Quorum);
        for nothing in [
            &[][..],
            &[(2, &data)],
            &[(1, &data), (2, &data)],
            &[(2, &data), (3, &fresh)],
            &[(2, &data), (3, &empty)],
            &[(2, &data), (4, &data)],
        ] {
            assert_eq!(said(nothing), Heard::Nothing, "{nothing:?}");
        }
    }

    #[test]
    fn a_majority_of_founders_without_anything_begins_and_fewer_wait() {
        let us = newcomer(1, &[1, 2, 3]);
        assert_eq!(judge(&us, &Answers::new()), wait_for(&[2, 3]));
        let fresh = Introduction::default();
        assert_eq!(judge(&us, &[(NodeId(2), fresh.clone())].into()), Ok(Verdict::TakePart));
        let formed = Introduction { last_index: Some(0), ..member(&[1, 2, 3]) };
        assert_eq!(judge(&us, &[(NodeId(2), formed)].into()), Ok(Verdict::TakePart), "it waits for votes");
        let learner = Us { is_learner: true, ..newcomer(4, &[1, 2, 3]) };
        assert_eq!(judge(&learner, &[(NodeId(2), fresh)].into()), wait_for(&[1, 3]));
        assert_eq!(judge(&newcomer(1, &[1]), &Answers::new()), Ok(Verdict::TakePart), "nobody else is there");
        assert_eq!(judge(&newcomer(1, &[1, 2]), &Answers::new()), wait_for(&[2]), "half is no majority");
    }

    #[test]
    fn an_empty_node_waits_for_more_than_half_of_the_others_when_a_cluster_exists() {
        let us = newcomer(3, &[1, 2, 3]);
        let known = member(&[1, 2, 3]);
        assert_eq!(judge(&us, &[(NodeId(2), known.clone())].into()), wait_for(&[1]));
        let empty = Introduction::default();
        let answers = [(NodeId(1), empty), (NodeId(2), known.clone())].into();
        assert_eq!(judge(&us, &answers), wait_for(&[1]), "one that waits itself says nothing for others");
        let answers = [(NodeId(1), known.clone()), (NodeId(2), known)].into();
        assert_eq!(judge(&us, &answers), Ok(Verdict::TakePart));
        let (us, known) = (newcomer(5, &[1, 2, 3, 4, 5]), member(&[1, 2, 3, 4, 5]));
        let answers = |nodes: &[u64]| nodes.iter().map(|node| (NodeId(*node), known.clone())).collect();
        assert_eq!(judge(&us, &answers(&[1, 2])), wait_for(&[3, 4]));
        assert_eq!(judge(&us, &answers(&[1, 2, 4])), Ok(Verdict::TakePart));
    }

    #[test]
    fn a_learner_needs_also_those_that_vote_since_it_was_configured() {
        let us = Us { is_learner: true, ..newcomer(5, &[1, 2, 3]) };
        let known = member(&[1, 2, 3, 4]);
        let of = |nodes: &[u64]| nodes.iter().map(|node| (NodeId(*node), known.clone())).collect();
        assert_eq!(judge(&us, &of(&[2, 3])), wait_for(&[1, 4]), "two of four are not enough");
        assert_eq!(judge(&us, &of(&[2, 3, 4])), Ok(Verdict::TakePart));
    }

    /// Seed 60,239 of the simulated members: a wiped node met another wiped one, took the others' word for
    /// its old folder, and refused it for ever.
    #[test]
    fn the_word_of_others_counts_for_nodes_that_were_not_met_and_the_newest_one_first() {
        let says = |members_at, known: &[(u64, u128)]| {
            let known = known.iter().map(|(node, folder)| (NodeId(*node), Incarnation(*folder))).collect();
            Introduction { members_at: Some(members_at), known, ..member(&[1, 2, 3]) }
        };
        let answers = Answers::from([
            (NodeId(1), says(3, &[(2, 20), (4, 40), (5, 50)])),
            (NodeId(3), says(7, &[(2, 20), (4, 41)])),
        ]);
        let words = words(NodeId(2), &[(NodeId(5), Incarnation(51))], &answers);
        assert_eq!(words, [(NodeId(4), Incarnation(41))].into(), "5 was met, and 2 is this node");
    }

    #[test]
    fn the_newest_membership_counts_and_who_is_not_in_it_is_told() {
        let old = member(&[1, 2, 3]);
        let new = Introduction { members_at: Some(7), ..member(&[1, 4, 5]) };
        let answers = Answers::from([(NodeId(1), new.clone()), (NodeId(2), old.clone())]);
        let missing = BootstrapError::NotAMember { node: NodeId(3) };
        assert_eq!(judge(&newcomer(3, &[1, 2, 3]), &answers), Err(missing));
        let learner = Us { is_learner: true, ..newcomer(6, &[1, 2, 3]) };
        assert_eq!(judge(&learner, &answers), wait_for(&[4, 5]));
    }

    #[test]
    fn two_emptied_nodes_of_three_are_no_minority_and_two_of_five_are_one() {
        let mut empty = BTreeSet::new();
        let mut note = |answer: Introduction| {
            note_empty(&mut empty, &[(NodeId(3), answer)].into());
            empty.clone()
        };
        let admitted = Introduction { is_admitted: true, ..Introduction::default() };
        assert_eq!(note(Introduction::default()), set(&[3]));
        assert_eq!(note(admitted), set(&[]), "it has been taken in meanwhile");
        assert_eq!(note(Introduction::default()), set(&[3]));
        assert_eq!(note(Introduction { is_admitted: false, ..member(&[1, 2, 3]) }), set(&[]), "it has a log");
        let us = newcomer(2, &[1, 2, 3]);
        assert_eq!(majority_is_empty(&us, &set(&[])), None);
        assert_eq!(majority_is_empty(&us, &set(&[3])), Some(vec![NodeId(2), NodeId(3)]));
        assert_eq!(majority_is_empty(&newcomer(2, &[1, 2, 3, 4, 5]), &set(&[3])), None);
    }

    #[test]
    fn a_node_that_comes_again_is_no_member_for_a_while() {
        let us = Us { comes_again: true, ..newcomer(3, &[1, 2, 3]) };
        let without = Introduction { members_at: Some(7), ..member(&[1, 2]) };
        let answers = |nodes: &[u64]| nodes.iter().map(|node| (NodeId(*node), without.clone())).collect();
        assert_eq!(judge(&us, &answers(&[1])), wait_for(&[2]));
        assert_eq!(judge(&us, &answers(&[1, 2])), Ok(Verdict::TakePart));
    }

    #[test]
    fn a_node_with_a_log_needs_as_many_as_a_quorum_does() {
        let us = Us { state: FolderState::Member, last_index: Some(4), term: 2, ..newcomer(3, &[1, 2, 3]) };
        assert_eq!(judge(&us, &Answers::new()), wait_for(&[1, 2]));
        assert_eq!(judge(&us, &[(NodeId(2), Introduction::default())].into()), Ok(Verdict::TakePart));
        let names = Introduction { leader: Some(NodeId(1)), ..member(&[1, 2, 3]) };
        let mut answers = Answers::from([(NodeId(2), names.clone())]);
        assert!(!leader_has_answered(&us, &answers));
        answers.insert(NodeId(1), names);
        assert!(leader_has_answered(&us, &answers));
    }

    #[test]
    fn a_node_whose_log_ends_before_a_change_of_members_needs_a_quorum_of_the_new_ones() {
        let us = Us {
            state: FolderState::Member,
            voters: set(&[1, 2, 3]),
            members_at: Some(3),
            last_index: Some(4),
            ..newcomer(2, &[1, 2, 3, 5])
        };
        // Node 1 was removed while node 2 was down, and node 3 has been lost since.
        let at = |members_at| Introduction { members_at: Some(members_at), ..member(&[2, 3, 5]) };
        assert_eq!(judge(&us, &[(NodeId(5), at(7))].into()), Ok(Verdict::TakePart));
        assert_eq!(judge(&us, &[(NodeId(5), at(2))].into()), wait_for(&[1, 3]), "its own are newer");
        let later = Introduction { members_at: Some(7), ..member(&[2, 4, 5, 6]) };
        assert_eq!(judge(&us, &[(NodeId(5), later)].into()), wait_for(&[4, 6]));
        let without_us = Introduction { members_at: Some(7), ..member(&[3, 4, 5]) };
        assert_eq!(judge(&us, &[(NodeId(5), without_us)].into()), wait_for(&[1, 3]));
    }

    #[test]
    fn a_log_that_ends_before_what_it_has_acknowledged_is_refused_and_one_that_was_cut_is_not() {
        let us = Us { state: FolderState::Member, last_index: Some(4), term: 2, ..newcomer(3, &[1, 2, 3]) };
        let said = |term, index| {
            let answer = Introduction { acknowledged: Some(index), term, ..member(&[1, 2, 3]) };
            judge(&us, &[(NodeId(1), answer)].into())
        };
        assert_eq!(said(2, 4), Ok(Verdict::TakePart));
        assert!(matches!(said(2, 5), Err(BootstrapError::RolledBack { acknowledged: 5, last: 4, .. })));
        assert!(matches!(said(3, 1), Err(BootstrapError::RolledBack { term: 3, .. })), "it had voted since");
        assert_eq!(said(1, 9), Ok(Verdict::TakePart), "a later leader may have cut it");
        let answer = Introduction { acknowledged: Some(5), ..member(&[1, 2, 3]) };
        let lost = BootstrapError::DataLost { node: NodeId(3), witness: NodeId(1), heard: Heard::Nothing };
        assert_eq!(judge(&newcomer(3, &[1, 2, 3]), &[(NodeId(1), answer)].into()), Err(lost));
    }
}
