//! Handler for requests from peers. Implemented by the layer above, which decodes the payload.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use rowlock_proto::NodeId;

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
