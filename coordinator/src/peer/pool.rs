//! Handles to the other nodes: where they are, and calls to them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::task::TaskGroup;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_types::codec;
use rowlock_types::limits::{PEER_FRAME_MAX_BYTES, PEER_QUEUE_MAX};
use rowlock_types::memory::Tally;
use rowlock_wal::Folder;
use tokio::sync::{mpsc, oneshot};

use super::dial::{Address, Backoff, Dialer};
use super::error::PeerError;
use super::forward::{self, ForwardEvent, ForwardLink};
use super::handshake::{Identity, Lane};
use super::lane::{self, Call, Health, Stage};
use super::message::{Request, Response};

/// All other nodes that this node knows of. Clone it freely.
#[derive(Clone)]
pub struct PeerPool {
    us: Arc<Identity>,
    folder: Folder,
    tasks: TaskGroup,
    tally: Tally,
    peers: Arc<Mutex<BTreeMap<NodeId, Peer>>>,
}

impl PeerPool {
    /// Knows nobody yet. Its tasks belong to `tasks`.
    pub fn new(us: Identity, tasks: TaskGroup) -> Self {
        let folder = Folder::without_disk(us.node);
        PeerPool { us: Arc::new(us), folder, tasks, tally: Tally::default(), peers: Arc::default() }
    }

    /// As it is, with what its connections and queues hold counted here. To be said before any node is known.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        PeerPool { tally, ..self }
    }

    /// As it is, for the node of this folder, which remembers whom it meets.
    #[must_use]
    pub fn of_folder(self, folder: Folder) -> Self {
        PeerPool { folder, ..self }
    }

    /// What the node remembers.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Who we are to the others.
    pub fn identity(&self) -> &Identity {
        &self.us
    }

    /// Says where a node is (`host:port`), at first or anew. Connections that stand are kept; the next one
    /// goes there.
    pub fn set_address(&self, node: NodeId, address: &str) -> Peer {
        let mut peers = self.peers.lock();
        let new = || Peer::new(node, self);
        let peer = peers.entry(node).or_insert_with(new);
        address.clone_into(&mut peer.inner.address.lock());
        peer.clone()
    }

    /// The handle of a node, if its address was told.
    pub fn peer(&self, node: NodeId) -> Option<Peer> {
        self.peers.lock().get(&node).cloned()
    }

    /// Forgets a node. Its connections end when the last handle is gone.
    pub fn remove(&self, node: NodeId) {
        self.peers.lock().remove(&node);
    }

    /// All known nodes.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.peers.lock().keys().copied().collect()
    }

    /// As [`Peer::call`].
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
pub struct Peer {
    inner: Arc<Inner>,
}

struct Inner {
    node: NodeId,
    us: Arc<Identity>,
    folder: Folder,
    tasks: TaskGroup,
    tally: Tally,
    address: Address,
    lanes: Mutex<BTreeMap<Lane, LaneHandle>>,
    forward_backoff: Arc<Mutex<Backoff>>,
}

#[derive(Clone)]
struct LaneHandle {
    queue: mpsc::Sender<Call>,
    health: Arc<Mutex<Health>>,
}

impl Peer {
    fn new(node: NodeId, pool: &PeerPool) -> Self {
        let inner = Inner {
            node,
            us: pool.us.clone(),
            folder: pool.folder.clone(),
            tasks: pool.tasks.clone(),
            tally: pool.tally.clone(),
            address: Address::default(),
            lanes: Mutex::default(),
            forward_backoff: Arc::default(),
        };
        Peer { inner: Arc::new(inner) }
    }

    /// Which node.
    pub fn node(&self) -> NodeId {
        self.inner.node
    }

    /// A connection of that lane stands at this moment.
    pub fn is_connected(&self, lane: Lane) -> bool {
        self.inner
            .lanes
            .lock()
            .get(&lane)
            .is_some_and(|lane| matches!(*lane.health.lock(), Health::Connected))
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
        let mut pending = self.begin(lane, request)?;
        match time::timeout_at(deadline, &mut pending).await {
            Ok(answer) => answer,
            Err(_) => Err(pending.give_up()),
        }
    }

