//! Readmission of a wiped node: a node that comes back with another data folder than the known one, and has
//! forgotten its votes and its acknowledgements.
//!
//! First the leader removes the node from the members. Then every node accepts the new folder as soon as its
//! newest membership lacks the returned voter. Until more than half of the other voters do, the returned node
//! neither votes nor acknowledges (`bootstrap/verdict.rs`), and the other nodes refuse its connections.
//!
//! This is enough: a majority of the remaining voters commits the removal. So a candidate with a log before
//! the removal finds no majority of the old voters any more, even with the vote of the returned node. And a
//! node whose membership has the returned node as a voter again has the removal in its log.
//!
//! A leader may have been away when the other nodes met the old folder. Such a leader accepts the new folder
//! as the first one, but the other nodes refuse the returned node, so the node waits. Therefore the leader
//! asks silent voters whether they wait, and asks the other voters for the known folders.
//!
//! A learner may have been away while the returned node did not vote, and no leader needs a learner's consent
//! before the node votes again. The learner would refuse the node for ever, and serve no client under its
//! leadership. So a learner believes more than half of the other voters. Nothing depends on a learner's
//! record.
//!
//! Invariant: the leader removes one voter at a time. The next removal waits until the log of the previous
//! returned node contains its own removal, so that this node helps no candidate whose log ends before; or
//! until a deadline. The node need not vote by then: it asks every voter before, and a voter that has lost
//! its data too does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_consensus::peer::{Introduction, Lane, Request, Response};
use rowlock_consensus::raft::facts;
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_proto::{Incarnation, NodeId};

use super::MemberChanges;
use super::health::MemberChange;

/// A waiting node retries repeatedly; after this time without a retry, the node has gone.
const CAME_WITHIN: Duration = Duration::from_secs(5);
/// Time without an acknowledgement after which a member may have lost its old folder.
const UP_WITHIN: Duration = Duration::from_secs(2);
/// Time for a readmitted voter to catch up before the leader removes another one.
const ONE_AT_A_TIME: Duration = Duration::from_secs(60);
/// Time limit for obtaining the newest membership.
const MEMBERS_DEADLINE: Duration = Duration::from_secs(2);
const SCAN_EVERY: Duration = Duration::from_millis(20);

/// Interval of the leader's questions to silent voters.
const ASK_EVERY: Duration = Duration::from_secs(2);
const ASK_DEADLINE: Duration = Duration::from_millis(500);

/// State of the removals and readmissions at this node.
#[derive(Debug, Default)]
pub(super) struct Readmission {
    underway: Underway,
    /// Time of the last search for waiting voters.
    asked: Option<Instant>,
    committed: u64,
    /// Voters removed by this leader, to be promoted again. A node added by an operator does not ask to vote:
    /// its configuration says learner, and the node has forgotten its former role.
    voted: BTreeSet<NodeId>,
    /// New folders whose readmission this leader has logged.
    logged: BTreeSet<(NodeId, Incarnation)>,
}

/// The voter removed last, until that node's log contains the removal.
#[derive(Debug, Default)]
struct Underway(Option<TakenOut>);

#[derive(Debug)]
struct TakenOut {
    node: NodeId,
    since: Instant,
    /// Log index of the removal.
    index: u64,
}

impl Underway {
    /// Returns whether the leader may remove `node` now. `stored` returns the acknowledged log index of a
    /// node.
    fn allows(&mut self, node: NodeId, stored: impl Fn(NodeId) -> u64, now: Instant) -> bool {
        self.0
            .take_if(|out| stored(out.node) >= out.index || now.saturating_since(out.since) >= ONE_AT_A_TIME);
        self.0.as_ref().is_none_or(|out| decides!("readmission-is-of-this-node", out.node == node))
    }
}

impl MemberChanges {
    /// Handles each node that has come with another folder.
    pub(super) async fn readmit(&self, readmission: &mut Readmission) {
        let mut strangers = self.node.peers.folder().strangers(CAME_WITHIN);
        let view = *self.node.leadership.borrow();
        let (now, asked) = (time::now(), readmission.asked);
        if view.is_led_by(self.node.me) && asked.is_none_or(|at| now.saturating_since(at) >= ASK_EVERY) {
            readmission.asked = Some(now);
            strangers.extend(self.strangers_to_others().await);
            self.promote_again(readmission).await;
        }
        if decides!("readmitting-node-does-not-lead", view.leader != Some(self.node.me)) {
            readmission.voted.clear();
            readmission.logged.clear();
        }
        // A node that comes under this node's own number is refused for ever.
        for (node, incarnation) in strangers.into_iter().filter(|(node, _)| *node != self.node.me) {
            let view = *self.node.leadership.borrow();
            match view.leader {
                _ if view.is_led_by(self.node.me) => {
                    self.readmit_as_leader(node, incarnation, readmission).await;
                }
                _ if self.is_known_to_voters(node, incarnation).await => {
                    self.accept_folder(node, incarnation).await
                }
                Some(leader) if leader != self.node.me => {
                    self.accept_as_follower(leader, node, incarnation).await
                }
                _ => {}
            }
        }
    }

