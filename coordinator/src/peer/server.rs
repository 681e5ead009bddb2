//! The listening side: accepts the other nodes' connections, checks who they are, and carries out what they ask.
//!
//! One task per connection owns its socket. Requests are begun in the order of their arrival (the Raft lanes rely on it:
//! a request is handed to openraft before the next one is looked at) and answered as they finish; on ordered lanes one
//! is finished before the next is begun.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rowlock_env::net::{Listener, Stream};
use rowlock_env::task::TaskGroup;
use rowlock_env::time::{self, Sleep};
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::command::Proposal;

use super::frame::{Frame, RequestId};
use super::handshake::{self, HandshakeRefusal, Hello, Identity, Lane};
use super::message::{Refusal, Request, Response};
use super::wire::{self, Inbox, Outbox, WireError};
use crate::codec;
use crate::limits::{
    PEER_BACKLOG_MAX_BYTES, PEER_CONNECTIONS_MAX, PEER_FRAME_MAX_BYTES, PEER_HANDSHAKE_TIMEOUT,
    PEER_HELLO_MAX_BYTES, PEER_IDLE_MAX, PEER_IN_FLIGHT_MAX,
};
use crate::raft::rpc::{RaftRequest, RaftResponse};
use crate::raft::types::Member;
use crate::status::Status;

/// Pause after a failed accept (out of descriptors, most likely): the next one would fail at once as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often a connection looks whether its dialer still lives.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// What a node does for the others, apart from Raft. Implemented above, in `node.rs`.
pub trait PeerService: Send + Sync + 'static {
    /// Takes forwarded proposals into the leader's proposer, behind all that came from `from` before. The next batch of
    /// that connection is not offered before this one is taken; waiting here holds the sender back. Once it refuses,
    /// every later batch of the connection is refused without asking.
    fn forward(&self, from: NodeId, batch: Vec<Proposal>)
    -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Restarts the sessions' timers; done when a quorum has confirmed that this node leads in `term`.
    fn touches(
        &self,
        from: NodeId,
        sessions: Vec<SessionId>,
        term: u64,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// The log index that a linearizable read must wait for, confirmed by a quorum.
    fn read_index(&self) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// How this node stands.
    fn status(&self) -> impl Future<Output = Status> + Send;

    /// Takes a learner in; gives the log index of the committed change.
    fn add_learner(&self, node: NodeId, member: Member) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Makes these the voters; gives the log index of the committed change.
    fn change_voters(&self, voters: BTreeSet<NodeId>) -> impl Future<Output = Result<u64, Refusal>> + Send;
}

/// What Raft does for the other nodes. Implemented in `raft/rpc.rs`.
pub trait RaftService: Send + Sync + 'static {
    /// A node has connected.
    fn open(&self, from: NodeId) -> Box<dyn RaftConnection>;
}

/// Raft's side of one connection; dropped with it.
pub trait RaftConnection: Send {
    /// Carries out one request. The future must have handed it on by the end of its first poll, so that requests keep
    /// their order.
    fn handle(&mut self, request: RaftRequest) -> BoxFuture<'static, RaftResponse>;
}

/// The listener for other nodes.
pub struct PeerServer<S> {
    us: Arc<Identity>,
    raft: Arc<dyn RaftService>,
    service: Arc<S>,
    tasks: TaskGroup,
    connections: Arc<AtomicUsize>,
}

impl<S> Clone for PeerServer<S> {
    fn clone(&self) -> Self {
        PeerServer {
            us: self.us.clone(),
            raft: self.raft.clone(),
            service: self.service.clone(),
            tasks: self.tasks.clone(),
            connections: self.connections.clone(),
        }
    }
}

impl<S: PeerService> PeerServer<S> {
    /// A server whose tasks belong to `tasks`.
    pub fn new(us: Identity, raft: Arc<dyn RaftService>, service: Arc<S>, tasks: TaskGroup) -> Self {
        PeerServer { us: Arc::new(us), raft, service, tasks, connections: Arc::default() }
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
        let (mut inbox, mut outbox) = wire::split(stream, PEER_HELLO_MAX_BYTES);
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
        let verdict = checked.as_ref().map(|_| ()).map_err(Clone::clone);
        // Noise gets no answer.
        if verdict != Err(HandshakeRefusal::NotRowlock) {
            outbox.push(RequestId::NONE, &handshake::encode_verdict(&verdict));
            outbox.drain().await.map_err(|error| error.to_string())?;
        }
        checked.map_err(|refusal| refusal.to_string())
    }
}

/// Counts a connection for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Turns requests into futures of their answers.
struct Handler<S> {
    from: NodeId,
    lane: Lane,
    raft: Box<dyn RaftConnection>,
    service: Arc<S>,
}

