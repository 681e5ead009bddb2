//! One client's conversation after its handshake: frames and messages in, bytes and submissions out. No
//! socket, no timer and no await: the decisions depend on the inputs alone, and `connection` carries them
//! out.
//!
//! Invariant: the events of every change in a reply are in `output` before that reply. Invariant: the zxid of
//! replies never goes back, and never exceeds the changes in the replies and events before it.

pub(super) mod audit;
mod replies;
mod requests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::limits;
use bytes::{Bytes, BytesMut};
use rowlock_consensus::operation::Operation;
use rowlock_consensus::peer::message::ClientDisconnect;
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_env::busy::{self, Work};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::Instant;
use rowlock_proto::acl::Id;
use rowlock_proto::decode::{self, BadRequest};
use rowlock_proto::response::{ReplyHeader, Response};
use rowlock_proto::{ErrorCode, OpCode, Request, RequestFrame, SessionId, Xid, Zxid, lock};
use rowlock_state::command::{Attachment, Command};
use rowlock_state::{Machine, acl};

use super::announcement::Whereabouts;
use super::end_reason::EndReason;
use super::liveness_timer::{AskConfirmation, Pings, SessionTimeout};
use super::pending::{self, PendingQueue, Received, Released, Route, What};
use super::read::{LocalReader, ReadReply, Then};
use super::shared::{ClientContext, Shared};
use super::{read_only, sasl};
use crate::node::admin::Ask;
use crate::node::audit::{Note, asker};
use crate::node::delivery::outbox::{CloseReason, Inbox, Message};
use crate::node::delivery::registry::ClientConnection;
use crate::node::proposer::Submission;

/// Maximum reads under one read lock. Beyond: the conversation releases the lock, so that apply gets its
/// turn.
const READS_PER_LOCK: usize = 64;
/// Unwritten bytes from which on the conversation takes no request and answers no read.
const OUTPUT_FULL_BYTES: usize = 256 << 10;

/// The session that the handshake opened for the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attached {
    pub(super) session: SessionId,
    pub(super) attachment: Attachment,
    pub(super) timeout: SessionTimeout,
    pub(super) access: Access,
}

/// Permissions of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Full,
    /// Reads of this node's state without a quorum.
    ReadOnly,
}

pub(super) struct Conversation {
    shared: Arc<Shared>,
    peer: Arc<ClientConnection>,
    attached: Attached,
    identities: Arc<[Id]>,
    queue: PendingQueue,
    frame_bytes: usize,
    pings: Pings,
    /// Set if the client may be idle, until the next check for idle buffers.
    may_rest: bool,
    /// Number of requests, counted up to the first few.
    first_requests: u8,
    /// A ping waits for a keepalive request that found the queue to the leader full.
    unasked: bool,
    sasl: sasl::Negotiation,
    last_zxid: Zxid,
    /// Grace after a hang-up until the session ends; 0: the whole timeout.
    disconnect_grace_ms: u32,
    phase: Phase,
    messages: VecDeque<Message>,
    /// Encoded output that awaits writing.
    pub(super) output: BytesMut,
}

#[derive(Debug)]
enum Phase {
    Open,
    /// The session is attached to another connection: the next frame ends this one.
    Moved,
    /// The conversation takes no more requests, and answers the queued ones.
    Finishing,
    Over(EndReason),
}

impl Conversation {
    pub(super) fn new(
        shared: Arc<Shared>,
        peer: Arc<ClientConnection>,
        attached: Attached,
        last_zxid: Zxid,
        identities: Arc<[Id]>,
    ) -> Self {
        Conversation {
            shared,
            peer,
            last_zxid,
            attached,
            identities,
            queue: PendingQueue::default(),
            frame_bytes: 0,
            pings: Pings::default(),
            may_rest: false,
            first_requests: 0,
            unasked: false,
            sasl: sasl::Negotiation::default(),
            disconnect_grace_ms: 0,
            phase: Phase::Open,
            messages: VecDeque::new(),
            output: BytesMut::new(),
        }
    }

