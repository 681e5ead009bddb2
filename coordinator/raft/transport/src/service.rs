//! Handler for requests from peers. Implemented by the layer above, which decodes the payload.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use rowlock_proto::NodeId;

use super::handshake::Lane;

/// What a node does for the others.
pub trait Service: Send + Sync + 'static {
    type Conversation: Conversation;

    fn open(&self, from: NodeId, lane: Lane) -> Self::Conversation;

    /// A connection of `from`, for this lane, has ended.
    fn peer_disconnected(&self, from: NodeId, lane: Lane);
}

/// One connection's requests; dropped with it.
pub trait Conversation: Send {
    type Request: Send;

    /// Reads a request. An error closes the connection: the other side has a bug, or is none of ours.
    fn decode(&mut self, body: &Bytes) -> Result<Self::Request, String>;

    /// Carries out one request. The future must have handed it on by the end of its first poll, so that
    /// requests keep their order.
    fn handle(&mut self, request: Self::Request) -> BoxFuture<'static, Answer>;
}

/// An answer to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Encoded; at most `limits::PEER_FRAME_MAX_BYTES`.
    pub body: Vec<u8>,
    /// On the lane of proposals: nothing was done, and every later request of the connection gets this
    /// answer, too, without being carried out.
    pub refuses: bool,
}
