//! Listening side: accepts connections from other nodes and authenticates them; then `connection.rs` takes
//! over.
//!
//! Unauthenticated connections: bounded in total and per address, so that a flood exhausts neither the node's
//! file descriptors nor the slots of nodes at other addresses. Failed handshakes are bounded, too: each
//! address gets a fixed number per second, and so a small share of the processor.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::net::{Listener, Stream};
use rowlock_env::rate::LogLimiter;
use rowlock_env::task::TaskGroup;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Metrics;
use rowlock_metrics::memory::Tally;
use rowlock_proto::NodeId;

use super::connection::Connection;
use super::frame::RequestId;
use super::handshake::{self, HandshakeRefusal, Hello, Identity, Welcome};
use super::security::Security;
use super::service::{KnownIncarnations, NotRecorded, Service};
use super::wire::{self, Inbox, Outbox, WireError};
use crate::limits::{
    PEER_CONNECTIONS_MAX, PEER_HANDSHAKE_TIMEOUT, PEER_HELLO_MAX_BYTES, PEER_REFUSALS_OF_ADDRESS_MAX,
    PEER_STRANGERS_MAX, PEER_STRANGERS_OF_ADDRESS_MAX,
};

pub struct Server<S> {
    us: Arc<Identity>,
    known: Arc<dyn KnownIncarnations>,
    security: Security,
    service: Arc<S>,
    tasks: TaskGroup,
    connections: Arc<AtomicUsize>,
    strangers: Arc<Strangers>,
    refusals: Arc<Refusals>,
    tally: Tally,
}

/// Callback for each refused connection: the address and the reason. Must not wait.
pub type RefusalListener = Arc<dyn Fn(SocketAddr, &str) + Send + Sync>;

/// Record of refusals. The log gets at most one line a second.
#[derive(Default)]
struct Refusals {
    metrics: Arc<Metrics>,
    listener: Option<RefusalListener>,
    log: LogLimiter,
}

impl Refusals {
    fn record(&self, address: SocketAddr, reason: &str) {
        self.metrics.peer_connections_refused_total.inc();
        if let Some(listener) = &self.listener {
            listener(address, reason);
        }
        if let Some(suppressed) = self.log.admit() {
            tracing::warn!(%address, reason, suppressed, "refused a connection to the nodes' port");
        }
    }
}

impl<S> Clone for Server<S> {
    fn clone(&self) -> Self {
        Server {
            us: self.us.clone(),
            known: self.known.clone(),
            security: self.security.clone(),
            service: self.service.clone(),
            tasks: self.tasks.clone(),
            connections: self.connections.clone(),
            strangers: self.strangers.clone(),
            refusals: self.refusals.clone(),
            tally: self.tally.clone(),
        }
    }
}

impl<S: Service> Server<S> {
    /// Creates a server that records connecting nodes in `known`. The server's tasks belong to `tasks`.
    pub fn new(us: Identity, known: Arc<dyn KnownIncarnations>, service: Arc<S>, tasks: TaskGroup) -> Self {
        let (security, connections, strangers) = (Security::None, Arc::default(), Arc::default());
        let (refusals, tally) = (Arc::default(), Tally::default());
        Server { us: Arc::new(us), known, security, service, tasks, connections, strangers, refusals, tally }
    }

    /// Sets the security of accepted connections.
    #[must_use]
    pub fn secured_by(self, security: Security) -> Self {
        Server { security, ..self }
    }

    /// Counts refusals in `metrics` and reports them to `listener`.
    #[must_use]
    pub fn measured_by(self, metrics: Arc<Metrics>, listener: Option<RefusalListener>) -> Self {
        Server { refusals: Arc::new(Refusals { metrics, listener, ..Refusals::default() }), ..self }
    }

    /// Replaces the record of known nodes.
    #[must_use]
    pub fn knowing(self, known: Arc<dyn KnownIncarnations>) -> Self {
        Server { known, ..self }
    }

