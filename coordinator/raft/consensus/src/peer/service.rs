//! Services of a node for other nodes: two traits, and the listening side, which decodes the requests of
//! other nodes, calls the services, and encodes the responses.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_env::net::Listener;
use rowlock_env::task::TaskGroup;
use rowlock_metrics::Metrics;
use rowlock_metrics::memory::Tally;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::codec;
use rowlock_state::command::Proposal;
use rowlock_transport::{Answer, Conversation, Identity, Lane, RefusalListener, Security, Server, Service};
use rowlock_wal::Folder;
use rowlock_wal::entry::Member;

use super::message::{Introduction, Refusal, Request, Response};
use super::releases::{FolderIncarnations, Releases};
use crate::operation::Operation;
use crate::peer::message::ClientDisconnect;
use crate::raft_types::{RaftRequest, RaftResponse};
use crate::reconfiguration::Wanted;
use crate::status::Status;

/// Handler for requests of other nodes, apart from Raft. Implemented above, in `node.rs`.
pub trait PeerService: Send + Sync + 'static {
    /// Passes forwarded proposals to the leader's proposer, behind all earlier ones of `from`. The next batch
    /// of the connection waits for the end of this call, so waiting here slows the sender down. After the
    /// first refusal the listener refuses every later batch of the connection without a call. Refuses unless
    /// this node leads in `term`.
    fn forward(
        &self,
        from: NodeId,
        term: u64,
        batch: Vec<Proposal>,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Restarts the sessions' timers. Resolves when a quorum has confirmed that this node leads in `term`.
    /// Returns the sessions whose timers do not run, and the number of sessions per second that `from` may
    /// send here. `is_short`: the disk of `from` is short of room.
    fn touches(
        &self,
        from: NodeId,
        sessions: Vec<SessionId>,
        term: u64,
        is_short: bool,
    ) -> impl Future<Output = Result<(Vec<SessionId>, u32), Refusal>> + Send;

    /// Shortens the time of sessions whose clients disconnected, if this node leads in `term`.
    fn client_disconnects(
        &self,
        from: NodeId,
        disconnects: Vec<ClientDisconnect>,
        term: u64,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Called when a connection of `from`, for this lane, has ended.
    fn peer_disconnected(&self, from: NodeId, lane: Lane);

    /// Returns the log index that a linearizable read must wait for, confirmed by a quorum.
    fn read_index(&self) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Introduces this node to `from`, which has started.
    fn introduce(&self, from: NodeId) -> impl Future<Output = Introduction> + Send;

    fn status(&self) -> impl Future<Output = Status> + Send;

    /// Adds a learner. Returns the log index of the committed change.
    fn add_learner(&self, node: NodeId, member: Member) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Changes the membership in ZooKeeper's terms. Returns the log index of the committed change, or the
    /// code of the rejection. The outer error means that the change was not attempted, except `NoQuorum`,
    /// after which the change may have happened.
    fn reconfigure(
        &self,
        wanted: Wanted,
    ) -> impl Future<Output = Result<Result<u64, ErrorCode>, Refusal>> + Send;

    /// Performs an operator's request. Returns a document, or the code of the rejection. The outer error
    /// means that the request was not attempted.
    fn operate(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Result<String, ErrorCode>, Refusal>> + Send;
}

/// Handler for Raft requests of other nodes. Implemented in `raft/rpc.rs`.
pub trait RaftService: Send + Sync + 'static {
    fn open(&self, from: NodeId, lane: Lane) -> Box<dyn RaftConnection>;
}

/// Raft's side of one connection; dropped with the connection.
pub trait RaftConnection: Send {
    /// Carries out one request. The future must pass the request on by the end of its first poll, so that
    /// requests keep their order.
    fn handle(&mut self, request: RaftRequest) -> BoxFuture<'static, RaftResponse>;
}

pub struct PeerServer<S> {
    server: Server<Services<S>>,
}

impl<S: PeerService> PeerServer<S> {
    /// Creates a server whose tasks belong to `tasks`.
    pub fn new(us: Identity, raft: Arc<dyn RaftService>, service: Arc<S>, tasks: TaskGroup) -> Self {
        let known = Arc::new(FolderIncarnations(Folder::without_disk(us.node), Releases::default()));
        PeerServer { server: Server::new(us, known, Arc::new(Services { raft, service }), tasks) }
    }

    /// Records incarnations in this folder, and offers the versions in `releases`.
    #[must_use]
    pub fn of_folder(self, folder: Folder, releases: Releases) -> Self {
        PeerServer { server: self.server.knowing(Arc::new(FolderIncarnations(folder, releases))) }
    }

    /// Counts the memory of connections in `tally`.
    #[must_use]
    pub fn counted_in(self, tally: Tally) -> Self {
        PeerServer { server: self.server.counted_in(tally) }
    }

    /// Sets the security of accepted connections.
    #[must_use]
    pub fn secured_by(self, security: Security) -> Self {
        PeerServer { server: self.server.secured_by(security) }
    }

    /// Counts refusals in `metrics` and reports them to `listener`.
    #[must_use]
    pub fn measured_by(self, metrics: Arc<Metrics>, listener: RefusalListener) -> Self {
        PeerServer { server: self.server.measured_by(metrics, Some(listener)) }
    }

    /// Accepts connections until shutdown.
    pub fn start(&self, listener: Listener) {
        self.server.start(listener);
    }
}

/// The node's two services for other nodes.
struct Services<S> {
    raft: Arc<dyn RaftService>,
    service: Arc<S>,
}

impl<S: PeerService> Service for Services<S> {
    type Conversation = Handler<S>;

    fn open(&self, from: NodeId, lane: Lane) -> Handler<S> {
        let (raft, service) = (self.raft.open(from, lane), self.service.clone());
        Handler { from, lane, raft, service }
    }

    fn peer_disconnected(&self, from: NodeId, lane: Lane) {
        self.service.peer_disconnected(from, lane);
    }
}

struct Handler<S> {
    from: NodeId,
    lane: Lane,
    raft: Box<dyn RaftConnection>,
    service: Arc<S>,
}

impl<S: PeerService> Conversation for Handler<S> {
    type Request = Request;

    fn decode(&mut self, body: &Bytes) -> Result<Request, String> {
        let request =
            Request::decode(body, self.lane.frame_max_bytes()).map_err(|error| error.to_string())?;
        if !request.belongs_to(self.lane) {
            return Err(format!("a request that does not belong on the {} lane", self.lane));
        }
        Ok(request)
    }

    fn handle(&mut self, request: Request) -> BoxFuture<'static, Answer> {
        let encoded = |response: Response| Answer {
            body: codec::encode(&response),
            refuses: matches!(response, Response::Refused(_)),
        };
        self.respond(request).map(encoded).boxed()
    }
}

