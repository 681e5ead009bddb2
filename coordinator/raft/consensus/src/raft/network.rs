//! openraft's network: requests to other nodes, sent over `peer/`. The listener's side is `raft/rpc.rs`.
//!
//! Each request is sent at most once; openraft decides on retries. Replication is pipelined: append requests
//! leave as soon as they exist, within a window, and answers return in order.
//!
//! Transfer of a snapshot to a follower that is too far behind: in chunks, each acknowledged before the next
//! is read.
//!
//! So one snapshot costs one chunk of memory on either side. A failed transfer starts again from the
//! beginning.

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{self, Either};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{
    ErrorSource, NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::network::{RPCOption, stream_append_sequential};
use openraft::raft::StreamAppendResult;
use openraft::{OptionalSend, RPCTypes, RaftNetworkFactory, RaftNetworkV2, StorageError};
use parking_lot::Mutex;
use rowlock_env::choice::{self, Choice};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::{decides, time, worker};
use rowlock_proto::NodeId;
use rowlock_transport::limits::PEER_FRAME_MAX_BYTES;
use rowlock_wal::entry::Member;

use super::acks::Acks;
use super::append_pipeline::{self, AppendPipeline, InFlightAppend};
use super::lease::{FIXED, LeaderLease};
use super::recollection::Recollection;
use crate::limits::{PEER_SNAPSHOT_CHUNK_BYTES, PEER_SNAPSHOT_INSTALL_PER_MIB, TERM_AHEAD_MAX};
use crate::peer::{Lane, Peer, PeerError, PeerLink, PeerPool, Request, Response};
use crate::raft_types::{
    AppendRequest, AppendResponse, RaftRequest, RaftResponse, Snapshot, SnapshotResponse, SnapshotStep,
    TransferRequest, TransferResponse, TypeConfig, Vote, VoteRequest, VoteResponse,
};

/// Factory of connections to the other members, whose addresses come with the membership. `D` is the state
/// machine's snapshot data.
pub struct Network<D> {
    pool: PeerPool,
    acks: Acks,
    lease: LeaderLease,
    recollection: Recollection,
    term: Arc<AtomicU64>,
    data: PhantomData<fn() -> D>,
}

impl<D> Network<D> {
    /// Creates the network on this pool. `acks` records the answers to append requests, `lease` the vote
    /// requests.
    pub fn new(pool: PeerPool, acks: Acks, lease: LeaderLease) -> Self {
        let (recollection, term) = (Recollection::default(), Arc::default());
        Network { pool, acks, lease, recollection, term, data: PhantomData }
    }

    /// Sends vote requests for the purpose that `recollection` knows.
    #[must_use]
    pub fn remembering(self, recollection: Recollection) -> Self {
        Network { recollection, ..self }
    }

    fn target(&self, target: u64, member: &Member, pipelines: bool) -> Target<D> {
        let peer = self.pool.set_address(NodeId(target), &member.dial_addr());
        let (us, acks, lease) = (self.pool.identity().node, self.acks.clone(), self.lease.clone());
        let (link, term) = (Mutex::default(), self.term.clone());
        let recollection = self.recollection.clone();
        Target { us, peer, pipelines, link, acks, lease, recollection, term, data: PhantomData }
    }
}

impl<D: SnapshotSource> RaftNetworkFactory<TypeConfig> for Network<D> {
    type Network = Target<D>;

    async fn new_client(&mut self, target: u64, member: &Member) -> Target<D> {
        self.target(target, member, true)
    }

    async fn new_heartbeat_client(&mut self, target: u64, member: &Member) -> Target<D> {
        self.target(target, member, false)
    }
}

/// One other member, as seen by openraft. Replication has a link of its own; other requests are calls on
/// their lanes.
pub struct Target<D> {
    us: NodeId,
    peer: Peer,
    /// This target replicates and sends no heartbeats.
    pipelines: bool,
    /// Never contended: openraft only requires `Sync`.
    link: Mutex<Option<PeerLink<InFlightAppend>>>,
    acks: Acks,
    lease: LeaderLease,
    recollection: Recollection,
    /// Greatest term in this node's requests.
    term: Arc<AtomicU64>,
    data: PhantomData<fn() -> D>,
}

impl<D> Target<D> {
    /// Sends one request and returns the answer, within openraft's time.
    async fn request(
        &self,
        action: RPCTypes,
        lane: Lane,
        request: RaftRequest,
        ttl: Duration,
    ) -> Result<RaftResponse, RPCError<TypeConfig>> {
        self.term.fetch_max(request.term(), Ordering::Relaxed);
        let answer = self.peer.call(lane, &Request::Raft(request), time::now() + ttl).await;
        self.faults(action, ttl).check(answer)
    }

    fn faults(&self, action: RPCTypes, timeout: Duration) -> Faults {
        let term = self.term.load(Ordering::Relaxed);
        Faults { us: self.us, target: self.peer.node(), term, action, timeout }
    }
}

impl<D: SnapshotSource> RaftNetworkV2<TypeConfig> for Target<D> {
    type SnapshotData = D;

    async fn append_entries(
        &mut self,
        request: AppendRequest,
        option: RPCOption,
    ) -> Result<AppendResponse, RPCError<TypeConfig>> {
        let (leader, sent) = (request.vote.leader_id, time::now());
        if decides!("heartbeat-is-withheld", !self.lease.may_send_heartbeat(leader)) {
            return Err(Unreachable::from_string("this leader has no quorum, and is silent").into());
        }
        let prev = request.prev_log_id;
        let last = request.entries.last().map(|entry| entry.log_id).or(prev);
        let request = RaftRequest::Append(request);
        // Wait as long as openraft does: a late answer over a long distance still counts.
        let response =
            self.request(RPCTypes::AppendEntries, Lane::Heartbeat, request, option.hard_ttl()).await?;
        let appended = self.acks.appended_by(self.peer.node(), response);
        let (response, _) = appended.map_err(|other| unexpected(&other))?;
        append_pipeline::record_answer(&self.acks, leader, self.peer.node(), (sent, prev, last), response)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>,
            RPCError<TypeConfig>,
        >,
    >
    where
        S: futures_util::Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        if !self.pipelines {
            return stream_append_sequential(self, input, option);
        }
        let faults = self.faults(RPCTypes::AppendEntries, option.soft_ttl());
        let (node, acks) = (self.peer.node(), self.acks.clone());
        let slot = self.link.get_mut();
        let link = slot.take().filter(|link| !link.has_ended());
        let link = slot.insert(link.unwrap_or_else(|| self.peer.link(Lane::Raft)));
        let pipeline = AppendPipeline::new((node, link), faults, acks, input);
        let answers: BoxStream<'s, _> = Box::pin(pipeline.answers());
        Box::pin(future::ready(Ok(answers)))
    }

    async fn vote(
        &mut self,
        request: VoteRequest,
        option: RPCOption,
    ) -> Result<VoteResponse, RPCError<TypeConfig>> {
        self.lease.vote_requested();
        let (term, last) = (request.vote.leader_id.term, request.last_log_id);
        let request = if self.recollection.is_restart(term) {
            RaftRequest::RestartVote(request)
        } else if self.recollection.votes_usually() {
            RaftRequest::Vote(request)
        } else {
            return Err(Unreachable::from_string("this node has forgotten entries").into());
        };
        let patience = if mutant::is(Mutant::ElectionsDoNotWait) { FIXED } else { option.soft_ttl() };
        match self.request(RPCTypes::Vote, Lane::Control, request, patience).await? {
            RaftResponse::Vote(response) => {
                // Not another candidate of the same term: one of the two may still win.
                if response.last_log_id > last || response.vote.leader_id.term > term {
                    self.lease.outdone(term);
                }
                Ok(response)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Never called: `elections.rs` sends the pre-votes.
    async fn pre_vote(
        &mut self,
        _request: VoteRequest,
        _option: RPCOption,
    ) -> Result<VoteResponse, RPCError<TypeConfig>> {
        Err(Unreachable::from_string("pre-votes are asked for by elections.rs").into())
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<D>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse, StreamingError<TypeConfig>> {
        let faults = self.faults(RPCTypes::InstallSnapshot, option.soft_ttl());
        let transfer = std::pin::pin!(send(&self.peer, faults, vote, snapshot));
        match future::select(std::pin::pin!(cancel), transfer).await {
            Either::Left((closed, _)) => Err(StreamingError::Closed(closed)),
            Either::Right((sent, _)) => sent,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferRequest,
        option: RPCOption,
    ) -> Result<TransferResponse, RPCError<TypeConfig>> {
        let request = RaftRequest::TransferLeader(request);
        match self.request(RPCTypes::TransferLeader, Lane::Control, request, option.soft_ttl()).await? {
            RaftResponse::TransferLeader(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }
}

/// Conversion of request failures to openraft's errors.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    us: NodeId,
    target: NodeId,
    /// Term of this node, at the request or later.
    term: u64,
    action: RPCTypes,
    timeout: Duration,
}

impl Faults {
    /// Returns openraft's time for one request.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns Raft's answer, or the converted error.
    pub fn check(&self, answer: Result<Response, PeerError>) -> Result<RaftResponse, RPCError<TypeConfig>> {
        match answer {
            // openraft has no error for a failure of the other node here; `Unreachable` prevents an immediate
            // retry.
            Ok(Response::Raft(RaftResponse::Failed(why))) => {
                Err(Unreachable::from_string(format!("node {} failed: {why}", self.target)).into())
            }
            // A term can never be taken back.
            Ok(Response::Raft(response)) if response.term().saturating_sub(self.term) > TERM_AHEAD_MAX => {
                tracing::error!(from = %self.target, term = response.term(), "refused an answer: its term is too far ahead to be one of this cluster");
                Err(Unreachable::from_string("the term of the answer is none of this cluster").into())
            }
            Ok(Response::Raft(response)) => Ok(response),
            Ok(_) => Err(Unreachable::from_string("the answer is not one of Raft").into()),
            Err(error) => Err(self.fault(&error)),
        }
    }

    /// Converts an error. openraft retries a broken connection at once, and an unreachable node or a
    /// permanent error only after a pause.
    pub fn fault(&self, error: &PeerError) -> RPCError<TypeConfig> {
        match error {
            PeerError::Timeout { .. } => {
                let Faults { us, target, action, timeout, .. } = *self;
                Timeout { action, id: us.0, target: target.0, timeout }.into()
            }
            PeerError::Lost { .. } => NetworkError::new(error).into(),
            PeerError::UnknownNode { .. }
            | PeerError::Unreachable { .. }
            | PeerError::Refused { .. }
            | PeerError::Overloaded { .. }
            | PeerError::TooLarge { .. }
            | PeerError::Garbled { .. }
            | PeerError::Stopping => Unreachable::new(error).into(),
        }
    }
}

/// Returns the error for an answer of the wrong kind.
pub fn unexpected(response: &RaftResponse) -> RPCError<TypeConfig> {
    Unreachable::from_string(format!("the answer does not fit the request: {response:?}")).into()
}

// Checks that a chunk and its header fit into a frame.
const _: () = assert!(2 * PEER_SNAPSHOT_CHUNK_BYTES <= PEER_FRAME_MAX_BYTES);

/// Complete snapshot, readable in parts.
pub trait SnapshotSource: Send + Sync + 'static {
    fn total_bytes(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset` on. Called on a thread that may block.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

/// Sends the snapshot and waits for its installation. Cancel safe: the follower drops the received part.
pub(super) async fn send<D: SnapshotSource>(
    peer: &Peer,
    faults: Faults,
    vote: Vote,
    snapshot: Snapshot<D>,
) -> Result<SnapshotResponse, StreamingError<TypeConfig>> {
    let Snapshot { meta, snapshot } = snapshot;
    let data = Arc::new(snapshot);
    let len = data.total_bytes().map_err(|error| unreadable(&error))?;
    let patience = faults.timeout();
    let begin = SnapshotStep::Begin { vote, meta: meta.clone(), len };
    proceed(step(peer, faults, begin, patience).await?)?;
    // Logged only now: an unreachable node is tried several times per second.
    tracing::info!(node = %peer.node(), %meta, bytes = len, "sending a snapshot");
    let piece = if choice::taken(Choice::SnapshotInPieces, 2) { len / 4 + 1 } else { len };
    let most = piece.min(PEER_SNAPSHOT_CHUNK_BYTES as u64);
    assert!(most > 0 || len == 0, "each chunk brings the transfer forward");
    let mut offset = 0;
    while offset < len {
        let size = (len - offset).min(most);
        let chunk = read(data.clone(), offset, size).await.map_err(|error| unreadable(&error))?;
        proceed(step(peer, faults, SnapshotStep::Chunk { offset, data: chunk }, patience).await?)?;
        offset += size;
        assert!(offset <= len, "a chunk ends in the snapshot");
    }
    assert_eq!(offset, len, "the whole snapshot is sent");
    // The follower reads the whole snapshot again, flushes, and builds its state: the time grows with the
    // size.
    let mebibytes = u32::try_from(len >> 20).unwrap_or(u32::MAX);
    let patience = patience + PEER_SNAPSHOT_INSTALL_PER_MIB.saturating_mul(mebibytes);
    match step(peer, faults, SnapshotStep::Install, patience).await? {
        RaftResponse::SnapshotInstalled(response) => Ok(response),
        other => Err(unexpected(&other).into()),
    }
}

async fn step(
    peer: &Peer,
    faults: Faults,
    step: SnapshotStep,
    patience: Duration,
) -> Result<RaftResponse, RPCError<TypeConfig>> {
    let request = Request::Raft(RaftRequest::Snapshot(step));
    faults.check(peer.call(Lane::Snapshot, &request, time::now() + patience).await)
}

fn proceed(response: RaftResponse) -> Result<(), RPCError<TypeConfig>> {
    match response {
        RaftResponse::SnapshotProceed => Ok(()),
        other => Err(unexpected(&other)),
    }
}

async fn read<D: SnapshotSource>(data: Arc<D>, offset: u64, size: u64) -> io::Result<Bytes> {
    worker::run_blocking("snapshot-read", move || {
        assert!(size > 0, "a chunk has bytes");
        let mut chunk = vec![0; usize::try_from(size).map_err(io::Error::other)?];
        data.read_exact_at(&mut chunk, offset)?;
        Ok(chunk.into())
    })
    .await
}

fn unreadable(error: &io::Error) -> StreamingError<TypeConfig> {
    StorageError::read_snapshot(None, ErrorSource::from_error(error)).into()
}
