//! The listener's side of Raft's messages between nodes: each request becomes one call of openraft.
//!
//! It stands between `peer/handler.rs`, which reads the frames, and openraft, which decides. It decides
//! nothing itself, except that what no node of the cluster can have sent does not reach openraft: a snapshot
//! or an entry that would stop the node, and a term that can never be taken back.

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, poll};
use openraft::errors::Fatal;
use openraft::storage::RaftStateMachine;
use openraft::{Raft, RaftState};
use openraft_rt::watch::WatchReceiver as _;
use parking_lot::Mutex;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::worker;
use rowlock_proto::NodeId;
use rowlock_types::limits::TERM_AHEAD_MAX;
use rowlock_types::metrics::{LeaderEnd, Metrics};
use rowlock_types::node_hook::Hook;
use tokio::sync::oneshot;

use super::admission::Admission;
use super::lease::LeaderLease;
use crate::peer::Lane;
use crate::peer::service::{RaftConnection, RaftService};
use crate::raft_types::messages::{
    AppendRequest, AppendResponse, RaftRequest, RaftResponse, Snapshot, SnapshotStep, VoteRequest,
    VoteResponse,
};
use crate::raft_types::{EntryPayload, LogId, Payload, SnapshotMeta, TypeConfig, Vote, position};

/// Where received snapshots are written.
pub trait SnapshotSink: Send + Sync + 'static {
    /// A complete one, as the state machine takes it.
    type Data: Send + 'static;
    /// One that is being received; dropping it discards it.
    type Incoming: IncomingSnapshot<Data = Self::Data>;

    /// Begins to receive one. Called on a thread that may block.
    fn begin(&self) -> io::Result<Self::Incoming>;
}

pub trait IncomingSnapshot: Send + 'static {
    type Data: Send + 'static;

    /// Appends bytes. Need not make them durable. Called on a thread that may block.
    fn write(&mut self, data: &[u8]) -> io::Result<()>;

    /// Makes it durable. Called on a thread that may block.
    fn finish(self) -> io::Result<Self::Data>;
}

/// Hands the other nodes' requests to this node's Raft.
pub struct RaftDispatch<SM: RaftStateMachine<TypeConfig>, K> {
    raft: Raft<TypeConfig, SM>,
    lease: LeaderLease,
    sink: Arc<K>,
    metrics: Arc<Metrics>,
    hook: Hook,
    admission: Admission,
    reader: Reader,
}

/// Reads the commands of an entry before it is stored; an error says why they cannot be read.
pub type Reader = Arc<dyn Fn(&Payload) -> Result<(), String> + Send + Sync>;

impl<SM, K> RaftDispatch<SM, K>
where
    SM: RaftStateMachine<TypeConfig>,
    K: SnapshotSink<Data = SM::SnapshotData>,
{
    /// For this Raft, with received snapshots written to `sink`. `metrics` know whether this node has
    /// clients.
    pub fn new(raft: Raft<TypeConfig, SM>, lease: LeaderLease, sink: Arc<K>, metrics: Arc<Metrics>) -> Self {
        let (hook, admission) = (Hook::default(), Admission::open());
        let reader: Reader = Arc::new(|_| Ok(()));
        RaftDispatch { raft, lease, sink, metrics, hook, admission, reader }
    }

    /// Reports to `hook` what leaders are told.
    pub fn hooked(self, hook: Hook) -> Self {
        RaftDispatch { hook, ..self }
    }

    /// Refuses an entry that `reader` cannot read.
    #[must_use]
    pub fn reading(self, reader: Reader) -> Self {
        RaftDispatch { reader, ..self }
    }

    /// Answers nothing before the node may take part.
    #[must_use]
    pub fn behind(self, admission: Admission) -> Self {
        RaftDispatch { admission, ..self }
    }
}

impl<SM, K> RaftService for RaftDispatch<SM, K>
where
    SM: RaftStateMachine<TypeConfig>,
    K: SnapshotSink<Data = SM::SnapshotData>,
{
    fn open(&self, from: NodeId, lane: Lane) -> Box<dyn RaftConnection> {
        Box::new(PeerConnection {
            from,
            lane,
            raft: self.raft.clone(),
            lease: self.lease.clone(),
            sink: self.sink.clone(),
            metrics: self.metrics.clone(),
            hook: self.hook.clone(),
            admission: self.admission.clone(),
            reader: self.reader.clone(),
            has_complained: false,
            receiving: Slot::default(),
        })
    }
}

