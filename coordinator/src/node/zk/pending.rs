//! Unanswered requests of one connection, in their order of arrival, and the way of each: through the log or
//! from the local state.
//!
//! Invariant: replies leave in this order (clients treat another order as a broken connection); only pings,
//! auth packets and events bypass it. Invariant: the connection submits a write only after answering the
//! reads before it. So a read sees exactly the earlier writes of its client (guarantee: session-order); a
//! client that mixes both in one pipeline pays with a commit per run of writes.

use std::collections::VecDeque;
use std::sync::Arc;

use rowlock_consensus::operation::Operation;
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::Instant;
use rowlock_proto::acl::Id;
use rowlock_proto::request::PathWatch;
use rowlock_proto::{ErrorCode, OpCode, Request, Xid};
use rowlock_state::command::Command;

use crate::limits::{
    CLIENT_FRAME_MAX_BYTES, PIPELINE_MAX_BYTES, WRITES_OF_CONNECTION_MAX, WRITES_OF_CONNECTION_MAX_BYTES,
};
use crate::node::audit::Note;
use crate::node::delivery::outbox::Answer;

/// A received, unanswered request.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) xid: Xid,
    pub(super) opcode: OpCode,
    pub(super) received: Instant,
    /// Bytes of the request's frame; counted until the reply.
    pub(super) bytes: usize,
    pub(super) what: What,
    pub(super) note: Option<Box<Note>>,
}

/// Event that the request waits for.
#[derive(Debug)]
pub(super) enum What {
    Held {
        command: Command,
        identities: Arc<[Id]>,
    },
    /// Waits for the result of the submission with this tag.
    Write {
        tag: u64,
    },
    /// Waits for its turn: the replies to all earlier requests.
    Read(Request),
    /// Waits for its turn to go to the leader.
    Reconfig(Wanted),
    /// Waits for the result of the reconfiguration with this tag.
    Reconfiguring {
        tag: u64,
    },
    /// Waits for its turn to be forwarded to the target node.
    Operate(Operation),
    /// Waits for its turn to be built.
    Report(String),
    /// Waits for the report, or the result of the operation, with this tag.
    Reporting {
        tag: u64,
    },
    /// Waits for its turn to be answered.
    Reported(String),
    /// Waits for its turn to be refused.
    Refusal(ErrorCode),
}

/// A write to submit.
pub(super) struct Released {
    pub(super) tag: u64,
    pub(super) command: Command,
    pub(super) identities: Arc<[Id]>,
    pub(super) received: Instant,
}

impl What {
    /// Classifies a request that the local state answers.
    pub(super) fn local(request: Request) -> What {
        match request {
            Request::Report(question) => What::Report(question),
            other => What::Read(other),
        }
    }
}

fn frame_bytes(pending: &Received) -> u32 {
    u32::try_from(pending.bytes).expect("a frame is bounded")
}

/// Requests, and the results received so far.
#[derive(Debug, Default)]
pub(super) struct PendingQueue {
    requests: VecDeque<Received>,
    /// Bytes of the frames of `requests`, each of at most `CLIENT_FRAME_MAX_BYTES`.
    bytes: u32,
    /// Results by tag, in order of arrival, which is mostly the order of `requests`.
    answers: VecDeque<(u64, Box<Answer>)>,
    last_tag: u64,
    /// Number of requests at the front that are neither held nor behind a read.
    released: u32,
    /// Number of submitted, unanswered writes.
    submitted: u32,
    submitted_bytes: u32,
}

// The queue is bounded, so small integers suffice, and a connection stays small.
const _: () = assert!(PIPELINE_MAX_BYTES + CLIENT_FRAME_MAX_BYTES < u32::MAX as usize);

impl PendingQueue {
    pub(super) fn push(&mut self, pending: Received) {
        self.bytes += frame_bytes(&pending);
        self.requests.push_back(pending);
    }

    /// Frees the buffers of answered requests, if the queue is empty.
    pub(super) fn rest(&mut self) {
        if self.requests.is_empty() {
            self.requests = VecDeque::new();
            self.answers = VecDeque::new();
        }
    }

