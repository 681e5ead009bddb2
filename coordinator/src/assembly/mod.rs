//! A node: opens the storage, starts Raft, and connects all parts (`open.rs`, `wiring.rs`): the one place
//! that knows every part.
//!
//! To embed a node in a program: [`Node::start`], then [`Node::stopped`] beside the program's own work, and
//! [`Node::shutdown`] at the end. `node.rs` has the parts that only embedders need.

#[cfg_attr(not(feature = "access"), path = "without_access.rs")]
mod access;
#[cfg_attr(not(feature = "cluster"), path = "without_cluster.rs")]
mod cluster;
mod errors;
mod listeners;
mod node;
mod open;
mod stop;
mod tls;
mod wiring;

use std::pin::Pin;
use std::sync::Arc;

use rowlock_consensus::node_hook::{Hook, NodeHook};
use rowlock_env::time;
use rowlock_metrics::Metrics;

#[cfg(feature = "cluster")]
pub use crate::cluster::bootstrap::BootstrapError;
#[cfg(feature = "cluster")]
pub use crate::cluster::operations::LogSwitch;
use crate::config::NodeConfig;
pub use crate::node::end_session::NotExpired;
pub use errors::{NodeError, StartError};
pub use listeners::Addresses;
use listeners::Listeners;
pub use node::{Node, NotServing, SnapshotFailed, Vitals};
use open::{Assembly, Trust};

type Starting = Pin<Box<dyn Future<Output = Result<Node, StartError>> + Send>>;

impl Node {
    /// Opens the data folder, listens, and starts all tasks. Returns before the node serves: see
    /// [`Node::status`].
    ///
    /// Dropping the future may leave tasks running until the process ends.
    pub async fn start(config: NodeConfig) -> Result<Node, StartError> {
        Self::start_as(config, Hook::default()).await
    }

    /// Starts a node like [`Node::start`]; `hook` observes the node's log and state.
    pub async fn start_hooked(config: NodeConfig, hook: Arc<dyn NodeHook>) -> Result<Node, StartError> {
        Self::start_as(config, Hook::by(hook)).await
    }

    /// Returns a boxed future, so that this crate compiles a node's code once, instead of every crate that
    /// starts a node.
    fn start_as(mut config: NodeConfig, hook: Hook) -> Starting {
        Box::pin(async move {
            let listeners = Listeners::bind(&config).await?;
            tls::refuse_open_port(&config, listeners.peer.local_addr())?;
            let tls = tls::open(&config).await?;
            let tokens = access::open_tokens(&config).await?;
            let metrics = Arc::new(Metrics::started_at(time::wall_ms()));
            let audit = open::open_audit(&config, metrics.clone()).await?;
            let trust = Trust { tls, tokens, audit, metrics };
            Addresses::of(&listeners).write_into(&mut config);
            let (assembly, ends) = Assembly::open(Arc::new(config), trust, hook).await?;
            Ok(assembly.run(ends, listeners))
        })
    }
}

#[cfg(test)]
mod tests;
