//! How a node that has been started comes into its cluster: it hears from the others whether it has forgotten
//! anything (`judge.rs`), and takes no part before; then one with an empty log forms the cluster once with
//! the others, waits to be told, or joins.
//!
//! Invariant: a cluster is formed from the voters of `cluster.toml` at most once. A node forms it only after
//! a majority of those voters has said that its log is empty, too; two majorities meet, so a cluster that
//! exists is never formed again.
//!
//! Invariant: a node that lost its data takes no part under its old number: it would have forgotten its votes
//! and what it acknowledged. It has another incarnation than the one that the others have written down before
//! they counted anything of it. Who counted something of it was at least half of the other voters, so it asks
//! more than half of them.

mod discovery;
mod judge;
mod readmission;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rowlock_consensus::peer::{
    HandshakeRefusal, Introduction, Lane, PeerError, PeerPool, Refusal, Request, Response,
};
use rowlock_consensus::raft::{Admission, Raft, facts};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_types::advice::{Heard, Replace};
use rowlock_types::member::Member;
use rowlock_types::status::Status;
use rowlock_wal::{FolderState, StorageError};

pub use self::discovery::Founders;
use self::judge::{Answers, Us, Verdict, judge};
use self::readmission::Lost;
use crate::config::NodeConfig;

const ASK_DEADLINE: Duration = Duration::from_secs(1);
const JOIN_DEADLINE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);
/// A node that waits for others says so after this: the nodes of a new cluster do not start at one moment.
const SAY_FIRST: Duration = Duration::from_secs(2);
/// How often it says so again.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// For so long a node that lost its data has seen others in the same state, before it says that they are too
/// many. So that they see each other.
const TOO_MANY_FOR: Duration = Duration::from_secs(3);
/// How often a node looks whether a leader is there that it can ask.
const LEADER_EVERY: Duration = Duration::from_millis(500);

/// Why a node cannot come into its cluster. A person must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// The others know another data folder of this number.
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
    /// The leader knows that this node has stored more than it has.
    #[error(
        "the data folder of node {node} is older than what the node has acknowledged: the leader of term {term}, node \
         {leader}, has its word for the log up to index {acknowledged}, and its log ends at {last}. An older copy of the \
         folder was put back, or the disk has lost writes. Never put an older copy back. {}",
        Replace { node: Some(*node), heard: *heard }
    )]
    RolledBack {
        node: NodeId,
        leader: NodeId,
        term: u64,
        acknowledged: u64,
        /// Where its log ends.
        last: u64,
        heard: Heard,
    },
    /// The cluster exists without this node.
    #[error(
        "the cluster exists already and node {node} is not one of its members: set `learner = true` for it in \
         cluster.toml, and it joins"
    )]
    NotAMember { node: NodeId },
    #[error("the cluster could not be formed: {0}")]
    Raft(String),
    /// The folder does not take what the node has become, or heard of its cluster.
    #[error("{0}")]
    Storage(String),
    /// The disk does not take it.
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

/// What a node needs to come in.
pub struct Bootstrap {
    pub config: Arc<NodeConfig>,
    /// Raft, which takes no part yet.
    pub raft: Raft,
    /// The ways to the others.
    pub peers: PeerPool,
    pub admission: Admission,
    /// Where the founders are found, as they have told this node.
    pub founders: Founders,
    /// Whether this node serves clients.
    pub status: watch::Receiver<Status>,
}

