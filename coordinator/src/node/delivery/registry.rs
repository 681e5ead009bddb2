//! All client connections of this node, and the session that each is attached to.
//!
//! In the flow: apply reports moved and ended sessions through [`super::events::Dispatcher`], and the
//! registry notifies their connections; the node closes all connections when it stops serving. Must never
//! wait.
//!
//! Invariant: lock order is `Replica::state`, `Replica::watches`, then this registry's own lock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::decides;
use rowlock_env::rare::{self, Rare};
use rowlock_env::rng;
use rowlock_env::time::{self, Instant};
use rowlock_env::turnstile::Turnstile;
use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_state::command::Attachment;

use super::outbox::{CloseReason, Message, Outbox};
use super::stats::ConnectionStats;
use crate::node::delivery::watch::ConnectionId;

#[derive(Default)]
pub struct Registry {
    inner: Mutex<RegistryState>,
    /// Turnstile of all connections, including HTTP.
    pub(crate) turnstile: Turnstile,
}

/// Invariant: `addresses` counts the entries of `connections`; `sessions` and `half_open` refer only to
/// entries of `connections`.
#[derive(Default)]
struct RegistryState {
    last_id: u64,
    connections: BTreeMap<ConnectionId, Arc<ClientConnection>>,
    /// Number of connections per address, loopback excepted.
    addresses: BTreeMap<IpAddr, usize>,
    /// Connections without a first frame, the oldest first.
    half_open: BTreeSet<ConnectionId>,
    /// Flat, because nearly every session has one connection, and a map per session would be larger than all
    /// other fields.
    sessions: BTreeMap<(SessionId, ConnectionId), Attachment>,
}

/// Bounds on the number of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// Maximum of all kinds. Beyond: a new connection is refused.
    pub(crate) connections: usize,
    /// Maximum per address, loopback excepted. Beyond: likewise. 0: no bound.
    pub(crate) of_address: usize,
    /// Maximum without a first frame. Beyond: the oldest is closed.
    pub(crate) half_open: usize,
}

/// Reason for the refusal of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMany {
    #[error("max_connections is reached")]
    Connections,
    #[error("max_connections_per_address is reached")]
    OfAddress,
}

/// Listener of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Plain,
    Secure,
}

/// State of a connection, for other tasks.
pub struct ClientConnection {
    pub id: ConnectionId,
    pub addr: SocketAddr,
    /// Listener that accepted the connection.
    pub door: Door,
    /// Identities that TLS has authenticated: set once, after the handshake.
    pub(crate) proven: OnceLock<Arc<[Id]>>,
    pub outbox: Outbox,
    pub(crate) accepted_at: Instant,
    pub(crate) accepted_ms: i64,
    pub(crate) stats: ConnectionStats,
    read_only: AtomicBool,
}

impl ClientConnection {
    /// Marks the connection as read-only. Read the node's status afterwards, not before: then either the
    /// connection sees that the node serves, or [`Registry::close_read_only`] sees the connection.
    pub(crate) fn become_read_only(&self) {
        self.read_only.store(true, Ordering::SeqCst);
    }
}

