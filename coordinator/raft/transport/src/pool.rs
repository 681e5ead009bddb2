//! Handles to the other nodes: where they are, and calls to them.

use std::collections::BTreeMap;
use std::sync::Arc;
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

use super::calls::{self, Call, Health, Stage};
use super::dial::{Address, Dialer, Ours};
use super::error::PeerError;
use super::handshake::{Identity, Lane};
use super::known_incarnations::KnownIncarnations;
use super::link::PeerLink;
use super::round_trips::RoundTrips;
use super::security::Security;

/// All other nodes that this node knows of. Clone it freely.
#[derive(Clone)]
pub struct Pool {
    ours: Ours,
    tasks: TaskGroup,
    peers: Arc<Mutex<BTreeMap<NodeId, Peer>>>,
}

impl Pool {
    /// Knows no node yet, and records in `known` the nodes that it reaches. Its tasks belong to `tasks`.
    pub fn new(us: Identity, known: Arc<dyn KnownIncarnations>, tasks: TaskGroup) -> Self {
        let ours = Ours { us: Arc::new(us), known, security: Security::None, tally: Tally::default() };
        Pool { ours, tasks, peers: Arc::default() }
    }

    /// Counts here what its connections and queues hold. To be called before any node is known.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        Pool { ours: Ours { tally, ..self.ours }, ..self }
    }

    /// Uses another record of known nodes. To be called before any node is known.
    #[must_use]
    pub fn knowing(self, known: Arc<dyn KnownIncarnations>) -> Self {
        Pool { ours: Ours { known, ..self.ours }, ..self }
    }

    /// Opens connections by this security. To be called before any node is known.
    #[must_use]
    pub fn secured_by(self, security: Security) -> Self {
        Pool { ours: Ours { security, ..self.ours }, ..self }
    }

    pub fn identity(&self) -> &Identity {
        &self.ours.us
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
    ours: Ours,
    tasks: TaskGroup,
    address: Address,
    lanes: Mutex<BTreeMap<Lane, LaneHandle>>,
    backoffs: Mutex<BTreeMap<Lane, Arc<Mutex<Backoff>>>>,
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
            ours: pool.ours.clone(),
            tasks: pool.tasks.clone(),
            address: Address::default(),
            lanes: Mutex::default(),
            backoffs: Mutex::default(),
            trips: Arc::default(),
        };
        Peer { inner: Arc::new(inner) }
    }

    pub fn node(&self) -> NodeId {
        self.inner.node
    }

    /// A connection for calls of that lane stands at this moment.
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
        let (node, len) = (self.inner.node, body.len());
        assert!(!matches!(lane, Lane::Raft | Lane::Proposals), "Invariant: these go through links");
        if len > lane.frame_max_bytes() {
            return Err(PeerError::TooLarge { node, len });
        }
        let (reply, answer) = oneshot::channel();
        let stage = Arc::new(Stage::default());
        let mut held = self.inner.ours.tally.share();
        held.hold(len);
        let call = Call { body, _held: held, reply, stage: stage.clone() };
        let LaneHandle { queue, health } = self.lane(lane);
        queue.try_send(call).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => PeerError::Overloaded { node },
            mpsc::error::TrySendError::Closed(_) => PeerError::Stopping,
        })?;
        // A sender that is dropped without an answer: the lane's task has ended, which it does at shutdown.
        match time::timeout_at(deadline, answer).await {
            Ok(answer) => answer.unwrap_or(Err(PeerError::Stopping)),
            Err(_) if !stage.give_up() => Err(PeerError::Timeout { node }),
            Err(_) => Err(match &*health.lock() {
                Health::Failing(error) => error.clone(),
                Health::Idle | Health::Connected => {
                    PeerError::Unreachable { node, reason: "no connection in time".into() }
                }
            }),
        }
    }

    /// A link for this lane, over a connection of its own. Its owner drives it.
    pub fn link<T>(&self, lane: Lane) -> PeerLink<T> {
        PeerLink::open(self.dialer(lane))
    }

    fn lane(&self, lane: Lane) -> LaneHandle {
        let mut lanes = self.inner.lanes.lock();
        if let Some(handle) = lanes.get(&lane) {
            return handle.clone();
        }
        let (queue, calls) = mpsc::channel(PEER_QUEUE_MAX);
        let handle = LaneHandle { queue, health: Arc::default() };
        // On the others requests wait for disks, or are large.
        let trips = (lane == Lane::Heartbeat).then(|| self.inner.trips.clone());
        let task = calls::run(self.dialer(lane), calls, handle.health.clone(), trips);
        self.inner.tasks.spawn_until_shutdown("peer-lane", task);
        lanes.insert(lane, handle.clone());
        handle
    }

    pub(super) fn dialer(&self, lane: Lane) -> Dialer {
        let Inner { node, is_guess, ours, address, backoffs, .. } = &*self.inner;
        let backoff = backoffs.lock().entry(lane).or_default().clone();
        let (ours, address) = (ours.clone(), address.clone());
        Dialer { ours, to: *node, is_guess: *is_guess, lane, address, backoff }
    }
}
