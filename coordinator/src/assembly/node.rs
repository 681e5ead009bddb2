//! The handle of a running node: its status, its failure, and its shutdown. `wiring` makes the handle.

use std::sync::Arc;

use rowlock_consensus::status::Status;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, Task};
use rowlock_metrics::Metrics;

use super::access;
use super::addresses::Addresses;
use super::errors::NodeError;
use super::tls::Tls;
#[cfg(feature = "cluster")]
use crate::cluster::operations::log_level::LogLevel;
use crate::node::context::NodeContext;
use crate::node::delivery::outbox::CloseReason;
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
