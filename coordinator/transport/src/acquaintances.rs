//! Whom a node has met, and by which data folder: asked in each handshake, kept by whoever has a disk.

use futures_util::future::BoxFuture;
use rowlock_proto::NodeId;
use rowlock_types::incarnation::Incarnation;

/// The memory of a node for the other nodes. Implemented above, on its data folder.
pub trait Acquaintances: Send + Sync + 'static {
    /// Of this node's own folder.
    fn incarnation(&self) -> Incarnation;

    /// Notes by which incarnation a node is known, if this is the first time: durably, before this is done.
    fn meet(&self, node: NodeId, incarnation: Incarnation) -> BoxFuture<'_, Result<(), Unmet>>;
}

/// How a meeting went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Unmet {
    /// The node was known by another folder.
    #[error("it comes with another data folder than before")]
    OtherFolder,
    /// More nodes than any cluster has.
    #[error("too many nodes have been met")]
    TooMany,
    /// It could not be noted.
    #[error("{0}")]
    Disk(String),
}
