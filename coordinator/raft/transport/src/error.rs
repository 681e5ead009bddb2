//! How a call to another node fails.

use rowlock_proto::NodeId;

use super::handshake::HandshakeRefusal;

/// A call to another node gave no answer. An answer that refuses is not an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The node's address is unknown.
    #[error("the address of node {node} is not known")]
    UnknownNode { node: NodeId },
    /// There is no connection; the request was not sent.
    #[error("node {node} cannot be reached: {reason}")]
    Unreachable {
        node: NodeId,
        /// What dialing it gave.
        reason: String,
    },
    /// The other side does not want to talk to us; a person must look at it. The request was not sent.
    #[error("node {node} refuses our connections: {refusal}")]
    Refused {
        node: NodeId,
        /// In its own words.
        refusal: HandshakeRefusal,
    },
    /// Too many requests wait for this connection; the request was not sent.
    #[error("too many requests wait for node {node}")]
    Overloaded { node: NodeId },
    /// The request does not fit a frame; it was not sent.
    #[error("a request to node {node} of {len} bytes is too large")]
    TooLarge { node: NodeId, len: usize },
    /// The connection broke after the request had been sent, or while: it may have been carried out.
    #[error("the connection to node {node} broke: {reason}")]
    Lost { node: NodeId, reason: String },
    /// No answer within the deadline: it may have been carried out.
    #[error("node {node} did not answer in time")]
    Timeout { node: NodeId },
    /// The answer makes no sense: it may have been carried out.
    #[error("node {node} gave an answer that cannot be understood: {reason}")]
    Garbled {
        node: NodeId,
        /// What is wrong with it.
        reason: String,
    },
    #[error("this node is shutting down")]
    Stopping,
}

impl PeerError {
    /// The request may have been carried out by the other node, or may still be.
    pub fn may_have_happened(&self) -> bool {
        match self {
            PeerError::Lost { .. }
            | PeerError::Timeout { .. }
            | PeerError::Garbled { .. }
            | PeerError::Stopping => true,
            PeerError::UnknownNode { .. }
            | PeerError::Unreachable { .. }
            | PeerError::Refused { .. }
            | PeerError::Overloaded { .. }
            | PeerError::TooLarge { .. } => false,
        }
    }
}
