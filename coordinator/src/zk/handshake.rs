//! From a fresh socket to a session: the four-letter word or the first frame, the session's place in the log,
//! the answer. Runs under a deadline that the connection sets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::rng;
use rowlock_env::time::{self, Instant};
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::response::ConnectResponse;
use rowlock_proto::{ErrorCode, FourLetterWord, SessionId, Zxid, decode, encode, frame};
use rowlock_state::command::{Attachment, Command};
use rowlock_state::outcome::{Applied, Outcome};
use rowlock_state::{AskedHolder, Proof, acl};
use rowlock_types::limits;

use super::conversation::{Access, Attached};
use super::end_reason::EndReason;
use super::listener::Shared;
use super::liveness_timer::SessionTimeout;
use super::new_sessions::Opener;
use super::read_only::{self, Admission};
use super::wire::Wire;
use crate::delivery::events::question_frame;
use crate::delivery::outbox::{Answer, CloseReason, Inbox, Message};
use crate::delivery::registry::ClientConnection;
use crate::proposer::Submission;
use crate::slow::SlowRequest;

/// The answers of a handshake's submissions all carry this tag: only one is under timeline at a time.
const TAG: u64 = 0;

/// A client waits for its session for at least such a part of its timeout before it tries elsewhere.
const PATIENT_FOR_A: u32 = 10;

/// The kind of the first bytes.
pub(super) enum Greeting {
    /// A four-letter word: to be answered, then the connection is closed.
    Word(FourLetterWord),
    Session(OpenedSession),
}

/// The session that was opened or taken over, and the frame to send.
pub(super) struct OpenedSession {
    pub(super) attached: Attached,
    /// The newest zxid that the session has seen.
    pub(super) zxid: Zxid,
    pub(super) reply: BytesMut,
}

/// The session is refused: this frame goes out, then the connection is closed.
pub(super) struct Refused {
    pub(super) end: EndReason,
    pub(super) reply: BytesMut,
}

impl<E: Into<EndReason>> From<E> for Refused {
    fn from(end: E) -> Self {
        Refused { end: end.into(), reply: BytesMut::new() }
    }
}

/// A handshake under timeline.
pub(super) struct Handshake<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) peer: &'a ClientConnection,
    pub(super) inbox: &'a mut Inbox,
}

