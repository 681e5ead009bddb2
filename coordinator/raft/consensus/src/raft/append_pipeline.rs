//! Pipelined replication: append requests leave before earlier ones are answered.
//!
//! openraft's default sends one request, waits for its flush on the follower, and only then sends the next.
//! With the pipeline the follower always has queued work. The link keeps the requests' order, and its window
//! bounds the memory that a slow follower costs the leader. The first answer that is not a plain success ends
//! the stream, because all later requests rest on a failed assumption. openraft's replication task drives the
//! link, so no other task sits between an entry and the socket.
//!
//! Commit notifications to a follower. A follower without clients learns of commits with the next entries, or
//! after a short delay.
//!
//! A leader notifies its followers of a commit at once, so that their clients get answers, events and grants.
//! A follower without clients can wait for the next entry, which carries the same commit index. Each answer
//! of a follower says whether it has clients, by any protocol (`RaftResponse::AppendQuiet`). An outdated
//! answer delays a new client's reply by the flush and answer of the client's own entry, and never by more
//! than `limits::COMMIT_NOTIFY_DELAY_MAX`.

use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use openraft::errors::{RPCError, Unreachable};
use openraft::raft::StreamAppendResult;
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant, Sleep};
use rowlock_proto::NodeId;
use rowlock_transport::{LinkEvent, PeerError, PeerLink};

use super::acks::Acks;
use super::network::{Faults, unexpected};
use crate::limits::{COMMIT_NOTIFY_DELAY_MAX, PEER_APPEND_IDLE_MAX};
use crate::peer::{Request, pool};
use crate::raft_types::{
    AppendRequest, AppendResponse, ClientPresence, LeaderId, LogId, RaftRequest, RaftResponse, TypeConfig,
};

type Item = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// Requests of one stream to a follower, and the answers.
pub struct AppendPipeline<'l, S> {
    node: NodeId,
    link: &'l mut PeerLink<InFlightAppend>,
    faults: Faults,
    acks: Acks,
    commit_notify: CommitNotify,
    /// `None` after the end of the input.
    input: Option<S>,
    /// Longest time without any answer.
    idle_max: Duration,
    /// Time of the last answer, or of the first request after an idle period.
    moved: Instant,
    /// Error of a request that was not sent, reported after the answers to all earlier requests.
    failed: Option<RPCError<TypeConfig>>,
    done: bool,
}

/// Summary of a sent append request.
pub struct InFlightAppend {
    leader: LeaderId,
    /// The entry before the first one sent.
    prev: Option<LogId>,
    last: Option<LogId>,
    /// Lower bound of the send time.
    since: Instant,
}

