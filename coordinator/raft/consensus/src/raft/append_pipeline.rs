//! Pipelined replication: append requests leave while earlier ones are not yet answered.
//!
//! openraft's default sends one request, waits for its flush on the follower, and only then sends the next.
//! Here the follower always has work queued. The link keeps the requests' order, its window bounds what a
//! slow follower can make the leader hold, and the first answer that is not a plain success ends the stream,
//! because everything sent behind it rests on an assumption that has failed. openraft's replication task
//! drives the link itself, so no other task stands between an entry and the socket.

use std::future::pending;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use openraft::errors::{RPCError, Unreachable};
use openraft::raft::StreamAppendResult;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_transport::{LinkEvent, PeerError, PeerLink};
use rowlock_types::limits::PEER_APPEND_IDLE_MAX;

use super::acks::Acks;
use super::commit_notify::CommitNotify;
use super::network::{Faults, unexpected};
use crate::peer::{Request, pool};
use crate::raft_types::messages::{AppendRequest, AppendResponse, RaftRequest, RaftResponse};
use crate::raft_types::{LeaderId, LogId, TypeConfig};

type Item = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// The requests of one stream to a follower, and its answers.
pub struct AppendPipeline<'l, S> {
    node: NodeId,
    link: &'l mut PeerLink<InFlightAppend>,
    faults: Faults,
    acks: Acks,
    commit_notify: CommitNotify,
    /// None once it has ended.
    input: Option<S>,
    /// Longest time without any answer.
    idle_max: Duration,
    /// When an answer last came, or the first request of a full stop went out.
    moved: Instant,
    /// A request could not be sent; told when everything before it is answered.
    failed: Option<PeerError>,
    done: bool,
}

/// What an append request said.
pub struct InFlightAppend {
    leader: LeaderId,
    /// The entry before the first one sent.
    prev: Option<LogId>,
    last: Option<LogId>,
    /// It was not sent before.
    since: Instant,
}

impl<'l, S: Stream<Item = AppendRequest> + Send + Unpin + 'l> AppendPipeline<'l, S> {
    /// Sends what `input` yields to `node`. Answers to what an earlier stream sent on this link are ignored.
    ///
    /// A stream lives as long as its leader, so openraft's time for a request cannot bound it. It bounds the
    /// silence instead, but not below `limits::PEER_APPEND_IDLE_MAX`: a disk's bad moment is no reason to
    /// send everything again.
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

    /// The stream of answers; polling it sends.
    pub fn answers(self) -> impl Stream<Item = Item> + Send + 'l {
        stream::unfold(self, |mut pipeline| async move { Some((pipeline.next().await?, pipeline)) })
    }

    /// Sends as long as there is something to send and room for it, and waits for the oldest answer.
    async fn next(&mut self) -> Option<Item> {
        while !self.done {
            let (has_room, waits) = (self.has_room(), self.waits());
            if self.input.is_none() && !waits {
                self.done = true;
                return self.failed.take().map(|error| Err(self.faults.fault(&error)));
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

    /// A request is without an answer.
    fn waits(&self) -> bool {
        self.link.unanswered().next().is_some()
    }

    fn send(&mut self, request: AppendRequest) {
        debug_assert!(continues(&request), "entries follow each other and the one before them");
        assert!(self.has_room(), "requests are sent within the window");
        let (leader, prev, since) = (request.vote.leader_id, request.prev_log_id, time::now());
        let last = request.entries.last().map(|entry| entry.log_id).or(prev);
        if !self.waits() {
            self.moved = since;
        }
        let in_flight = InFlightAppend { leader, prev, last, since };
        if let Err(error) = self.link.send(&Request::Raft(RaftRequest::Append(request)).encode(), in_flight) {
            self.input = None;
            self.failed = Some(error);
        }
    }

    /// The oldest request's answer.
    fn answered(&mut self, request: &InFlightAppend, answer: &[u8]) -> Item {
        let InFlightAppend { leader, prev, last, since } = *request;
        assert!(prev <= last, "a request ends behind the entry before it, or there");
        self.moved = time::now();
        let item = self.faults.check(pool::decode(self.node, answer)).and_then(|response| {
            let (response, clients) = response.into_append().map_err(|other| unexpected(&other))?;
            self.commit_notify.set_clients(clients);
            let sent = (self.acknowledged(since, last), prev, last);
            let response = judge(&self.acks, leader, self.node, sent, response)?;
            Ok(response.into_stream_result(prev, last))
        });
        self.done = !matches!(&item, Ok(Ok(reached)) if *reached == last);
        item
    }

    /// When the latest request was sent that an answer to the one of `since` and `last` acknowledges.
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

/// Whether the entries of a request follow each other and the one before them.
fn continues(request: &AppendRequest) -> bool {
    let before = request.prev_log_id.map(|prev| prev.index);
    let mut indexes = before.into_iter().chain(request.entries.iter().map(|entry| entry.log_id.index));
    let first = indexes.next();
    indexes
        .try_fold(first, |last, index| (last.map(|last| last + 1) == Some(index)).then_some(Some(index)))
        .is_some()
}

/// Takes a member's answer to a request: notes that it takes the sender for its leader, and how far it has
/// stored the log. One that has less than it had said has lost some of it, and is not to be counted on: an
/// older copy of its folder was put back.
///
/// `sent`: when the request was sent, the entry before its first one, and its last one.
///
/// # Errors
/// It has, or the answer makes no sense.
pub fn judge(
    acks: &Acks,
    leader: LeaderId,
    node: NodeId,
    (sent, prev, last): (Instant, Option<LogId>, Option<LogId>),
    response: AppendResponse,
) -> Result<AppendResponse, RPCError<TypeConfig>> {
    if !matches!(response, AppendResponse::HigherVote(_)) {
        acks.note(leader, node.0, sent);
    }
    let stored = match &response {
        AppendResponse::Success => last,
        AppendResponse::PartialSuccess(upto) => *upto,
        AppendResponse::Conflict => {
            rare::taken(Rare::AppendConflict);
            let (had, lacks) = (acks.stored(leader, node.0), prev.map(|prev| prev.index));
            if lacks.is_some() && had >= lacks {
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
                // Nothing stands before the first entry that could conflict; openraft would panic.
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
        acks.note_stored(leader, node.0, stored.index);
    }
    Ok(response)
}
