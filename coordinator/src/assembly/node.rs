//! The handle of a running node: its status, its failure, and its shutdown. `wiring` makes the handle.
//!
//! Programs that embed a node have a configuration without a file, the listen addresses, the wait for
//! service, and the end of a session on their request. The crate's documentation is the tutorial.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rowlock_consensus::raft::compaction::take_snapshot;
use rowlock_consensus::raft::facts;
use rowlock_consensus::status::Status;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, Task};
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Metrics;
use rowlock_proto::{NodeId, SessionId};

use super::access;
use super::errors::NodeError;
use super::listeners::Addresses;
use super::tls::Tls;
#[cfg(feature = "access")]
use crate::access::http::api::Direct;
#[cfg(feature = "cluster")]
use crate::cluster::operations::{LogLevel, LogSwitch};
use crate::config::{ClusterConfig, ConfigError, NodeConfig, NodeEntry};
use crate::node::context::NodeContext;
use crate::node::delivery::outbox::CloseReason;
use crate::node::end_session::{EndSession, NotExpired};
use crate::node::proposer::Proposer;

/// A running node. Dropping the handle starts a shutdown, like [`Node::shutdown`], without waiting for its
/// end.
pub struct Node {
    pub(super) context: Arc<NodeContext>,
    pub(super) shutdown_signal: Shutdown,
    /// Task that stops all parts in order when the shutdown fires. Present until [`Node::shutdown`] awaits
    /// it.
    pub(super) end: Option<Task<()>>,
    pub(super) addresses: Addresses,
    pub(super) failure: watch::Receiver<Option<NodeError>>,
    #[cfg(feature = "cluster")]
    pub(super) log_level: Arc<LogLevel>,
    pub(super) tls: Tls,
    pub(super) access: access::Handles,
}

impl Node {
    /// Returns a channel with the current status of this node.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.context.status.clone()
    }

    /// Returns the handle for writes, bypassing ZooKeeper's protocol: for the benchmarks of this repository,
    /// not for embedders.
    #[doc(hidden)]
    pub fn proposer(&self) -> Proposer {
        self.context.proposer.clone()
    }

    /// Returns the node's metrics: for tests of this repository. Other programs read `/metrics`.
    #[doc(hidden)]
    pub fn metrics(&self) -> Arc<Metrics> {
        self.context.metrics.clone()
    }

    /// Triggers a check of the certificate and token files now, instead of within ten seconds. Returns
    /// whether the node has any such files.
    pub fn reload_files_soon(&self) -> bool {
        let tls = self.tls.as_ref().inspect(|keeper| keeper.reload_soon()).is_some();
        self.access.reload_files_soon() || tls
    }

    /// Waits until the node fails. A failed node serves no client; shut it down. Cancel safe.
    pub async fn stopped(&self) -> NodeError {
        let mut failure = self.failure.clone();
        loop {
            if let Some(error) = failure.borrow_and_update().clone() {
                return error;
            }
            if failure.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Stops in order: clients first, then leadership if this node leads, the tasks, Raft, and the log. All
    /// parts of the node have ended when this returns.
    ///
    /// # Cancel safety
    /// Once polled, the node stops even when the future is dropped.
    pub async fn shutdown(mut self) {
        self.trigger_shutdown();
        if let Some(end) = self.end.take()
            && let Err(error) = end.await
        {
            tracing::error!(%error, "the node did not stop in order");
        }
    }

    fn trigger_shutdown(&self) {
        self.context.registry.close_all(CloseReason::Leaving);
        self.shutdown_signal.trigger();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.trigger_shutdown();
    }
}

/// Loopback, on a port that the system chooses.
const ANY_PORT: &str = "127.0.0.1:0";

/// Reason why the node does not serve clients.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotServing {
    /// The node has stopped by itself.
    #[error(transparent)]
    Failed(#[from] NodeError),
    /// The deadline has passed. The node keeps trying.
    #[error("the node is not in contact with a quorum of its cluster; look whether the other nodes run")]
    NoQuorum,
}

/// Reason why no snapshot was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SnapshotFailed(String);

/// Signs of life, for a watchdog: a node hangs if its `rounds` do not grow, or if `applied` stays below
/// `committed` without progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    /// Number of the node's self-checks: twenty per second, and at least once while the node waits for
    /// others.
    pub rounds: u64,
    /// Last log index applied, as of the last round.
    pub applied: u64,
    /// Last log index known to be committed, as of the last round.
    pub committed: u64,
}