struct PeerConnection<SM: RaftStateMachine<TypeConfig>, K: SnapshotSink> {
    from: NodeId,
    lane: Lane,
    raft: Raft<TypeConfig, SM>,
    lease: LeaderLease,
    sink: Arc<K>,
    metrics: Arc<Metrics>,
    hook: Hook,
    admission: Admission,
    reader: Reader,
    has_complained: bool,
    /// Taken out by each step and put back if it succeeds; an ordered lane has one step at a time.
    receiving: Slot<K::Incoming>,
}

type Slot<I> = Arc<Mutex<Option<Receiving<I>>>>;

struct Receiving<I> {
    vote: Vote,
    meta: SnapshotMeta,
    len: u64,
    written: u64,
    incoming: I,
}

impl<SM, K> RaftConnection for PeerConnection<SM, K>
where
    SM: RaftStateMachine<TypeConfig>,
    K: SnapshotSink<Data = SM::SnapshotData>,
{
    fn handle(&mut self, request: RaftRequest) -> BoxFuture<'static, RaftResponse> {
        if !self.admission.is_granted() {
            let why = "it may have lost its data, and waits for the others to say that it has not";
            return std::future::ready(RaftResponse::Failed(why.into())).boxed();
        }
        if let Err(why) = self.judge(&request) {
            return std::future::ready(RaftResponse::Failed(why)).boxed();
        }
        let raft = self.raft.clone();
        match request {
            RaftRequest::Append(request) if self.lane == Lane::Heartbeat && request.entries.is_empty() => {
                self.lease.heard(request.vote.leader_id);
                heartbeat(raft, request, self.metrics.clone()).boxed()
            }
            RaftRequest::Append(request) => {
                append(raft, request, self.metrics.clone(), self.hook.clone()).boxed()
            }
            RaftRequest::Vote(request) => vote(raft, request, self.lease.clone()).boxed(),
            RaftRequest::PreVote(request) => pre_vote(raft, request, self.lease.clone()).boxed(),
            RaftRequest::TransferLeader(request) => {
                let term = request.from_leader().leader_id.term;
                self.metrics.leaderships_total.ends(term, LeaderEnd::HandedOver);
                if *request.to_node_id() == raft.metrics().borrow_watched().id {
                    self.lease.stands(term + 1);
                }
                async move {
                    rare::taken(Rare::LeaderTransferred);
                    answer(raft.handle_transfer_leader(request).await, RaftResponse::TransferLeader)
                }
                .boxed()
            }
            RaftRequest::Snapshot(step) => {
                let slot = self.receiving.clone();
                let receiving = slot.lock().take();
                match (step, receiving) {
                    (SnapshotStep::Begin { vote, meta, len }, _) => {
                        tracing::info!(from = %self.from, %meta, bytes = len, "receiving a snapshot");
                        let sink = self.sink.clone();
                        proceed(slot, move || begin(&*sink, vote, meta, len)).boxed()
                    }
                    (SnapshotStep::Chunk { offset, data }, Some(receiving)) => {
                        proceed(slot, move || receiving.take(offset, &data)).boxed()
                    }
                    (SnapshotStep::Install, Some(receiving)) => install(raft, receiving).boxed(),
                    (_, None) => {
                        std::future::ready(RaftResponse::Failed("no snapshot has been begun".into())).boxed()
                    }
                }
            }
        }
    }
}

impl<SM: RaftStateMachine<TypeConfig>, K: SnapshotSink> PeerConnection<SM, K> {
    /// Refuses what no node of the cluster can have sent. Logged once for each connection: a sender of it may
    /// send much of it.
    fn judge(&mut self, request: &RaftRequest) -> Result<(), String> {
        let judged = self.judge_term(request.term()).and_then(|()| match request {
            RaftRequest::Append(request) => self.judge_entries(request),
            _ => Ok(()),
        });
        if let Err(why) = &judged
            && !std::mem::replace(&mut self.has_complained, true)
        {
            tracing::error!(
                from = %self.from,
                %why,
                "refused what another node has sent: look whether all nodes run the same release, and who it is"
            );
        }
        judged
    }

