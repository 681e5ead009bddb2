//! Listening side: decodes the requests of other nodes, calls the services, and encodes the responses.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_env::net::Listener;
use rowlock_env::task::TaskGroup;
use rowlock_metrics::Metrics;
use rowlock_metrics::memory::Tally;
use rowlock_proto::NodeId;
use rowlock_state::codec;
use rowlock_transport::{Answer, Conversation, Identity, Lane, RefusalListener, Security, Server, Service};
use rowlock_wal::Folder;

use super::folder_incarnations::FolderIncarnations;
use super::message::{Refusal, Request, Response};
use super::releases::Releases;
use super::service::{PeerService, RaftConnection, RaftService};

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
            Request::ChangeVoters { voters } => async move {
                answer(service.change_voters(voters).await, |index| Response::MembershipChanged { index })
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