impl Registry {
    /// Creates a registry without connections.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn accepted(
        &self,
        addr: SocketAddr,
        door: Door,
        outbox: Outbox,
        most: Most,
    ) -> Result<Arc<ClientConnection>, TooMany> {
        let mut inner = self.inner.lock();
        if decides!("connections-are-full", inner.connections.len() >= most.connections) {
            return Err(TooMany::Connections);
        }
        if let Some(ip) = counted(addr) {
            let of_address = inner.addresses.entry(ip).or_default();
            // A connection of this address exists already, so the entry is not a new one.
            if most.of_address > 0 && *of_address >= most.of_address {
                return Err(TooMany::OfAddress);
            }
            *of_address += 1;
        }
        if inner.half_open.len() >= most.half_open
            && let Some(oldest) = inner.half_open.pop_first()
        {
            inner.close(oldest, CloseReason::HalfOpen);
        }
        inner.last_id += 1;
        let peer = Arc::new(ClientConnection {
            id: ConnectionId(inner.last_id),
            addr,
            door,
            proven: OnceLock::new(),
            outbox,
            accepted_at: time::now(),
            accepted_ms: time::wall_ms(),
            stats: ConnectionStats::default(),
            read_only: AtomicBool::new(false),
        });
        inner.half_open.insert(peer.id);
        inner.connections.insert(peer.id, peer.clone());
        Ok(peer)
    }

    /// Records the first frame of the connection.
    pub(crate) fn greeted(&self, connection: ConnectionId) {
        self.inner.lock().half_open.remove(&connection);
    }

    /// Attaches the connection to the session. The caller holds the read lock of the state and has checked
    /// that the attachment is still the session's: then the connection misses no move or end of the session.
    pub(crate) fn attach(&self, connection: ConnectionId, session: SessionId, attachment: Attachment) {
        let mut inner = self.inner.lock();
        if inner.connections.contains_key(&connection) {
            inner.sessions.insert((session, connection), attachment);
        }
    }

    /// Removes the connection. Idempotent.
    pub(crate) fn gone(&self, connection: ConnectionId, session: Option<SessionId>) {
        let mut inner = self.inner.lock();
        let peer = inner.connections.remove(&connection);
        if let Some(ip) = peer.and_then(|peer| counted(peer.addr)) {
            let of_address = inner.addresses.get_mut(&ip).expect("each connection is counted");
            *of_address -= 1;
            if *of_address == 0 {
                inner.addresses.remove(&ip);
            }
        }
        inner.half_open.remove(&connection);
        if let Some(session) = session {
            inner.sessions.remove(&(session, connection));
        }
    }

    /// Closes the connections with older attachments: the session has a new attachment somewhere in the
    /// cluster.
    pub fn session_attached(&self, session: SessionId, attachment: Attachment) {
        let inner = self.inner.lock();
        for (connection, theirs) in inner.attached(session) {
            if decides!("connection-has-other-attachment", theirs != attachment) {
                rare::taken(Rare::SessionMoved);
                inner.close(connection, CloseReason::SessionMoved);
            }
        }
    }

    /// Closes the connections of a session that has ended.
    pub fn session_ended(&self, session: SessionId) {
        let inner = self.inner.lock();
        for (connection, _) in inner.attached(session) {
            inner.close(connection, CloseReason::SessionEnded);
        }
    }

    /// Queues a frame for the newest attachment of the session on this node: one connection, or the waiting
    /// HTTP requests of a lease. Returns whether there is any.
    pub fn notify(&self, session: SessionId, frame: impl FnOnce() -> Bytes) -> bool {
        let inner = self.inner.lock();
        let Some(newest) = inner.attached(session).map(|(_, attachment)| attachment).max() else {
            return false;
        };
        let frame = frame();
        for (connection, _) in inner
            .attached(session)
            .filter(|(_, attachment)| decides!("notice-goes-to-newest", *attachment == newest))
        {
            inner.peer(connection).outbox.push(Message::Event(frame.clone()));
        }
        true
    }

    /// Closes every connection, also during a handshake. A node publishes the new `Status` first when it
    /// stops serving, then calls this, so that no connection slips through in between.
    pub fn close_all(&self, reason: CloseReason) {
        let inner = self.inner.lock();
        for peer in inner.connections.values() {
            peer.outbox.push(Message::Close(reason));
        }
    }

    /// Closes this percentage of the connections with a session: a random choice, at least one if there is
    /// one. Returns the number of closed connections and the total.
    pub fn close_share(&self, percent: u8) -> (usize, usize) {
        let inner = self.inner.lock();
        let all: Vec<(u64, ConnectionId)> = inner.sessions.keys().map(|key| (rng::u64(), key.1)).collect();
        let share = (all.len() * usize::from(percent)).div_ceil(100).min(all.len());
        let drawn: BTreeSet<_> = all.iter().copied().collect();
        assert!(drawn.len() == all.len(), "a connection has one session");
        assert!(percent == 0 || all.is_empty() || share > 0, "a positive share closes at least one");
        for (_, connection) in drawn.into_iter().take(share) {
            inner.close(connection, CloseReason::Rebalanced);
        }
        (share, all.len())
    }

    /// Closes the read-only connections: the node serves again. The caller publishes that `Status` first.
    pub fn close_read_only(&self) {
        let inner = self.inner.lock();
        for peer in inner.connections.values().filter(|peer| peer.read_only.load(Ordering::SeqCst)) {
            peer.outbox.push(Message::Close(CloseReason::Writable));
        }
    }

    /// Number of connections, with those in their handshake.
    pub fn len(&self) -> usize {
        self.inner.lock().connections.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sessions with a connection on this node, in order.
    pub fn sessions(&self) -> Vec<SessionId> {
        let mut sessions: Vec<SessionId> = self.inner.lock().sessions.keys().map(|key| key.0).collect();
        sessions.dedup();
        sessions
    }

    /// Returns the address of a session's client, if connected to this node.
    pub fn address_of(&self, session: SessionId) -> Option<SocketAddr> {
        let inner = self.inner.lock();
        inner.newest(session).map(|peer| peer.addr)
    }

    /// Returns all connections in order of acceptance.
    pub(crate) fn connections(&self) -> Vec<Arc<ClientConnection>> {
        self.inner.lock().connections.values().cloned().collect()
    }
}

