//! Handles to the other nodes that send typed messages.
//!
//! Forwarded proposals: batches to the leader over a link of their own.
//!
//! Batches reach the leader's intake in the order of sending. A link ends with its first refusal or with its
//! connection, and never reconnects: the owner decides about the returned batches.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::task::TaskGroup;
use rowlock_env::time::Instant;
use rowlock_metrics::memory::Tally;
use rowlock_proto::NodeId;
use rowlock_state::codec;
use rowlock_state::command::Proposal;
use rowlock_transport::limits::{PEER_FORWARD_WINDOW_BYTES, PEER_FRAME_MAX_BYTES};
use rowlock_transport::{Identity, Lane, LinkEvent, PeerError, PeerLink, Pool, Security};
use rowlock_wal::Folder;

use super::message::{Refusal, Request, Response};
use super::releases::{FolderIncarnations, Releases};
use crate::limits::BATCH_MAX_BYTES;

/// Handles of all other nodes known to this node. Cheap to clone.
#[derive(Clone)]
pub struct PeerPool {
    pool: Pool,
    folder: Folder,
    releases: Releases,
}

impl PeerPool {
    /// Creates an empty pool whose tasks belong to `tasks`.
    pub fn new(us: Identity, tasks: TaskGroup) -> Self {
        let (folder, releases) = (Folder::without_disk(us.node), Releases::default());
        let known = Arc::new(FolderIncarnations(folder.clone(), releases.clone()));
        PeerPool { pool: Pool::new(us, known, tasks), folder, releases }
    }

    /// Counts the memory of connections and queues in `tally`. Call before the first `set_address`.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        PeerPool { pool: self.pool.counted_in(tally), ..self }
    }

    /// Records incarnations in this folder, and offers the versions in `releases`. Call before the first
    /// `set_address`.
    #[must_use]
    pub fn of_folder(self, folder: Folder, releases: Releases) -> Self {
        let known = Arc::new(FolderIncarnations(folder.clone(), releases.clone()));
        PeerPool { pool: self.pool.knowing(known), folder, releases }
    }

    /// Sets the security of new connections. Call before the first `set_address`.
    #[must_use]
    pub fn secured_by(self, security: Security) -> Self {
        PeerPool { pool: self.pool.secured_by(security), ..self }
    }

    /// Returns the data folder's record of other nodes.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    pub fn releases(&self) -> &Releases {
        &self.releases
    }

    pub fn identity(&self) -> &Identity {
        self.pool.identity()
    }

    /// Sets or changes the address (`host:port`) of a node. Open connections stay; the next attempt to dial
    /// uses the new address.
    pub fn set_address(&self, node: NodeId, address: &str) -> Peer {
        Peer(self.pool.set_address(node, address))
    }

    /// Returns a handle of a node that may be at this address (`host:port`), outside the known nodes. The
    /// connections end with the handle.
    pub fn stranger(&self, node: NodeId, address: &str) -> Peer {
        Peer(self.pool.stranger(node, address))
    }

    /// Returns the handle of a node whose address is known.
    pub fn peer(&self, node: NodeId) -> Option<Peer> {
        self.pool.peer(node).map(Peer)
    }

    /// Forgets a node. The node's connections end with its last handle.
    pub fn remove(&self, node: NodeId) {
        self.pool.remove(node);
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.pool.nodes()
    }

    /// Returns the known round-trip times of the nodes.
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

/// Handle of one other node. Cheap to clone; connections open on first use.
#[derive(Clone)]
pub struct Peer(rowlock_transport::Peer);

impl Peer {
    pub fn node(&self) -> NodeId {
        self.0.node()
    }

    /// Returns whether a connection for calls of that lane is open.
    pub fn is_connected(&self, lane: Lane) -> bool {
        self.0.is_connected(lane)
    }

    /// Sends a request and waits for the answer until the deadline.
    ///
    /// Errors: [`PeerError::may_have_happened`] says which errors leave the outcome open. On cancellation the
    /// answer is dropped; the request may be carried out. Requests of one lane leave in the order of the
    /// calls.
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

