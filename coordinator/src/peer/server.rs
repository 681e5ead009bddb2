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
use rowlock_wal::{Folder, Unmet};

use super::connection::{Connection, Handler};
use super::frame::RequestId;
use super::handshake::{self, HandshakeRefusal, Hello, Identity};
use super::service::{PeerService, RaftService};
use super::wire::{self, Inbox, Outbox, WireError};

/// Pause after a failed accept (out of descriptors, most likely): the next one would fail at once as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The listener for other nodes.
pub struct PeerServer<S> {
    us: Arc<Identity>,
    folder: Folder,
    raft: Arc<dyn RaftService>,
    service: Arc<S>,
    tasks: TaskGroup,
    connections: Arc<AtomicUsize>,
    tally: Tally,
}

impl<S> Clone for PeerServer<S> {
    fn clone(&self) -> Self {
        PeerServer {
            us: self.us.clone(),
            folder: self.folder.clone(),
            raft: self.raft.clone(),
            service: self.service.clone(),
            tasks: self.tasks.clone(),
            connections: self.connections.clone(),
            tally: self.tally.clone(),
        }
    }
}

impl<S: PeerService> PeerServer<S> {
    /// A server whose tasks belong to `tasks`.
    pub fn new(us: Identity, raft: Arc<dyn RaftService>, service: Arc<S>, tasks: TaskGroup) -> Self {
        let folder = Folder::without_disk(us.node);
        let (connections, tally) = (Arc::default(), Tally::default());
        PeerServer { us: Arc::new(us), folder, raft, service, tasks, connections, tally }
    }

    /// As it is, for the node of this folder, which remembers whom it meets.
    #[must_use]
    pub fn of_folder(self, folder: Folder) -> Self {
        PeerServer { folder, ..self }
    }

    /// As it is, with what its connections hold counted here.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        PeerServer { tally, ..self }
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
        let raft = self.raft.open(from);
        let handler = Handler { from, lane, raft, service: self.service.clone() };
        let error = Connection::new(handler, inbox, outbox).run().await;
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
        let verdict = checked.as_ref().map(|_| self.folder.incarnation()).map_err(Clone::clone);
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
        match self.folder.meet(node, hello.incarnation).await {
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