impl<S: PeerService> Handler<S> {
    fn respond(&mut self, request: Request) -> BoxFuture<'static, Response> {
        let (from, service) = (self.from, self.service.clone());
        match request {
            Request::Raft(request) => self.raft.handle(request).map(Response::Raft).boxed(),
            Request::Forward { term, batch } => {
                async move { answer(service.forward(from, term, batch).await, |()| Response::Forwarded) }
                    .boxed()
            }
            Request::Touches { sessions, term, is_short } => async move {
                let noted = service.touches(from, sessions, term, is_short).await;
                answer(noted, |(refused, invites_per_second)| Response::TouchesNoted {
                    refused,
                    invites_per_second,
                })
            }
            .boxed(),
            Request::ClientDisconnects { disconnects, term } => async move {
                let noted = service.client_disconnects(from, disconnects, term).await;
                answer(noted, |()| Response::ClientDisconnectsNoted)
            }
            .boxed(),
            Request::ReadIndex => {
                async move { answer(service.read_index().await, |index| Response::ReadIndex { index }) }
                    .boxed()
            }
            Request::Status => async move { Response::Status(service.status().await) }.boxed(),
            Request::Introduce => async move { Response::Introduced(service.introduce(from).await) }.boxed(),
            Request::AddLearner { node, member } => async move {
                answer(service.add_learner(node, member).await, |index| Response::MembershipChanged { index })
            }
            .boxed(),
            Request::Reconfigure(wanted) => {
                async move { answer(service.reconfigure(wanted).await, Response::Reconfigured) }.boxed()
            }
            Request::Operate(operation) => {
                async move { answer(service.operate(operation).await, Response::Operated) }.boxed()
            }
        }
    }
}

fn answer<T>(result: Result<T, Refusal>, response: impl FnOnce(T) -> Response) -> Response {
    result.map_or_else(Response::Refused, response)
}