    fn judge_term(&self, term: u64) -> Result<(), String> {
        // The limit is far: what a glance at the metrics lags behind does not count.
        if term <= TERM_AHEAD_MAX {
            return Ok(());
        }
        let ours = self.raft.metrics().borrow_watched().current_term;
        if term.saturating_sub(ours) > TERM_AHEAD_MAX {
            return Err(format!("the term {term} is too far ahead of {ours} to be one of this cluster"));
        }
        Ok(())
    }

    fn judge_entries(&self, request: &AppendRequest) -> Result<(), String> {
        for entry in &request.entries {
            if let EntryPayload::Normal(payload) = &entry.payload {
                (self.reader)(payload)
                    .map_err(|why| format!("the entry {} cannot be read: {why}", entry.log_id))?;
            }
        }
        Ok(())
    }
}

/// Appends, and says with the answer whether this node has clients then.
async fn append<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: AppendRequest,
    metrics: Arc<Metrics>,
    hook: Hook,
) -> RaftResponse {
    let upto = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
    answer(raft.append_entries(request).await, |response| {
        if let (AppendResponse::Success, Some(upto)) = (&response, upto) {
            hook.tell(|hook| hook.acknowledges(position(upto)));
        }
        appended(response, &metrics)
    })
}

fn appended(response: AppendResponse, metrics: &Metrics) -> RaftResponse {
    match metrics.connections.get() {
        0 => RaftResponse::AppendQuiet(response),
        _ => RaftResponse::Append(response),
    }
}

/// Answers a heartbeat as soon as Raft has taken it. openraft answers only after all flushes before it, and
/// with a slow disk the leader would take this node for silent (docs/decisions/heartbeats.md).
///
/// Invariant: success says that this node's vote was the sender's after the request had come, so that no
/// later leader has its vote yet. It says nothing about the log: the leader's heartbeats name no entry that
/// this node has not acknowledged before.
async fn heartbeat<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: AppendRequest,
    metrics: Arc<Metrics>,
) -> RaftResponse {
    assert!(request.entries.is_empty(), "entries are answered when they are flushed");
    let vote = request.vote;
    let mut flushed = pin!(raft.append_entries(request));
    // The first poll hands it on, and the question behind it.
    if let Poll::Ready(result) = poll!(&mut flushed) {
        return answer(result, |response| appended(response, &metrics));
    }
    let (told, accepted) = oneshot::channel();
    let question = move |state: &RaftState<TypeConfig>| {
        let _ = told.send(*state.vote_ref() == vote);
    };
    let asked = raft.external_request(question).await;
    let accepted = asked.is_ok() && accepted.await == Ok(true);
    match poll!(&mut flushed) {
        Poll::Pending if accepted => {
            rare::taken(Rare::HeartbeatBeforeFlush);
            appended(AppendResponse::Success, &metrics)
        }
        Poll::Pending => answer(flushed.await, |response| appended(response, &metrics)),
        Poll::Ready(result) => answer(result, |response| appended(response, &metrics)),
    }
}

/// Returns the request that is judged: with the mutant every log counts as the newest.
fn believed(mut request: VoteRequest) -> VoteRequest {
    if mutant::is(Mutant::VoteForStaleLog) {
        request.last_log_id = Some(LogId::new(request.vote.leader_id, u64::MAX));
    }
    request
}

/// Asks Raft for a vote, unless a lease lasts. openraft is told that it may vote: its own lease has another
/// length.
async fn vote<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: VoteRequest,
    lease: LeaderLease,
) -> RaftResponse {
    if !request.leadership_transfer && lease.lasts() {
        rare::taken(Rare::VoteRefused);
        return answer(would_vote(&raft, None).await, RaftResponse::Vote);
    }
    let voting = lease.voting(request.vote.leader_id.term);
    let response = raft.vote(VoteRequest { leadership_transfer: true, ..believed(request) }).await;
    if response.as_ref().is_ok_and(|response| response.vote_granted) {
        voting.granted();
    } else {
        rare::taken(Rare::VoteRefused);
    }
    answer(response, RaftResponse::Vote)
}