impl<'l, S: Stream<Item = AppendRequest> + Send + Unpin + 'l> AppendPipeline<'l, S> {
    /// Creates the pipeline of `input` to `node`. Answers to requests of an earlier stream on this link are
    /// ignored.
    ///
    /// A stream lives as long as its leader, so openraft's timeout of a request cannot bound the stream. The
    /// timeout bounds the silence instead, with a minimum of `limits::PEER_APPEND_IDLE_MAX`: a short stall of
    /// a disk must not cause a full resend.
    pub fn new(
        (node, link): (NodeId, &'l mut PeerLink<InFlightAppend>),
        faults: Faults,
        acks: Acks,
        input: S,
    ) -> Self {
        link.retain(|_| false);
        AppendPipeline {
            node,
            link,
            faults,
            acks,
            commit_notify: CommitNotify::default(),
            input: Some(input),
            idle_max: faults.timeout().max(PEER_APPEND_IDLE_MAX),
            moved: time::now(),
            failed: None,
            done: false,
        }
    }

    /// Returns the stream of answers; polling the stream sends requests.
    pub fn answers(self) -> impl Stream<Item = Item> + Send + 'l {
        stream::unfold(self, |mut pipeline| async move { Some((pipeline.next().await?, pipeline)) })
    }

    /// Sends while there are requests and room, and waits for the oldest answer.
    async fn next(&mut self) -> Option<Item> {
        while !self.done {
            let (has_room, waits) = (self.has_room(), self.waits());
            if self.input.is_none() && !waits {
                self.done = true;
                return self.failed.take().map(Err);
            }
            tokio::select! {
                biased;
                request = next_of(&mut self.input), if has_room => {
                    let request = match request {
                        Some(request) => self.commit_notify.pass(request),
                        None => {
                            self.input = None;
                            self.commit_notify.take_held()
                        }
                    };
                    request.into_iter().for_each(|request| self.send(request));
                }
                request = self.commit_notify.due(), if has_room => self.send(request),
                event = self.link.next() => match event {
                    LinkEvent::Answered { tag, answer } => return Some(self.answered(&tag, &answer)),
                    LinkEvent::Moved => if waits && self.moved.elapsed() >= self.idle_max {
                        self.done = true;
                        return Some(Err(self.faults.fault(&PeerError::Timeout { node: self.node })));
                    },
                    LinkEvent::Ended { error, .. } => {
                        self.done = true;
                        return Some(Err(self.faults.fault(&error)));
                    }
                },
            }
        }
        None
    }

    fn has_room(&self) -> bool {
        self.failed.is_none() && self.link.has_room()
    }

    /// Returns whether a request has no answer yet.
    fn waits(&self) -> bool {
        self.link.unanswered().next().is_some()
    }

    /// Sends a request, or ends the input: then Raft decides again what the follower needs.
    fn send(&mut self, request: AppendRequest) {
        if !continues(&request) {
            rare::taken(Rare::PurgedBeforeRead);
            let purged = "entries were purged from the log before they were read for this node";
            return self.fail(Unreachable::from_string(purged).into());
        }
        assert!(self.has_room(), "requests are sent within the window");
        let (leader, prev, since) = (request.vote.leader_id, request.prev_log_id, time::now());
        let last = request.entries.last().map(|entry| entry.log_id).or(prev);
        if !self.waits() {
            self.moved = since;
        }
        let in_flight = InFlightAppend { leader, prev, last, since };
        if let Err(error) = self.link.send(&Request::Raft(RaftRequest::Append(request)).encode(), in_flight) {
            let fault = self.faults.fault(&error);
            self.fail(fault);
        }
    }

    fn fail(&mut self, error: RPCError<TypeConfig>) {
        assert!(self.failed.is_none(), "nothing is sent after a failure");
        self.input = None;
        self.failed = Some(error);
    }

    /// Handles the oldest request's answer.
    fn answered(&mut self, request: &InFlightAppend, answer: &[u8]) -> Item {
        let InFlightAppend { leader, prev, last, since } = *request;
        assert!(prev <= last, "a request ends behind the entry before it, or there");
        self.moved = time::now();
        let item = self.faults.check(pool::decode(self.node, answer)).and_then(|response| {
            let (response, clients) =
                self.acks.appended_by(self.node, response).map_err(|other| unexpected(&other))?;
            self.commit_notify.set_clients(clients);
            let sent = (self.acknowledged(since, last), prev, last);
            let response = record_answer(&self.acks, leader, self.node, sent, response)?;
            Ok(response.into_stream_result(prev, last))
        });
        self.done = !matches!(&item, Ok(Ok(reached)) if *reached == last);
        item
    }

    /// Returns the send time of the newest append acknowledged by the response to (`since`, `last`).
    fn acknowledged(&self, since: Instant, last: Option<LogId>) -> Instant {
        if mutant::is(Mutant::AnswerCountsForLater) {
            let alike = self.link.unanswered().filter(|later| later.last == last);
            return alike.map(|later| later.since).fold(since, Instant::max);
        }
        since
    }
}

async fn next_of<S: Stream<Item = AppendRequest> + Unpin>(input: &mut Option<S>) -> Option<AppendRequest> {
    match input {
        Some(input) => input.next().await,
        None => pending().await,
    }
}

/// Returns whether the entries of a request follow the entry before them, without a gap.
fn continues(request: &AppendRequest) -> bool {
    let first = request.prev_log_id.map_or(0, |prev| prev.index + 1);
    let indexes = request.entries.iter().map(|entry| entry.log_id.index);
    (first..).zip(indexes).all(|(expected, index)| expected == index)
}

