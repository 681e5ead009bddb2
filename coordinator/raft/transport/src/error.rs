//! Errors of calls to another node.

use rowlock_proto::NodeId;

use super::handshake::HandshakeRefusal;

/// Failure of a call to another node. A refusal in an answer is not an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    #[error("the address of node {node} is not known")]
    UnknownNode { node: NodeId },
    /// No connection exists; the request was not sent.
    #[error("node {node} cannot be reached: {reason}")]
    Unreachable { node: NodeId, reason: String },
    /// The other node rejected the handshake; an operator must act. The request was not sent.
    #[error("node {node} refuses our connections: {refusal}")]
    Refused { node: NodeId, refusal: HandshakeRefusal },
    /// The queue of this connection is full; the request was not sent.
    #[error("too many requests wait for node {node}")]
    Overloaded { node: NodeId },
    /// The request exceeds the frame size; the request was not sent.
    #[error("a request to node {node} of {len} bytes is too large")]
    TooLarge { node: NodeId, len: usize },
    /// The connection broke during or after sending: the request may have been carried out.
    #[error("the connection to node {node} broke: {reason}")]
    Lost { node: NodeId, reason: String },
    /// No answer arrived before the deadline: the request may have been carried out.
    #[error("node {node} did not answer in time")]
    Timeout { node: NodeId },
    /// The answer cannot be decoded: the request may have been carried out.
    #[error("node {node} gave an answer that cannot be understood: {reason}")]
    Garbled { node: NodeId, reason: String },
    #[error("this node is shutting down")]
    Stopping,
}

impl PeerError {
    /// Returns whether the other node may have carried out the request, or may still do so.
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
