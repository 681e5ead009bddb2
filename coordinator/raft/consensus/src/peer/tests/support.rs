//! A listener with scripted services, and raw connections for frames that our dialer never sends.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rowlock_consensus::operation::Operation;
use rowlock_consensus::peer::message::ClientDisconnect;
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_consensus::status::Status;
use rowlock_env::net::{Listener, Stream};
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time;
use rowlock_proto::{ErrorCode, Incarnation, NodeId, Request, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_transport::frame::{self, Frame, FrameReader, RequestId};
use rowlock_transport::handshake::{self, Hello, Welcome};
use rowlock_wal::entry::Member;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use rowlock_consensus::peer::{
    Identity, Introduction, Lane, PeerPool, PeerServer, PeerService, RaftConnection, RaftService, Refusal,
};
use rowlock_consensus::raft_types::{RaftRequest, RaftResponse};
use rowlock_state::version::Versions;

/// Long enough for anything that must happen on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn identity(node: u64) -> Identity {
    Identity { cluster: "test".into(), node: NodeId(node) }
}

/// Node 1's handles, with node 2 at `address`.
pub fn pool(address: &str) -> PeerPool {
    let pool = PeerPool::new(identity(1), TaskGroup::new(Shutdown::new()));
    pool.set_address(NodeId(2), address);
    pool
}

pub fn proposal(request: u64) -> Proposal {
    Proposal {
        origin: Origin { node: NodeId(1), incarnation: 7, request },
        session: SessionId(0x51),
        attachment: Attachment(1),
        identities: Default::default(),
        command: Command::Client(Request::Delete {
            path: "/locks/a".into(),
            version: rowlock_proto::Version::ANY,
        }),
    }
}

/// Requests that the scripted service has received, and how it answers.
#[derive(Default)]
pub struct Script {
    pub forwarded: Vec<u64>,
    pub refuse_from: Option<(u64, Refusal)>,
    pub peer_disconnected: Vec<(NodeId, Lane)>,
    pub taken_in: Vec<NodeId>,
}

/// Records forwarded proposals; waits at its gate before it takes a batch or returns its status.
pub struct Service {
    pub script: Mutex<Script>,
    pub gate: watch::Sender<bool>,
    pub reads: Mutex<u64>,
}

impl Service {
    pub fn new() -> Arc<Service> {
        Arc::new(Service { script: Mutex::default(), gate: watch::channel(true).0, reads: Mutex::new(0) })
    }

    async fn pass_gate(&self) {
        self.gate.subscribe().wait_for(|open| *open).await.expect("the sender lives here");
    }
}

impl PeerService for Service {
    fn peer_disconnected(&self, from: NodeId, lane: Lane) {
        self.script.lock().peer_disconnected.push((from, lane));
    }

    async fn forward(&self, _from: NodeId, term: u64, batch: Vec<Proposal>) -> Result<(), Refusal> {
        self.pass_gate().await;
        if term != 3 {
            return Err(Refusal::NotLeader { leader: Some(NodeId(9)) });
        }
        let mut script = self.script.lock();
        for proposal in batch {
            if let Some((from, refusal)) = &script.refuse_from
                && *from == proposal.origin.request
            {
                return Err(refusal.clone());
            }
            script.forwarded.push(proposal.origin.request);
        }
        Ok(())
    }

    async fn touches(
        &self,
        _from: NodeId,
        sessions: Vec<SessionId>,
        term: u64,
        _is_short: bool,
    ) -> Result<(Vec<SessionId>, u32), Refusal> {
        if sessions.is_empty() || term != 3 {
            Err(Refusal::NotLeader { leader: Some(NodeId(9)) })
        } else {
            Ok((sessions.into_iter().filter(|session| *session == SessionId(2)).collect(), 50))
        }
    }

    async fn client_disconnects(
        &self,
        _from: NodeId,
        disconnects: Vec<ClientDisconnect>,
        term: u64,
    ) -> Result<(), Refusal> {
        if disconnects.is_empty() || term != 3 {
            Err(Refusal::NotLeader { leader: Some(NodeId(9)) })
        } else {
            Ok(())
        }
    }

    async fn read_index(&self) -> Result<u64, Refusal> {
        let mut reads = self.reads.lock();
        *reads += 1;
        Ok(*reads)
    }

    async fn introduce(&self, _from: NodeId) -> Introduction {
        Introduction::default()
    }

    async fn status(&self) -> Status {
        self.pass_gate().await;
        Status { node: NodeId(2), ..Status::default() }
    }

