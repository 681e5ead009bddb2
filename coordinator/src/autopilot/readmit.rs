//! A node that comes back with another data folder than the one by which it is known. It has forgotten its
//! votes and what it acknowledged.
//!
//! First the leader takes it out of the members. Then every node that sees, in the newest membership, that it
//! does not vote, knows it by its new folder from now on. Until more than half of the other voters do, it
//! neither votes nor acknowledges (`bootstrap/judge.rs`), and the others refuse its connections.
//!
//! Why this is enough: its removal is committed by a majority of the voters that are left. So a candidate
//! whose log ends before the removal finds no majority of the old voters any more, even if the returned node
//! votes for it. And whoever counts the returned node as a voter again has the removal in its log.
//!
//! Invariant: one voter at a time. The next one is taken out when this one has its own removal in its log
//! again, so that it helps no candidate whose log ends before; or when it is late. It need not vote by then:
//! it asks every voter before, and one that has lost its data too does not answer it.

use std::time::Duration;

use rowlock_consensus::peer::{Lane, Request, Response};
use rowlock_consensus::raft::facts;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_types::incarnation::Incarnation;
use rowlock_types::reconfiguration::Wanted;

use super::Autopilot;

/// A node that waits to be taken in tries again and again; longer ago means that it has gone.
const CAME_WITHIN: Duration = Duration::from_secs(5);
/// A member that has acknowledged something since then still has its old folder.
const UP_WITHIN: Duration = Duration::from_secs(2);
/// For a node to catch up, before another one is taken out.
const ONE_AT_A_TIME: Duration = Duration::from_secs(60);
/// For the newest membership to be here.
const MEMBERS_DEADLINE: Duration = Duration::from_secs(2);
/// How often that is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The voter that this leader has taken out and that does not have that in its log yet.
#[derive(Debug, Default)]
pub(super) struct Underway(Option<TakenOut>);

#[derive(Debug)]
struct TakenOut {
    node: NodeId,
    since: Instant,
    /// The log index of its removal.
    index: u64,
}

impl Underway {
    /// Whether this voter may be taken out now. `stored` is what a node's log has, as it told this leader.
    fn allows(&mut self, node: NodeId, stored: impl Fn(NodeId) -> u64, now: Instant) -> bool {
        self.0
            .take_if(|out| stored(out.node) >= out.index || now.saturating_since(out.since) >= ONE_AT_A_TIME);
        self.0.as_ref().is_none_or(|out| out.node == node)
    }
}

impl Autopilot {
    /// Looks at each node that has come with another folder.
    pub(super) async fn readmit(&self, underway: &mut Underway) {
        // Whoever comes under this node's own number is refused for ever.
        let strangers = self.peers.folder().strangers(CAME_WITHIN);
        for (node, incarnation) in strangers.into_iter().filter(|(node, _)| *node != self.me) {
            let view = *self.leadership.borrow();
            match view.leader {
                Some(leader) if leader == self.me && view.ready => {
                    self.readmit_as_leader(node, incarnation, underway).await;
                }
                Some(leader) if leader != self.me => self.follow_leader(leader, node, incarnation).await,
                _ => {}
            }
        }
    }

    async fn readmit_as_leader(&self, node: NodeId, incarnation: Incarnation, underway: &mut Underway) {
        let facts = facts::facts(&self.raft);
        let (is_member, votes) =
            (facts.members.nodes.contains_key(&node), facts.members.voters.contains(&node));
        // One that never acknowledged anything to this leader has come in under another one.
        let stored =
            |node| facts.replicated.iter().find(|(other, _)| *other == node).map_or(0, |(_, index)| *index);
        if mutant::is(Mutant::ReadmitAVoter) || !is_member || (!votes && stored(node) == 0) {
            return self.know_when_confirmed(node, incarnation).await;
        }
        if facts::alive_members(&self.raft, UP_WITHIN).contains(&node) {
            // The one with the old folder runs: somebody uses its number twice.
            return;
        }
        let now = time::now();
        if votes && !underway.allows(node, stored, now) {
            return;
        }
        tracing::warn!(
            %node,
            "a node comes with another data folder than before: it lost its data. It is taken out of the members, and in again"
        );
        let leaving = Wanted { leaving: Some(node.to_string()), config_id: -1, ..Wanted::default() };
        match self.reconfigurer.reconfigure(&leaving).await {
            Ok(Ok(index)) => {
                rare::taken(Rare::WipedTakenOut);
                tracing::info!(%node, index, "taken out of the members");
                if votes {
                    underway.0 = Some(TakenOut { node, since: now, index });
                }
            }
            Ok(Err(code)) => tracing::debug!(%node, ?code, "not taken out yet"),
            Err(refusal) => tracing::debug!(%node, %refusal, "not taken out yet"),
        }
    }

    /// As the leader, if a quorum says that it is still one.
    async fn know_when_confirmed(&self, node: NodeId, incarnation: Incarnation) {
        let confirmed = time::timeout(MEMBERS_DEADLINE, facts::read_index(&self.raft)).await;
        if matches!(confirmed, Ok(Ok(_))) && self.does_not_vote(node) {
            self.quorum.forget(node.0);
            self.know(node, incarnation).await;
        }
    }

    /// As another node: its members are to be as new as the leader's.
    async fn follow_leader(&self, leader: NodeId, node: NodeId, incarnation: Incarnation) {
        let deadline = Instant::now() + MEMBERS_DEADLINE;
        let answer = self.peers.call(leader, Lane::Control, &Request::ReadIndex, deadline).await;
        let Ok(Response::ReadIndex { index }) = answer else { return };
        while facts::applied_index(&self.raft) < index {
            if Instant::now() >= deadline {
                return;
            }
            time::sleep(LOOK_EVERY).await;
        }
        if self.does_not_vote(node) {
            assert!(facts::applied_index(&self.raft) >= index, "the members are as new as the leader's");
            self.know(node, incarnation).await;
        }
    }

    /// In the newest membership of the log, and while it is being changed in the old and in the new one.
    fn does_not_vote(&self, node: NodeId) -> bool {
        !facts::voters(&self.raft).contains(&node) || mutant::is(Mutant::ReadmitAVoter)
    }

    async fn know(&self, node: NodeId, incarnation: Incarnation) {
        match self.peers.folder().know_anew(node, incarnation).await {
            Ok(()) => tracing::info!(%node, "known by its new data folder from now on"),
            Err(error) => tracing::warn!(%node, %error, "not known by its new data folder"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