    /// Returns silent, empty voters whose old folder is known to other nodes than this leader.
    async fn strangers_to_others(&self) -> Vec<(NodeId, Incarnation)> {
        let (members, _) = facts::members(&self.node.raft);
        let alive = facts::alive_members(&self.node.raft, UP_WITHIN);
        let voters: Vec<NodeId> = members.voters.into_iter().filter(|node| *node != self.node.me).collect();
        let silent = voters.iter().copied().filter(|node| !alive.contains(node)).collect();
        let mut waiting = self.introductions(silent).await;
        waiting.retain(|_, answer| answer.is_fresh() && !answer.is_admitted);
        if waiting.is_empty() {
            return Vec::new();
        }
        let others = voters.into_iter().filter(|node| !waiting.contains_key(node)).collect();
        let others = self.introductions(others).await;
        let met = self.node.peers.folder().known();
        met.into_iter()
            .filter(|(node, ours)| {
                waiting.contains_key(node) && is_known_by_other_folder(*node, *ours, &others)
            })
            .collect()
    }

    /// Promotes a removed voter as soon as the node has the log and each voter knows the new folder, so that
    /// no voter refuses its connections.
    async fn promote_again(&self, readmission: &mut Readmission) {
        let Some((members, version)) = facts::settled_members(&self.node.raft) else { return };
        let facts = facts::facts(&self.node.raft);
        // The log grows while a member stores entries: the member must have what was committed at the
        // previous scan.
        let needed = std::mem::replace(&mut readmission.committed, facts.committed_index);
        let voted = &mut readmission.voted;
        voted.retain(|node| !members.voters.contains(node));
        let alive = facts::alive_members(&self.node.raft, UP_WITHIN);
        let has_log = |node: &NodeId| {
            let stored = facts.replicated.iter().find(|(other, _)| other == node);
            stored.is_some_and(|(_, index)| *index >= needed)
        };
        let is_ready =
            |node: &NodeId| members.nodes.contains_key(node) && alive.contains(node) && has_log(node);
        let Some(node) = voted.iter().copied().find(is_ready) else { return };
        let known = self.node.peers.folder().known();
        let Some(known) = known.into_iter().find(|(met, _)| *met == node) else { return };
        let others: Vec<NodeId> =
            members.voters.iter().copied().filter(|voter| *voter != self.node.me).collect();
        if all_know(known, &others, &self.introductions(others.clone()).await) {
            rare::taken(Rare::WipedPromoted);
            self.carry_out(MemberChange::Promote(node), &members, version).await;
        }
    }

    /// Returns whether this node does not vote, and more than half of the other voters know `node` by this
    /// folder.
    async fn is_known_to_voters(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let (members, _) = facts::members(&self.node.raft);
        if members.voters.contains(&self.node.me) {
            return false;
        }
        let others = members.nodes.into_keys().filter(|other| *other != self.node.me && *other != node);
        let answers = self.introductions(others.collect()).await;
        majority_knows(self.node.me, (node, incarnation), &answers)
    }