impl NodeConfig {
    /// Configures a cluster of this one node, on loopback ports that the system chooses ([`Node::addresses`]
    /// returns them), with its files in `data_dir`. All other values are the defaults of `cluster.toml`;
    /// every field may be changed.
    pub fn single(data_dir: impl Into<PathBuf>) -> NodeConfig {
        let any = || ANY_PORT.to_owned();
        let entry = NodeEntry::new(NodeId(1), [any(), any(), any()], data_dir.into());
        let (name, nodes) = ("rowlock".to_owned(), vec![entry.clone()]);
        NodeConfig::of(&entry, ClusterConfig { name, nodes, ..ClusterConfig::default() })
    }

    /// Reads the configuration of node `id` from the text of a `cluster.toml` (see the commented file in the
    /// repository). Relative data folders are relative to `folder`.
    ///
    /// # Errors
    /// The mistake in the text, with its line; or the lack of such a node.
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
    /// Returns the signs of progress, with or without a quorum. Never waits.
    pub fn vitals(&self) -> Vitals {
        let status = self.context.status.borrow();
        let waits = self.context.metrics.wal_waits_for_room.get() == 1;
        Vitals {
            rounds: self.context.replica.rounds.load(Ordering::Relaxed),
            applied: status.applied_index,
            // A full disk hides the backlog: a restart would give the disk no room.
            committed: if waits { status.applied_index } else { status.committed_index },
        }
    }

    /// Returns the addresses of all listeners.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Waits until this node serves clients.
    ///
    /// # Errors
    /// [`NotServing::Failed`] if the node stops by itself, [`NotServing::NoQuorum`] after the deadline.
    /// # Cancel safety
    /// Dropping the future has no effect on the node.
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

    /// Asks a voter to become leader in the place of this node. [`Node::status`] shows the result. Does
    /// nothing if this node does not lead, or if `to` is no voter that is alive: until another node leads,
    /// this node would accept no write.
    pub async fn hand_over(&self, to: NodeId) {
        if self.context.alive_voters().contains_key(&to) {
            facts::hand_over(&self.context.raft, to).await;
        }
    }

    /// Writes a snapshot of the applied state, as the node does by itself every `raft.snapshot_every`
    /// entries. Returns the index of the last log entry in the snapshot.
    ///
    /// # Errors
    /// [`SnapshotFailed`]; the node continues, and keeps the log.
    /// # Cancel safety
    /// A begun snapshot is completed, or leaves nothing.
    pub async fn take_snapshot(&self) -> Result<u64, SnapshotFailed> {
        take_snapshot(&self.context.raft).await.map_err(|error| SnapshotFailed(error.to_string()))
    }

    /// Ends a session now, whatever its client does: through the log, as the leader ends a silent session.
    /// The session's ephemeral znodes are deleted here when this returns `Ok`, and the client learns of the
    /// end with its next request.
    ///
    /// # Errors
    /// [`NotExpired::NoSession`]: this node knows no such session. [`NotExpired::Unknown`]: the session may
    /// have ended, or may still end.
    /// # Cancel safety
    /// Once polled, the session may end even when the future is dropped.
    pub async fn expire_session(&self, session: SessionId, deadline: Instant) -> Result<(), NotExpired> {
        let ending =
            EndSession { replica: self.context.replica.clone(), proposer: self.context.proposer.clone() };
        ending.run(session, Default::default(), deadline).await
    }

    /// Lets operators change the program's log filter (`rowlock log-level`). Before this call the node
    /// refuses such requests. The first switch wins.
    #[cfg(feature = "cluster")]
    pub fn set_log_switch(&self, switch: Arc<dyn LogSwitch>) {
        self.log_level.set_switch(switch);
    }

    /// Locks by HTTP, past the listener: only in a simulated world, which has none.
    #[doc(hidden)]
    #[cfg(feature = "access")]
    pub fn api(&self) -> Option<Direct> {
        self.access.api.clone()
    }
}