impl RegistryState {
    fn attached(&self, session: SessionId) -> impl Iterator<Item = (ConnectionId, Attachment)> {
        let (first, last) = (ConnectionId(0), ConnectionId(u64::MAX));
        let attached = self.sessions.range((session, first)..=(session, last));
        attached.map(|((_, connection), attachment)| (*connection, *attachment))
    }

    /// Returns the connection with the session's newest attachment on this node.
    fn newest(&self, session: SessionId) -> Option<&ClientConnection> {
        let newest = self.attached(session).max_by_key(|(_, attachment)| *attachment)?;
        Some(self.peer(newest.0))
    }

    fn close(&self, connection: ConnectionId, reason: CloseReason) {
        self.peer(connection).outbox.push(Message::Close(reason));
    }

    fn peer(&self, connection: ConnectionId) -> &ClientConnection {
        self.connections.get(&connection).expect("sessions mentions only open connections")
    }
}

/// Returns the address for the count of connections; `None` for loopback.
fn counted(addr: SocketAddr) -> Option<IpAddr> {
    let ip = addr.ip().to_canonical();
    (!ip.is_loopback()).then_some(ip)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::outbox::{self, Inbox};
    use super::*;

    const MOST: Most = Most { connections: 10, of_address: 2, half_open: 10 };

    fn peer(registry: &Registry) -> (Arc<ClientConnection>, Inbox) {
        peer_of(registry, MOST)
    }

    fn peer_of(registry: &Registry, most: Most) -> (Arc<ClientConnection>, Inbox) {
        let (outbox, inbox) = outbox::channel();
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        (registry.accepted(addr, Door::Plain, outbox, most).unwrap(), inbox)
    }

    fn told(inbox: &mut Inbox) -> Vec<CloseReason> {
        let mut messages = VecDeque::new();
        inbox.take(&mut messages).unwrap();
        let reason = |m| match m {
            Message::Close(reason) => reason,
            other => panic!("{other:?}"),
        };
        messages.into_iter().map(reason).collect()
    }

    #[test]
    fn a_session_that_moves_leaves_only_its_newest_connection_alone() {
        let registry = Registry::new();
        let (old, mut old_inbox) = peer(&registry);
        let (new, mut new_inbox) = peer(&registry);
        registry.attach(old.id, SessionId(7), Attachment(1));
        registry.attach(new.id, SessionId(7), Attachment(2));
        assert_eq!(registry.sessions(), [SessionId(7)]);
        registry.session_attached(SessionId(7), Attachment(2));
        assert_eq!(told(&mut old_inbox), [CloseReason::SessionMoved]);
        assert_eq!(told(&mut new_inbox), []);
        registry.session_attached(SessionId(8), Attachment(1));
        assert_eq!(told(&mut new_inbox), []);
    }

    #[test]
    fn the_end_of_a_session_closes_only_its_connections() {
        let registry = Registry::new();
        let (a, mut a_inbox) = peer(&registry);
        let (b, mut b_inbox) = peer(&registry);
        registry.attach(a.id, SessionId(1), Attachment(1));
        registry.attach(b.id, SessionId(2), Attachment(1));
        registry.session_ended(SessionId(1));
        assert_eq!(told(&mut a_inbox), [CloseReason::SessionEnded]);
        assert_eq!(told(&mut b_inbox), []);
        registry.gone(b.id, Some(SessionId(2)));
        registry.session_ended(SessionId(2));
        assert_eq!(told(&mut b_inbox), []);
        assert_eq!(registry.sessions(), [SessionId(1)]);
    }

    #[test]
    fn a_frame_for_a_session_goes_to_its_newest_connection_alone() {
        let registry = Registry::new();
        let (new, mut new_inbox) = peer(&registry);
        let (old, mut old_inbox) = peer(&registry);
        registry.attach(old.id, SessionId(7), Attachment(1));
        registry.attach(new.id, SessionId(7), Attachment(2));
        assert!(registry.notify(SessionId(7), || Bytes::from_static(b"frame")));
        assert!(!registry.notify(SessionId(8), || panic!("nobody is there to read it")));
        let mut messages = VecDeque::new();
        new_inbox.take(&mut messages).unwrap();
        assert!(matches!(&messages.make_contiguous()[..], [Message::Event(frame)] if frame == "frame"));
        assert_eq!(told(&mut old_inbox), []);
    }

    #[test]
    fn connections_of_an_address_are_bounded_except_loopback() {
        let registry = Registry::new();
        let from = |ip: &str| {
            let addr = SocketAddr::new(ip.parse().unwrap(), 1);
            registry.accepted(addr, Door::Plain, outbox::channel().0, MOST)
        };
        let first = from("10.0.0.1").unwrap();
        // The same address, as a dual-stack listener reports it.
        from("::ffff:10.0.0.1").unwrap();
        assert_eq!(from("10.0.0.1").err(), Some(TooMany::OfAddress));
        from("10.0.0.2").unwrap();
        for _ in 0..3 {
            from("127.0.0.9").unwrap();
            from("::1").unwrap();
        }
        registry.gone(first.id, None);
        from("10.0.0.1").unwrap();
        assert_eq!(from("10.0.0.1").err(), Some(TooMany::OfAddress));
    }

    #[test]
    fn too_many_half_open_connections_close_the_oldest() {
        let registry = Registry::new();
        let most = Most { half_open: 2, ..MOST };
        let (greeted, mut greeted_inbox) = peer_of(&registry, most);
        registry.greeted(greeted.id);
        let (oldest, mut oldest_inbox) = peer_of(&registry, most);
        let (_, mut second_inbox) = peer_of(&registry, most);
        assert_eq!(told(&mut oldest_inbox), [], "as many as there may be");
        peer_of(&registry, most);
        assert_eq!(told(&mut oldest_inbox), [CloseReason::HalfOpen]);
        registry.gone(oldest.id, None);
        peer_of(&registry, most);
        assert_eq!(told(&mut second_inbox), [CloseReason::HalfOpen]);
        assert_eq!(told(&mut greeted_inbox), [], "it has said what it wants");
    }

    #[test]
    fn a_share_of_the_connections_with_a_session_is_closed() {
        let registry = Registry::new();
        assert_eq!(registry.close_share(50), (0, 0));
        let mut inboxes: Vec<_> = (0..9).map(|_| peer(&registry)).collect();
        for (n, (peer, _)) in (1..).zip(inboxes.iter().take(8)) {
            registry.attach(peer.id, SessionId(n), Attachment(1));
        }
        assert_eq!(registry.close_share(30), (3, 8), "one without a session does not count");
        let told: Vec<_> = inboxes.iter_mut().flat_map(|(_, inbox)| told(inbox)).collect();
        assert_eq!(told, [CloseReason::Rebalanced; 3]);
        assert_eq!((registry.close_share(1), registry.close_share(100)), ((1, 8), (8, 8)));
    }

    #[test]
    fn a_node_that_stops_serving_closes_all_of_a_bounded_number() {
        let registry = Registry::new();
        let mut inboxes: Vec<_> = (0..10).map(|_| peer(&registry)).collect();
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(matches!(
            registry.accepted(addr, Door::Plain, outbox::channel().0, MOST),
            Err(TooMany::Connections)
        ));
        registry.close_all(CloseReason::NotServing);
        for (_, inbox) in &mut inboxes {
            assert_eq!(told(inbox), [CloseReason::NotServing]);
        }
    }
}