    async fn introductions(&self, nodes: Vec<NodeId>) -> BTreeMap<NodeId, Introduction> {
        let deadline = Instant::now() + ASK_DEADLINE;
        let asked = nodes.into_iter().map(|node| async move {
            match self.node.peers.call(node, Lane::Control, &Request::Introduce, deadline).await {
                Ok(Response::Introduced(introduction)) => Some((node, introduction)),
                _ => None,
            }
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    async fn readmit_as_leader(&self, node: NodeId, incarnation: Incarnation, readmission: &mut Readmission) {
        let (facts, (members, _)) = (facts::facts(&self.node.raft), facts::members(&self.node.raft));
        let (is_member, votes) = (members.nodes.contains_key(&node), members.voters.contains(&node));
        // A member that never acknowledged anything to this leader joined under another leader.
        let stored =
            |node| facts.replicated.iter().find(|(other, _)| *other == node).map_or(0, |(_, index)| *index);
        if mutant::is(Mutant::ReadmitAVoter)
            || decides!("stranger-holds-nothing", !is_member || (!votes && stored(node) == 0))
        {
            return self.accept_as_leader(node, incarnation).await;
        }
        if facts::alive_members(&self.node.raft, UP_WITHIN).contains(&node) {
            // The node with the old folder still runs: two nodes use its number.
            return;
        }
        let now = time::now();
        if decides!("other-readmission-is-underway", votes && !readmission.underway.allows(node, stored, now))
        {
            return;
        }
        if readmission.logged.insert((node, incarnation)) {
            tracing::warn!(
                %node,
                "a node comes with another data folder than before: it lost its data. It is taken out of the members, and in again"
            );
        }
        let leaving = Wanted { leaving: Some(node.to_string()), config_id: -1, ..Wanted::default() };
        match self.node.reconfigurer.reconfigure(&leaving).await {
            Ok(Ok(index)) => {
                rare::taken(Rare::WipedTakenOut);
                tracing::info!(%node, index, "taken out of the members");
                if decides!("stranger-votes", votes) {
                    readmission.underway.0 = Some(TakenOut { node, since: now, index });
                    readmission.voted.insert(node);
                }
            }
            Ok(Err(code)) => tracing::debug!(%node, ?code, "not taken out yet"),
            Err(refusal) => tracing::debug!(%node, %refusal, "not taken out yet"),
        }
    }

    /// Accepts the new folder as the leader, if a quorum confirms the leadership.
    async fn accept_as_leader(&self, node: NodeId, incarnation: Incarnation) {
        let confirmed = time::timeout(MEMBERS_DEADLINE, facts::read_index(&self.node.raft)).await;
        if matches!(confirmed, Ok(Ok(_))) && self.does_not_vote(node) {
            self.node.quorum.forget(node.0);
            self.accept_folder(node, incarnation).await;
        }
    }

    /// Accepts the new folder as a follower, once this node's membership is as new as the leader's.
    async fn accept_as_follower(&self, leader: NodeId, node: NodeId, incarnation: Incarnation) {
        let deadline = Instant::now() + MEMBERS_DEADLINE;
        let answer = self.node.peers.call(leader, Lane::Control, &Request::ReadIndex, deadline).await;
        let Ok(Response::ReadIndex { index }) = answer else { return };
        while facts::applied_index(&self.node.raft) < index {
            if Instant::now() >= deadline {
                return;
            }
            time::sleep(SCAN_EVERY).await;
        }
        if self.does_not_vote(node) {
            assert!(facts::applied_index(&self.node.raft) >= index, "the members are as new as the leader's");
            self.accept_folder(node, incarnation).await;
        }
    }

    /// Returns whether `node` is no voter in the newest membership of the log; during a change, in neither of
    /// the two.
    fn does_not_vote(&self, node: NodeId) -> bool {
        decides!("stranger-does-not-vote", !facts::voters(&self.node.raft).contains(&node))
            || mutant::is(Mutant::ReadmitAVoter)
    }

    async fn accept_folder(&self, node: NodeId, incarnation: Incarnation) {
        match self.node.peers.folder().replace_known(node, incarnation).await {
            Ok(()) => tracing::info!(%node, "known by its new data folder from now on"),
            Err(error) => tracing::warn!(%node, %error, "not known by its new data folder"),
        }
    }
}

/// Returns whether one of these nodes knows `node` by another folder than `ours`.
fn is_known_by_other_folder(
    node: NodeId,
    ours: Incarnation,
    others: &BTreeMap<NodeId, Introduction>,
) -> bool {
    let mut known = others.values().flat_map(|answer| &answer.known);
    known.any(|(whose, theirs)| *whose == node && *theirs != ours)
}

/// Returns whether each of these voters has answered, and knows the node by this folder.
fn all_know(
    folder: (NodeId, Incarnation),
    voters: &[NodeId],
    answers: &BTreeMap<NodeId, Introduction>,
) -> bool {
    let knows = |voter| answers.get(voter).is_some_and(|answer| answer.known.contains(&folder));
    decides!("voters-know-folder", voters.iter().all(knows))
}

/// Returns whether more than half of the other voters, by the newest reported membership, know the node by
/// this folder. False if `me` is a voter there.
fn majority_knows(
    me: NodeId,
    (node, incarnation): (NodeId, Incarnation),
    answers: &BTreeMap<NodeId, Introduction>,
) -> bool {
    let Some(newest) = answers.values().max_by_key(|answer| answer.members_at) else { return false };
    let others: Vec<&NodeId> = newest.voters.iter().filter(|voter| **voter != node).collect();
    let knows = |voter: &&&NodeId| {
        let answer = answers.get(**voter);
        answer.is_some_and(|it| it.is_admitted && it.known.contains(&(node, incarnation)))
    };
    decides!(
        "new-folder-is-recorded",
        !others.contains(&&me) && others.iter().filter(knows).count() * 2 > others.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voter_that_others_know_by_another_folder_is_found() {
        let knows = |known: &[(u64, u128)]| {
            let known = known.iter().map(|(node, folder)| (NodeId(*node), Incarnation(*folder))).collect();
            Introduction { known, ..Introduction::default() }
        };
        let others = [(NodeId(1), knows(&[(2, 20), (4, 40)])), (NodeId(2), knows(&[(1, 10)]))].into();
        assert!(
            is_known_by_other_folder(NodeId(4), Incarnation(41), &others),
            "node 1 has met its old folder"
        );
        assert!(!is_known_by_other_folder(NodeId(4), Incarnation(40), &others), "by the same one");
        assert!(!is_known_by_other_folder(NodeId(3), Incarnation(30), &others), "they have not met it");
    }

    #[test]
    fn a_node_regains_its_vote_when_each_voter_knows_its_folder() {
        let (folder, voters) = ((NodeId(4), Incarnation(41)), [NodeId(2), NodeId(3)]);
        let knows = |folder| Introduction { known: vec![folder], ..Introduction::default() };
        let mut answers = BTreeMap::from([(NodeId(2), knows(folder))]);
        assert!(!all_know(folder, &voters, &answers), "node 3 may refuse it");
        answers.insert(NodeId(3), knows((NodeId(4), Incarnation(40))));
        assert!(!all_know(folder, &voters, &answers), "node 3 refuses it");
        answers.insert(NodeId(3), knows(folder));
        assert!(all_know(folder, &voters, &answers));
    }

    #[test]
    fn a_learner_believes_more_than_half_of_the_other_voters() {
        let voters: Vec<NodeId> = [1, 2, 3].map(NodeId).to_vec();
        let says = |folder: u128| Introduction {
            voters: voters.clone(),
            members_at: Some(7),
            is_admitted: true,
            known: vec![(NodeId(1), Incarnation(folder))],
            ..Introduction::default()
        };
        let new = (NodeId(1), Incarnation(11));
        let of =
            |all: &[(u64, u128)]| all.iter().map(|(node, folder)| (NodeId(*node), says(*folder))).collect();
        assert!(majority_knows(NodeId(4), new, &of(&[(2, 11), (3, 11)])));
        assert!(!majority_knows(NodeId(4), new, &of(&[(2, 11), (3, 10)])), "half of the others");
        assert!(!majority_knows(NodeId(4), new, &of(&[(2, 11)])), "the other one may know better");
        assert!(!majority_knows(NodeId(3), new, &of(&[(2, 11)])), "who votes waits for the removal");
        assert!(!majority_knows(NodeId(4), new, &of(&[])));
        let mut waits: BTreeMap<NodeId, Introduction> = of(&[(2, 11), (3, 11)]);
        waits.values_mut().for_each(|answer| answer.is_admitted = false);
        assert!(!majority_knows(NodeId(4), new, &waits), "who waits itself says nothing for others");
    }

    #[test]
    fn one_voter_is_taken_out_at_a_time() {
        let (now, stored) = (time::now(), |node| if node == NodeId(2) { 7 } else { 6 });
        let mut underway = Underway::default();
        assert!(underway.allows(NodeId(2), stored, now));
        let out = |node| Some(TakenOut { node: NodeId(node), since: now, index: 7 });
        underway.0 = out(3);
        assert!(!underway.allows(NodeId(4), stored, now), "node 3 does not have its removal yet");
        assert!(underway.allows(NodeId(3), stored, now), "the same one again");
        assert!(underway.allows(NodeId(4), stored, now + ONE_AT_A_TIME), "node 3 is late");
        underway.0 = out(2);
        assert!(underway.allows(NodeId(4), stored, now), "node 2 has its removal in its log");
    }
}
