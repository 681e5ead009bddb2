//! Handles to the other nodes: where they are, and calls to them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::backoff::Backoff;
use rowlock_env::task::TaskGroup;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_types::limits::PEER_QUEUE_MAX;
use rowlock_types::memory::Tally;
use tokio::sync::{mpsc, oneshot};

use super::dial::{Address, Dialer};
use super::error::PeerError;
use super::handshake::{Identity, Lane};
use super::known_incarnations::KnownIncarnations;
use super::lane::{self, Call, Health, Stage};
use super::round_trips::RoundTrips;
use super::security::Security;
use super::stream::{self, Judge, Stream};

/// All other nodes that this node knows of. Clone it freely.
#[derive(Clone)]
pub struct Pool {
    us: Arc<Identity>,
    known: Arc<dyn KnownIncarnations>,
    security: Security,
    tasks: TaskGroup,
    tally: Tally,
    peers: Arc<Mutex<BTreeMap<NodeId, Peer>>>,
}

impl Pool {
    /// Knows no node yet, and records in `known` the nodes that it reaches. Its tasks belong to `tasks`.
    pub fn new(us: Identity, known: Arc<dyn KnownIncarnations>, tasks: TaskGroup) -> Self {
        let (security, tally, peers) = (Security::None, Tally::default(), Arc::default());
        Pool { us: Arc::new(us), known, security, tasks, tally, peers }
    }

    /// As it is, with what its connections and queues hold counted here. To be said before any node is known.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        Pool { tally, ..self }
    }

    /// As it is, with another record of known nodes. To be said before any node is known.
    #[must_use]
    pub fn knowing(self, known: Arc<dyn KnownIncarnations>) -> Self {
        Pool { known, ..self }
    }

    /// As it is, with connections made so. To be said before any node is known.
    #[must_use]
    pub fn secured_by(self, security: Security) -> Self {
        Pool { security, ..self }
    }

    /// Who we are to the others.
    pub fn identity(&self) -> &Identity {
        &self.us
    }

    /// Says where a node is (`host:port`), at first or anew. Connections that stand are kept; the next one
    /// goes there.
    pub fn set_address(&self, node: NodeId, address: &str) -> Peer {
        let mut peers = self.peers.lock();
        let new = || Peer::new(node, self, false);
        let peer = peers.entry(node).or_insert_with(new);
        peer.inner.address.lock().set(address);
        peer.clone()
    }

    /// A handle of a node that may be at this address (`host:port`), beside those that are known. Its
    /// connections end with it.
    pub fn stranger(&self, node: NodeId, address: &str) -> Peer {
        let peer = Peer::new(node, self, true);
        peer.inner.address.lock().set(address);
        peer
    }

    /// The handle of a node, if its address was told.
    pub fn peer(&self, node: NodeId) -> Option<Peer> {
        self.peers.lock().get(&node).cloned()
    }

    /// Forgets a node. Its connections end when the last handle is gone.
    pub fn remove(&self, node: NodeId) {
        self.peers.lock().remove(&node);
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.peers.lock().keys().copied().collect()
    }
}

/// One other node. Clone it freely; connections are opened when they are first needed.
#[derive(Clone)]
pub struct Peer {
    inner: Arc<Inner>,
}

struct Inner {
    node: NodeId,
    /// Nobody has said that it is at this address.
    is_guess: bool,
    us: Arc<Identity>,
    known: Arc<dyn KnownIncarnations>,
    security: Security,
    tasks: TaskGroup,
    tally: Tally,
    address: Address,
    lanes: Mutex<BTreeMap<Lane, LaneHandle>>,
    forward_backoff: Arc<Mutex<Backoff>>,
    trips: Arc<RoundTrips>,
}

#[derive(Clone)]
struct LaneHandle {
    queue: mpsc::Sender<Call>,
    health: Arc<Mutex<Health>>,
}

impl Peer {
    fn new(node: NodeId, pool: &Pool, is_guess: bool) -> Self {
        let inner = Inner {
            node,
            is_guess,
            us: pool.us.clone(),
            known: pool.known.clone(),
            security: pool.security.clone(),
            tasks: pool.tasks.clone(),
            tally: pool.tally.clone(),
            address: Address::default(),
            lanes: Mutex::default(),
            forward_backoff: Arc::default(),
            trips: Arc::default(),
        };
        Peer { inner: Arc::new(inner) }
    }

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

    /// How long it takes this node to answer, over the network and back: the least of the latest answers.
    pub fn round_trip(&self) -> Option<Duration> {
        self.inner.trips.shortest()
    }

    /// Asks and waits for the answer until the deadline.
    ///
    /// Errors: [`PeerError::may_have_happened`] says which leave the outcome open. Cancel safe in the sense
    /// that the answer is dropped; the request may be carried out. Requests of one lane leave in the order of
    /// the calls.
    pub async fn call(&self, lane: Lane, body: Vec<u8>, deadline: Instant) -> Result<Bytes, PeerError> {
        let mut pending = self.begin(lane, body)?;
        match time::timeout_at(deadline, &mut pending).await {
            Ok(answer) => answer,
            Err(_) => Err(pending.give_up()),
        }
    }

    /// Queues a request and gives the answer to wait for, which has no deadline of its own: the caller sets
    /// one.
    pub fn begin(&self, lane: Lane, body: Vec<u8>) -> Result<PendingAnswer, PeerError> {
        let node = self.inner.node;
        assert!(lane != Lane::Proposals, "Invariant: proposals go through a stream");
        let bytes = body.len();
        if bytes > lane.frame_max_bytes() {
            return Err(PeerError::TooLarge { node, len: bytes });
        }
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

    /// Opens an ordered stream of batches over a connection of its own. `judge` reads the answers. It dials,
    /// writes and reads while its owner waits for its next event.
    pub fn stream<T, R>(&self, judge: Judge<R>) -> Stream<T, R> {
        stream::open(self.dialer(Lane::Proposals, self.inner.forward_backoff.clone()), judge)
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
        // On the others requests wait for disks, or are large.
        let trips = (lane == Lane::Heartbeat).then(|| self.inner.trips.clone());
        let (health, shutdown) = (handle.health.clone(), tasks.shutdown().clone());
        tasks.spawn("peer-lane", lane::run(dialer, calls, health, trips, shutdown));
        lanes.insert(lane, handle.clone());
        handle
    }

    pub(super) fn dialer(&self, lane: Lane, backoff: Arc<Mutex<Backoff>>) -> Dialer {
        let Inner { node, is_guess, us, known, security, address, tally, .. } = &*self.inner;
        let (us, known, security) = (us.clone(), known.clone(), security.clone());
        let (address, tally) = (address.clone(), tally.clone());
        Dialer { us, known, security, to: *node, is_guess: *is_guess, lane, address, tally, backoff }
    }
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
    type Output = Result<Bytes, PeerError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        // A sender that is dropped without an answer: the lane's task has ended, which it does at shutdown
        // only.
        Poll::Ready(answer.unwrap_or(Err(PeerError::Stopping)))
    }
}