    /// Counts the memory of connections in `tally`.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        Server { tally, ..self }
    }

    /// Accepts connections until shutdown.
    pub fn start(&self, listener: Listener) {
        let server = self.clone();
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn("peer-listener", async move {
            tokio::select! {
                biased;
                () = shutdown.wait() => {}
                () = server.accept(listener) => {}
            }
        });
    }

    async fn accept(self, listener: Listener) {
        loop {
            let stream = listener.accept().await;
            let address = stream.peer_addr();
            let stranger = match self.strangers.admit(address.ip(), time::now()) {
                Ok(stranger) => stranger,
                Err(error) => {
                    self.refusals.record(address, &error.to_string());
                    continue;
                }
            };
            let server = self.clone();
            let shutdown = self.tasks.shutdown().clone();
            self.connections.fetch_add(1, Ordering::AcqRel);
            let counted = Counted(self.connections.clone());
            self.tasks.spawn("peer-connection", async move {
                let _counted = counted;
                tokio::select! {
                    biased;
                    () = shutdown.wait() => {}
                    () = server.serve(stream, stranger) => {}
                }
            });
        }
    }

    async fn serve(self, stream: Stream, stranger: Stranger) {
        let address = stream.peer_addr();
        let welcomed = time::timeout(PEER_HANDSHAKE_TIMEOUT, self.welcome(stream)).await;
        let welcomed = welcomed.unwrap_or_else(|_| Err("no handshake in time".to_owned()));
        let (hello, mut inbox, outbox) = match welcomed {
            Ok(welcomed) => welcomed,
            Err(reason) => {
                stranger.refused(time::now());
                return self.refusals.record(address, &reason);
            }
        };
        drop(stranger);
        let (from, lane) = (hello.from.node, hello.lane);
        inbox.set_body_max_bytes(lane.frame_max_bytes());
        tracing::debug!(%address, node = %from, %lane, "node connected");
        let conversation = self.service.open(from, lane);
        let error = Connection::new(lane, conversation, inbox, outbox).run().await;
        self.service.peer_disconnected(from, lane);
        match error {
            WireError::Frame(_) | WireError::Protocol(_) => {
                tracing::warn!(%address, node = %from, %lane, %error, "closed a node's connection");
            }
            _ => tracing::debug!(%address, node = %from, %lane, %error, "a node's connection ended"),
        }
    }

    /// Performs both handshakes, TLS and Rowlock's. The error is the reason for closing the connection.
    async fn welcome(&self, stream: Stream) -> Result<(Hello, Inbox, Outbox), String> {
        let (stream, named) = self.security.accept(stream, &self.us).await?;
        let (mut inbox, mut outbox) = wire::split(stream, PEER_HELLO_MAX_BYTES, &self.tally);
        let hello = self.greet(named, &mut inbox, &mut outbox).await?;
        Ok((hello, inbox, outbox))
    }

    /// Performs the listener's half of the handshake. `named` is the node in the certificate.
    async fn greet(
        &self,
        named: Option<NodeId>,
        inbox: &mut Inbox,
        outbox: &mut Outbox,
    ) -> Result<Hello, String> {
        let checked = match inbox.next().await {
            Ok(frame) => handshake::check_hello(&frame.body, &self.us),
            Err(WireError::Frame(_)) => Err(HandshakeRefusal::NotRowlock),
            Err(error) => return Err(error.to_string()),
        };
        let checked = checked.and_then(|hello| match named {
            Some(named) if named != hello.from.node => {
                Err(HandshakeRefusal::Certificate { node: hello.from.node })
            }
            _ => Ok(hello),
        });
        let (known, metrics) = (&self.known, &self.refusals.metrics);
        let checked = checked.and_then(|hello| {
            let agreed = handshake::agree(&known.versions(), &hello.versions);
            agreed.inspect_err(|_| metrics.peer_versions_refused_total.inc()).map(|_| hello)
        });
        let full = self.connections.load(Ordering::Acquire) > PEER_CONNECTIONS_MAX;
        let checked = checked.and_then(|hello| if full { Err(HandshakeRefusal::Full) } else { Ok(hello) });
        let checked = match checked {
            Ok(hello) => self.record(hello).await?,
            Err(refusal) => Err(refusal),
        };
        let welcome = |_| Welcome { incarnation: self.known.incarnation(), versions: self.known.versions() };
        let verdict = checked.as_ref().map(welcome).map_err(Clone::clone);
        // Noise gets no answer.
        if verdict != Err(HandshakeRefusal::NotRowlock) {
            outbox.push(RequestId::NONE, &handshake::encode_verdict(&verdict));
            outbox.drain().await.map_err(|error| error.to_string())?;
        }
        checked.map_err(|refusal| refusal.to_string())
    }

    /// Stores the dialer's incarnation durably before any of its messages is accepted. The outer error is a
    /// failure of this node's disk.
    async fn record(&self, hello: Hello) -> Result<Result<Hello, HandshakeRefusal>, String> {
        let node = hello.from.node;
        // A new node does not know the id of its cluster.
        if hello.cluster.zip(self.known.cluster()).is_some_and(|(theirs, ours)| theirs != ours) {
            return Ok(Err(HandshakeRefusal::ClusterId));
        }
        match self.known.record(node, hello.incarnation).await {
            Ok(()) => {
                self.known.heard(node, hello.versions.clone());
                Ok(Ok(hello))
            }
            Err(NotRecorded::OtherFolder) => Ok(Err(HandshakeRefusal::OtherFolder { node })),
            Err(NotRecorded::TooMany) => Ok(Err(HandshakeRefusal::Full)),
            Err(NotRecorded::Disk(error)) => Err(error.to_string()),
        }
    }
}

/// Counts a connection while the connection is open.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Period over which refusals are counted.
const REFUSALS_SPAN: Duration = Duration::from_secs(1);
/// Most addresses whose refusals are counted; further addresses in the same second are not.
const REFUSED_ADDRESSES_MAX: usize = 4_096;

