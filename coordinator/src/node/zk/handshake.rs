//! Handshake of a new connection: reads the four-letter word or the first frame, takes the session through
//! the log, and replies, under a deadline from the connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_env::{decides, rng};
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::response::ConnectResponse;
use rowlock_proto::{ErrorCode, FourLetterWord, SessionId, Zxid, decode, encode, frame};
use rowlock_state::command::{Attachment, Command};
use rowlock_state::outcome::{self, Applied};
use rowlock_state::{AskedHolder, Proof, acl};

use super::conversation::{Access, Attached};
use super::end_reason::EndReason;
use super::liveness_timer::SessionTimeout;
use super::read_only::{self, Admission};
use super::shared::{Opener, Shared};
use super::wire::Wire;
use crate::limits;
use crate::node::delivery::events::question_frame;
use crate::node::delivery::outbox::{Answer, CloseReason, Inbox, Message};
use crate::node::delivery::registry::ClientConnection;
use crate::node::proposer::Submission;
use crate::node::slow::SlowRequest;

/// The answers of a handshake's submissions all carry this tag: only one is under way at a time.
const TAG: u64 = 0;

/// Divisor of the session timeout: the minimum time for which a client waits for its session before trying
/// another server.
const PATIENT_FOR_A: u32 = 10;

/// Kind of the first bytes.
pub(super) enum Greeting {
    /// A four-letter word: reply, then close the connection.
    Word(FourLetterWord),
    Session(OpenedSession),
}

/// The opened or reattached session, and the frame to send.
pub(super) struct OpenedSession {
    pub(super) attached: Attached,
    /// The newest zxid that the session has seen.
    pub(super) zxid: Zxid,
    pub(super) reply: BytesMut,
}

/// The session is refused: send this frame, then close the connection.
pub(super) struct Refused {
    pub(super) end: EndReason,
    pub(super) reply: BytesMut,
}

impl<E: Into<EndReason>> From<E> for Refused {
    fn from(end: E) -> Self {
        Refused { end: end.into(), reply: BytesMut::new() }
    }
}

/// A handshake under way.
pub(super) struct Handshake<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) peer: &'a ClientConnection,
    pub(super) inbox: &'a mut Inbox,
}