    /// Opens a link over a connection of its own. The caller drives the link.
    pub fn link<T>(&self, lane: Lane) -> PeerLink<T> {
        self.0.link(lane)
    }

    /// Opens a link for forwarded proposals to the leader of `term`.
    pub fn forward_link(&self, term: u64) -> ForwardLink {
        ForwardLink::open(self, term)
    }
}

pub fn decode(node: NodeId, body: &[u8]) -> Result<Response, PeerError> {
    codec::decode(body, PEER_FRAME_MAX_BYTES)
        .map_err(|error| PeerError::Garbled { node, reason: error.to_string() })
}

// A usual batch fits into a frame, and several fit into the window.
const _: () = assert!(BATCH_MAX_BYTES < PEER_FRAME_MAX_BYTES);
const _: () = assert!(BATCH_MAX_BYTES < PEER_FORWARD_WINDOW_BYTES);

/// Event of a link. `Refused` and `Lost` are the last event, and return every unacknowledged batch, in the
/// order of sending.
#[derive(Debug, PartialEq, Eq)]
pub enum ForwardEvent {
    /// There may be room. The leader may have accepted a batch, whose outcome comes with the log.
    Moved,
    /// The leader has accepted none of these batches, and never will: the owner may send all elsewhere.
    Refused { untaken: Vec<Vec<Proposal>>, refusal: Refusal },
    /// The connection ended, or dialing failed. The leader may or may not have these batches.
    Lost { unknown: Vec<Vec<Proposal>>, error: PeerError },
}

/// Sending end, to the leader of one term, with a copy of every unacknowledged batch. Dropping the link
/// closes its connection at once: unacknowledged batches may or may not reach the leader.
pub struct ForwardLink {
    peer: Peer,
    term: u64,
    link: PeerLink<Vec<Proposal>>,
}

impl ForwardLink {
    pub(super) fn open(peer: &Peer, term: u64) -> ForwardLink {
        ForwardLink { peer: peer.clone(), term, link: peer.link(Lane::Proposals) }
    }

    /// Returns whether a batch may be sent now. If not, there may be room after the next event.
    pub fn has_room(&self) -> bool {
        self.link.has_room()
    }

    /// Returns whether the leader has unacknowledged batches.
    pub fn is_waiting(&self) -> bool {
        self.link.unanswered().next().is_some()
    }

    /// Queues a batch behind all earlier ones; [`ForwardLink::next`] writes the batch. The caller checks
    /// `has_room` first.
    ///
    /// Errors: the batch exceeds the frame size, and always will.
    pub fn send(&mut self, batch: Vec<Proposal>) -> Result<(), PeerError> {
        assert!(!batch.is_empty(), "a batch has a command");
        let request = Request::Forward { term: self.term, batch };
        let body = request.encode();
        let Request::Forward { batch, .. } = request else { unreachable!("Invariant: made above") };
        self.link.send(&body, batch)
    }

    /// Dials, writes and reads until the next event; waits for ever after the last event. Cancel safe.
    pub async fn next(&mut self) -> ForwardEvent {
        let (batch, answer) = match self.link.next().await {
            LinkEvent::Moved => return ForwardEvent::Moved,
            LinkEvent::Ended { unanswered, error } => {
                return ForwardEvent::Lost { unknown: unanswered, error };
            }
            LinkEvent::Answered { tag, answer } => (tag, decode(self.peer.node(), &answer)),
        };
        if answer == Ok(Response::Forwarded) {
            return ForwardEvent::Moved;
        }
        let mut all = vec![batch];
        all.extend(self.link.close());
        let garbled = |reason| PeerError::Garbled { node: self.peer.node(), reason };
        match answer {
            Ok(Response::Refused(refusal)) => ForwardEvent::Refused { untaken: all, refusal },
            Ok(other) => ForwardEvent::Lost { unknown: all, error: garbled(format!("{other:?}")) },
            Err(error) => ForwardEvent::Lost { unknown: all, error },
        }
    }
}