    /// Returns the next held write that may be submitted.
    pub(super) fn release(&mut self) -> Option<Released> {
        if self.submitted as usize >= WRITES_OF_CONNECTION_MAX
            || self.submitted_bytes as usize >= WRITES_OF_CONNECTION_MAX_BYTES
        {
            return None;
        }
        while let Some(pending) = self.requests.get_mut(self.released as usize) {
            match &mut pending.what {
                What::Read(_)
                | What::Reconfig(_)
                | What::Reconfiguring { .. }
                | What::Operate(_)
                | What::Report(_)
                | What::Reporting { .. } => return None,
                What::Write { .. } | What::Reported(_) | What::Refusal(_) => self.released += 1,
                What::Held { .. } => {
                    self.released += 1;
                    self.last_tag += 1;
                    let waiting = What::Write { tag: self.last_tag };
                    match std::mem::replace(&mut pending.what, waiting) {
                        What::Held { command, identities } => {
                            let (tag, received) = (self.last_tag, pending.received);
                            self.submitted += 1;
                            self.submitted_bytes += frame_bytes(pending);
                            return Some(Released { tag, command, identities, received });
                        }
                        _ => unreachable!("looked at above"),
                    }
                }
            }
        }
        None
    }

    pub(super) fn answered(&mut self, tag: u64, answer: Box<Answer>) {
        self.answers.push_back((tag, answer));
    }

    /// Removes the first request if it is settled, with the result of a write. Returns `None` for a waiting
    /// request, a read, or an empty queue.
    pub(super) fn pop_settled(&mut self) -> Option<(Received, Option<Box<Answer>>)> {
        let answer = match self.requests.front()?.what {
            What::Write { tag, .. } => Some(self.take_answer(tag)?),
            What::Read(_)
            | What::Held { .. }
            | What::Reconfig(_)
            | What::Reconfiguring { .. }
            | What::Operate(_)
            | What::Report(_)
            | What::Reporting { .. } => return None,
            What::Reported(_) | What::Refusal(_) => None,
        };
        Some((self.pop()?, answer))
    }

    fn take_answer(&mut self, tag: u64) -> Option<Box<Answer>> {
        let at = self.answers.iter().position(|(of, _)| *of == tag)?;
        self.answers.remove(at).map(|(_, answer)| answer)
    }

    fn pop(&mut self) -> Option<Received> {
        self.released = self.released.saturating_sub(1);
        let pending = self.requests.pop_front()?;
        self.bytes -= frame_bytes(&pending);
        if let What::Write { .. } = pending.what {
            self.submitted -= 1;
            self.submitted_bytes -= frame_bytes(&pending);
        }
        Some(pending)
    }

    /// Starts the first request, if it is a reconfiguration before its start. Returns the tag for its result.
    pub(super) fn begin_reconfig(&mut self) -> Option<(u64, Wanted)> {
        match self.requests.front_mut() {
            Some(Received { what: what @ What::Reconfig(_), .. }) => {
                self.last_tag += 1;
                match std::mem::replace(what, What::Reconfiguring { tag: self.last_tag }) {
                    What::Reconfig(wanted) => Some((self.last_tag, wanted)),
                    _ => unreachable!("looked at above"),
                }
            }
            _ => None,
        }
    }

    /// Starts the first request, if it is an operation before its start. Returns the tag for its result.
    pub(super) fn begin_operation(&mut self) -> Option<(u64, Operation)> {
        match self.requests.front_mut() {
            Some(Received { what: what @ What::Operate(_), .. }) => {
                self.last_tag += 1;
                match std::mem::replace(what, What::Reporting { tag: self.last_tag }) {
                    What::Operate(operation) => Some((self.last_tag, operation)),
                    _ => unreachable!("looked at above"),
                }
            }
            _ => None,
        }
    }

    /// Records the result of a reconfiguration: a read of the new configuration follows, or the refusal.
    pub(super) fn reconfigured(&mut self, tag: u64, result: Result<(), ErrorCode>) {
        if let Some(Received { what, .. }) = self.requests.front_mut()
            && matches!(what, What::Reconfiguring { tag: waiting } if *waiting == tag)
        {
            let config = PathWatch { path: "/zookeeper/config".to_owned(), watch: false };
            *what = result.map_or_else(What::Refusal, |()| What::Read(Request::GetData(config)));
        }
    }

