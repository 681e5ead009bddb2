//! Pipelined replication: append requests leave while earlier ones are not yet answered.
//!
//! openraft's default sends one request, waits for its flush on the follower, and only then sends the next.
//! Here the follower always has work queued. The lane keeps the requests' order, the window bounds what a
//! slow follower can make the leader hold, and the first answer that is not a plain success ends the stream,
//! because everything sent behind it rests on an assumption that has failed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use openraft::errors::{RPCError, Unreachable};
use openraft::raft::StreamAppendResult;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant, Sleep};
use rowlock_proto::NodeId;
use rowlock_types::limits::{
    PEER_APPEND_IDLE_MAX, PEER_APPEND_WINDOW_BYTES, PEER_APPEND_WINDOW_REQUESTS, PEER_IN_FLIGHT_MAX,
};

use super::acks::Acks;
use super::commit_notify::CommitNotify;
use super::lazy_flush::Follower;
use super::network::{Faults, accepts, unexpected};
use crate::peer::pool::PendingAnswer;
use crate::peer::{Lane, Peer, Request};
use crate::raft_types::messages::{AppendRequest, AppendResponse, RaftRequest, RaftResponse};
use crate::raft_types::{LeaderId, LogId, TypeConfig};

// The window is reached before the connection's own bound, which would fail a request.
const _: () = assert!(PEER_APPEND_WINDOW_REQUESTS <= PEER_IN_FLIGHT_MAX);

type Item = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// The stream of answers; polling it sends.
pub struct AppendPipeline<'p, S> {
    peer: &'p Peer,
    lane: Lane,
    faults: Faults,
    follower: Follower,
    acks: Acks,
    commit_notify: CommitNotify,
    /// None once it has ended.
    input: Option<S>,
    window: VecDeque<InFlight>,
    window_bytes: usize,
    /// Longest time without any answer.
    idle_max: Duration,
    /// When an answer last came, or the first request of a full stop went out.
    moved: Instant,
    timer: Pin<Box<Sleep>>,
    /// A request could not even be queued; told when everything before it is answered.
    failed: Option<RPCError<TypeConfig>>,
    done: bool,
}

struct InFlight {
    /// Whose request it is.
    leader: LeaderId,
    /// The entry before the first one sent.
    prev: Option<LogId>,
    /// The last one sent.
    last: Option<LogId>,
    has_entries: bool,
    /// The follower was told that it may flush later.
    is_lazy: bool,
    /// It was not sent before.
    since: Instant,
    answer: PendingAnswer,
}

impl<'p, S: Stream<Item = AppendRequest> + Unpin> AppendPipeline<'p, S> {
    /// Sends what `input` yields to `peer`.
    ///
    /// A stream lives as long as its leader, so openraft's time for a request cannot bound it. It bounds the
    /// silence instead, but not below `limits::PEER_APPEND_IDLE_MAX`: a disk's bad moment is no reason to
    /// send everything again.
    pub fn new(peer: &'p Peer, lane: Lane, faults: Faults, follower: Follower, acks: Acks, input: S) -> Self {
        let idle_max = faults.timeout().max(PEER_APPEND_IDLE_MAX);
        AppendPipeline {
            peer,
            lane,
            faults,
            follower,
            acks,
            commit_notify: CommitNotify::default(),
            input: Some(input),
            window: VecDeque::new(),
            window_bytes: 0,
            idle_max,
            moved: time::now(),
            timer: Box::pin(time::sleep(idle_max)),
            failed: None,
            done: false,
        }
    }

    /// Sends as long as there is something to send and room for it.
    fn fill(&mut self, cx: &mut Context<'_>) {
        while self.has_room()
            && let Some(input) = &mut self.input
            && let Poll::Ready(request) = input.poll_next_unpin(cx)
        {
            let Some(request) = request else {
                self.input = None;
                self.commit_notify.end();
                break;
            };
            if let Some(request) = self.commit_notify.pass(request) {
                self.send(request);
            }
        }
        if self.has_room()
            && let Some(request) = self.commit_notify.poll_due(cx)
        {
            self.send(request);
        }
    }

    fn has_room(&self) -> bool {
        let fits =
            self.window.len() < PEER_APPEND_WINDOW_REQUESTS && self.window_bytes < PEER_APPEND_WINDOW_BYTES;
        fits && self.failed.is_none()
    }

    fn send(&mut self, request: AppendRequest) {
        assert!(self.has_room(), "a request is sent only where there is room");
        debug_assert!(continues(&request), "entries follow each other and the one before them");
        let (leader, prev, since) = (request.vote.leader_id, request.prev_log_id, time::now());
        let last = request.entries.last().map(|entry| entry.log_id).or(prev);
        let has_entries = !request.entries.is_empty();
        let is_lazy = has_entries && self.follower.is_lazy();
        let request = if is_lazy { RaftRequest::AppendLazy(request) } else { RaftRequest::Append(request) };
        match self.peer.begin(self.lane, &Request::Raft(request)) {
            Ok(answer) => {
                if self.window.is_empty() {
                    self.moved = since;
                }
                self.window_bytes += answer.request_bytes();
                self.window.push_back(InFlight { leader, prev, last, has_entries, is_lazy, since, answer });
                assert!(self.window.len() <= PEER_APPEND_WINDOW_REQUESTS, "the window is bounded");
            }
            Err(error) => {
                self.input = None;
                self.failed = Some(self.faults.fault(&error));
            }
        }
    }

