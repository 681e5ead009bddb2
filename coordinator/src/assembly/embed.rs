//! What a program needs that runs a node inside itself: a configuration without a file, where the node
//! listens, when it serves, and the end of a session by the program's wish. The tutorial is the documentation
//! of the crate.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rowlock_consensus::raft::compaction::take_snapshot;
use rowlock_consensus::raft::facts;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{NodeId, SessionId};

use super::{Addresses, Node, NodeError};
use crate::config::{ClusterConfig, ConfigError, NodeConfig, NodeEntry};
use crate::end_session::{EndSession, NotExpired};

/// Loopback, on a port that the system chooses.
const ANY_PORT: &str = "127.0.0.1:0";

/// The node does not serve clients, and will not by itself.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotServing {
    /// The node has stopped by itself.
    #[error(transparent)]
    Failed(#[from] NodeError),
    /// The deadline has passed. It goes on trying.
    #[error("the node is not in contact with a quorum of its cluster; look whether the other nodes run")]
    NoQuorum,
}

/// No snapshot was written, for this reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SnapshotFailed(String);

/// Signs of life, for a watchdog: a node whose `rounds` stand still hangs, and so does one that has not
/// `applied` what is `committed` and gets no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    /// How often the node has looked at itself: twenty times a second, at least once where it waits for
    /// others.
    pub rounds: u64,
    /// Last log index applied, as of the last round.
    pub applied: u64,
    /// Last log index known to be committed, as of the last round.
    pub committed: u64,
}

impl NodeConfig {
    /// A cluster of this one node, on loopback ports that the system chooses ([`Node::addresses`] tells
    /// them), with its files in `data_dir`. Everything else as where `cluster.toml` says nothing; all fields
    /// may be changed.
    pub fn single(data_dir: impl Into<PathBuf>) -> NodeConfig {
        let any = || ANY_PORT.to_owned();
        let entry = NodeEntry::new(NodeId(1), [any(), any(), any()], data_dir.into());
        let (name, nodes) = ("rowlock".to_owned(), vec![entry.clone()]);
        NodeConfig::of(&entry, ClusterConfig { name, nodes, ..ClusterConfig::default() })
    }

    /// The node `id` of the cluster that `text` describes (see the commented `cluster.toml` of the
    /// repository). Relative data folders are relative to `folder`.
    ///
    /// # Errors
    /// What is wrong with the text, with its line; or that it has no such node.
    pub fn from_toml(text: &str, folder: &Path, id: NodeId) -> Result<NodeConfig, ConfigError> {
        let file = folder.join("cluster.toml");
        let cluster = ClusterConfig::parse(text, &file)?;
        cluster.node(id).ok_or_else(|| ConfigError {
            file,
            line: None,
            what: format!("there is no [[node]] with id = {id}"),
            remedy: "ask for one of the nodes that it has".to_owned(),
        })
    }
}

impl Node {
    /// Whether the node makes progress, with or without a quorum. Never waits.
    pub fn vitals(&self) -> Vitals {
        let status = self.status.borrow();
        let waits = self.metrics.wal_waits_for_room.get() == 1;
        Vitals {
            rounds: self.replica.rounds.load(Ordering::Relaxed),
            applied: status.applied_index,
            // A restart gives a full disk no room.
            committed: if waits { status.applied_index } else { status.committed_index },
        }
    }

    /// Returns the addresses of all listeners.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Waits until clients are served here.
    ///
    /// # Errors
    /// [`NotServing::Failed`] if the node stops by itself, [`NotServing::NoQuorum`] after the deadline.
    /// # Cancel safety
    /// Nothing happens but waiting.
    pub async fn serving(&self, deadline: Instant) -> Result<(), NotServing> {
        let mut status = self.status();
        tokio::select! {
            biased;
            error = self.stopped() => Err(error.into()),
            waited = time::timeout_at(deadline, status.wait_for(|status| status.serving)) => match waited {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(_)) | Err(_) => Err(NotServing::NoQuorum),
            },
        }
    }

    /// Asks a voter to lead in the place of this node. Whether it does shows in [`Node::status`]. Nothing
    /// happens if this node does not lead, or the other one is no voter: a learner would never take over.
    pub async fn hand_over(&self, to: NodeId) {
        if self.status().borrow().voters.contains(&to) {
            facts::hand_over(&self.raft, to).await;
        }
    }

    /// Writes a snapshot of what is applied now, as the node does by itself every `raft.snapshot_every`
    /// entries. Gives the index of the last log entry in it.
    ///
    /// # Errors
    /// [`SnapshotFailed`]; the node goes on, and the log is kept.
    /// # Cancel safety
    /// A snapshot that has been begun is written to its end, or leaves nothing.
    pub async fn take_snapshot(&self) -> Result<u64, SnapshotFailed> {
        take_snapshot(&self.raft).await.map_err(|error| SnapshotFailed(error.to_string()))
    }

    /// Ends a session now, whatever its client does: through the log, as the leader ends one that has fallen
    /// silent. Its ephemeral znodes are gone here when this returns `Ok`, and its client is told when it next
    /// asks.
    ///
    /// # Errors
    /// [`NotExpired::NoSession`]: this node knows no such session. [`NotExpired::Unknown`]: it may have been
    /// ended, or may still be.
    /// # Cancel safety
    /// Once polled, the session may end even when the future is dropped.
    pub async fn expire_session(&self, session: SessionId, deadline: Instant) -> Result<(), NotExpired> {
        let ending = EndSession { replica: self.replica.clone(), proposer: self.proposer.clone() };
        ending.run(session, Default::default(), deadline).await
    }
}