    /// Returns whether the first request is a read.
    pub(super) fn read_is_next(&self) -> bool {
        decides!(
            "pending-read-is-first",
            matches!(self.requests.front(), Some(Received { what: What::Read(_), .. }))
        )
    }

    /// Returns whether the first request is a report that has not started.
    pub(super) fn report_is_next(&self) -> bool {
        matches!(self.requests.front(), Some(Received { what: What::Report(_), .. }))
    }

    /// Starts the first request, if it is a report before its start. Returns the tag for its result.
    pub(super) fn begin_report(&mut self) -> Option<(u64, String)> {
        match self.requests.front_mut() {
            Some(Received { what: what @ What::Report(_), .. }) => {
                self.last_tag += 1;
                match std::mem::replace(what, What::Reporting { tag: self.last_tag }) {
                    What::Report(question) => Some((self.last_tag, question)),
                    _ => unreachable!("looked at above"),
                }
            }
            _ => None,
        }
    }

    /// Records the result of a report or an operation.
    pub(super) fn reported(&mut self, tag: u64, result: Result<String, ErrorCode>) {
        if let Some(Received { what, .. }) = self.requests.front_mut()
            && matches!(what, What::Reporting { tag: waiting } if *waiting == tag)
        {
            *what = result.map_or_else(What::Refusal, What::Reported);
        }
    }

    /// Removes the first request, if it is a read.
    pub(super) fn pop_read(&mut self) -> Option<(Received, Request)> {
        if !self.read_is_next() {
            return None;
        }
        let mut pending = self.pop()?;
        let what = std::mem::replace(&mut pending.what, What::Refusal(ErrorCode::SystemError));
        match what {
            What::Read(request) => Some((pending, request)),
            _ => unreachable!("read_is_next"),
        }
    }

    /// Takes the audit fields of requests that have gone to the log or to a leader, and wait for their
    /// results.
    pub(super) fn take_notes(&mut self) -> impl Iterator<Item = Box<Note>> {
        let begun = |pending: &&mut Received| {
            matches!(pending.what, What::Write { .. } | What::Reconfiguring { .. } | What::Reporting { .. })
        };
        self.requests.iter_mut().filter(begun).filter_map(|pending| pending.note.take())
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.answers.clear();
        (self.released, self.bytes, self.submitted, self.submitted_bytes) = (0, 0, 0, 0);
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns the bytes of the waiting frames.
    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns whether the connection waits for the log or for a report (rather than for its client to take
    /// replies).
    pub(super) fn waits_for_log(&self) -> bool {
        use What::{Held, Reconfiguring, Reporting, Write};
        let first = self.requests.front().map(|pending| &pending.what);
        matches!(first, Some(Write { .. } | Held { .. } | Reconfiguring { .. } | Reporting { .. }))
    }
}

/// Where a request is answered from.
pub(super) enum Route {
    Log(Command),
    Local(Request),
    Refused(ErrorCode),
}

/// Finds out whether a request goes through the log, as which command.
///
/// sync takes its place in the log as a command without effect: its answer comes when everything committed
/// before it has been applied here.
pub(super) fn route(mut request: Request) -> Route {
    if let Request::Ask(ask) = &mut request
        && mutant::is(Mutant::AskRevokesAtOnce)
    {
        ask.within_ms = ask.within_ms.min(1_000);
    }
    match request {
        Request::Tagged { request, .. } if mutant::is(Mutant::RunAgain) => route(*request),
        Request::Sync(_) if mutant::is(Mutant::SyncIsLocal) => Route::Local(request),
        Request::Tagged { .. } => {
            Command::of_client(request).map_or(Route::Refused(ErrorCode::MarshallingError), Route::Log)
        }
        request if decides!("request-is-logged", request.opcode().is_logged()) => {
            Route::Log(Command::Client(request))
        }
        request => Route::Local(request),
    }
}
