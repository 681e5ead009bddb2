//! Listener's side of Raft's messages between nodes: each request becomes one call of openraft.
//!
//! This layer sits between `peer/service.rs`, which decodes the frames, and openraft, which decides. The only
//! decision here: requests that no node of the cluster can have sent do not reach openraft, such as a
//! snapshot or an entry that would stop the node, or a term that can never be taken back.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, poll};
use openraft::storage::RaftStateMachine;
use openraft::{Raft, RaftState};
use openraft_rt::watch::WatchReceiver as _;
use parking_lot::Mutex;
use rowlock_env::decides;
use rowlock_env::rare::{self, Rare};
use rowlock_env::worker;
use rowlock_metrics::{LeaderEnd, Metrics};
use rowlock_proto::NodeId;
use tokio::sync::oneshot;

use super::contradiction::{Contradiction, contradicted, sent_by};
use super::lease::LeaderLease;
use super::open::Admission;
use super::recollection::Recollection;
use super::votes::{answer, as_remembered, pre_vote, restart_vote, usual_vote};
use crate::limits::TERM_AHEAD_MAX;
use crate::node_hook::Hook;
use crate::peer::Lane;
use crate::peer::service::{RaftConnection, RaftService};
use crate::raft_types::{
    AppendRequest, AppendResponse, EntryPayload, Payload, RaftRequest, RaftResponse, Snapshot, SnapshotMeta,
    SnapshotStep, TypeConfig, Vote, position,
};

/// Storage for received snapshots.
pub trait SnapshotSink: Send + Sync + 'static {
    /// Complete snapshot, as accepted by the state machine.
    type Data: Send + 'static;
    /// Partial snapshot; dropping the value discards the snapshot.
    type Incoming: IncomingSnapshot<Data = Self::Data>;

    /// Begins to receive a snapshot. Called on a thread that may block.
    fn begin(&self) -> io::Result<Self::Incoming>;
}

pub trait IncomingSnapshot: Send + 'static {
    type Data: Send + 'static;

    /// Appends bytes, not necessarily durably. Called on a thread that may block.
    fn write(&mut self, data: &[u8]) -> io::Result<()>;

    /// Makes the snapshot durable. Called on a thread that may block.
    fn finish(self) -> io::Result<Self::Data>;
}

/// Passes the other nodes' requests to this node's Raft.
pub struct RaftDispatch<SM: RaftStateMachine<TypeConfig>, K> {
    raft: Raft<TypeConfig, SM>,
    lease: LeaderLease,
    sink: Arc<K>,
    metrics: Arc<Metrics>,
    hook: Hook,
    admission: Admission,
    recollection: Recollection,
    contradiction: Contradiction,
    reader: Reader,
}

/// Decodes the commands of an entry before the log stores the entry; the error is the reason of a failure.
pub type Reader = Arc<dyn Fn(&Payload) -> Result<(), String> + Send + Sync>;