    async fn add_learner(&self, node: NodeId, _member: Member) -> Result<u64, Refusal> {
        self.script.lock().taken_in.push(node);
        Ok(node.0)
    }

    async fn operate(&self, operation: Operation) -> Result<Result<String, ErrorCode>, Refusal> {
        Ok(Ok(format!("{operation:?}")))
    }

    async fn reconfigure(&self, wanted: Wanted) -> Result<Result<u64, ErrorCode>, Refusal> {
        Ok(u64::try_from(wanted.config_id).map_err(|_| ErrorCode::BadVersion))
    }
}

/// Answers Raft's requests by a function.
pub struct ScriptedRaft<F>(pub Arc<F>);

impl<F> RaftService for ScriptedRaft<F>
where
    F: Fn(RaftRequest) -> BoxFuture<'static, RaftResponse> + Send + Sync + 'static,
{
    fn open(&self, _from: NodeId, _lane: Lane) -> Box<dyn RaftConnection> {
        Box::new(ScriptedRaft(self.0.clone()))
    }
}

impl<F> RaftConnection for ScriptedRaft<F>
where
    F: Fn(RaftRequest) -> BoxFuture<'static, RaftResponse> + Send + Sync + 'static,
{
    fn handle(&mut self, request: RaftRequest) -> BoxFuture<'static, RaftResponse> {
        (self.0)(request)
    }
}

pub fn no_raft() -> Arc<dyn RaftService> {
    raft_by(|_| Box::pin(async { RaftResponse::Failed("no Raft here".into()) }))
}

pub fn raft_by<F>(answer: F) -> Arc<dyn RaftService>
where
    F: Fn(RaftRequest) -> BoxFuture<'static, RaftResponse> + Send + Sync + 'static,
{
    Arc::new(ScriptedRaft(Arc::new(answer)))
}

pub struct Node {
    pub address: String,
    pub tasks: TaskGroup,
}

pub async fn listen(address: &str, raft: Arc<dyn RaftService>, service: Arc<Service>) -> Node {
    let listener = Listener::bind(address).await.expect("the address is free");
    let address = listener.local_addr().to_string();
    let tasks = TaskGroup::new(Shutdown::new());
    PeerServer::new(identity(2), raft, service, tasks.clone()).start(listener);
    Node { address, tasks }
}

pub async fn listen_anywhere(service: Arc<Service>) -> Node {
    listen("127.0.0.1:0", no_raft(), service).await
}

/// A connection whose bytes the test chooses.
pub struct Raw {
    pub stream: Stream,
    frames: FrameReader,
}

impl Raw {
    pub async fn connect(address: &str) -> Raw {
        let stream = Stream::connect(address, PATIENCE).await.expect("the node listens");
        Raw::on(stream)
    }

    pub fn on(stream: Stream) -> Raw {
        Raw { stream, frames: FrameReader::new(1 << 20) }
    }

    pub async fn greeted(address: &str, lane: Lane) -> Raw {
        let mut raw = Raw::connect(address).await;
        raw.send(0, &handshake::encode_hello(&hello(lane))).await;
        let verdict = raw.receive().await.expect("a verdict");
        handshake::check_verdict(&verdict.body).expect("is welcome");
        raw
    }

    pub async fn send(&mut self, id: u64, body: &[u8]) {
        let mut out = BytesMut::new();
        frame::push(&mut out, RequestId(id), body);
        self.send_bytes(&out).await;
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the other side reads");
    }

    /// Returns the next frame, or None if the other side has closed.
    pub async fn receive(&mut self) -> Option<Frame> {
        let receive = async {
            loop {
                if let Some(frame) = self.frames.next_frame().expect("our own frames are valid") {
                    return Some(frame);
                }
                if self.stream.read_buf(self.frames.room()).await.unwrap_or(0) == 0 {
                    return None;
                }
            }
        };
        time::timeout(PATIENCE, receive).await.expect("neither a frame nor the end came")
    }
}

pub fn hello(lane: Lane) -> Hello {
    Hello {
        from: identity(1),
        to: NodeId(2),
        lane,
        incarnation: Incarnation(1),
        cluster: None,
        versions: Versions::of_this_release(),
    }
}

/// Encodes a frame as on the wire.
pub fn framed(id: u64, body: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    frame::push(&mut out, RequestId(id), body);
    out.freeze()
}

pub fn welcome(incarnation: u128) -> Welcome {
    Welcome { incarnation: Incarnation(incarnation), versions: Versions::of_this_release() }
}
