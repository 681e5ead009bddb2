//! By which incarnation a node knows each other node: asked in each handshake, kept on the node's disk. And
//! which versions each knows, as it last said.

use futures_util::future::BoxFuture;
use rowlock_proto::{ClusterId, NodeId};
use rowlock_types::incarnation::Incarnation;
use rowlock_types::versions::Versions;

/// What a node remembers of the other nodes. Implemented above, on its data folder.
pub trait KnownIncarnations: Send + Sync + 'static {
    /// Of this node's own folder.
    fn incarnation(&self) -> Incarnation;

    /// This node's cluster. `None`: it has only just come and does not know.
    fn cluster(&self) -> Option<ClusterId>;

    /// Those that this node offers to others now.
    fn versions(&self) -> Versions;

    /// A node has said which ones it knows; it is recorded, and there is a common one.
    fn heard(&self, node: NodeId, versions: Versions);

    /// Records by which incarnation a node is known, if this is the first time: durably, before this is done.
    fn record(&self, node: NodeId, incarnation: Incarnation) -> BoxFuture<'_, Result<(), NotRecorded>>;
}

#[derive(Debug, thiserror::Error)]
pub enum NotRecorded {
    /// The node was known by another folder.
    #[error("it comes with another data folder than before")]
    OtherFolder,
    /// More nodes than any cluster has.
    #[error("too many nodes are known")]
    TooMany,
    /// It could not be written.
    #[error("{0}")]
    Disk(String),
}