impl Handshake<'_> {
    /// Reads the first bytes and does what they ask for. Cancelling it may leave a session behind that no
    /// client knows; it expires.
    pub(super) async fn run(&mut self, wire: &mut Wire) -> Result<Greeting, Refused> {
        let first = self.first_bytes(wire).await?;
        self.shared.context.registry.greeted(self.peer.id);
        let request = match first {
            First::Word(word) => return Ok(Greeting::Word(word)),
            First::Frame(frame) => {
                decode::connect_request(frame).map_err(|e| EndReason::Garbage(format!("handshake: {e}")))?
            }
        };
        if !self.shared.context.status.borrow().serving {
            return self.open_read_only(&request);
        }
        // As of now: while this node catches up, the client may go elsewhere.
        let (asked, known) = (time::now(), self.attachment_of(request.session_id));
        match self.catch_up(request.last_zxid_seen).await {
            // Of another cluster, or of this one before it was founded again: no node will ever have seen so
            // much, and only the reply that its session has expired ends the client's attempts.
            Err(EndReason::Ahead) if self.is_foreign(&request) => {
                let reply = refusal(&request);
                return Err(Refused { end: EndReason::BadSession(request.session_id), reply });
            }
            caught_up => caught_up?,
        }
        if request.session_id == SessionId::NONE {
            let (context, addr) = (&self.shared.context, self.peer.addr.ip());
            let is_super = self.peer.proven.get().is_some_and(|who| acl::is_super(who));
            let opener = if is_super { Opener::Operator } else { Opener::Client };
            context.new_sessions.make_room(context, addr, opener).map_err(EndReason::NoNewSession)?;
        }
        let timeout = self.timeout_for(&request);
        let password = password_of(&request);
        let applied = self.open(wire, &request, &password, timeout, asked, known).await?;
        match applied.result {
            Ok(Outcome::Session { session, attachment, .. }) => {
                self.attach(session, attachment)?;
                let (zxid, access) = (applied.zxid, Access::Full);
                let attached = Attached { session, attachment, timeout, access };
                let reply = response(&request, session, timeout, &password, Access::Full);
                Ok(Greeting::Session(OpenedSession { attached, zxid, reply }))
            }
            Err(ErrorCode::SessionExpired) => {
                let reply = refusal(&request);
                Err(Refused { end: EndReason::BadSession(request.session_id), reply })
            }
            Err(ErrorCode::ThrottledOp) => {
                Err(EndReason::NoNewSession("the cluster was restored a moment ago").into())
            }
            // The client has come by another connection since it asked for this one.
            Err(ErrorCode::SessionMoved) => Err(EndReason::Told(CloseReason::SessionMoved).into()),
            other => unreachable!("opening a session gives a session or refuses it: {other:?}"),
        }
    }

    /// Opens the session, or takes it over from where it was known to be when the client asked.
    ///
    /// Invariant: a connection that its client has given up takes the session from none that lives, as far as
    /// this node can know: neither when the client has closed it, nor when the session has been attached
    /// elsewhere meanwhile. Only that this node had not heard of the session or of an earlier move yet is no
    /// reason, so it asks again while that must be it.
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
            if applied.result != Err(ErrorCode::SessionMoved) {
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

    /// Where this node knows the session to be.
    fn attachment_of(&self, session: SessionId) -> Option<Attachment> {
        self.shared.context.replica.state.read().session(session).map(|open| open.attachment)
    }

    /// Returns the requested timeout within this node's bounds.
    fn timeout_for(&self, request: &ConnectRequest) -> SessionTimeout {
        let asked = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
        self.shared.context.config.session.clamp(asked).into()
    }

    /// On a node without a quorum: see [`super::read_only`].
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
                    // Nothing else can be meant for a connection that has not asked for anything.
                    _ => return Err(EndReason::Lost),
                },
            }
        }
    }

    /// A client that comes from another node must not go back in time. If it is ahead of this node, a place
    /// in the log is waited for: then everything that was committed when the client came is applied here.
    async fn catch_up(&mut self, seen: Zxid) -> Result<(), EndReason> {
        let replica = self.shared.context.replica.clone();
        if seen <= replica.state.read().last_zxid() {
            return Ok(());
        }
        rare::taken(Rare::ClientAhead);
        self.submit(Command::Noop).await?;
        if seen <= replica.state.read().last_zxid() {
            return Ok(());
        }
        rare::taken(Rare::ClientStillAhead);
        Err(EndReason::Ahead)
    }

    /// The client's session is none of this cluster's. To be asked when this node has caught up: then a
    /// session that it does not know is not open, and never will be again.
    fn is_foreign(&self, request: &ConnectRequest) -> bool {
        let state = self.shared.context.replica.state.read();
        let shown = Proof::of(&request.password);
        let is_ours = |id| state.session(id).is_some_and(|open| open.proof.is_that_of(&shown));
        request.session_id != SessionId::NONE && !is_ours(request.session_id)
    }

    /// Takes a command through the log.
    async fn submit(&mut self, command: Command) -> Result<Applied, EndReason> {
        let (op, received) = (command.name(), time::now());
        let submission = Submission {
            session: SessionId::NONE,
            attachment: Attachment::default(),
            // A new session is counted as one of its host.
            identities: self.shared.neighbours.identities(self.peer.addr.ip()),
            command,
            reply_to: self.peer.outbox.clone(),
            tag: TAG,
            received,
        };
        self.shared.context.proposer.submit(submission).await.map_err(|_| EndReason::Stopping)?;
        match next_message(self.inbox).await? {
            Message::Applied { answer, .. } => {
                self.note_slow(op, (received, &answer));
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

    fn note_slow(&self, op: &'static str, (received, answer): (Instant, &Answer)) {
        let (replied, slow) = (time::now(), &self.shared.context.slow);
        if slow.is_slow(replied.saturating_since(received)) {
            let (timeline, client, session) = (answer.timeline.as_ref(), self.peer.addr, SessionId::NONE);
            let (path, trace) = (None, None);
            slow.log_request(&SlowRequest { op, path, timeline, session, client, trace, received, replied });
        }
    }

    /// From now on the connection hears of its session. Under the read lock of the state, so that what
    /// happened to the session before is seen here and what happens after is told.
    fn attach(&self, session: SessionId, attachment: Attachment) -> Result<(), EndReason> {
        let context = &self.shared.context;
        let state = context.replica.state.read();
        match state.session(session) {
            None => Err(EndReason::Told(CloseReason::SessionEnded)),
            Some(open) if open.attachment != attachment => Err(EndReason::Told(CloseReason::SessionMoved)),
            Some(_) => {
                context.registry.attach(self.peer.id, session, attachment);
                // A question may have come while the client was away.
                let is_told =
                    |asked: &AskedHolder<'_>| asked.is_acquired && !mutant::is(Mutant::QuestionMissed);
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
        // A word to close counts more than an answer: the node may have stopped serving meanwhile.
        let close = messages.iter().position(|m| matches!(m, Message::Close(_) | Message::Lost));
        if let Some(message) = messages.swap_remove_back(close.unwrap_or(0)) {
            return Ok(message);
        }
    }
}

/// The one that the client shows, or a new one for a new session. Known to the client and this connection
/// alone: what goes through the log is its proof.
fn password_of(request: &ConnectRequest) -> [u8; 16] {
    let shown = request.password[..].try_into().ok().filter(|_| request.session_id != SessionId::NONE);
    shown.unwrap_or_else(|| {
        // Also instead of one of another length, which no session has.
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
        // No session is at attachment 0: one that is not known here is over, or has to be asked for again.
        _ => Command::Reattach { from: Some(known.unwrap_or(Attachment(0))), session, proof, timeout_ms },
    }
}

/// The session is not valid.
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
        // Left out for clients that left theirs out, as ZooKeeper does since 3.9.3.
        read_only: request.read_only.map(|_| access == Access::ReadOnly),
    };
    let mut out = BytesMut::with_capacity(64);
    encode::connect_response(&response, &mut out);
    out
}