impl<SM, K> RaftDispatch<SM, K>
where
    SM: RaftStateMachine<TypeConfig>,
    K: SnapshotSink<Data = SM::SnapshotData>,
{
    /// Creates the dispatch to this Raft, with received snapshots written to `sink`. `metrics` count this
    /// node's clients.
    pub fn new(raft: Raft<TypeConfig, SM>, lease: LeaderLease, sink: Arc<K>, metrics: Arc<Metrics>) -> Self {
        let (hook, admission) = (Hook::default(), Admission::open());
        let reader: Reader = Arc::new(|_| Ok(()));
        let (recollection, contradiction) = (Recollection::default(), Contradiction::default());
        RaftDispatch { raft, lease, sink, metrics, hook, admission, recollection, contradiction, reader }
    }

    /// Refuses usual votes while this node has forgotten entries. `contradiction` handles leaders whose log
    /// lacks entries that this node has applied.
    #[must_use]
    pub fn remembering(self, recollection: Recollection, contradiction: Contradiction) -> Self {
        RaftDispatch { recollection, contradiction, ..self }
    }

    /// Reports acknowledgements to `hook`.
    pub fn hooked(self, hook: Hook) -> Self {
        RaftDispatch { hook, ..self }
    }

    /// Refuses entries that `reader` cannot decode.
    #[must_use]
    pub fn reading(self, reader: Reader) -> Self {
        RaftDispatch { reader, ..self }
    }

    /// Refuses all requests before `admission` is granted.
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
            recollection: self.recollection.clone(),
            contradiction: self.contradiction.clone(),
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
    recollection: Recollection,
    contradiction: Contradiction,
    reader: Reader,
    has_complained: bool,
    /// Removed by each step and restored after its success; an ordered lane has one step at a time.
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
        if decides!("node-is-not-admitted", !self.admission.is_granted()) {
            let why = "it may have lost its data, and waits for the others to say that it has not";
            return std::future::ready(RaftResponse::Failed(why.into())).boxed();
        }
        if let Err(why) = self.validate(&request) {
            return std::future::ready(RaftResponse::Failed(why)).boxed();
        }
        match sent_by(&request).zip((self.contradiction.find)(&request)) {
            None => self.serve(request),
            Some((sender, index)) => {
                let (raft, drop_state) = (self.raft.clone(), self.contradiction.drop_state.clone());
                contradicted(raft, (sender, index), drop_state, self.serve(request)).boxed()
            }
        }
    }
}

impl<SM, K> PeerConnection<SM, K>
where
    SM: RaftStateMachine<TypeConfig>,
    K: SnapshotSink<Data = SM::SnapshotData>,
{
    /// Passes a valid request on.
    fn serve(&mut self, request: RaftRequest) -> BoxFuture<'static, RaftResponse> {
        let raft = self.raft.clone();
        match request {
            RaftRequest::Append(request)
                if decides!(
                    "append-is-heartbeat",
                    self.lane == Lane::Heartbeat && request.entries.is_empty()
                ) =>
            {
                self.lease.heard(request.vote.leader_id);
                heartbeat(raft, request, self.metrics.clone(), self.recollection.clone()).boxed()
            }
            RaftRequest::Append(request) => {
                append(raft, request, (self.metrics.clone(), self.hook.clone()), self.recollection.clone())
                    .boxed()
            }
            RaftRequest::Vote(request) => {
                usual_vote(raft, request, self.lease.clone(), self.recollection.clone()).boxed()
            }
            RaftRequest::RestartVote(request) => {
                restart_vote(raft, request, self.lease.clone(), self.recollection.clone()).boxed()
            }
            RaftRequest::PreVote(request) => {
                let (lease, recollection) = (self.lease.clone(), self.recollection.clone());
                async move { as_remembered(pre_vote(raft, request, lease).await, &recollection) }.boxed()
            }
            RaftRequest::TransferLeader(_) if !self.recollection.votes_usually() => {
                let why = "it has forgotten entries, and does not lead before a leader has admitted it";
                std::future::ready(RaftResponse::Failed(why.into())).boxed()
            }
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
    /// Rejects requests that no node of the cluster can have sent. Logs once per connection: the sender may
    /// repeat the request often.
    fn validate(&mut self, request: &RaftRequest) -> Result<(), String> {
        let validated = self.validate_term(request.term()).and_then(|()| match request {
            RaftRequest::Append(request) => self.validate_entries(request),
            _ => Ok(()),
        });
        if let Err(why) = &validated
            && !std::mem::replace(&mut self.has_complained, true)
        {
            tracing::error!(
                from = %self.from,
                %why,
                "refused a request of another node; check that all nodes run the same release, and the identity of the sender"
            );
        }
        validated
    }

    fn validate_term(&self, term: u64) -> Result<(), String> {
        // The limit is far away, so slightly stale metrics are sufficient.
        if term <= TERM_AHEAD_MAX {
            return Ok(());
        }
        let ours = self.raft.metrics().borrow_watched().current_term;
        if decides!("term-is-too-far-ahead", term.saturating_sub(ours) > TERM_AHEAD_MAX) {
            return Err(format!("the term {term} is too far ahead of {ours} to be one of this cluster"));
        }
        Ok(())
    }

    fn validate_entries(&self, request: &AppendRequest) -> Result<(), String> {
        for entry in &request.entries {
            if let EntryPayload::Normal(payload) = &entry.payload {
                (self.reader)(payload)
                    .map_err(|why| format!("the entry {} cannot be read: {why}", entry.log_id))?;
            }
        }
        Ok(())
    }
}

/// Appends, and reports in the answer whether this node has clients.
async fn append<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: AppendRequest,
    (metrics, hook): (Arc<Metrics>, Hook),
    recollection: Recollection,
) -> RaftResponse {
    let upto = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
    answer(raft.append_entries(request).await, |response| {
        if let (AppendResponse::Success, Some(upto)) = (&response, upto) {
            hook.notify(|hook| hook.acknowledges(position(upto)));
        }
        appended(response, &metrics, &recollection)
    })
}