impl<S: PeerService> Handler<S> {
    fn handle(&mut self, request: Request) -> BoxFuture<'static, Response> {
        let (from, service) = (self.from, self.service.clone());
        match request {
            Request::Raft(request) => self.raft.handle(request).map(Response::Raft).boxed(),
            Request::Forward { batch } => {
                async move { answer(service.forward(from, batch).await, |()| Response::Forwarded) }.boxed()
            }
            Request::Touches { sessions, term } => async move {
                answer(service.touches(from, sessions, term).await, |()| Response::TouchesNoted)
            }
            .boxed(),
            Request::ReadIndex => {
                async move { answer(service.read_index().await, |index| Response::ReadIndex { index }) }
                    .boxed()
            }
            Request::Status => async move { Response::Status(service.status().await) }.boxed(),
            Request::AddLearner { node, member } => async move {
                answer(service.add_learner(node, member).await, |index| Response::MembershipChanged { index })
            }
            .boxed(),
            Request::ChangeVoters { voters } => async move {
                answer(service.change_voters(voters).await, |index| Response::MembershipChanged { index })
            }
            .boxed(),
        }
    }
}

fn answer<T>(result: Result<T, Refusal>, response: impl FnOnce(T) -> Response) -> Response {
    result.map_or_else(Response::Refused, response)
}

type Running = FuturesUnordered<BoxFuture<'static, (RequestId, Response)>>;

struct Connection<S> {
    handler: Handler<S>,
    inbox: Inbox,
    outbox: Outbox,
    /// Read and not begun.
    backlog: VecDeque<Frame>,
    backlog_bytes: usize,
    /// Begun and not answered.
    running: Running,
    /// On the proposals lane: the first refusal, which holds for all that follows.
    refused: Option<Refusal>,
}

impl<S: PeerService> Connection<S> {
    fn new(handler: Handler<S>, inbox: Inbox, outbox: Outbox) -> Self {
        let (backlog, running) = (VecDeque::new(), Running::new());
        Connection { handler, inbox, outbox, backlog, backlog_bytes: 0, running, refused: None }
    }

    /// Gives the reason of the end.
    async fn run(mut self) -> WireError {
        let mut tick = std::pin::pin!(time::sleep(IDLE_TICK));
        loop {
            if let Err(error) = self.step(tick.as_mut()).await {
                return error;
            }
        }
    }

    async fn step(&mut self, mut tick: Pin<&mut Sleep>) -> Result<(), WireError> {
        let reads = self.backlog.len() < PEER_IN_FLIGHT_MAX && self.backlog_bytes < PEER_BACKLOG_MAX_BYTES;
        tokio::select! {
            biased;
            Some((id, response)) = self.running.next(), if !self.running.is_empty() => {
                self.answer(id, response);
                // All that is ready goes out in one write.
                while let Some(Some((id, response))) = self.running.next().now_or_never() {
                    self.answer(id, response);
                }
            }
            sent = self.outbox.drain_some(), if !self.outbox.is_empty() => sent?,
            filled = self.inbox.fill(), if reads => {
                filled?;
                self.receive()?;
            }
            () = tick.as_mut() => {
                if reads && self.inbox.silence() >= PEER_IDLE_MAX {
                    return Err(WireError::Silent(self.inbox.silence()));
                }
                tick.set(time::sleep(IDLE_TICK));
            }
        }
        self.begin()
    }

    fn receive(&mut self) -> Result<(), WireError> {
        while let Some(frame) = self.inbox.take()? {
            if frame.id == RequestId::NONE {
                self.outbox.push(RequestId::NONE, &[]); // a ping
            } else {
                self.backlog_bytes += frame.body.len();
                self.backlog.push_back(frame);
            }
        }
        Ok(())
    }

    /// Begins as many requests as may run, in order.
    fn begin(&mut self) -> Result<(), WireError> {
        let most = if self.handler.lane.is_ordered() { 1 } else { PEER_IN_FLIGHT_MAX };
        while self.running.len() < most && self.outbox.has_room() {
            let Some(frame) = self.backlog.pop_front() else { break };
            self.backlog_bytes -= frame.body.len();
            let request = self.decode(&frame.body)?;
            if let Some(refusal) = &self.refused {
                let refused = Response::Refused(refusal.clone());
                self.answer(frame.id, refused);
                continue;
            }
            let id = frame.id;
            let response = self.handler.handle(request).map(move |response| (id, response));
            // Polled here once, before the next request is looked at, so that requests are handed on in their order.
            // Without the runtime's budget: a poll that is only put off would let the next one overtake.
            let mut response = tokio::task::unconstrained(response).boxed();
            match (&mut response).now_or_never() {
                Some((id, response)) => self.answer(id, response),
                None => self.running.push(response),
            }
        }
        Ok(())
    }

    fn decode(&self, body: &Bytes) -> Result<Request, WireError> {
        let lane = self.handler.lane;
        let request: Request = codec::decode(body, PEER_FRAME_MAX_BYTES)
            .map_err(|error| WireError::Protocol(error.to_string()))?;
        if !request.belongs_to(lane) {
            return Err(WireError::Protocol(format!("a request that does not belong on the {lane} lane")));
        }
        Ok(request)
    }

    fn answer(&mut self, id: RequestId, response: Response) {
        if self.handler.lane == Lane::Proposals
            && let Response::Refused(refusal) = &response
        {
            self.refused = Some(refusal.clone());
        }
        let body = codec::encode(&response);
        assert!(body.len() <= PEER_FRAME_MAX_BYTES, "Invariant: answers are small");
        self.outbox.push(id, &body);
    }
}
