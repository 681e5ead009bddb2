//! How a node that lost its data comes in again, with `readmit_wiped`: it waits until no node knows it by its
//! old folder any more, joins as a learner, catches up, and asks to vote.
//!
//! Invariant: it asks to vote only when each voter has answered it, so no voter refuses its connections. One
//! that is down must come back first, or be replaced.

use std::collections::BTreeSet;

use rowlock_consensus::peer::{Introduction, Lane, Request, Response};
use rowlock_consensus::raft::facts;
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_types::reconfiguration::Wanted;

use super::judge::{self, Answers, Us, Verdict};
use super::{AGAIN, Bootstrap, BootstrapError, JOIN_DEADLINE, SAY_EVERY, TOO_MANY_FOR, member};

/// What such a node has heard since its start.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// When it said last that it waits.
    said: Option<Instant>,
    /// Who else has nothing.
    empty: BTreeSet<NodeId>,
    /// Since when too many are empty.
    too_many: Option<Instant>,
    /// Who has said last that it knows this node by another folder. There is a cluster then: this node never
    /// forms one with others that have nothing.
    witness: Option<NodeId>,
}

impl Lost {
    /// The verdict, with what was heard in this round: `refused_by` knows this node by another folder. One
    /// that did and does not answer now may do so still.
    pub(super) fn verdict(
        &mut self,
        us: &Us,
        refused_by: Option<NodeId>,
        answers: &Answers,
    ) -> Result<Verdict, BootstrapError> {
        let judged = match (judge::judge(us, answers), refused_by) {
            (Err(BootstrapError::DataLost { witness, .. }), _) if us.comes_again => {
                return self.wait_for(us, witness, answers);
            }
            (_, Some(witness)) => return self.wait_for(us, witness, answers),
            (judged, None) => judged?,
        };
        match self.witness {
            Some(witness) if judge::newest(answers).is_none() => self.wait_for(us, witness, answers),
            _ => Ok(judged),
        }
    }

    /// Whether a node knows, or has known, this one by another folder.
    pub(super) fn is_known(&self) -> bool {
        self.witness.is_some()
    }

    /// `witness` knows this node by another folder.
    fn wait_for(&mut self, us: &Us, witness: NodeId, answers: &Answers) -> Result<Verdict, BootstrapError> {
        self.witness = Some(witness);
        let now = time::now();
        judge::note_empty(&mut self.empty, answers);
        match judge::majority_is_empty(us, &self.empty) {
            Some(empty) if empty.len() > 1 => {
                let since = *self.too_many.get_or_insert(now);
                if now.saturating_since(since) >= TOO_MANY_FOR {
                    return Err(BootstrapError::TooManyWiped { node: us.node, empty, witness });
                }
            }
            _ => self.too_many = None,
        }
        if self.said.is_none_or(|said| now.saturating_since(said) >= SAY_EVERY) {
            tracing::warn!(
                "node {} has an empty data folder, and node {witness} knows it by another one: it lost its data. It waits \
                 until a leader with `readmit_wiped = true` has taken it out of the members and in again. Without a \
                 leader it waits in vain",
                us.node
            );
            self.said = Some(now);
        }
        Ok(Verdict::WaitFor(vec![witness]))
    }
}

impl Bootstrap {
    /// Ends when this node votes, in the newest membership that a node knows.
    pub(super) async fn vote_again(&self) -> Result<(), BootstrapError> {
        let mut caught_up_at = None;
        // The leader may let it vote before it has asked.
        let mut is_outside = false;
        loop {
            let us = self.us().await?;
            let me = us.node;
            if !us.comes_again {
                return Ok(());
            }
            let votes_here = facts::has_joined(&self.raft, me) && facts::voters(&self.raft).contains(&me);
            let answers = self.everybody().await;
            let newest = judge::newest(&answers);
            // A snapshot may be older than the removal: in its members this node still votes.
            let is_newest = match newest {
                Some(known) => us.members_at >= known.members_at,
                None => !answers.is_empty() || us.voters.len() == 1,
            };
            if votes_here && is_newest {
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
                    self.ask_to_vote(known, end, &answers).await;
                }
            }
            time::sleep(AGAIN).await;
        }
    }

    /// The answers of all that give one, however long the slowest takes.
    pub(super) async fn everybody(&self) -> Answers {
        let deadline = Instant::now() + super::ASK_DEADLINE;
        let asked = self.others().map(|node| async move {
            match self.peers.call(node, Lane::Control, &Request::Introduce, deadline).await {
                Ok(Response::Introduced(introduction)) => Some((node, introduction)),
                _ => None,
            }
        });
        let answers: Answers = futures_util::future::join_all(asked).await.into_iter().flatten().collect();
        answers.values().for_each(|introduction| self.meet(introduction));
        answers
    }

    /// Asks the leader, if this node has what was in the log when it began to look, and each voter knows it.
    async fn ask_to_vote(&self, known: &Introduction, end: Option<u64>, answers: &Answers) {
        let Some(leader) = known.leader else { return };
        if Some(facts::applied_index(&self.raft)) < end
            || !known.voters.iter().all(|voter| answers.contains_key(voter))
        {
            return;
        }
        let me = self.config.id;
        let entry = self.config.nodes.iter().find(|m| m.id == me);
        let ours = entry.map(member).expect("a node's configuration holds its own entry");
        assert!(!known.voters.contains(&me), "who votes does not ask to");
        let line = format!("server.{me}={}:participant;{}", ours.zookeeper_addr(), ours.client_addr);
        let wanted = Wanted { joining: Some(line), config_id: -1, ..Wanted::default() };
        let deadline = Instant::now() + JOIN_DEADLINE;
        let answer = self.peers.call(leader, Lane::Control, &Request::Reconfigure(wanted), deadline).await;
        tracing::debug!(?answer, "asked to vote again");
    }
}