    /// The oldest request's answer.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let Some(oldest) = self.window.front_mut() else {
            self.done |= self.input.is_none();
            return match self.failed.take() {
                Some(failed) => Poll::Ready(Some(Err(failed))),
                None if self.done => Poll::Ready(None),
                None => Poll::Pending,
            };
        };
        let Poll::Ready(answer) = oldest.answer.poll_unpin(cx) else { return self.poll_idle(cx) };
        let Some(InFlight { leader, prev, last, has_entries, is_lazy, since, answer: answered }) =
            self.window.pop_front()
        else {
            unreachable!("Invariant: there was an oldest request")
        };
        assert!(self.window_bytes >= answered.request_bytes(), "what is answered was counted");
        self.window_bytes -= answered.request_bytes();
        assert!(!self.window.is_empty() || self.window_bytes == 0, "an empty window holds no bytes");
        self.moved = time::now();
        let item = self.faults.check(answer).and_then(|response| {
            let (response, clients) = response.into_append().map_err(|other| unexpected(&other))?;
            self.commit_notify.set_clients(clients);
            if accepts(&response) {
                self.acks.note(leader, self.peer.node().0, self.acknowledged(since, last));
            }
            let node = self.peer.node();
            notice(&self.acks, leader, node, &response, prev, last)?;
            judge(response, prev, last)
        });
        self.done = !matches!(&item, Ok(Ok(reached)) if *reached == last);
        if let (true, false, Some(last)) = (has_entries, self.done, last) {
            self.follower.has_flushed(last.index, is_lazy, since.elapsed());
        }
        Poll::Ready(Some(item))
    }

    /// When the latest request was sent that an answer to the one of `since` and `last` acknowledges.
    fn acknowledged(&self, since: Instant, last: Option<LogId>) -> Instant {
        if mutant::is(Mutant::AnswerCountsForLater) {
            let alike = self.window.iter().filter(|later| later.last == last);
            return alike.map(|later| later.since).fold(since, Instant::max);
        }
        since
    }

    /// Nothing has come: for too long?
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        loop {
            ready!(self.timer.poll_unpin(cx));
            let deadline = self.moved + self.idle_max;
            if time::now() >= deadline {
                self.done = true;
                let Some(oldest) = self.window.pop_front() else {
                    unreachable!("Invariant: only asked while a request waits")
                };
                return Poll::Ready(Some(Err(self.faults.fault(&oldest.answer.give_up()))));
            }
            self.timer.set(time::sleep_until(deadline));
        }
    }
}

impl<S: Stream<Item = AppendRequest> + Unpin> Stream for AppendPipeline<'_, S> {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let this = &mut *self;
        if this.done {
            this.input = None;
            this.window.clear();
            return Poll::Ready(None);
        }
        this.fill(cx);
        this.poll_answer(cx)
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

/// Notes how far a member has stored the log. One that has less than it had said has lost some of it, and is
/// not to be counted on: an older copy of its folder was put back.
///
/// # Errors
/// It has.
pub fn notice(
    acks: &Acks,
    leader: LeaderId,
    node: NodeId,
    response: &AppendResponse,
    prev: Option<LogId>,
    last: Option<LogId>,
) -> Result<(), RPCError<TypeConfig>> {
    let stored = match response {
        AppendResponse::Success => last,
        AppendResponse::PartialSuccess(upto) => *upto,
        AppendResponse::Conflict => {
            let (had, lacks) = (acks.stored(leader, node.0), prev.map(|prev| prev.index));
            if lacks.is_none() || had < lacks {
                return Ok(());
            }
            tracing::error!(
                %node,
                "the node had stored the log up to {had:?} and lacks {lacks:?} now: an older copy of its data folder was \
                 put back, or its disk has lost writes. It gets no more entries from this leader; replace it by a node \
                 with a new id"
            );
            return Err(Unreachable::from_string("it has lost what it had stored").into());
        }
        AppendResponse::HigherVote(_) => None,
    };
    if let Some(stored) = stored {
        acks.note_stored(leader, node.0, stored.index);
    }
    Ok(())
}

/// What an answer says about the entries from `prev` to `last`.
fn judge(response: AppendResponse, prev: Option<LogId>, last: Option<LogId>) -> Item {
    match response {
        AppendResponse::Conflict => rare::taken(Rare::AppendConflict),
        AppendResponse::HigherVote(_) => rare::taken(Rare::HigherVote),
        AppendResponse::Success | AppendResponse::PartialSuccess(_) => {}
    }
    if response == AppendResponse::Conflict && mutant::is(Mutant::ConflictTakenForSuccess) {
        return Ok(Ok(last));
    }
    if response == AppendResponse::Conflict && prev.is_none() {
        // Nothing stands before the first entry that could conflict; openraft would panic.
        return Err(unexpected(&RaftResponse::Append(response)));
    }
    Ok(response.into_stream_result(prev, last))
}