    /// Queues a request and gives the answer to wait for, which has no deadline of its own: the caller sets
    /// one.
    pub fn begin(&self, lane: Lane, request: &Request) -> Result<PendingAnswer, PeerError> {
        let node = self.inner.node;
        assert!(lane != Lane::Proposals, "Invariant: proposals go through a ForwardLink");
        debug_assert!(request.belongs_to(lane), "Invariant: the listener would close the connection");
        let body = encode(node, request)?;
        let bytes = body.len();
        let (reply, answer) = oneshot::channel();
        let stage = Arc::new(Stage::default());
        let mut held = self.inner.tally.share();
        held.hold(bytes);
        let call = Call { body, _held: held, reply, stage: stage.clone() };
        let LaneHandle { queue, health } = self.lane(lane);
        queue.try_send(call).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => PeerError::Overloaded { node },
            mpsc::error::TrySendError::Closed(_) => PeerError::Stopping,
        })?;
        Ok(PendingAnswer { node, bytes, answer, stage, health })
    }

    /// Opens an ordered stream of forwarded proposals to the leader of `term`, dialing in the background.
    /// What becomes of the batches comes through `events`, which should hold
    /// `limits::PEER_FORWARD_WINDOW_BATCHES`; a full one holds the link up.
    pub fn forward_link(&self, term: u64, events: mpsc::Sender<ForwardEvent>) -> ForwardLink {
        let dialer = self.dialer(Lane::Proposals, self.inner.forward_backoff.clone());
        forward::open(dialer, term, events, &self.inner.tasks)
    }

    fn lane(&self, lane: Lane) -> LaneHandle {
        let mut lanes = self.inner.lanes.lock();
        if let Some(handle) = lanes.get(&lane) {
            return handle.clone();
        }
        let (queue, calls) = mpsc::channel(PEER_QUEUE_MAX);
        let handle = LaneHandle { queue, health: Arc::default() };
        let tasks = &self.inner.tasks;
        let dialer = self.dialer(lane, Arc::default());
        tasks.spawn("peer-lane", lane::run(dialer, calls, handle.health.clone(), tasks.shutdown().clone()));
        lanes.insert(lane, handle.clone());
        handle
    }

    fn dialer(&self, lane: Lane, backoff: Arc<Mutex<Backoff>>) -> Dialer {
        let Inner { node, us, folder, address, tally, .. } = &*self.inner;
        let (us, folder, address, tally) = (us.clone(), folder.clone(), address.clone(), tally.clone());
        Dialer { us, folder, to: *node, lane, address, tally, backoff }
    }
}

/// Encodes a request to `node`, if it fits.
pub(super) fn encode(node: NodeId, request: &Request) -> Result<Vec<u8>, PeerError> {
    let body = request.encode();
    if body.len() > PEER_FRAME_MAX_BYTES {
        return Err(PeerError::TooLarge { node, len: body.len() });
    }
    Ok(body)
}

/// Decodes an answer of `node`.
pub(super) fn decode(node: NodeId, body: &[u8]) -> Result<Response, PeerError> {
    codec::decode(body, PEER_FRAME_MAX_BYTES)
        .map_err(|error| PeerError::Garbled { node, reason: error.to_string() })
}

/// An answer to come. Dropping it gives up waiting; the request may be carried out all the same.
pub struct PendingAnswer {
    node: NodeId,
    bytes: usize,
    answer: oneshot::Receiver<Result<Bytes, PeerError>>,
    stage: Arc<Stage>,
    health: Arc<Mutex<Health>>,
}

impl PendingAnswer {
    /// The size of the encoded request.
    pub fn request_bytes(&self) -> usize {
        self.bytes
    }

    /// Ends the wait because the time is up, and says which error that is: a request that has not left will
    /// not.
    pub fn give_up(self) -> PeerError {
        let node = self.node;
        if self.stage.is_sent() || !self.stage.give_up() {
            return PeerError::Timeout { node };
        }
        match &*self.health.lock() {
            Health::Failing(error) => error.clone(),
            Health::Idle | Health::Connected => {
                PeerError::Unreachable { node, reason: "no connection in time".into() }
            }
        }
    }
}

impl Future for PendingAnswer {
    type Output = Result<Response, PeerError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        // A sender that is dropped without an answer: the lane's task has ended, which it does at shutdown
        // only.
        Poll::Ready(answer.unwrap_or(Err(PeerError::Stopping)).and_then(|body| decode(self.node, &body)))
    }
}
