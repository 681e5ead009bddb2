//! A node: opens the storage, starts Raft, and connects all parts (`open.rs`, `wiring.rs`): the one place
//! that knows every part.
//!
//! To embed a node in a program: [`Node::start`], then [`Node::stopped`] beside the program's own work, and
//! [`Node::shutdown`] at the end. `embed.rs` has the parts that only embedders need.

#[cfg_attr(not(feature = "access"), path = "without_access.rs")]
mod access;
mod addresses;
mod audit;
#[cfg_attr(not(feature = "cluster"), path = "without_cluster.rs")]
mod cluster;
mod embed;
mod leave;
mod open;
mod stop;
mod tls;
#[cfg(feature = "access")]
mod tokens;
mod wiring;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use rowlock_consensus::raft::OpenError;
use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, Task};
use rowlock_env::time;
use rowlock_tls::TlsError;
use rowlock_types::metrics::Metrics;
use rowlock_types::node_hook::{Hook, NodeHook};
use rowlock_types::status::Status;
use rowlock_types::versions::OtherRelease;
use rowlock_wal::StorageError;

#[cfg(feature = "cluster")]
pub use crate::cluster::bootstrap::BootstrapError;
#[cfg(feature = "cluster")]
use crate::cluster::comparison::Difference;
#[cfg(feature = "cluster")]
use crate::cluster::operations::log_level::LogLevel;
#[cfg(feature = "cluster")]
pub use crate::cluster::operations::log_level::LogSwitch;
use crate::config::NodeConfig;
use crate::node::context::NodeContext;
use crate::node::delivery::outbox::CloseReason;
pub use crate::node::end_session::NotExpired;
use crate::node::proposer::Proposer;
pub use addresses::Addresses;
pub use embed::{NotServing, SnapshotFailed, Vitals};
use open::{Assembly, Trust};
use tls::Tls;

/// Reason why a node does not start, in one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder is unusable.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Listening on an address failed.
    #[error("cannot listen on {address} for {purpose}: {source}; {remedy}")]
    Listen {
        /// Address `host:port` that is taken or wrong.
        address: String,
        /// Clients of the address, for people.
        purpose: &'static str,
        /// The system's reason for the refusal.
        source: io::Error,
        /// Advice to the operator, in one phrase.
        remedy: &'static str,
    },
    /// The configuration has no address for clients, neither without TLS nor with TLS.
    #[error("the node has no address for clients: give one (client_addr or secure_client_addr)")]
    NoClients,
    /// The certificates are unusable.
    #[error("[tls]: {0}")]
    Tls(#[from] TlsError),
    /// The file of tokens is unusable.
    #[error("token_file in [http]: {0}")]
    Tokens(String),
    /// The audit log cannot be written.
    #[error("[audit]: {0}; make the folder writable, or name another file")]
    Audit(io::Error),
    /// The disk failed after the folder was open.
    #[error("{0}")]
    Disk(String),
    /// Any host that reaches the nodes' port would pass for a node, and the configuration does not allow
    /// that.
    #[error(
        "the nodes' port would listen at {address}, and any host that reaches this port passes for a node: set \
         security = \"mtls\" in [peer] and give the certificates in [tls], or write security = \"none\" in [peer] if \
         only the nodes reach that network"
    )]
    Insecure {
        /// The address of the nodes' port, beyond loopback.
        address: SocketAddr,
    },
    /// The configuration asks for something that this build does not have.
    #[error(
        "{setting} needs a build with the feature `{feature}` of rowlock-coordinator: add it, or remove the setting"
    )]
    NotBuilt {
        /// The key in the configuration.
        setting: &'static str,
        /// The feature of the crate that is missing.
        feature: &'static str,
    },
    /// Raft's configuration or recovery failed.
    #[error("Raft does not start: {0}")]
    Raft(String),
}

impl From<OpenError> for StartError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Storage(error) => StartError::Storage(error),
            OpenError::Raft(why) => StartError::Raft(why),
        }
    }
}

/// Reason why a running node stopped by itself. A person must act.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NodeError {
    /// The disk failed; nothing was acknowledged after that.
    #[error("{0}")]
    Disk(String),
    /// The node may not be part of its cluster.
    #[cfg(feature = "cluster")]
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The cluster's version has become one that this release does not know.
    #[error("{0}")]
    OtherRelease(OtherRelease),
    /// The node's state differs from the state of the other nodes.
    #[cfg(feature = "cluster")]
    #[error("{0}")]
    Differs(Difference),
    /// Raft has stopped for a reason of its own.
    #[error("Raft has stopped: {0}; start the node again, and keep its log for us if this repeats")]
    Raft(String),
}

/// A running node. Dropping the handle starts a shutdown, like [`Node::shutdown`], without waiting for its
/// end.
pub struct Node {
    context: Arc<NodeContext>,
    shutdown_signal: Shutdown,
    /// Task that stops all parts in order when the shutdown fires. Present until [`Node::shutdown`] awaits
    /// it.
    end: Option<Task<()>>,
    addresses: Addresses,
    failure: watch::Receiver<Option<NodeError>>,
    #[cfg(feature = "cluster")]
    log_level: Arc<LogLevel>,
    tls: Tls,
    access: access::Handles,
}

struct Listeners {
    client: Option<Listener>,
    secure_client: Option<Listener>,
    peer: Listener,
    access: access::Listeners,
}

impl Listeners {
    async fn bind(config: &NodeConfig) -> Result<Listeners, StartError> {
        let maybe = async |address: &Option<String>, purpose| match address {
            Some(address) => bind(address, purpose).await.map(Some),
            None => Ok(None),
        };
        let client = maybe(&config.client_addr, "clients").await?;
        let secure_client = maybe(&config.secure_client_addr, "clients with TLS").await?;
        if client.is_none() && secure_client.is_none() {
            return Err(StartError::NoClients);
        }
        let peer = bind(&config.peer_addr, "the other nodes").await?;
        let access = access::Listeners::bind(config).await?;
        Ok(Listeners { client, secure_client, peer, access })
    }

    fn any_client(&self) -> &Listener {
        let any = self.client.as_ref().or(self.secure_client.as_ref());
        any.expect("Invariant: a node without a listener for clients is not started")
    }
}

async fn bind(address: &str, purpose: &'static str) -> Result<Listener, StartError> {
    Listener::bind(address).await.map_err(|source| {
        let remedy = match source.kind() {
            io::ErrorKind::AddrInUse => {
                "another process uses it: stop that process, or change the port in cluster.toml"
            }
            io::ErrorKind::AddrNotAvailable => "this machine has no such address: correct it in cluster.toml",
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need a privilege: use a higher port in cluster.toml"
            }
            _ => "correct the address in cluster.toml",
        };
        StartError::Listen { address: address.to_owned(), purpose, source, remedy }
    })
}

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
            let audit = audit::open(&config, metrics.clone()).await?;
            let trust = Trust { tls, tokens, audit, metrics };
            Addresses::of(&listeners).write_into(&mut config);
            let (assembly, ends) = Assembly::open(Arc::new(config), trust, hook).await?;
            Ok(assembly.run(ends, listeners))
        })
    }

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

#[cfg(test)]
mod tests;