/// Records a member's answer to a request: the member accepts the sender as leader, and has stored the log up
/// to an index. A member with less than acknowledged before has lost data, because an older copy of its
/// folder was restored, and cannot count for a quorum, unless the member knows and says so
/// ([`Acks::appended_by`]).
///
/// `sent`: send time, the entry before the first one in the request, and the last entry.
///
/// # Errors
/// The member has lost data, or the answer does not fit the request.
pub fn record_answer(
    acks: &Acks,
    leader: LeaderId,
    node: NodeId,
    (sent, prev, last): (Instant, Option<LogId>, Option<LogId>),
    response: AppendResponse,
) -> Result<AppendResponse, RPCError<TypeConfig>> {
    if decides!("append-keeps-leader", !matches!(response, AppendResponse::HigherVote(_))) {
        acks.record(leader, node.0, sent);
    }
    let stored = match &response {
        AppendResponse::Success => last,
        AppendResponse::PartialSuccess(upto) => *upto,
        AppendResponse::Conflict => {
            rare::taken(Rare::AppendConflict);
            let (had, lacks) = (acks.stored(leader, node.0), prev.map(|prev| prev.index));
            if decides!("follower-lost-entries", lacks.is_some() && had >= lacks) {
                tracing::error!(
                    %node,
                    "the node had stored the log up to {had:?} and lacks {lacks:?} now: an older copy of its data \
                     folder was put back, or its disk has lost writes. It gets no more entries from this leader; \
                     replace it by a node with a new id"
                );
                return Err(Unreachable::from_string("it has lost what it had stored").into());
            }
            if mutant::is(Mutant::ConflictTakenForSuccess) {
                return Ok(AppendResponse::Success);
            }
            if prev.is_none() {
                // No entry precedes the first one, so no conflict is possible; openraft would panic.
                return Err(unexpected(&RaftResponse::Append(response)));
            }
            None
        }
        AppendResponse::HigherVote(_) => {
            rare::taken(Rare::HigherVote);
            None
        }
    };
    if let Some(stored) = stored {
        acks.record_stored(leader, node.0, stored.index);
    }
    Ok(response)
}

/// Notifications of one stream to a follower.
#[derive(Default)]
pub struct CommitNotify {
    clients: ClientPresence,
    /// The last entry that was sent.
    sent: Option<LogId>,
    held: Option<AppendRequest>,
    /// Set when a request is held back. An obsolete timer stays, so that fewer timers are set.
    timer: Option<Pin<Box<Sleep>>>,
}

impl CommitNotify {
    /// Records from the follower's latest answer whether clients are connected.
    pub fn set_clients(&mut self, clients: ClientPresence) {
        let is_late = choice::taken(Choice::CommitToldLate, 10);
        self.clients = if is_late { ClientPresence::Absent } else { clients };
    }

    /// Returns `request` if the request must be sent now; the request covers all those held back before.
    /// `None`: the request is held back.
    pub fn pass(&mut self, request: AppendRequest) -> Option<AppendRequest> {
        let only_tells =
            request.entries.is_empty() && self.sent.is_some() && request.prev_log_id == self.sent;
        if decides!("commit-notice-may-wait", only_tells && self.clients == ClientPresence::Absent) {
            assert!(request.entries.is_empty(), "entries are never held back");
            self.held = Some(request);
            return None;
        }
        self.held = None;
        self.sent = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        Some(request)
    }

    /// Removes the request that is held back, when no later request will cover the same commit.
    pub fn take_held(&mut self) -> Option<AppendRequest> {
        self.held.take()
    }

    /// Waits until the held-back request must be sent; for ever while there is none. Cancel safe.
    pub async fn due(&mut self) -> AppendRequest {
        if self.held.is_some() && self.clients == ClientPresence::Absent {
            self.timer.get_or_insert_with(|| Box::pin(time::sleep(COMMIT_NOTIFY_DELAY_MAX))).await;
            self.timer = None;
        }
        match self.held.take() {
            Some(held) => held,
            None => pending().await,
        }
    }
}