/// Returns whether this node would vote for the candidate, and changes nothing.
async fn pre_vote<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: VoteRequest,
    lease: LeaderLease,
) -> RaftResponse {
    let request = (!lease.lasts()).then(|| believed(request));
    let response = would_vote(&raft, request).await.map(|response| VoteResponse {
        // Raft may have voted meanwhile.
        vote_granted: response.vote_granted && !lease.awaits_votes(),
        ..response
    });
    if response.as_ref().is_ok_and(|response| !response.vote_granted) {
        rare::taken(Rare::PreVoteRefused);
    }
    answer(response, RaftResponse::Vote)
}

/// Returns this node's vote and the end of its log, and whether both permit a vote for the candidate.
async fn would_vote<SM: RaftStateMachine<TypeConfig>>(
    raft: &Raft<TypeConfig, SM>,
    request: Option<VoteRequest>,
) -> Result<VoteResponse, Fatal<TypeConfig>> {
    let (found, state) = oneshot::channel();
    let question = move |state: &RaftState<TypeConfig>| {
        let (vote, last) = (*state.vote_ref(), state.log_ids.last().copied());
        let granted = request.is_some_and(|request| request.last_log_id >= last && request.vote >= vote);
        let _ = found.send(VoteResponse::new(vote, last, granted));
    };
    raft.external_request(question).await?;
    state.await.map_err(|_| Fatal::Stopped)
}

fn answer<T, E: fmt::Display>(
    result: Result<T, E>,
    response: impl FnOnce(T) -> RaftResponse,
) -> RaftResponse {
    result.map_or_else(|error| RaftResponse::Failed(error.to_string()), response)
}

/// Does a step where it may block, and keeps what it gives for the next one.
async fn proceed<I: IncomingSnapshot>(
    slot: Slot<I>,
    step: impl FnOnce() -> Result<Receiving<I>, String> + Send + 'static,
) -> RaftResponse {
    let stepped = worker::run_blocking("snapshot-receive", step).await;
    answer(stepped, |receiving| {
        *slot.lock() = Some(receiving);
        RaftResponse::SnapshotProceed
    })
}

fn begin<K: SnapshotSink>(
    sink: &K,
    vote: Vote,
    meta: SnapshotMeta,
    len: u64,
) -> Result<Receiving<K::Incoming>, String> {
    let covers_term = meta.last_log_id.as_ref().map(|id| id.committed_leader_id().term);
    if covers_term > Some(vote.leader_id.term) {
        return Err("the snapshot is newer than its sender's term".into());
    }
    let incoming = sink.begin().map_err(|error| error.to_string())?;
    Ok(Receiving { vote, meta, len, written: 0, incoming })
}

impl<I: IncomingSnapshot> Receiving<I> {
    /// Appends a chunk; after an error the transfer is over.
    fn take(mut self, offset: u64, data: &[u8]) -> Result<Self, String> {
        let end = self.written.saturating_add(data.len() as u64);
        if offset != self.written || end > self.len {
            return Err(format!(
                "a chunk at {offset} does not follow {} of {} bytes",
                self.written, self.len
            ));
        }
        self.incoming.write(data).map_err(|error| error.to_string())?;
        self.written = end;
        assert!(self.written <= self.len, "no more is written than was announced");
        Ok(self)
    }
}

async fn install<SM, I>(raft: Raft<TypeConfig, SM>, receiving: Receiving<I>) -> RaftResponse
where
    SM: RaftStateMachine<TypeConfig>,
    I: IncomingSnapshot<Data = SM::SnapshotData>,
{
    let Receiving { vote, meta, len, written, incoming } = receiving;
    if written != len {
        return RaftResponse::Failed(format!("{written} of {len} bytes were received"));
    }
    let snapshot = match worker::run_blocking("snapshot-finish", move || incoming.finish()).await {
        Ok(snapshot) => snapshot,
        Err(error) => return RaftResponse::Failed(error.to_string()),
    };
    rare::taken(Rare::SnapshotReceived);
    let installed = raft.install_full_snapshot(vote, Snapshot { meta, snapshot }).await;
    answer(installed, RaftResponse::SnapshotInstalled)
}
