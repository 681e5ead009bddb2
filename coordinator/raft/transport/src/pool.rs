//! Handles to the other nodes: addresses and calls.
//!
//! Calls of many tasks over one link: the task of a lane owns the link and distributes the answers. The task
//! decodes no message and resends no request.
//!
//! Round-trip times to another node, measured on heartbeats and pre-votes. Most of these need no flush, and
//! the minimum of several counts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::backoff::Backoff;
use rowlock_env::task::TaskGroup;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::memory::{Share, Tally};
use rowlock_proto::NodeId;
use tokio::sync::{mpsc, oneshot};

use super::error::PeerError;
use super::handshake::{Identity, Lane};
use super::link::{Address, DialContext, Dialer, LinkEvent, PeerLink};
use super::security::Security;
use super::service::KnownIncarnations;
use crate::limits::PEER_QUEUE_MAX;

/// Handles of all other nodes known to this node. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    context: DialContext,
    tasks: TaskGroup,
    peers: Arc<Mutex<BTreeMap<NodeId, Peer>>>,
}

impl Pool {
    /// Creates an empty pool that records reached nodes in `known`. The pool's tasks belong to `tasks`.
    pub fn new(us: Identity, known: Arc<dyn KnownIncarnations>, tasks: TaskGroup) -> Self {
        let context =
            DialContext { us: Arc::new(us), known, security: Security::None, tally: Tally::default() };
        Pool { context, tasks, peers: Arc::default() }
    }

    /// Counts the memory of connections and queues in `tally`. Call before the first `set_address`.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        Pool { context: DialContext { tally, ..self.context }, ..self }
    }

    /// Replaces the record of known nodes. Call before the first `set_address`.
    #[must_use]
    pub fn knowing(self, known: Arc<dyn KnownIncarnations>) -> Self {
        Pool { context: DialContext { known, ..self.context }, ..self }
    }

    /// Sets the security of new connections. Call before the first `set_address`.
    #[must_use]
    pub fn secured_by(self, security: Security) -> Self {
        Pool { context: DialContext { security, ..self.context }, ..self }
    }

    pub fn identity(&self) -> &Identity {
        &self.context.us
    }

    /// Sets or changes the address (`host:port`) of a node. Open connections stay; the next attempt to dial
    /// uses the new address.
    pub fn set_address(&self, node: NodeId, address: &str) -> Peer {
        let mut peers = self.peers.lock();
        let new = || Peer::new(node, self, false);
        let peer = peers.entry(node).or_insert_with(new);
        peer.inner.address.lock().set(address);
        peer.clone()
    }

    /// Returns a handle of a node that may be at this address (`host:port`), outside the known nodes. The
    /// connections end with the handle.
    pub fn stranger(&self, node: NodeId, address: &str) -> Peer {
        let peer = Peer::new(node, self, true);
        peer.inner.address.lock().set(address);
        peer
    }

    /// Returns the handle of a node whose address is known.
    pub fn peer(&self, node: NodeId) -> Option<Peer> {
        self.peers.lock().get(&node).cloned()
    }

    /// Forgets a node. The node's connections end with its last handle.
    pub fn remove(&self, node: NodeId) {
        self.peers.lock().remove(&node);
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.peers.lock().keys().copied().collect()
    }
}

/// Handle of one other node. Cheap to clone; connections open on first use.
#[derive(Clone)]
pub struct Peer {
    inner: Arc<Inner>,
}

struct Inner {
    node: NodeId,
    /// The address is a guess, without a source in configuration or membership.
    is_guess: bool,
    context: DialContext,
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
            context: pool.context.clone(),
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

    /// Returns whether a connection for calls of that lane is open.
    pub fn is_connected(&self, lane: Lane) -> bool {
        self.inner
            .lanes
            .lock()
            .get(&lane)
            .is_some_and(|lane| matches!(*lane.health.lock(), Health::Connected))
    }

    /// Returns the shortest of the latest round trips to this node.
    pub fn round_trip(&self) -> Option<Duration> {
        self.inner.trips.shortest()
    }

    /// Sends a request and waits for the answer until the deadline.
    ///
    /// Errors: [`PeerError::may_have_happened`] says which errors leave the outcome open. On cancellation the
    /// answer is dropped; the request may be carried out. Requests of one lane leave in the order of the
    /// calls.
    pub async fn call(&self, lane: Lane, body: Vec<u8>, deadline: Instant) -> Result<Bytes, PeerError> {
        let (node, len) = (self.inner.node, body.len());
        assert!(!matches!(lane, Lane::Raft | Lane::Proposals), "Invariant: these go through links");
        if len > lane.frame_max_bytes() {
            return Err(PeerError::TooLarge { node, len });
        }
        let (reply, answer) = oneshot::channel();
        let stage = Arc::new(Stage::default());
        let mut held = self.inner.context.tally.share();
        held.hold(len);
        let call = Call { body, _held: held, reply, stage: stage.clone() };
        let LaneHandle { queue, health } = self.lane(lane);
        queue.try_send(call).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => PeerError::Overloaded { node },
            mpsc::error::TrySendError::Closed(_) => PeerError::Stopping,
        })?;
        // A dropped sender means that the lane's task has ended, at shutdown.
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

    /// Opens a link for this lane, over a connection of its own. The caller drives the link.
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
        // Requests of the other lanes wait for disks, or are large.
        let trips = (lane == Lane::Heartbeat).then(|| self.inner.trips.clone());
        let task = run(self.dialer(lane), calls, handle.health.clone(), trips);
        self.inner.tasks.spawn_until_shutdown("peer-lane", task);
        lanes.insert(lane, handle.clone());
        handle
    }

    pub(super) fn dialer(&self, lane: Lane) -> Dialer {
        let Inner { node, is_guess, context, address, backoffs, .. } = &*self.inner;
        let backoff = backoffs.lock().entry(lane).or_default().clone();
        let (context, address) = (context.clone(), address.clone());
        Dialer { context, to: *node, is_guess: *is_guess, lane, address, backoff }
    }
}