#[derive(Debug, Default)]
struct Strangers(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of_address: BTreeMap<IpAddr, usize>,
    refused: BTreeMap<IpAddr, u32>,
    since: Option<Instant>,
}

/// Reason to drop a connection before its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum NotAdmitted {
    #[error("too many connections are in their handshake")]
    TooMany,
    /// The address had too many failed handshakes.
    #[error("too many handshakes of its address have failed in this second")]
    TooManyFailed,
}

/// Slot of an unauthenticated connection; dropped after authentication or at the connection's end.
#[derive(Debug)]
struct Stranger {
    among: Arc<Strangers>,
    address: IpAddr,
}

impl Strangers {
    /// Reserves a slot for a connection that arrives `now`.
    fn admit(self: &Arc<Self>, address: IpAddr, now: Instant) -> Result<Stranger, NotAdmitted> {
        let address = address.to_canonical();
        let mut counts = self.0.lock();
        counts.begin_second(now);
        let refused = counts.refused.get(&address).copied().unwrap_or(0);
        if refused >= PEER_REFUSALS_OF_ADDRESS_MAX && !address.is_loopback() {
            return Err(NotAdmitted::TooManyFailed);
        }
        let of_address = counts.of_address.get(&address).copied().unwrap_or(0);
        let is_flood = of_address >= PEER_STRANGERS_OF_ADDRESS_MAX && !address.is_loopback();
        if counts.all >= PEER_STRANGERS_MAX || is_flood {
            return Err(NotAdmitted::TooMany);
        }
        counts.all += 1;
        counts.of_address.insert(address, of_address + 1);
        Ok(Stranger { among: self.clone(), address })
    }
}

impl Counts {
    fn begin_second(&mut self, now: Instant) {
        if self.since.is_none_or(|since| now.saturating_since(since) >= REFUSALS_SPAN) {
            self.refused.clear();
            self.since = Some(now);
        }
    }
}

impl Stranger {
    /// Counts a refused handshake at `now`.
    pub(super) fn refused(self, now: Instant) {
        let mut counts = self.among.0.lock();
        counts.begin_second(now);
        if counts.refused.len() < REFUSED_ADDRESSES_MAX || counts.refused.contains_key(&self.address) {
            let count = counts.refused.entry(self.address).or_default();
            *count = count.saturating_add(1);
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut counts = self.among.0.lock();
        counts.all -= 1;
        let left = counts.of_address.get(&self.address).map_or(0, |count| count - 1);
        if left == 0 {
            counts.of_address.remove(&self.address);
        } else {
            counts.of_address.insert(self.address, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::time;

    use super::*;

    fn address(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn an_address_with_many_failures_waits_for_the_next_second() {
        let strangers = Arc::new(Strangers::default());
        let now = time::now();
        for _ in 0..PEER_REFUSALS_OF_ADDRESS_MAX {
            strangers.admit(address(1), now).unwrap().refused(now);
        }
        assert_eq!(strangers.admit(address(1), now).err(), Some(NotAdmitted::TooManyFailed));
        assert!(strangers.admit(address(2), now).is_ok());
        assert!(strangers.admit(address(1), now + REFUSALS_SPAN).is_ok(), "the next second has begun");
    }

    #[test]
    fn counts_of_refusals_are_bounded() {
        let strangers = Arc::new(Strangers::default());
        let now = time::now();
        for n in 0..2 * REFUSED_ADDRESSES_MAX as u32 {
            strangers.admit(IpAddr::from(n.to_be_bytes()), now).unwrap().refused(now);
        }
        assert_eq!(strangers.0.lock().refused.len(), REFUSED_ADDRESSES_MAX);
    }

    #[test]
    fn slots_are_bounded_per_address_and_in_total() {
        let strangers = Arc::new(Strangers::default());
        let now = time::now();
        let admit = |address| strangers.admit(address, now);
        let mut in_place: Vec<_> = (0..PEER_STRANGERS_OF_ADDRESS_MAX).map(|_| admit(address(1))).collect();
        assert!(in_place.iter().all(Result::is_ok));
        assert_eq!(admit(address(1)).err(), Some(NotAdmitted::TooMany), "this address has no slot left");
        assert!(admit(address(2)).is_ok(), "another one has");
        in_place.pop();
        assert!(admit(address(1)).is_ok(), "one has gone");
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let more: Vec<_> = (0..PEER_STRANGERS_MAX).map_while(|_| admit(loopback).ok()).collect();
        assert_eq!(more.len() + in_place.len(), PEER_STRANGERS_MAX);
        assert_eq!(admit(address(2)).err(), Some(NotAdmitted::TooMany), "all slots are taken");
        drop((in_place, more));
        assert_eq!(strangers.0.lock().all, 0);
        assert!(strangers.0.lock().of_address.is_empty());
    }
}
