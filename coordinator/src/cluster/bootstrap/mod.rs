//! Startup of a node in its cluster: the node asks the others for traces of lost data (`verdict.rs`), and
//! takes no part before the answers. Then a node with an empty log forms the cluster once with the others,
//! waits for the cluster's leader, or joins.
//!
//! Invariant: a cluster is formed from the voters of `cluster.toml` at most once. A node forms the cluster
//! only after a majority of those voters has reported an empty log; two majorities meet, so an existing
//! cluster is never formed again.
//!
//! Invariant: a wiped node takes no part under its old number: its votes and acknowledgements are forgotten.
//! The new folder has a new incarnation, and the others recorded the former incarnation before they counted a
//! vote or an acknowledgement of the node. These nodes are at least half of the other voters, so the node
//! asks more than half.

mod discovery;
mod readmission;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rowlock_consensus::peer::{HandshakeRefusal, Introduction, Lane, PeerError, Refusal, Request, Response};
use rowlock_consensus::raft::facts;
use rowlock_env::rare::{self, Rare};
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_state::FORGOTTEN_MAX;
use rowlock_wal::advice::{Heard, Replace};
use rowlock_wal::entry::Member;
use rowlock_wal::{FolderState, Memory, StorageError};

pub use self::discovery::Founders;
use self::readmission::LostData;
use self::verdict::{Answers, OwnState, Verdict, decide};
use crate::node::context::NodeContext;

const ASK_DEADLINE: Duration = Duration::from_secs(1);
const JOIN_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Delay of the first log line of a waiting node: the nodes of a new cluster do not start at one moment.
const FIRST_LOG_AFTER: Duration = Duration::from_secs(2);
/// Interval of the following log lines.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Time for which a wiped node must see a majority of empty nodes before giving up. The delay lets all empty
/// nodes see each other.
const TOO_MANY_FOR: Duration = Duration::from_secs(3);
/// Interval of a node's checks for a leader.
const LEADER_EVERY: Duration = Duration::from_millis(500);

/// Reasons that keep a node out of its cluster. A person must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// The others know this number by another data folder.
    #[error(
        "node {node} comes with a data folder that is not the one by which node {witness} knows it: the folder was emptied \
         or replaced, or two nodes run under this number. A node that lost its data has forgotten its votes and what it \
         acknowledged, and must not come back under its old number. If the former folder is there, start the node with it. \
         {}", Replace { node: Some(*node), heard: *heard }
    )]
    DataLost { node: NodeId, witness: NodeId, heard: Heard },
    /// More nodes have lost their data than the cluster can lose.
    #[error(
        "nodes {} have empty data folders, and node {witness} knows node {node} by another one: they lost their data, and \
         the others are no majority. They are not taken in again. If the lost folders do not come back, make a new \
         cluster from the node that has its data (`rowlock recover`) or from a backup (`rowlock backup restore`)",
        .empty.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
    )]
    TooManyWiped { node: NodeId, empty: Vec<NodeId>, witness: NodeId },
    /// The leader has acknowledgements of this node beyond the end of the node's log.
    #[error(
        "the data folder of node {node} is older than what the node has acknowledged: the leader of term {term}, node \
         {leader}, has the node's acknowledgements up to index {acknowledged}, and the node's log ends at {last}. An older copy of the \
         folder was put back, or the disk has lost writes. Never put an older copy back. {}",
        Replace { node: Some(*node), heard: *heard }
    )]
    RolledBack { node: NodeId, leader: NodeId, term: u64, acknowledged: u64, last: u64, heard: Heard },
    /// The cluster exists without this node.
    #[error(
        "the cluster exists already and node {node} is not one of its members: set `learner = true` for it in \
         cluster.toml, and it joins"
    )]
    NotAMember { node: NodeId },
    #[error("the cluster could not be formed: {0}")]
    Raft(String),
    /// The data folder does not accept the node's new state or a fact about the cluster.
    #[error("{0}")]
    Storage(String),
    /// The disk failed a write.
    #[error("{0}")]
    Disk(String),
}

impl From<StorageError> for BootstrapError {
    fn from(error: StorageError) -> Self {
        if error.is_of_the_disk() {
            BootstrapError::Disk(error.to_string())
        } else {
            BootstrapError::Storage(error.to_string())
        }
    }
}