    /// Returns whether [`Self::receive`] accepts a further frame.
    pub(super) fn accepts(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Moved)
            && self.queue.len() + self.pings.len() < limits::PIPELINE_MAX_REQUESTS
            && self.queue.bytes() < limits::PIPELINE_MAX_BYTES
            && !self.is_full()
    }

    /// Returns whether the client must take replies before the conversation produces more.
    pub(super) fn is_full(&self) -> bool {
        self.output.len() >= OUTPUT_FULL_BYTES
    }

    /// Returns the bytes of unwritten output and of queued requests.
    pub(super) fn held_bytes(&self) -> usize {
        self.output.capacity() + self.queue.bytes()
    }

    /// Returns whether the client may be silent because it waits for a reply.
    pub(super) fn owes_an_answer(&self) -> bool {
        self.queue.waits_for_log()
    }

    pub(super) fn receive(&mut self, frame: Bytes, now: Instant) {
        debug_assert!(self.accepts(), "frames wait while the conversation does not accept");
        if decides!("session-has-moved", matches!(self.phase, Phase::Moved)) {
            return self.over(EndReason::Told(CloseReason::SessionMoved));
        }
        self.peer.stats.received.fetch_add(1, Relaxed);
        self.shared.stats.received.fetch_add(1, Relaxed);
        self.shared.context.metrics.packets_received_total.inc();
        busy::spend(Work::Frame, 1);
        self.frame_bytes = frame.len();
        self.record_first_requests();
        let read = decode::request(frame);
        if let Some(xid) = self.barred(&read) {
            return self.bar(xid, read.ok());
        }
        match read {
            Ok(RequestFrame { xid, request }) => self.request(xid, request, now),
            // ZooKeeper handles auth packets before it queues requests, and closes the connection over an
            // unreadable one.
            Err(bad @ (BadRequest::Header | BadRequest::Body { opcode: OpCode::Auth, .. })) => {
                self.over(EndReason::Garbage(bad.to_string()));
            }
            Err(BadRequest::Body { xid, opcode, .. }) => {
                self.refuse(xid, opcode, ErrorCode::MarshallingError, Then::Stay, now);
            }
            Err(BadRequest::UnknownOpcode { xid, .. }) => {
                // The opcode has no name; ping stands for it in the statistics.
                self.refuse(xid, OpCode::Ping, ErrorCode::Unimplemented, Then::Close, now);
            }
        }
    }

    fn request(&mut self, xid: Xid, request: Request, now: Instant) {
        let (opcode, note) = (request.opcode(), self.audit_note(&request));
        if decides!("session-is-read-only", self.attached.access == Access::ReadOnly)
            && !matches!(request, Request::Auth { .. } | Request::Sasl(_))
        {
            return self.read_only_request(xid, request, now);
        }
        let what = match request {
            Request::Ping if mutant::is(Mutant::PongByItself) => {
                self.shared.context.touch.touch(self.attached.session);
                return self
                    .write_reply(ReplyHeader { xid: Xid::PING, zxid: self.last_zxid, err: None }, None);
            }
            Request::Ping => {
                let ask = self.pings.received();
                return self.confirm(ask);
            }
            Request::Auth { scheme, auth, .. } => return self.authenticate(xid, &scheme, &auth),
            Request::Sasl(token) => return self.negotiate(xid, &token.unwrap_or_default()),
            // A bare check makes no sense, and broke ensembles of Apache's (ZOOKEEPER-2623).
            Request::Check { .. } => {
                return self.refuse(xid, opcode, ErrorCode::Unimplemented, Then::Close, now);
            }
            Request::Reconfig { .. }
                if decides!("reconfig-is-disabled", !self.shared.context.config.client.reconfig) =>
            {
                What::Refusal(ErrorCode::ReconfigDisabled)
            }
            Request::Reconfig { joining, leaving, new_members, config_id }
                if decides!("superuser-reconfigures", acl::is_super(&self.identities)) =>
            {
                What::Reconfig(Wanted { joining, leaving, new_members, config_id })
            }
            Request::Operate(wanted) if decides!("superuser-operates", acl::is_super(&self.identities)) => {
                Operation::parse(&wanted).map_or(What::Refusal(ErrorCode::BadArguments), What::Operate)
            }
            Request::Ask(ask) => {
                let by = asker(&self.identities, &ask.by);
                self.routed(Request::Ask(lock::Ask { by, ..ask }))
            }
            other => self.routed(other),
        };
        self.enqueue(xid, opcode, what, note, now);
    }

    /// Routes a request that the connection neither answers nor refuses itself.
    fn routed(&mut self, request: Request) -> What {
        match pending::route(request) {
            Route::Log(command) => {
                if let Command::Client(Request::CloseSession) = command {
                    self.phase = Phase::Finishing;
                }
                What::Held { command, identities: self.identities.clone() }
            }
            Route::Local(read) => {
                if let Request::SessionOptions(options) = read {
                    self.disconnect_grace_ms =
                        requests::disconnect_grace_ms(options, self.attached.timeout.into());
                }
                What::local(read)
            }
            Route::Refused(code) => What::Refusal(code),
        }
    }

    fn enqueue(&mut self, xid: Xid, opcode: OpCode, what: What, note: Option<Box<Note>>, now: Instant) {
        self.queue.push(Received { xid, opcode, received: now, bytes: self.frame_bytes, what, note });
    }

    /// Handles a request of a read-only connection, without leader or log.
    fn read_only_request(&mut self, xid: Xid, request: Request, now: Instant) {
        let (opcode, note) = (request.opcode(), self.audit_note(&request));
        let what = match request {
            Request::Ping => {
                let header = ReplyHeader { xid: Xid::PING, zxid: self.last_zxid, err: None };
                return self.write_reply(header, None);
            }
            // The cluster's session is not closed here, and lives until its timeout.
            Request::CloseSession => {
                self.phase = Phase::Finishing;
                let local = read_only::is_local(self.attached.session);
                if local { What::Read(Request::CloseSession) } else { What::Refusal(ErrorCode::NotReadOnly) }
            }
            Request::Reconfig { .. } | Request::Operate(_) | Request::Check { .. } => {
                What::Refusal(ErrorCode::NotReadOnly)
            }
            // A read-only connection keeps no session alive, so its end has no effect on one.
            Request::SessionOptions(_) => What::Refusal(ErrorCode::NotReadOnly),
            other => match pending::route(other) {
                Route::Log(_) => What::Refusal(ErrorCode::NotReadOnly),
                Route::Local(read) => What::local(read),
                Route::Refused(code) => What::Refusal(code),
            },
        };
        self.enqueue(xid, opcode, what, note, now);
    }

    /// Returns whether frames of the client count as keepalives.
    pub(super) fn keeps_its_session_alive(&self) -> bool {
        self.attached.access == Access::Full
    }

    pub(super) fn session_timeout(&self) -> SessionTimeout {
        self.attached.timeout
    }

    /// Returns the report of a disconnect for the leader, if the client requested a disconnect grace.
    pub(super) fn client_disconnect(&self) -> Option<ClientDisconnect> {
        let Attached { session, attachment, .. } = self.attached;
        let grace_ms = self.disconnect_grace_ms;
        (grace_ms > 0).then_some(ClientDisconnect { session, attachment, grace_ms })
    }

    /// Returns the next write to submit. Call this after [`Self::receive`] and [`Self::answer`], until it
    /// returns `None`.
    pub(super) fn next_submission(&mut self) -> Option<Submission> {
        let Released { tag, command, identities, received } = self.queue.release()?;
        Some(Submission {
            session: self.attached.session,
            attachment: self.attached.attachment,
            identities,
            command,
            reply_to: self.peer.outbox.clone(),
            tag,
            received,
        })
    }

    fn refuse(&mut self, xid: Xid, opcode: OpCode, code: ErrorCode, then: Then, now: Instant) {
        self.enqueue(xid, opcode, What::Refusal(code), None, now);
        if decides!("reply-closes-connection", then == Then::Close) {
            self.phase = Phase::Finishing;
        }
    }

    fn confirm(&mut self, ask: Option<AskConfirmation>) {
        if let Some(AskConfirmation) = ask {
            let asked = self.shared.context.touch.confirm(self.attached.session, self.peer.outbox.clone());
            self.unasked = !asked;
        }
    }

    /// Returns whether a keepalive request is outstanding: the queue to the leader was full, or the leader
    /// does not know the session (yet). The caller then calls [`Self::ask_again`] after a pause.
    pub(super) fn must_ask_again(&self) -> bool {
        self.unasked
    }

    /// Repeats an outstanding keepalive request, if any.
    pub(super) fn ask_again(&mut self) {
        self.confirm(self.unasked.then_some(AskConfirmation));
    }

    /// Handles the messages of the inbox in order: events become output, and so do results whose turn has
    /// come. So events and the replies to writes go out in the order of their changes. Returns false if the
    /// turn ended first and messages may be left.
    pub(super) fn take_messages(&mut self, inbox: &mut Inbox, now: Instant) -> bool {
        if self.messages.is_empty() && inbox.take(&mut self.messages).is_err() {
            self.over(EndReason::Slow("too much waited"));
        }
        if mutant::is(Mutant::EventAfterReply) {
            self.messages.make_contiguous().sort_by_key(|message| matches!(message, Message::Event(_)));
        }
        let mut is_first = true;
        while let Some(message) = self.messages.pop_front() {
            match message {
                Message::Event(frame) => self.write_event(&frame),
                Message::Applied { tag, answer } => {
                    self.measure_outbox(&answer, now, &mut is_first);
                    self.queue.answered(tag, answer);
                    self.answer_settled(now);
                }
                Message::Reconfigured { tag, result } => self.queue.reconfigured(tag, result),
                Message::Reported { tag, result } => self.queue.reported(tag, result),
                Message::Touched => self.touched(),
                Message::NotTouched => self.unasked = self.pings.len() > 0,
                Message::Lost => self.over(EndReason::Lost),
                Message::Close(reason) => self.told_to_close(reason),
            }
            if busy::turn_is_over() {
                return false;
            }
        }
        true
    }

    fn touched(&mut self) {
        let (answered, ask) = self.pings.confirmed();
        for _ in 0..answered {
            self.write_reply(ReplyHeader { xid: Xid::PING, zxid: self.last_zxid, err: None }, None);
        }
        self.may_rest = true;
        self.confirm(ask);
    }

    /// Answers all requests whose turn has come. Returns the number of replies.
    pub(super) fn answer(&mut self, inbox: &mut Inbox, now: Instant) -> usize {
        let mut answered = self.answer_settled(now);
        self.begin_reconfig();
        self.begin_operation();
        answered += self.begin_report(inbox, now);
        if decides!("reads-run-behind-events", self.read_may_run() && self.messages.is_empty()) {
            let replica = self.shared.context.replica.clone();
            let state = replica.state.read();
            let all_taken = mutant::is(Mutant::EventAfterReply) || self.take_messages(inbox, now);
            while all_taken && answered < READS_PER_LOCK && self.read_may_run() {
                self.answer_read(&state, now);
                answered += 1 + self.answer_settled(now);
                if busy::turn_is_over() {
                    break;
                }
            }
        }
        let outstanding = (self.queue.len() + self.pings.len()) as u64;
        let before = self.peer.stats.outstanding.swap(outstanding, Relaxed);
        self.shared.context.metrics.requests_outstanding.shift(outstanding as i64 - before as i64);
        answered
    }

    /// Passes each reconfiguration whose turn has come to the task that calls the leader.
    fn begin_reconfig(&mut self) {
        while let Some((tag, wanted)) = self.queue.begin_reconfig() {
            let ask = Ask { wanted, reply_to: self.peer.outbox.clone(), tag };
            if let Err(code) = self.shared.context.admin.reconfigure(ask) {
                self.queue.reconfigured(tag, Err(code));
            }
        }
    }

    fn read_may_run(&self) -> bool {
        decides!(
            "read-may-run",
            self.queue.read_is_next() && !self.is_full() && !matches!(self.phase, Phase::Over(_))
        )
    }

    fn answer_read(&mut self, state: &Machine, now: Instant) {
        let Some((pending, request)) = self.queue.pop_read() else { return };
        let ClientContext { replica, status, config, .. } = &self.shared.context;
        let reader = LocalReader {
            machine: state,
            watches: &replica.watches,
            metrics: &self.shared.context.metrics,
            memory: &replica.memory,
            connection: self.peer.id,
            outbox: &self.peer.outbox,
            session: self.attached.session,
            identities: &self.identities,
            whereabouts: Whereabouts { status, config, door: self.peer.door },
            invitations: self.is_at_work().then_some(&replica.invitations),
        };
        busy::spend(Work::Read, 1);
        self.log_slow_read(&pending, &request, now);
        let ReadReply { events, result, then } = reader.answer(request);
        for event in events {
            self.write_event(&event);
        }
        self.seen(state.last_zxid());
        self.reply(&pending, result, now);
        if then == Then::Close {
            self.phase = Phase::Finishing;
            self.record_unanswered();
            self.queue.clear();
        }
    }

    /// Answers the settled requests at the front: writes with a result, and refusals.
    fn answer_settled(&mut self, now: Instant) -> usize {
        let mut answered = 0;
        while !matches!(self.phase, Phase::Over(_))
            && let Some((pending, answer)) = self.queue.pop_settled()
        {
            answered += 1;
            match (&pending.what, answer) {
                (What::Refusal(code), _) => self.reply(&pending, Err(*code), now),
                (What::Reported(document), _) => {
                    self.reply(&pending, Ok(Response::Report(document.clone())), now);
                }
                (What::Write { .. }, Some(answer)) => {
                    self.log_slow_write(&pending, &answer, now);
                    self.answer_write(&pending, answer.applied, now);
                }
                _ => unreachable!("pop_settled gives what is settled"),
            }
        }
        answered
    }

    pub(super) fn session(&self) -> SessionId {
        self.attached.session
    }
}