/// Sender to the waiting caller; closed when the caller's deadline has passed.
type Reply = oneshot::Sender<Result<Bytes, PeerError>>;

/// Request in the queue of a lane.
struct Call {
    pub(super) body: Vec<u8>,
    _held: Share,
    reply: Reply,
    /// Shared with the caller.
    stage: Arc<Stage>,
}

/// Connection state of a lane, for callers that time out and for status.
#[derive(Clone, Debug, Default)]
enum Health {
    /// Not connected, without an error.
    #[default]
    Idle,
    Connected,
    /// The last attempt to dial failed with this error.
    Failing(PeerError),
}

/// Decides once whether a request was sent: the lane that sends the request and the caller that times out
/// race for the decision. So a sent request is never reported as "not sent".
#[derive(Default)]
struct Stage(AtomicU8);

impl Stage {
    const QUEUED: u8 = 0;
    const SENT: u8 = 1;
    const GIVEN_UP: u8 = 2;

    /// Marks the request as sent. Returns false if the caller gave up first.
    fn send(&self) -> bool {
        self.leave(Self::SENT)
    }

    /// Marks the request as given up. Returns false if the request was already sent.
    fn give_up(&self) -> bool {
        self.leave(Self::GIVEN_UP)
    }

    fn leave(&self, to: u8) -> bool {
        self.0.compare_exchange(Self::QUEUED, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Runs a lane's task until `queue` has no sender left.
async fn run(
    dialer: Dialer,
    mut queue: mpsc::Receiver<Call>,
    health: Arc<Mutex<Health>>,
    trips: Option<Arc<RoundTrips>>,
) {
    while let Some(first) = queue.recv().await {
        let (mut link, mut first) = (PeerLink::open(dialer.clone()), Some(first));
        loop {
            tokio::select! {
                biased;
                event = link.next() => match event {
                    LinkEvent::Moved => {
                        *health.lock() = Health::Connected;
                        link.retain(|(reply, _): &(Reply, Instant)| !reply.is_closed());
                        first.take().into_iter().for_each(|first| send(&mut link, first));
                    }
                    LinkEvent::Answered { tag: (reply, sent), answer } => {
                        // Late answers count, too: the caller may have timed out.
                        trips.iter().for_each(|trips| trips.record(sent.elapsed()));
                        let _ = reply.send(Ok(answer));
                    }
                    LinkEvent::Ended { unanswered, error } => {
                        fail(unanswered.into_iter().map(|(reply, _)| reply), &error);
                        *health.lock() = Health::Idle;
                        if let Some(first) = first {
                            *health.lock() = Health::Failing(error.clone());
                            let queued = std::iter::from_fn(|| queue.try_recv().ok());
                            fail([first].into_iter().chain(queued).map(|call| call.reply), &error);
                        }
                        break;
                    }
                },
                call = queue.recv(), if link.has_room() => {
                    let Some(call) = call else { return };
                    send(&mut link, call);
                    // Send all queued requests in one write.
                    while link.has_room() && let Ok(call) = queue.try_recv() {
                        send(&mut link, call);
                    }
                }
            }
        }
    }
}

fn send(link: &mut PeerLink<(Reply, Instant)>, call: Call) {
    let Call { body, reply, stage, .. } = call;
    if !reply.is_closed() && stage.send() {
        link.send(&body, (reply, time::now())).expect("Invariant: its size was looked at when it was queued");
    }
}

fn fail(replies: impl IntoIterator<Item = Reply>, error: &PeerError) {
    for reply in replies {
        let _ = reply.send(Err(error.clone())); // a caller that timed out has dropped the receiver
    }
}

/// Number of round trips to remember.
const LATEST: usize = 8;

#[derive(Debug, Default)]
struct RoundTrips {
    latest: Mutex<VecDeque<Duration>>,
}

impl RoundTrips {
    pub(super) fn record(&self, took: Duration) {
        let mut latest = self.latest.lock();
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(took);
        assert!(latest.len() <= LATEST, "only the latest count");
    }

    /// Returns the shortest of the latest round trips. `None`: fewer than [`LATEST`] are known.
    fn shortest(&self) -> Option<Duration> {
        let latest = self.latest.lock();
        debug_assert!(latest.len() <= LATEST, "only the latest count");
        latest.iter().min().copied().filter(|_| latest.len() == LATEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_of_the_latest_eight_counts() {
        let trips = RoundTrips::default();
        (1..8).for_each(|ms| trips.record(Duration::from_millis(ms)));
        assert_eq!(trips.shortest(), None);
        trips.record(Duration::from_millis(90));
        assert_eq!(trips.shortest(), Some(Duration::from_millis(1)));
        (0..8).for_each(|_| trips.record(Duration::from_millis(200)));
        assert_eq!(trips.shortest(), Some(Duration::from_millis(200)));
    }
}
