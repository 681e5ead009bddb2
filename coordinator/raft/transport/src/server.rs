//! Listening side: accepts connections from other nodes and authenticates them; then `connection.rs` takes
//! over.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rowlock_env::net::{Listener, Stream};
use rowlock_env::rate::LogLimiter;
use rowlock_env::task::TaskGroup;
use rowlock_env::time;
use rowlock_metrics::Metrics;
use rowlock_metrics::memory::Tally;
use rowlock_proto::NodeId;

use super::connection::Connection;
use super::frame::RequestId;
use super::handshake::{self, HandshakeRefusal, Hello, Identity, Welcome};
use super::known_incarnations::{KnownIncarnations, NotRecorded};
use super::security::Security;
use super::service::Service;
use super::strangers::{Stranger, Strangers};
use super::wire::{self, Inbox, Outbox, WireError};
use crate::limits::{PEER_CONNECTIONS_MAX, PEER_HANDSHAKE_TIMEOUT, PEER_HELLO_MAX_BYTES};

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