impl Handshake<'_> {
    /// Reads and handles the first bytes. Dropping the future may leave a session unknown to any client; the
    /// session expires.
    pub(super) async fn run(&mut self, wire: &mut Wire) -> Result<Greeting, Refused> {
        let first = self.first_bytes(wire).await?;
        self.shared.context.registry.greeted(self.peer.id);
        let request = match first {
            First::Word(word) => return Ok(Greeting::Word(word)),
            First::Frame(frame) => {
                decode::connect_request(frame).map_err(|e| EndReason::Garbage(format!("handshake: {e}")))?
            }
        };
        if decides!("greeting-node-does-not-serve", !self.shared.context.status.borrow().serving) {
            return self.open_read_only(&request);
        }
        // The time starts now: while this node catches up, the client may try another server.
        let (asked, known) = (time::now(), self.attachment_of(request.session_id));
        match self.catch_up(request.last_zxid_seen).await {
            // The session belongs to another cluster, or to this one before it was founded again: no node
            // will ever reach that zxid, and only the reply of an expired session ends the client's attempts.
            Err(EndReason::Ahead) if decides!("client-ahead-is-foreign", self.is_foreign(&request)) => {
                let reply = refusal(&request);
                return Err(Refused { end: EndReason::BadSession(request.session_id), reply });
            }
            caught_up => caught_up?,
        }
        if decides!("client-opens-session", request.session_id == SessionId::NONE) {
            let (context, addr) = (&self.shared.context, self.peer.addr.ip());
            let is_super = self.peer.proven.get().is_some_and(|who| acl::is_super(who));
            let opener = if is_super { Opener::Operator } else { Opener::Client };
            context.new_sessions.make_room(context, addr, opener).map_err(EndReason::NoNewSession)?;
        }
        let timeout = self.timeout_for(&request);
        let password = password_of(&request);
        let applied = self.open(wire, &request, &password, timeout, asked, known).await?;
        match (applied.result, applied.attached) {
            (Ok(_), Some(outcome::Attached { session, attachment, .. })) => {
                self.attach(session, attachment)?;
                let (zxid, access) = (applied.zxid, Access::Full);
                let attached = Attached { session, attachment, timeout, access };
                let reply = response(&request, session, timeout, &password, Access::Full);
                Ok(Greeting::Session(OpenedSession { attached, zxid, reply }))
            }
            (Err(ErrorCode::SessionExpired), _) => {
                let reply = refusal(&request);
                Err(Refused { end: EndReason::BadSession(request.session_id), reply })
            }
            (Err(ErrorCode::ThrottledOp), _) => {
                Err(EndReason::NoNewSession("the cluster was restored or lost power a moment ago").into())
            }
            // The client has reconnected by another connection since this request.
            (Err(ErrorCode::SessionMoved), _) => Err(EndReason::Told(CloseReason::SessionMoved).into()),
            other => unreachable!("opening a session gives a session or refuses it: {other:?}"),
        }
    }

    /// Opens the session, or reattaches it from its known attachment at the time of the client's request.
    ///
    /// Invariant: an abandoned connection never takes the session from a live connection, as far as this node
    /// can know: neither after a close by the client, nor after an attachment to another connection
    /// meanwhile. A node behind the session's opening or an earlier move has no reason to refuse, so this
    /// method retries while that may be the cause.
    async fn open(
        &mut self,
        wire: &mut Wire,
        request: &ConnectRequest,
        password: &[u8; 16],
        timeout: SessionTimeout,
        asked: Instant,
        known: Option<Attachment>,
    ) -> Result<Applied, EndReason> {
        let mut known = known;
        loop {
            wire.take_arrived().await?;
            let applied = self.submit(open_command(request, known, password, timeout)).await?;
            let is_fresh = asked.elapsed() < Duration::from(timeout) / PATIENT_FOR_A;
            if decides!("attach-is-in-time", applied.result != Err(ErrorCode::SessionMoved)) {
                return Ok(applied);
            }
            if known.is_some() {
                rare::taken(Rare::AttachTooLate);
            }
            if !is_fresh {
                return Ok(applied);
            }
            known = self.attachment_of(request.session_id);
        }
    }

    /// Returns the session's attachment in this node's state.
    fn attachment_of(&self, session: SessionId) -> Option<Attachment> {
        self.shared.context.replica.state.read().session(session).map(|open| open.attachment)
    }

    /// Returns the requested timeout within this node's bounds.
    fn timeout_for(&self, request: &ConnectRequest) -> SessionTimeout {
        let asked = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
        self.shared.context.config.session.clamp(asked).into()
    }

    /// Opens a session on a node without a quorum: see [`super::read_only`].
    fn open_read_only(&self, request: &ConnectRequest) -> Result<Greeting, Refused> {
        let context = &self.shared.context;
        if request.read_only != Some(true) || !context.isolation.is_isolated() {
            return Err(EndReason::Told(CloseReason::NotServing).into());
        }
        self.peer.become_read_only();
        if context.status.borrow().serving {
            return Err(EndReason::Told(CloseReason::Writable).into());
        }
        let state = context.replica.state.read();
        let zxid = state.last_zxid();
        if request.last_zxid_seen > zxid {
            return Err(EndReason::Ahead.into());
        }
        match read_only::admit(request, &state, context.config.id) {
            Admission::Session(session, password) => {
                let timeout = self.timeout_for(request);
                let (attachment, access) = (Attachment::default(), Access::ReadOnly);
                let attached = Attached { session, attachment, timeout, access };
                let reply = response(request, session, timeout, &password, Access::ReadOnly);
                Ok(Greeting::Session(OpenedSession { attached, zxid, reply }))
            }
            Admission::Over => {
                let reply = refusal(request);
                Err(Refused { end: EndReason::BadSession(request.session_id), reply })
            }
            Admission::Unknown => Err(EndReason::Told(CloseReason::NotServing).into()),
        }
    }

    async fn first_bytes(&mut self, wire: &mut Wire) -> Result<First, EndReason> {
        loop {
            if let Some(prefix) = wire.input.first_chunk::<4>()
                && let Some(word) = FourLetterWord::from_prefix(*prefix)
            {
                return Ok(First::Word(word));
            }
            if let Some(frame) = frame::split(&mut wire.input, limits::HANDSHAKE_FRAME_MAX_BYTES)? {
                return Ok(First::Frame(frame));
            }
            tokio::select! {
                biased;
                count = wire.fill() => {
                    self.shared.context.metrics.bytes_received_total.add(count? as u64);
                }
                told = next_message(self.inbox) => match told? {
                    Message::Close(reason) => return Err(EndReason::Told(reason)),
                    // No other message can belong to a connection without requests.
                    _ => return Err(EndReason::Lost),
                },
            }
        }
    }

    /// Waits until this node has the state that the client has seen: a client from another node must not go
    /// back in time. A no-op through the log ensures that this node has applied all entries committed before
    /// the client's arrival.
    async fn catch_up(&mut self, seen: Zxid) -> Result<(), EndReason> {
        let replica = self.shared.context.replica.clone();
        if decides!("node-has-seen-zxid", seen <= replica.state.read().last_zxid()) {
            return Ok(());
        }
        rare::taken(Rare::ClientAhead);
        self.submit(Command::Noop).await?;
        if decides!("node-has-caught-up", seen <= replica.state.read().last_zxid()) {
            return Ok(());
        }
        rare::taken(Rare::ClientStillAhead);
        Err(EndReason::Ahead)
    }

    /// Returns whether the client's session is none of this cluster's. The node must have caught up: then a
    /// session that it does not know is not open, and never will be again.
    fn is_foreign(&self, request: &ConnectRequest) -> bool {
        let state = self.shared.context.replica.state.read();
        let shown = Proof::of(&request.password);
        let is_ours = |id| state.session(id).is_some_and(|open| open.proof.is_that_of(&shown));
        decides!(
            "shown-session-is-foreign",
            request.session_id != SessionId::NONE && !is_ours(request.session_id)
        )
    }

    /// Submits a command and waits for its result.
    async fn submit(&mut self, command: Command) -> Result<Applied, EndReason> {
        let (op, received) = (command.name(), time::now());
        let submission = Submission {
            session: SessionId::NONE,
            attachment: Attachment::default(),
            // A new session counts for the host of its client.
            identities: self.shared.neighbours.identities(self.peer.addr.ip()),
            command,
            reply_to: self.peer.outbox.clone(),
            tag: TAG,
            received,
        };
        self.shared.context.proposer.submit(submission).await.map_err(|_| EndReason::Stopping)?;
        match next_message(self.inbox).await? {
            Message::Applied { answer, .. } => {
                self.log_if_slow(op, (received, &answer));
                Ok(answer.applied)
            }
            Message::Close(reason) => Err(EndReason::Told(reason)),
            Message::Lost => Err(EndReason::Lost),
            Message::Event(_)
            | Message::Touched
            | Message::NotTouched
            | Message::Reconfigured { .. }
            | Message::Reported { .. } => {
                unreachable!("asked for by nobody before the handshake is done")
            }
        }
    }

    fn log_if_slow(&self, op: &'static str, (received, answer): (Instant, &Answer)) {
        let (replied, slow) = (time::now(), &self.shared.context.slow);
        if slow.is_slow(replied.saturating_since(received)) {
            let (timeline, client, session) = (answer.timeline.as_ref(), self.peer.addr, SessionId::NONE);
            let (path, trace) = (None, None);
            slow.log_request(&SlowRequest { op, path, timeline, session, client, trace, received, replied });
        }
    }

    /// Attaches the connection to its session. The read lock of the state separates earlier events of the
    /// session, checked here, from later events, delivered by the registry.
    fn attach(&self, session: SessionId, attachment: Attachment) -> Result<(), EndReason> {
        let context = &self.shared.context;
        let state = context.replica.state.read();
        match state.session(session) {
            None => Err(EndReason::Told(CloseReason::SessionEnded)),
            Some(open) if decides!("attached-session-has-moved", open.attachment != attachment) => {
                Err(EndReason::Told(CloseReason::SessionMoved))
            }
            Some(_) => {
                context.registry.attach(self.peer.id, session, attachment);
                // A question may have arrived while the client was away.
                let is_told =
                    |asked: &AskedHolder<'_>| decides!("returning-holder-acquired", asked.is_acquired);
                for asked in state.questions_to(session).filter(is_told) {
                    let frame = question_frame(state.last_zxid(), &asked, state.time_ms());
                    self.peer.outbox.push(Message::Event(frame));
                }
                Ok(())
            }
        }
    }
}

