//! Reasons why a node does not start, or stops by itself.

use std::io;
use std::net::SocketAddr;

use rowlock_consensus::raft::OpenError;
use rowlock_state::version::OtherRelease;
use rowlock_tls::TlsError;
use rowlock_wal::StorageError;

#[cfg(feature = "cluster")]
use crate::cluster::bootstrap::BootstrapError;
#[cfg(feature = "cluster")]
use crate::cluster::comparison::Difference;

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
    /// The cluster has restarted after a power loss, without entries that this node has applied.
    #[error(
        "the cluster has restarted after a loss of power, without entries about locks that this node has applied; start \
         the node again: it drops its state, and the leader sends its own"
    )]
    LeftBehind,
    /// Raft has stopped for a reason of its own.
    #[error("Raft has stopped: {0}; start the node again, and keep its log for us if this repeats")]
    Raft(String),
}
