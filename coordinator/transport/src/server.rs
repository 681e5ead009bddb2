//! The listening side: accepts the other nodes' connections and checks who they are; then `connection.rs`
//! takes over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rowlock_env::net::{Listener, Stream};
use rowlock_env::task::TaskGroup;
use rowlock_env::time;
use rowlock_types::limits::{
    PEER_CONNECTIONS_MAX, PEER_FRAME_MAX_BYTES, PEER_HANDSHAKE_TIMEOUT, PEER_HELLO_MAX_BYTES,
};
use rowlock_types::memory::Tally;

use super::acquaintances::{Acquaintances, Unmet};
use super::connection::Connection;
use super::frame::RequestId;
use super::handshake::{self, HandshakeRefusal, Hello, Identity};
use super::service::Service;
use super::wire::{self, Inbox, Outbox, WireError};

/// Pause after a failed accept (out of descriptors, most likely): the next one would fail at once as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The listener for other nodes.
pub struct Server<S> {
    us: Arc<Identity>,
    met: Arc<dyn Acquaintances>,
    service: Arc<S>,
    tasks: TaskGroup,
    connections: Arc<AtomicUsize>,
    tally: Tally,
}

impl<S> Clone for Server<S> {
    fn clone(&self) -> Self {
        Server {
            us: self.us.clone(),
            met: self.met.clone(),
            service: self.service.clone(),
            tasks: self.tasks.clone(),
            connections: self.connections.clone(),
            tally: self.tally.clone(),
        }
    }
}

impl<S: Service> Server<S> {
    /// A server that notes in `met` whom it meets. Its tasks belong to `tasks`.
    pub fn new(us: Identity, met: Arc<dyn Acquaintances>, service: Arc<S>, tasks: TaskGroup) -> Self {
        let (connections, tally) = (Arc::default(), Tally::default());
        Server { us: Arc::new(us), met, service, tasks, connections, tally }
    }

    /// As it is, with another memory for whom it meets.
    #[must_use]
    pub fn meeting(self, met: Arc<dyn Acquaintances>) -> Self {
        Server { met, ..self }
    }

    /// As it is, with what its connections hold counted here.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        Server { tally, ..self }
    }

    /// Starts accepting, until shutdown.
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
            match listener.accept().await {
                Ok((stream, _)) => {
                    let server = self.clone();
                    let shutdown = self.tasks.shutdown().clone();
                    self.connections.fetch_add(1, Ordering::AcqRel);
                    let counted = Counted(self.connections.clone());
                    self.tasks.spawn("peer-connection", async move {
                        let _counted = counted;
                        tokio::select! {
                            biased;
                            () = shutdown.wait() => {}
                            () = server.serve(stream) => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "could not accept another node's connection");
                    time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn serve(self, stream: Stream) {
        let address = stream.peer_addr();
        let (mut inbox, mut outbox) = wire::split(stream, PEER_HELLO_MAX_BYTES, &self.tally);
        let greeted = time::timeout(PEER_HANDSHAKE_TIMEOUT, self.greet(&mut inbox, &mut outbox)).await;
        let hello = match greeted {
            Ok(Ok(hello)) => hello,
            Ok(Err(reason)) => {
                tracing::warn!(%address, reason, "refused a connection to the nodes' port");
                return;
            }
            Err(_) => {
                tracing::warn!(%address, "closed a connection to the nodes' port: no handshake in time");
                return;
            }
        };
        inbox.set_body_max_bytes(PEER_FRAME_MAX_BYTES);
        let (from, lane) = (hello.from.node, hello.lane);
        tracing::debug!(%address, node = %from, %lane, "node connected");
        let conversation = self.service.open(from, lane);
        let error = Connection::new(lane, conversation, inbox, outbox).run().await;
        self.service.parted(from, lane);
        match error {
            WireError::Frame(_) | WireError::Protocol(_) => {
                tracing::warn!(%address, node = %from, %lane, %error, "closed a node's connection");
            }
            _ => tracing::debug!(%address, node = %from, %lane, %error, "a node's connection ended"),
        }
    }

    /// The listener's half of the handshake; an error is why the connection is closed.
    async fn greet(&self, inbox: &mut Inbox, outbox: &mut Outbox) -> Result<Hello, String> {
        let checked = match inbox.next().await {
            Ok(frame) => handshake::check_hello(&frame.body, &self.us),
            Err(WireError::Frame(_)) => Err(HandshakeRefusal::NotRowlock),
            Err(error) => return Err(error.to_string()),
        };
        let full = self.connections.load(Ordering::Acquire) > PEER_CONNECTIONS_MAX;
        let checked = checked.and_then(|hello| if full { Err(HandshakeRefusal::Full) } else { Ok(hello) });
        let checked = match checked {
            Ok(hello) => self.meet(hello).await?,
            Err(refusal) => Err(refusal),
        };
        let verdict = checked.as_ref().map(|_| self.met.incarnation()).map_err(Clone::clone);
        // Noise gets no answer.
        if verdict != Err(HandshakeRefusal::NotRowlock) {
            outbox.push(RequestId::NONE, &handshake::encode_verdict(&verdict));
            outbox.drain().await.map_err(|error| error.to_string())?;
        }
        checked.map_err(|refusal| refusal.to_string())
    }

    /// Nothing is heard from a node before it is on disk by which incarnation it is known. An error is of our
    /// own disk.
    async fn meet(&self, hello: Hello) -> Result<Result<Hello, HandshakeRefusal>, String> {
        let node = hello.from.node;
        match self.met.meet(node, hello.incarnation).await {
            Ok(()) => Ok(Ok(hello)),
            Err(Unmet::OtherFolder) => Ok(Err(HandshakeRefusal::OtherFolder { node })),
            Err(Unmet::TooMany) => Ok(Err(HandshakeRefusal::Full)),
            Err(Unmet::Disk(error)) => Err(error.to_string()),
        }
    }
}

/// Counts a connection for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
