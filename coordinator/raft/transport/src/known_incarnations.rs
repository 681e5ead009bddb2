//! Record of the incarnation by which a node knows each other node: compared in each handshake, stored on the
//! node's disk. The record also holds the versions that each node last reported.

use futures_util::future::BoxFuture;
use rowlock_proto::{ClusterId, Incarnation, NodeId};
use rowlock_state::version::Versions;

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