enum First {
    Word(FourLetterWord),
    Frame(Bytes),
}

/// Waits for the node's next message. Cancel safe.
pub(super) async fn next_message(inbox: &mut Inbox) -> Result<Message, EndReason> {
    loop {
        inbox.ready().await;
        let mut messages = VecDeque::new();
        inbox.take(&mut messages).map_err(|_| EndReason::Slow("too much waited"))?;
        // A close takes precedence over a result: the node may have stopped serving meanwhile.
        let close = messages.iter().position(|m| matches!(m, Message::Close(_) | Message::Lost));
        if let Some(message) = messages.swap_remove_back(close.unwrap_or(0)) {
            return Ok(message);
        }
    }
}

/// Returns the client's password, or a new password for a new session. Only the client and this connection
/// know the password: the log carries its proof.
fn password_of(request: &ConnectRequest) -> [u8; 16] {
    let shown = request.password[..].try_into().ok().filter(|_| request.session_id != SessionId::NONE);
    shown.unwrap_or_else(|| {
        // A password of another length belongs to no session and is replaced, too.
        let mut password = [0; 16];
        rng::fill(&mut password);
        password
    })
}

fn open_command(
    request: &ConnectRequest,
    known: Option<Attachment>,
    password: &[u8; 16],
    timeout: SessionTimeout,
) -> Command {
    let (session, timeout_ms, proof) = (request.session_id, timeout.as_millis(), Proof::of(password));
    match session {
        SessionId::NONE => Command::OpenSession { proof, timeout_ms },
        _ if mutant::is(Mutant::AttachFromAnywhere) => {
            Command::Reattach { from: None, session, proof, timeout_ms }
        }
        // No session has attachment 0: an unknown session is over, or the caller retries.
        _ => Command::Reattach { from: Some(known.unwrap_or(Attachment(0))), session, proof, timeout_ms },
    }
}

/// Encodes the reply for an invalid session.
fn refusal(request: &ConnectRequest) -> BytesMut {
    response(request, SessionId::NONE, SessionTimeout::NONE, &[0; 16], Access::Full)
}

fn response(
    request: &ConnectRequest,
    session: SessionId,
    timeout: SessionTimeout,
    password: &[u8; 16],
    access: Access,
) -> BytesMut {
    let response = ConnectResponse {
        protocol_version: 0,
        timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
        session_id: session,
        password: Bytes::copy_from_slice(password),
        // Left out for clients that left theirs out, as in ZooKeeper since 3.9.3.
        read_only: request.read_only.map(|_| access == Access::ReadOnly),
    };
    let mut out = BytesMut::with_capacity(64);
    encode::connect_response(&response, &mut out);
    out
}
