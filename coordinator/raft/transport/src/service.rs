//! Handler for requests from peers. Implemented by the layer above, which decodes the payload.
//!
//! Record of the incarnation by which a node knows each other node: compared in each handshake, stored on the
//! node's disk. The record also holds the versions that each node last reported.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use rowlock_proto::{ClusterId, Incarnation, NodeId};
use rowlock_state::version::Versions;

use super::handshake::Lane;

/// Services of a node for other nodes.
pub trait Service: Send + Sync + 'static {
    type Conversation: Conversation;

    fn open(&self, from: NodeId, lane: Lane) -> Self::Conversation;

    /// Called when a connection of `from`, for this lane, has ended.
    fn peer_disconnected(&self, from: NodeId, lane: Lane);
}

/// Requests of one connection; dropped with the connection.
pub trait Conversation: Send {
    type Request: Send;

    /// Decodes a request. An error closes the connection: the peer has a bug or speaks another protocol.
    fn decode(&mut self, body: &Bytes) -> Result<Self::Request, String>;

    /// Carries out one request. The future must pass the request on by the end of its first poll, so that
    /// requests keep their order.
    fn handle(&mut self, request: Self::Request) -> BoxFuture<'static, Answer>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Encoded answer; at most `limits::PEER_FRAME_MAX_BYTES`.
    pub body: Vec<u8>,
    /// Refusal on the proposals lane: the node carried out no part of the request, and answers every later
    /// request of the connection with this body.
    pub refuses: bool,
}

/// A node's memory of the other nodes. Implemented by the layer above, on the data folder.
pub trait KnownIncarnations: Send + Sync + 'static {
    /// Returns the incarnation of this node's data folder.
    fn incarnation(&self) -> Incarnation;

    /// Returns the id of this node's cluster, or `None` while a new node has not learned the id.
    fn cluster(&self) -> Option<ClusterId>;

    /// Returns the versions that this node offers to other nodes now.
    fn versions(&self) -> Versions;

    /// Records the versions of a node, after [`KnownIncarnations::record`] and after a common version was
    /// found.
    fn heard(&self, node: NodeId, versions: Versions);

    /// Stores the incarnation of a node durably at the first contact, and compares it at later ones.
    fn record(&self, node: NodeId, incarnation: Incarnation) -> BoxFuture<'_, Result<(), NotRecorded>>;
}

#[derive(Debug, thiserror::Error)]
pub enum NotRecorded {
    /// The node was recorded with another folder.
    #[error("it comes with another data folder than before")]
    OtherFolder,
    /// The record is full: more nodes than any cluster has.
    #[error("too many nodes are known")]
    TooMany,
    #[error("{0}")]
    Disk(String),
}
