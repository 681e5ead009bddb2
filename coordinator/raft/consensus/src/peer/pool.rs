//! Handles to the other nodes that speak in messages.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::task::TaskGroup;
use rowlock_env::time::Instant;
use rowlock_proto::NodeId;
use rowlock_transport::{Identity, Lane, PeerError, PeerLink, Pool, Security};
use rowlock_types::codec;
use rowlock_types::limits::PEER_FRAME_MAX_BYTES;
use rowlock_types::memory::Tally;
use rowlock_wal::Folder;

use super::folder_incarnations::FolderIncarnations;
use super::forward::ForwardLink;
use super::message::{Request, Response};
use super::releases::Releases;

/// All other nodes that this node knows of. Clone it freely.
#[derive(Clone)]
pub struct PeerPool {
    pool: Pool,
    folder: Folder,
    releases: Releases,
}

impl PeerPool {
    /// Knows no node yet. Its tasks belong to `tasks`.
    pub fn new(us: Identity, tasks: TaskGroup) -> Self {
        let (folder, releases) = (Folder::without_disk(us.node), Releases::default());
        let known = Arc::new(FolderIncarnations(folder.clone(), releases.clone()));
        PeerPool { pool: Pool::new(us, known, tasks), folder, releases }
    }

    /// Counts here what its connections and queues hold. To be called before any node is known.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        PeerPool { pool: self.pool.counted_in(tally), ..self }
    }

    /// Dials for the node of this folder, which remembers the nodes' incarnations, and of a release with
    /// these versions. To be said before any node is known.
    #[must_use]
    pub fn of_folder(self, folder: Folder, releases: Releases) -> Self {
        let known = Arc::new(FolderIncarnations(folder.clone(), releases.clone()));
        PeerPool { pool: self.pool.knowing(known), folder, releases }
    }

    /// Opens connections by this security. To be called before any node is known.
    #[must_use]
    pub fn secured_by(self, security: Security) -> Self {
        PeerPool { pool: self.pool.secured_by(security), ..self }
    }

    /// Returns the data folder's record of other nodes.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Which versions the nodes know.
    pub fn releases(&self) -> &Releases {
        &self.releases
    }

    /// Returns the identity of this node towards others.
    pub fn identity(&self) -> &Identity {
        self.pool.identity()
    }

    /// Sets the address of a node (`host:port`), the first or another one. Connections that stand are kept;
    /// the next one goes there.
    pub fn set_address(&self, node: NodeId, address: &str) -> Peer {
        Peer(self.pool.set_address(node, address))
    }

    /// A handle of a node that may be at this address (`host:port`), beside those that are known. Its
    /// connections end with it.
    pub fn stranger(&self, node: NodeId, address: &str) -> Peer {
        Peer(self.pool.stranger(node, address))
    }

    /// The handle of a node, if its address was told.
    pub fn peer(&self, node: NodeId) -> Option<Peer> {
        self.pool.peer(node).map(Peer)
    }

    /// Forgets a node. Its connections end when the last handle is gone.
    pub fn remove(&self, node: NodeId) {
        self.pool.remove(node);
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.pool.nodes()
    }

    /// How long each node takes to answer, as far as that is known.
    pub fn round_trips(&self) -> Vec<(NodeId, Duration)> {
        let trip = |node: NodeId| Some((node, self.pool.peer(node)?.round_trip()?));
        self.pool.nodes().into_iter().filter_map(trip).collect()
    }

    pub async fn call(
        &self,
        node: NodeId,
        lane: Lane,
        request: &Request,
        deadline: Instant,
    ) -> Result<Response, PeerError> {
        self.peer(node).ok_or(PeerError::UnknownNode { node })?.call(lane, request, deadline).await
    }
}

/// One other node. Clone it freely; connections are opened when they are first needed.
#[derive(Clone)]
pub struct Peer(rowlock_transport::Peer);

impl Peer {
    pub fn node(&self) -> NodeId {
        self.0.node()
    }

    /// A connection for calls of that lane stands at this moment.
    pub fn is_connected(&self, lane: Lane) -> bool {
        self.0.is_connected(lane)
    }

    /// Asks and waits for the answer until the deadline.
    ///
    /// Errors: [`PeerError::may_have_happened`] says which leave the outcome open. Cancel safe in the sense
    /// that the answer is dropped; the request may be carried out. Requests of one lane leave in the order of
    /// the calls.
    pub async fn call(
        &self,
        lane: Lane,
        request: &Request,
        deadline: Instant,
    ) -> Result<Response, PeerError> {
        debug_assert!(request.belongs_to(lane), "Invariant: the listener would close the connection");
        let answer = self.0.call(lane, request.encode(), deadline).await?;
        decode(self.node(), &answer)
    }

    /// A link over a connection of its own, which its owner drives.
    pub fn link<T>(&self, lane: Lane) -> PeerLink<T> {
        self.0.link(lane)
    }

    /// A link for forwarded proposals to the leader of `term`.
    pub fn forward_link(&self, term: u64) -> ForwardLink {
        ForwardLink::open(self, term)
    }
}

pub fn decode(node: NodeId, body: &[u8]) -> Result<Response, PeerError> {
    codec::decode(body, PEER_FRAME_MAX_BYTES)
        .map_err(|error| PeerError::Garbled { node, reason: error.to_string() })
}
