//! How a node with an empty log comes into its cluster: forms it once with the others, waits to be told, or joins.
//!
//! Invariant: a cluster is formed from the voters of `cluster.toml` at most once. A node forms it only after a majority
//! of those voters has said that its log is empty, too; two majorities meet, so a cluster that exists is never formed
//! again. A node that lost its data must not come back under its old number: it would have forgotten its votes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::rare::{self, Rare};
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;

use crate::config::NodeConfig;
use crate::peer::{Lane, PeerPool, Refusal, Request, Response};
use crate::raft::types::Member;
use crate::raft::{Raft, has_joined};
use crate::status::Status;

const ASK_DEADLINE: Duration = Duration::from_secs(1);
const JOIN_DEADLINE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);

/// Why a node cannot come into its cluster. A person must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// The others have replicated to this number before.
    #[error(
        "node {node} starts with an empty data folder, but the cluster has stored data with node {node} before. A node \
         that lost its data has forgotten its votes and must not come back under its old number: give it a new id with \
         `learner = true` in cluster.toml, or restore its data folder"
    )]
    DataLost {
        /// This node.
        node: NodeId,
    },
    /// The cluster exists without this node.
    #[error(
        "the cluster exists already and node {node} is not one of its members: set `learner = true` for it in \
         cluster.toml, and it joins"
    )]
    NotAMember {
        /// This node.
        node: NodeId,
    },
    /// Raft refused.
    #[error("the cluster could not be formed: {0}")]
    Raft(String),
}

/// What a node needs to come in.
pub struct Bootstrap {
    /// This node's configuration.
    pub config: Arc<NodeConfig>,
    /// Raft, not initialised.
    pub raft: Raft,
    /// The ways to the others.
    pub peers: PeerPool,
}

impl Bootstrap {
    /// Comes in, however long it takes. Ends with the shutdown.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), BootstrapError> {
        tokio::select! {
            biased;
            () = shutdown.wait() => Ok(()),
            result = async { if self.config.learner { self.join().await } else { self.form().await } } => result,
        }
    }

    async fn form(&self) -> Result<(), BootstrapError> {
        let me = self.config.id;
        let voters: BTreeMap<u64, Member> =
            self.config.members.iter().filter(|m| !m.learner).map(|m| (m.id.0, member(m))).collect();
        while self.has_empty_log().await? {
            let others = voters.keys().map(|id| NodeId(*id)).filter(|id| *id != me);
            let answers = self.ask(others).await;
            // Not before the answers: a leader that found us while we asked has rightly stored data with us.
            if !self.has_empty_log().await? {
                break;
            }
            if let Some(known) = answers.iter().find(|status| !status.voters.is_empty()) {
                check_membership(me, known)?;
                // The leader replicates to us; nothing to form.
            } else if (answers.len() + 1) * 2 > voters.len() {
                match self.raft.initialize(voters.clone()).await {
                    Ok(()) => {
                        tracing::info!(voters = voters.len(), "formed the cluster");
                        break;
                    }
                    Err(e) => tracing::debug!(error = %e, "the cluster has been formed meanwhile"),
                }
            }
            time::sleep(AGAIN).await;
        }
        Ok(())
    }

    /// Whether nothing has been stored here yet. A vote alone is nothing: it is asked for by whoever forms the cluster, and
    /// of a node that has lost its data, too.
    async fn has_empty_log(&self) -> Result<bool, BootstrapError> {
        let is_empty = self.raft.with_raft_state(|state| state.log_ids.last().is_none()).await;
        is_empty.map_err(|e| BootstrapError::Raft(e.to_string()))
    }

    async fn ask(&self, nodes: impl Iterator<Item = NodeId>) -> Vec<Status> {
        let deadline = Instant::now() + ASK_DEADLINE;
        let calls = nodes.map(|node| self.peers.call(node, Lane::Control, &Request::Status, deadline));
        let calls: Vec<_> = calls.map(|call| async { call.await.ok() }).collect();
        let mut answers = Vec::new();
        for answer in futures_util::future::join_all(calls).await {
            if let Some(Response::Status(status)) = answer {
                answers.push(status);
            }
        }
        answers
    }

    /// Asks any node, follows to the leader, until the change is committed.
    async fn join(&self) -> Result<(), BootstrapError> {
        let me = self.config.id;
        let entry = self.config.members.iter().find(|m| m.id == me);
        let ours = entry.map(member).expect("a node's configuration holds its own entry");
        let others: Vec<NodeId> = self.config.members.iter().map(|m| m.id).filter(|id| *id != me).collect();
        if self.raft.is_initialized().await.map_err(|e| BootstrapError::Raft(e.to_string()))? {
            return Ok(());
        }
        // Not until the log is no longer empty: what is in it may come from a leader that has been deposed since, and go again.
        while !has_joined(&self.raft.metrics().borrow_watched(), me) {
            let mut candidates = others.clone();
            while let Some(node) = candidates.pop() {
                let request = Request::AddLearner { node: me, member: ours.clone() };
                let deadline = Instant::now() + JOIN_DEADLINE;
                match self.peers.call(node, Lane::Control, &request, deadline).await {
                    Ok(Response::MembershipChanged { index }) => {
                        tracing::info!(index, "joined the cluster as a learner");
                        return Ok(());
                    }
                    Ok(Response::Refused(Refusal::NotLeader { leader: Some(leader) }))
                        if candidates.contains(&leader) =>
                    {
                        candidates.retain(|c| *c != leader);
                        candidates.push(leader);
                    }
                    Ok(other) => tracing::debug!(%node, ?other, "not taken in yet"),
                    Err(error) => tracing::debug!(%node, %error, "not taken in yet"),
                }
            }
            rare::taken(Rare::JoinAgain);
            time::sleep(AGAIN).await;
        }
        Ok(())
    }
}

fn member(entry: &crate::config::NodeEntry) -> Member {
    Member { peer_addr: entry.peer_addr.clone(), client_addr: entry.client_addr.clone() }
}

/// What a node of an existing cluster says about us, whose log was still empty when it had said so.
fn check_membership(me: NodeId, known: &Status) -> Result<(), BootstrapError> {
    if known.replicated.iter().any(|(node, index)| *node == me && *index > 0) {
        return Err(BootstrapError::DataLost { node: me });
    }
    if known.voters.contains(&me) || known.learners.contains(&me) {
        Ok(())
    } else {
        Err(BootstrapError::NotAMember { node: me })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_data_the_cluster_remembers_is_refused_and_a_fresh_member_is_not() {
        let mut known = Status { voters: vec![NodeId(1), NodeId(2), NodeId(3)], ..Status::default() };
        assert_eq!(check_membership(NodeId(3), &known), Ok(()));
        assert_eq!(check_membership(NodeId(4), &known), Err(BootstrapError::NotAMember { node: NodeId(4) }));
        known.replicated = vec![(NodeId(3), 17)];
        assert_eq!(check_membership(NodeId(3), &known), Err(BootstrapError::DataLost { node: NodeId(3) }));
        assert_eq!(check_membership(NodeId(2), &known), Ok(()));
    }
}
