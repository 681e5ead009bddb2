//! Return of a wiped node, with `readmit_wiped`: the node waits until no other node knows the old folder any
//! more, joins as a learner, catches up, and asks to vote.
//!
//! Invariant: the node asks to vote only after an answer of each voter, so no voter refuses its connections.
//! A voter with an outage must come back first, or be replaced.

use std::collections::BTreeSet;

use rowlock_consensus::peer::{Introduction, Lane, Request, Response};
use rowlock_consensus::raft::facts;
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_env::decides;
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;

use super::verdict::{self, Answers, OwnState, Verdict};
use super::{Bootstrap, BootstrapError, JOIN_DEADLINE, LOG_EVERY, RETRY_PAUSE, TOO_MANY_FOR, member};

/// A wiped node's observations since its start.
#[derive(Debug, Default)]
pub(super) struct LostData {
    /// Time of the last log line about the wait.
    logged_at: Option<Instant>,
    /// The other empty nodes.
    empty: BTreeSet<NodeId>,
    /// Start of the time in which too many nodes are empty.
    too_many: Option<Instant>,
    /// The last node with a record of another folder of this node. A witness proves that a cluster exists:
    /// this node never forms a cluster with other empty nodes.
    witness: Option<NodeId>,
}

impl LostData {
    /// Returns the verdict of this round. `refused_by` knows this node by another folder. An earlier witness
    /// that does not answer now still counts.
    pub(super) fn verdict(
        &mut self,
        own: &OwnState,
        refused_by: Option<NodeId>,
        answers: &Answers,
    ) -> Result<Verdict, BootstrapError> {
        let decided = match (verdict::decide(own, answers), refused_by) {
            (Err(BootstrapError::DataLost { witness, .. }), _) if own.comes_again => {
                return self.wait_for(own, witness, answers);
            }
            (_, Some(witness)) => return self.wait_for(own, witness, answers),
            (decided, None) => decided?,
        };
        match self.witness {
            Some(witness) if verdict::newest(answers).is_none() => self.wait_for(own, witness, answers),
            _ => Ok(decided),
        }
    }

    /// Returns whether a node has known this one by another folder.
    pub(super) fn is_known(&self) -> bool {
        self.witness.is_some()
    }

    /// Records that `witness` knows this node by another folder, and waits or gives up.
    fn wait_for(
        &mut self,
        own: &OwnState,
        witness: NodeId,
        answers: &Answers,
    ) -> Result<Verdict, BootstrapError> {
        self.witness = Some(witness);
        let now = time::now();
        verdict::record_empty(&mut self.empty, answers);
        match verdict::majority_is_empty(own, &self.empty) {
            Some(empty) if empty.len() > 1 => {
                let since = *self.too_many.get_or_insert(now);
                if now.saturating_since(since) >= TOO_MANY_FOR {
                    return Err(BootstrapError::TooManyWiped { node: own.node, empty, witness });
                }
            }
            _ => self.too_many = None,
        }
        if self.logged_at.is_none_or(|logged_at| now.saturating_since(logged_at) >= LOG_EVERY) {
            tracing::warn!(
                "node {} has an empty data folder, and node {witness} knows it by another one: it lost its data. It waits \
                 until a leader with `readmit_wiped = true` has taken it out of the members and in again. Without a \
                 leader the wait never ends",
                own.node
            );
            self.logged_at = Some(now);
        }
        Ok(Verdict::WaitFor(vec![witness]))
    }
}

impl Bootstrap {
    /// Returns when this node votes in the newest membership that any node knows.
    pub(super) async fn regain_vote(&self) -> Result<(), BootstrapError> {
        let mut caught_up_at = None;
        // The leader may make this node a voter before the request.
        let mut is_outside = false;
        loop {
            let own = self.own_state().await?;
            let me = own.node;
            if !own.comes_again {
                return Ok(());
            }
            let votes_here =
                facts::has_joined(&self.node.raft, me) && facts::voters(&self.node.raft).contains(&me);
            let answers = self.all_introductions().await;
            let newest = verdict::newest(&answers);
            // A snapshot may be older than the removal: its members still have this node as a voter.
            let is_newest = match newest {
                Some(known) => own.members_at >= known.members_at,
                None => !answers.is_empty() || own.voters.len() == 1,
            };
            if decides!("readmitted-node-votes", votes_here && is_newest) {
                if is_outside {
                    rare::taken(Rare::WipedVotesAgain);
                    tracing::info!("this node votes again");
                }
                return Ok(());
            }
            if let Some(known) = newest {
                is_outside |= !known.voters.contains(&me);
                if !known.voters.contains(&me) && !known.learners.contains(&me) {
                    self.join().await?;
                } else if known.learners.contains(&me) {
                    let end = *caught_up_at.get_or_insert(known.last_index);
                    self.request_promotion(known, end, &answers).await;
                }
            }
            time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Returns the answers of all nodes that answer before the deadline.
    pub(super) async fn all_introductions(&self) -> Answers {
        let deadline = Instant::now() + super::ASK_DEADLINE;
        let asked = self.others().map(|node| async move {
            match self.node.peers.call(node, Lane::Control, &Request::Introduce, deadline).await {
                Ok(Response::Introduced(introduction)) => Some((node, introduction)),
                _ => None,
            }
        });
        let answers: Answers = futures_util::future::join_all(asked).await.into_iter().flatten().collect();
        answers.values().for_each(|introduction| self.add_addresses(introduction));
        answers
    }

    /// Asks the leader for the vote, if this node has applied the log up to `end` and each voter has
    /// answered.
    async fn request_promotion(&self, known: &Introduction, end: Option<u64>, answers: &Answers) {
        let Some(leader) = known.leader else { return };
        if Some(facts::applied_index(&self.node.raft)) < end
            || !known.voters.iter().all(|voter| answers.contains_key(voter))
        {
            return;
        }
        let me = self.node.config.id;
        let entry = self.node.config.nodes.iter().find(|m| m.id == me);
        let ours = entry.map(member).expect("a node's configuration holds its own entry");
        assert!(!known.voters.contains(&me), "a voter does not ask for the vote");
        let line = format!("server.{me}={}:participant;{}", ours.zookeeper_addr(), ours.client_addr);
        let wanted = Wanted { joining: Some(line), config_id: -1, ..Wanted::default() };
        let deadline = Instant::now() + JOIN_DEADLINE;
        let answer =
            self.node.peers.call(leader, Lane::Control, &Request::Reconfigure(wanted), deadline).await;
        tracing::debug!(?answer, "asked to vote again");
    }
}