fn appended(response: AppendResponse, metrics: &Metrics, recollection: &Recollection) -> RaftResponse {
    if response == AppendResponse::Conflict && !recollection.is_whole() {
        return RaftResponse::ForgetfulAppend(response);
    }
    let clients = [&metrics.connections, &metrics.api_requests_in_progress, &metrics.api_watches];
    if clients.iter().all(|gauge| gauge.get() == 0) {
        RaftResponse::AppendQuiet(response)
    } else {
        RaftResponse::Append(response)
    }
}

/// Answers a heartbeat as soon as Raft has accepted the heartbeat. openraft answers only after all earlier
/// flushes, and with a slow disk the leader would consider this node silent (docs/decisions/heartbeats.md).
///
/// Invariant: success means that this node's vote was the sender's after the request arrived, so that no
/// later leader has this node's vote yet. Success implies nothing about the log: the leader's heartbeats name
/// only entries that this node has acknowledged before.
async fn heartbeat<SM: RaftStateMachine<TypeConfig>>(
    raft: Raft<TypeConfig, SM>,
    request: AppendRequest,
    metrics: Arc<Metrics>,
    recollection: Recollection,
) -> RaftResponse {
    assert!(request.entries.is_empty(), "entries are answered when they are flushed");
    let vote = request.vote;
    let mut flushed = pin!(raft.append_entries(request));
    // The first poll passes the request on; the check of the vote follows behind.
    if let Poll::Ready(result) = poll!(&mut flushed) {
        return answer(result, |response| appended(response, &metrics, &recollection));
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
            appended(AppendResponse::Success, &metrics, &recollection)
        }
        Poll::Pending => answer(flushed.await, |response| appended(response, &metrics, &recollection)),
        Poll::Ready(result) => answer(result, |response| appended(response, &metrics, &recollection)),
    }
}

/// Runs a step on a thread that may block, and stores the result for the next step.
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
    if decides!("snapshot-is-of-later-term", covers_term > Some(vote.leader_id.term)) {
        return Err("the snapshot is newer than its sender's term".into());
    }
    let incoming = sink.begin().map_err(|error| error.to_string())?;
    Ok(Receiving { vote, meta, len, written: 0, incoming })
}

impl<I: IncomingSnapshot> Receiving<I> {
    /// Appends a chunk. An error ends the transfer.
    fn take(mut self, offset: u64, data: &[u8]) -> Result<Self, String> {
        let end = self.written.saturating_add(data.len() as u64);
        if decides!("snapshot-chunk-is-misplaced", offset != self.written || end > self.len) {
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
    if decides!("snapshot-is-incomplete", written != len) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_by_any_protocol_need_commits_at_once() {
        let metrics = Metrics::default();
        let waits = || {
            matches!(
                appended(AppendResponse::Success, &metrics, &Recollection::default()),
                RaftResponse::Append(_)
            )
        };
        assert!(!waits());
        for gauge in [&metrics.connections, &metrics.api_requests_in_progress, &metrics.api_watches] {
            gauge.inc();
            assert!(waits());
            gauge.dec();
            assert!(!waits());
        }
    }
}