/// Says which nodes an empty node waits for, and what to do. It votes and acknowledges nothing before they
/// have said that it never stored anything under its number.
fn say_what_to_start(node: NodeId, waits_for: &[NodeId], is_formed: bool) {
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
    /// Comes in, however long it takes. Ends with the shutdown.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), BootstrapError> {
        tokio::select! {
            biased;
            () = shutdown.wait() => Ok(()),
            result = self.come_in() => match result {
                Ok(()) => Ok(()),
                Err(error) => Err(self.advised(error).await),
            },
            () = self.discover() => Ok(()),
        }
    }

    /// The error with the advice that fits what the others say now: nothing else was heard of all of them.
    async fn advised(&self, mut error: BootstrapError) -> BootstrapError {
        if let BootstrapError::DataLost { heard, .. } | BootstrapError::RolledBack { heard, .. } = &mut error
        {
            *heard = judge::heard(self.config.id, &self.everybody().await);
        }
        error
    }

    async fn come_in(&self) -> Result<(), BootstrapError> {
        self.be_admitted().await?;
        if self.config.learner {
            self.join().await?;
        } else {
            self.form().await?;
            self.vote_again().await?;
        }
        self.hear_the_leader().await?;
        self.stay().await
    }

    /// No leader sends its log to a node that was removed while it ran: it asks the others, while it serves
    /// no clients. And a voter that could not be reached while this node lost its data knows the new folder
    /// only when this node comes: it does, as long as it does not vote.
    async fn stay(&self) -> Result<(), BootstrapError> {
        loop {
            time::sleep(SAY_EVERY).await;
            if !self.status.borrow().serving {
                self.say_if_removed(&self.us().await?).await?;
            } else if !facts::voters(&self.raft).contains(&self.config.id) {
                self.everybody().await;
            }
        }
    }

    /// Asks the others until it is known that this node has forgotten nothing.
    async fn be_admitted(&self) -> Result<(), BootstrapError> {
        let folder = self.peers.folder();
        let (begun, mut said) = (time::now(), None::<Instant>);
        let mut lost = Lost::default();
        let answers = loop {
            let us = self.us().await?;
            let (answers, witness) = self.introduce(&us).await?;
            match lost.verdict(&us, witness, &answers)? {
                Verdict::TakePart => break answers,
                Verdict::WaitFor(nodes) => {
                    if us.is_newcomer()
                        && !lost.is_known()
                        && begun.elapsed() >= SAY_FIRST
                        && said.is_none_or(|said| said.elapsed() >= SAY_EVERY)
                    {
                        say_what_to_start(us.node, &nodes, judge::newest(&answers).is_some());
                        said = Some(time::now());
                    }
                    self.admission.wait_for(if us.is_newcomer() { nodes } else { Vec::new() });
                }
            }
            time::sleep(AGAIN).await;
        };
        self.take_word_for_others(&answers).await;
        // Before the first vote or acknowledgement: a restart must not begin to wait again. And a newcomer is
        // from now on asked about others, whom it may never see itself.
        folder.rise_to(FolderState::Admitted).await?;
        self.admission.grant();
        Ok(())
    }

    /// Notes by which folders the others know nodes that this one has never met.
    async fn take_word_for_others(&self, answers: &Answers) {
        let folder = self.peers.folder();
        for (node, incarnation) in judge::words(self.config.id, &folder.known(), answers) {
            if let Err(error) = folder.record(node, incarnation).await {
                tracing::warn!(%node, %error, "it is not noted by which folder others know a node");
            }
        }
    }

    /// What this node knows of itself.
    async fn us(&self) -> Result<Us, BootstrapError> {
        let (node, is_learner) = (self.config.id, self.config.learner);
        let state = self.peers.folder().state();
        let founders: BTreeSet<NodeId> = match &self.config.discovery {
            Some(discovery) => discovery.founders().collect(),
            None => self.config.nodes.iter().filter(|m| !m.learner).map(|m| m.id).collect(),
        };
        let found = facts::recovered(&self.raft).await.map_err(BootstrapError::Raft)?;
        let facts::Recovered { voters, members_at, last_index, term } = found;
        let comes_again = self.config.autopilot.readmit_wiped && state != FolderState::Member;
        Ok(Us { node, state, is_learner, founders, voters, members_at, last_index, term, comes_again })
    }

    /// Asks everybody at once. Gives the answers as soon as they suffice, and who knows this node by another
    /// folder, if it may come again all the same.
    async fn introduce(&self, us: &Us) -> Result<(Answers, Option<NodeId>), BootstrapError> {
        let deadline = Instant::now() + ASK_DEADLINE;
        let mut calls: FuturesUnordered<_> = self
            .others()
            .map(|node| async move {
                (node, self.peers.call(node, Lane::Control, &Request::Introduce, deadline).await)
            })
            .collect();
        let (mut answers, mut witness) = (Answers::new(), None);
        while let Some((node, answer)) = calls.next().await {
            match answer {
                Ok(Response::Introduced(introduction)) => {
                    self.meet(&introduction);
                    answers.insert(node, introduction);
                }
                Err(PeerError::Refused {
                    refusal: HandshakeRefusal::OtherFolder { node: whose }, ..
                }) if whose == us.node => {
                    if us.comes_again {
                        witness = Some(node);
                        continue;
                    }
                    let heard = Heard::Nothing;
                    return Err(BootstrapError::DataLost { node: us.node, witness: node, heard });
                }
                Ok(other) => tracing::debug!(%node, ?other, "no introduction"),
                Err(error) => tracing::debug!(%node, %error, "no introduction"),
            }
            // Read again: a node that takes part already may have acknowledged entries since it asked.
            let us = self.us().await?;
            let verdict = match judge(&us, &answers) {
                Err(BootstrapError::DataLost { .. }) if us.comes_again => continue,
                verdict => verdict?,
            };
            if witness.is_none() && verdict == Verdict::TakePart && judge::leader_has_answered(&us, &answers)
            {
                break;
            }
        }
        Ok((answers, witness))
    }

    /// Whom to ask: those of whom this node has an address, by `cluster.toml`, its log or what it was told.
    fn others(&self) -> impl Iterator<Item = NodeId> {
        let me = self.config.id;
        self.peers.nodes().into_iter().filter(move |node| *node != me)
    }

    /// Members that this node has no address of are asked from now on, too: those that were added since its
    /// `cluster.toml` was written may be the ones that vote and lead.
    fn meet(&self, introduction: &Introduction) {
        for (node, address) in &introduction.addresses {
            if *node != self.config.id && self.peers.peer(*node).is_none() {
                self.peers.set_address(*node, address);
            }
        }
    }

    /// A leader may not have been there to be asked at the start. The first one that is says whether it has
    /// this node's word for more than it has.
    async fn hear_the_leader(&self) -> Result<(), BootstrapError> {
        let mut said: Option<Instant> = None;
        loop {
            let us = self.us().await?;
            let leader = facts::leader(&self.raft);
            let joined = facts::has_joined(&self.raft, us.node);
            if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                self.say_if_removed(&us).await?;
                said = Some(time::now());
            }
            if joined {
                self.peers.folder().rise_to(FolderState::Member).await?;
            }
            match leader {
                Some(leader) if leader == us.node && joined => return Ok(()),
                Some(leader) if leader != us.node => {
                    let deadline = Instant::now() + ASK_DEADLINE;
                    let answer = self.peers.call(leader, Lane::Control, &Request::Introduce, deadline).await;
                    if let Ok(Response::Introduced(introduction)) = answer {
                        // Read again: what it has acknowledged meanwhile is in it.
                        judge::check_log(&self.us().await?, leader, &introduction)?;
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

    /// No leader sends its log to a node that was removed, so it hears of its removal from the others only.
    async fn say_if_removed(&self, us: &Us) -> Result<(), BootstrapError> {
        if us.state != FolderState::Member {
            return Ok(());
        }
        let (answers, _) = self.introduce(us).await?;
        if judge::was_removed(us, &answers) {
            tracing::warn!(
                "node {} is no member of its cluster any more: it was removed. It serves no clients and does not come \
                 back under this number. Stop it. If the machine is to join again, it needs a new id with `learner = true` \
                 in cluster.toml and another folder",
                us.node
            );
        }
        Ok(())
    }

    async fn form(&self) -> Result<(), BootstrapError> {
        loop {
            let us = self.us().await?;
            if us.last_index.is_some() {
                return Ok(());
            }
            let (answers, _) = self.introduce(&us).await?;
            judge::check_membership(&us, &answers)?;
            if us.comes_again && judge::newest(&answers).is_some_and(|known| !known.voters.contains(&us.node))
            {
                return Ok(());
            }
            // A node that knows of a cluster has a leader, or stands for election: nothing to form then.
            let is_unknown = answers.values().all(|answer| answer.voters.is_empty());
            let empty = answers.keys().filter(|node| us.founders.contains(node)).count() + 1;
            if is_unknown
                && empty * 2 > us.founders.len()
                && let Some(voters) = self.founding_members().await
            {
                let count = voters.len();
                assert!(voters.keys().eq(&us.founders), "all founders vote, and nobody else");
                match facts::form(&self.raft, voters).await {
                    Ok(()) => {
                        tracing::info!(voters = count, "formed the cluster");
                        return Ok(());
                    }
                    Err(e) => tracing::debug!(error = %e, "the cluster has been formed meanwhile"),
                }
            }
            time::sleep(AGAIN).await;
        }
    }

    /// Asks any node, follows to the leader, until the change is committed.
    async fn join(&self) -> Result<(), BootstrapError> {
        let me = self.config.id;
        let entry = self.config.nodes.iter().find(|m| m.id == me);
        let ours = entry.map(member).expect("a node's configuration holds its own entry");
        // What is in the log may come from a leader that has been deposed since, and go again. A node that
        // was taken in once and is no member any more was removed: it does not come again by itself.
        if self.peers.folder().state() == FolderState::Member {
            return Ok(());
        }
        while !facts::has_joined(&self.raft, me) {
            // Each of them tells who else there is.
            let mut candidates: Vec<NodeId> = self.everybody().await.into_keys().collect();
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
    Member { peer_addr: entry.peer_addr.clone(), client_addr: entry.any_client_addr().to_owned() }
}