/// Startup of a node, and its watch over its membership.
pub struct Bootstrap {
    pub node: Arc<NodeContext>,
    /// Addresses that the founders have sent to this node.
    pub founders: Founders,
}

/// Logs the nodes to start, and the operator's next step. The empty node votes and acknowledges nothing
/// before those nodes have confirmed that this number never stored anything.
fn log_missing_nodes(node: NodeId, waits_for: &[NodeId], is_formed: bool) {
    let nodes: Vec<String> = waits_for.iter().map(NodeId::to_string).collect();
    let nodes = nodes.join(",");
    if is_formed {
        tracing::warn!(
            %node, nodes,
            "empty data folder in a cluster that exists: this node takes no part before these nodes have answered. If they \
             are gone for good, this machine needs a new id with `learner = true` in cluster.toml"
        );
    } else {
        tracing::warn!(
            %node, nodes,
            "empty data folder, and no other node answers: start these nodes. A majority of them forms a new cluster"
        );
    }
}

impl Bootstrap {
    /// Brings the node into its cluster, without a time limit. Returns at the shutdown.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), BootstrapError> {
        tokio::select! {
            biased;
            () = shutdown.wait() => Ok(()),
            result = self.enter() => match result {
                Ok(()) => Ok(()),
                Err(error) => Err(self.advised(error).await),
            },
            () = self.discover() => Ok(()),
        }
    }

    /// Completes the error with advice from the present answers.
    async fn advised(&self, mut error: BootstrapError) -> BootstrapError {
        if let BootstrapError::DataLost { heard, .. } | BootstrapError::RolledBack { heard, .. } = &mut error
        {
            *heard = verdict::heard(self.node.config.id, &self.all_introductions().await);
        }
        error
    }

    async fn enter(&self) -> Result<(), BootstrapError> {
        self.wait_for_admission().await?;
        if self.node.config.learner {
            self.join().await?;
        } else {
            self.form().await?;
            self.regain_vote().await?;
        }
        self.check_against_leader().await?;
        self.watch_membership().await
    }

    /// Watches for two late events. No leader sends its log to a node removed at run time: such a node asks
    /// the other nodes while it serves no clients. And a voter with an outage during this node's loss of data
    /// learns the new folder only from this node, so a node without a vote keeps introducing itself.
    async fn watch_membership(&self) -> Result<(), BootstrapError> {
        loop {
            time::sleep(LOG_EVERY).await;
            if !self.node.status.borrow().serving {
                self.warn_if_removed(&self.own_state().await?).await?;
            } else if !facts::voters(&self.node.raft).contains(&self.node.config.id) {
                self.all_introductions().await;
            }
        }
    }

    /// Asks the others until the answers exclude a loss of data.
    async fn wait_for_admission(&self) -> Result<(), BootstrapError> {
        let folder = self.node.peers.folder();
        let (begun, mut logged_at) = (time::now(), None::<Instant>);
        let mut lost = LostData::default();
        let answers = loop {
            let own = self.own_state().await?;
            let (answers, witness) = self.introduce(&own).await?;
            match lost.verdict(&own, witness, &answers)? {
                Verdict::TakePart => break answers,
                Verdict::WaitFor(nodes) => {
                    if own.is_newcomer()
                        && !lost.is_known()
                        && begun.elapsed() >= FIRST_LOG_AFTER
                        && logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_EVERY)
                    {
                        log_missing_nodes(own.node, &nodes, verdict::newest(&answers).is_some());
                        logged_at = Some(time::now());
                    }
                    self.node.admission.wait_for(if own.is_newcomer() { nodes } else { Vec::new() });
                }
            }
            time::sleep(RETRY_PAUSE).await;
        };
        self.record_hearsay(&answers).await;
        // This precedes the first vote or acknowledgement: a restart must not begin to wait again. From now
        // on others ask this node about nodes that it may never meet.
        folder.rise_to(FolderState::Admitted).await?;
        self.node.admission.grant();
        Ok(())
    }

    /// Records the others' incarnations of nodes unknown to this node.
    async fn record_hearsay(&self, answers: &Answers) {
        let folder = self.node.peers.folder();
        for (node, incarnation) in verdict::hearsay(self.node.config.id, &folder.known(), answers) {
            if let Err(error) = folder.record(node, incarnation).await {
                tracing::warn!(%node, %error, "cannot record the folder by which others know a node");
            }
        }
    }

    /// Collects this node's knowledge of itself.
    async fn own_state(&self) -> Result<OwnState, BootstrapError> {
        let (node, is_learner) = (self.node.config.id, self.node.config.learner);
        let state = self.node.peers.folder().state();
        let founders: BTreeSet<NodeId> = match &self.node.config.discovery {
            Some(discovery) => discovery.founders().collect(),
            None => self.node.config.nodes.iter().filter(|m| !m.learner).map(|m| m.id).collect(),
        };
        let found = facts::recovered(&self.node.raft).await.map_err(BootstrapError::Raft)?;
        let facts::Recovered { voters, members_at, last_index, term } = found;
        let comes_again = self.node.config.autopilot.readmit_wiped && state != FolderState::Member;
        let may_lack = match self.node.recollection.memory() {
            Memory::Whole => 0,
            Memory::Forgotten => u64::from(FORGOTTEN_MAX),
            Memory::Dropped => u64::MAX,
        };
        Ok(OwnState {
            node,
            state,
            is_learner,
            founders,
            voters,
            members_at,
            last_index,
            term,
            may_lack,
            comes_again,
        })
    }

    /// Asks all other nodes at once. Returns as soon as the answers suffice, together with the node that
    /// refused this node's new folder, if `readmit_wiped` allows a return all the same.
    async fn introduce(&self, own: &OwnState) -> Result<(Answers, Option<NodeId>), BootstrapError> {
        let deadline = Instant::now() + ASK_DEADLINE;
        let mut calls: FuturesUnordered<_> = self
            .others()
            .map(|node| async move {
                (node, self.node.peers.call(node, Lane::Control, &Request::Introduce, deadline).await)
            })
            .collect();
        let (mut answers, mut witness) = (Answers::new(), None);
        while let Some((node, answer)) = calls.next().await {
            match answer {
                Ok(Response::Introduced(introduction)) => {
                    self.add_addresses(&introduction);
                    answers.insert(node, introduction);
                }
                Err(PeerError::Refused {
                    refusal: HandshakeRefusal::OtherFolder { node: whose }, ..
                }) if whose == own.node => {
                    if own.comes_again {
                        witness = Some(node);
                        continue;
                    }
                    let heard = Heard::Nothing;
                    return Err(BootstrapError::DataLost { node: own.node, witness: node, heard });
                }
                Ok(other) => tracing::debug!(%node, ?other, "no introduction"),
                Err(error) => tracing::debug!(%node, %error, "no introduction"),
            }
            // Read again: a node that takes part already may have acknowledged entries since the call.
            let own = self.own_state().await?;
            let verdict = match decide(&own, &answers) {
                Err(BootstrapError::DataLost { .. }) if own.comes_again => continue,
                verdict => verdict?,
            };
            if witness.is_none()
                && verdict == Verdict::TakePart
                && verdict::leader_has_answered(&own, &answers)
            {
                break;
            }
        }
        Ok((answers, witness))
    }

    /// Iterates over the other nodes with an address from `cluster.toml`, the log or an introduction.
    fn others(&self) -> impl Iterator<Item = NodeId> {
        let me = self.node.config.id;
        self.node.peers.nodes().into_iter().filter(move |node| *node != me)
    }

    /// Adds the addresses of unknown members: members added after this node's `cluster.toml` may be the
    /// voters and the leader.
    fn add_addresses(&self, introduction: &Introduction) {
        for (node, address) in &introduction.addresses {
            if *node != self.node.config.id && self.node.peers.peer(*node).is_none() {
                self.node.peers.set_address(*node, address);
            }
        }
    }

    /// Waits for a leader and compares this node's log with its acknowledgements to that leader. At the start
    /// there may have been no leader to ask.
    async fn check_against_leader(&self) -> Result<(), BootstrapError> {
        let mut logged_at: Option<Instant> = None;
        loop {
            let own = self.own_state().await?;
            let leader = facts::leader(&self.node.raft);
            let joined = facts::has_joined(&self.node.raft, own.node);
            if logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_EVERY) {
                self.warn_if_removed(&own).await?;
                logged_at = Some(time::now());
            }
            if joined {
                self.node.peers.folder().rise_to(FolderState::Member).await?;
            }
            match leader {
                Some(leader) if leader == own.node && joined => return Ok(()),
                Some(leader) if leader != own.node => {
                    let deadline = Instant::now() + ASK_DEADLINE;
                    let answer =
                        self.node.peers.call(leader, Lane::Control, &Request::Introduce, deadline).await;
                    if let Ok(Response::Introduced(introduction)) = answer {
                        // Read again: the log now contains the entries acknowledged meanwhile.
                        verdict::check_log(&self.own_state().await?, leader, &introduction)?;
                        if introduction.acknowledged.is_some() && joined {
                            return Ok(());
                        }
                    }
                }
                _ => {}
            }
            time::sleep(LEADER_EVERY).await;
        }
    }

    /// Warns after a removal of this node. No leader sends its log to a removed node; only the other nodes
    /// know.
    async fn warn_if_removed(&self, own: &OwnState) -> Result<(), BootstrapError> {
        if own.state != FolderState::Member {
            return Ok(());
        }
        let (answers, _) = self.introduce(own).await?;
        if verdict::was_removed(own, &answers) {
            tracing::warn!(
                "node {} is no member of its cluster any more: it was removed. It serves no clients and does not come \
                 back under this number. Stop it. If the machine is to join again, it needs a new id with `learner = true` \
                 in cluster.toml and another folder",
                own.node
            );
        }
        Ok(())
    }

    async fn form(&self) -> Result<(), BootstrapError> {
        loop {
            let own = self.own_state().await?;
            if own.last_index.is_some() {
                return Ok(());
            }
            let (answers, _) = self.introduce(&own).await?;
            verdict::check_membership(&own, &answers)?;
            if own.comes_again
                && verdict::newest(&answers).is_some_and(|known| !known.voters.contains(&own.node))
            {
                return Ok(());
            }
            // A node that knows of a cluster has a leader or stands for election: there is nothing to form
            // then.
            let is_unknown = answers.values().all(|answer| answer.voters.is_empty());
            let empty = answers.keys().filter(|node| own.founders.contains(node)).count() + 1;
            if is_unknown
                && empty * 2 > own.founders.len()
                && let Some(voters) = self.founding_members().await
            {
                let count = voters.len();
                assert!(voters.keys().eq(&own.founders), "exactly the founders vote");
                match facts::form(&self.node.raft, voters).await {
                    Ok(()) => {
                        tracing::info!(voters = count, "formed the cluster");
                        return Ok(());
                    }
                    Err(e) => tracing::debug!(error = %e, "the cluster has been formed meanwhile"),
                }
            }
            time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Joins as a learner: asks any node, follows its hint to the leader, until the change is committed.
    async fn join(&self) -> Result<(), BootstrapError> {
        let me = self.node.config.id;
        let entry = self.node.config.nodes.iter().find(|m| m.id == me);
        let ours = entry.map(member).expect("a node's configuration holds its own entry");
        // The log's membership may come from a deposed leader, and may be truncated. A node that was a member
        // once and is none any more was removed: it does not join again by itself.
        if self.node.peers.folder().state() == FolderState::Member {
            return Ok(());
        }
        while !facts::has_joined(&self.node.raft, me) {
            // Each answer names further members.
            let mut candidates: Vec<NodeId> = self.all_introductions().await.into_keys().collect();
            while let Some(node) = candidates.pop() {
                let request = Request::AddLearner { node: me, member: ours.clone() };
                let deadline = Instant::now() + JOIN_DEADLINE;
                match self.node.peers.call(node, Lane::Control, &request, deadline).await {
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
            time::sleep(RETRY_PAUSE).await;
        }
        Ok(())
    }
}

fn member(entry: &crate::config::NodeEntry) -> Member {
    Member { peer_addr: entry.peer_addr.clone(), client_addr: entry.any_client_addr().to_owned() }
}
