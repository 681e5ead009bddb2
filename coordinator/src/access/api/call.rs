//! Conversation of one HTTP request with the node: submitted commands and their replies. Like a connection, a
//! call has its own outbox; while the request waits for a lock, the call is registered beside the connections
//! and receives the session's grants and its end.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::Notice;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, SessionId, Xid, decode};
use rowlock_state::command::{Attachment, Command};
use rowlock_state::outcome::Applied;

use super::request_id::{self, PageEntry};
use super::{Api, Caller, Lease, Refusal, Secret};
use crate::limits::API_ANSWER_MAX;
use crate::node::delivery::outbox::{self, Answer, CloseReason, Inbox, Message, Outbox};
use crate::node::delivery::registry::{Door, Most};
use crate::node::delivery::watch::ConnectionId;
use crate::node::proposer::Submission;
use crate::node::slow::SlowRequest;
use crate::node::zk::ClientContext;

/// Pause before a keepalive without an acknowledgment is sent to the leader again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Bound of the retries after another client took the session over.
pub(super) const MOVES_MAX: usize = 3;

pub(super) struct Call<'a> {
    context: &'a ClientContext,
    caller: &'a Caller,
    outbox: Outbox,
    inbox: Inbox,
    messages: VecDeque<Message>,
    /// Deadline for pending replies of the node.
    deadline: Instant,
    sign: Sign,
    seat: Option<(ConnectionId, SessionId)>,
    has_moved: bool,
}

/// State of the request's implicit keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// Not sent, or rejected by the leader.
    Open,
    Asked,
    /// The leader restarted the session's timer.
    Noted,
}

enum Heard {
    Applied(Box<Answer>),
    Notice(Notice),
    Sign,
}

impl<'a> Call<'a> {
    pub(super) fn new(api: &'a Api, caller: &'a Caller) -> Self {
        let (outbox, inbox) = outbox::channel();
        api.context.metrics.api_requests_in_progress.inc();
        Call {
            context: &api.context,
            caller,
            outbox,
            inbox,
            messages: VecDeque::new(),
            deadline: time::now() + API_ANSWER_MAX,
            sign: Sign::Open,
            seat: None,
            has_moved: false,
        }
    }

    /// Restarts the deadline for replies of the node.
    pub(super) fn has_waited(&mut self) {
        self.deadline = time::now() + API_ANSWER_MAX;
    }

    /// Returns whether the followed session was reattached: another call receives its events since.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Finds the lease of this secret in the local state. If the local state lacks the lease, the call first
    /// applies all committed changes.
    pub(super) async fn find(&mut self, secret: &Secret) -> Result<Lease, Refusal> {
        if let Some(lease) = self.find_lease(secret)? {
            return Ok(lease);
        }
        self.sync().await?;
        self.find_lease(secret)?.ok_or(Refusal::LeaseOver)
    }

    fn find_lease(&self, secret: &Secret) -> Result<Option<Lease>, Refusal> {
        let state = self.context.replica.state.read();
        let Some(open) = state.session(secret.session) else { return Ok(None) };
        if decides!("lease-secret-is-wrong", !secret.opens(&open.proof)) {
            return Err(Refusal::WrongSecret);
        }
        Ok(Some(Lease { session: secret.session, attachment: open.attachment, ttl_ms: open.timeout_ms }))
    }

    /// Waits until this node has applied all changes committed before the call.
    pub(super) async fn sync(&mut self) -> Result<(), Refusal> {
        self.submit(SessionId::NONE, Attachment::default(), Command::Noop).await.map(drop)
    }

    /// Registers the call for events of the session and its queue positions. The registration happens under
    /// the read lock of the state: earlier changes are visible in the state, later changes arrive as events.
    pub(super) fn follow(&mut self, lease: &Lease) -> Result<(), Refusal> {
        assert!(self.seat.is_none(), "a call follows one session");
        let most = Most {
            connections: self.context.config.client.max_connections,
            of_address: 0,
            half_open: usize::MAX,
        };
        let (registry, outbox) = (&self.context.registry, self.outbox.clone());
        let peer = registry
            .accepted(self.caller.address, Door::Plain, outbox, most)
            .map_err(|_| Refusal::Full("client.max_connections is reached"))?;
        self.seat = Some((peer.id, lease.session));
        registry.greeted(peer.id);
        peer.stats.opened(lease.session, Duration::from_millis(lease.ttl_ms.into()));
        let state = self.context.replica.state.read();
        match state.session(lease.session) {
            None => Err(Refusal::LeaseOver),
            Some(open) if decides!("lease-has-moved", open.attachment != lease.attachment) => {
                self.has_moved = true;
                Err(Refusal::Unknown)
            }
            Some(_) => {
                registry.attach(peer.id, lease.session, lease.attachment);
                Ok(())
            }
        }
    }

    /// Replicates a command of a lease. If the session was reattached meanwhile, the command is sent again
    /// with the new attachment.
    pub(super) async fn act(&mut self, secret: &Secret, command: Command) -> Result<Response, Refusal> {
        for _ in 0..MOVES_MAX {
            let lease = self.find(secret).await?;
            let applied = self.submit(lease.session, lease.attachment, command.clone()).await?;
            match applied.result {
                Err(ErrorCode::SessionMoved) => self.sync().await?,
                other => return other.map_err(Refusal::of),
            }
        }
        Err(Refusal::Unknown)
    }

    /// Replicates a write of a lease at most once: a repeated attempt gets the outcome of the first. See
    /// [`Self::act`].
    pub(super) async fn act_once(
        &mut self,
        secret: &Secret,
        attempt: u64,
        command: &Command,
    ) -> Result<Response, Refusal> {
        assert!(command.is_write(), "a retry has one effect");
        for _ in 0..MOVES_MAX {
            let lease = self.find(secret).await?;
            let Some((attachment, entry)) = self.entry(lease.session, attempt)? else {
                return Err(Refusal::LeaseOver);
            };
            let PageEntry::Write { id, acked } = entry else {
                self.turn(secret, &lease, attachment).await?;
                continue;
            };
            let command = command.clone().tagged(id, acked);
            match self.submit(lease.session, attachment, command).await?.result {
                // Another request began a new page meanwhile.
                Err(ErrorCode::SessionMoved) => self.sync().await?,
                other => return other.map_err(Refusal::of),
            }
        }
        Err(Refusal::Unknown)
    }

    /// Returns the outcome of the attempt if this node still has the outcome.
    pub(super) fn remembered(&self, session: SessionId, attempt: u64) -> Option<Response> {
        let state = self.context.replica.state.read();
        let kept: Vec<u64> = state.kept_writes(session).collect();
        request_id::find(&kept, attempt).and_then(|id| state.kept_outcome(session, id)?.ok())
    }

    /// Returns the page entry of the attempt and the attachment of the session, both from the same state.
    fn entry(&self, session: SessionId, attempt: u64) -> Result<Option<(Attachment, PageEntry)>, Refusal> {
        let state = self.context.replica.state.read();
        let Some(open) = state.session(session) else { return Ok(None) };
        let kept: Vec<u64> = state.kept_writes(session).collect();
        request_id::entry(open.attachment, &kept, attempt).map(|entry| Some((open.attachment, entry)))
    }

    /// Begins a new page of attempts. If another node began a new page first, the new page of that node is
    /// used.
    async fn turn(&mut self, secret: &Secret, lease: &Lease, from: Attachment) -> Result<(), Refusal> {
        let (session, proof, timeout_ms) = (lease.session, secret.proof(), lease.ttl_ms);
        let command = Command::Reattach { from: Some(from), session, proof, timeout_ms };
        match self.submit(SessionId::NONE, Attachment::default(), command).await?.result {
            Ok(_) => Ok(()),
            Err(ErrorCode::SessionMoved) => self.sync().await,
            Err(code) => Err(Refusal::of(code)),
        }
    }

    /// Replicates a command of this caller.
    ///
    /// # Errors
    /// [`Refusal::Full`]: the command was not executed. [`Refusal::Unknown`]: the command may have been
    /// executed.
    pub(super) async fn submit(
        &mut self,
        session: SessionId,
        attachment: Attachment,
        command: Command,
    ) -> Result<Applied, Refusal> {
        let (op, received) = (command.name(), time::now());
        let submission = Submission {
            session,
            attachment,
            identities: self.caller.identities.clone(),
            command,
            reply_to: self.outbox.clone(),
            tag: 0,
            received,
        };
        // Waits for the intake as a connection does. The number of connections and the bytes of bodies bound
        // the waiting calls.
        match time::timeout_at(self.deadline, self.context.proposer.submit(submission)).await {
            Ok(queued) => queued.map_err(|_| Refusal::NotServing)?,
            Err(_) => return Err(Refusal::Full("too many writes wait at this node")),
        }
        loop {
            match self.hear(self.deadline).await? {
                Some(Heard::Applied(answer)) => {
                    self.log_if_slow(op, session, (received, &answer));
                    return Ok(answer.applied);
                }
                Some(Heard::Notice(_) | Heard::Sign) => {}
                None => return Err(Refusal::Unknown),
            }
        }
    }

    fn log_if_slow(&self, op: &'static str, session: SessionId, (received, answer): (Instant, &Answer)) {
        let replied = time::now();
        if self.context.slow.is_slow(replied.saturating_since(received)) {
            let timeline = answer.timeline.as_ref();
            let (client, trace) = (self.caller.address, self.caller.trace.as_ref());
            let answered =
                SlowRequest { op, path: None, timeline, session, client, trace, received, replied };
            self.context.slow.log_request(&answered);
        }
    }

    /// Sends the request's implicit keepalive to the leader.
    pub(super) fn touch(&mut self, session: SessionId) {
        if self.context.touch.confirm(session, self.outbox.clone()) {
            self.sign = Sign::Asked;
        }
    }

    /// Waits until the leader has restarted the session's timer after [`Self::touch`].
    ///
    /// # Errors
    /// [`Refusal::LeaseOver`]; [`Refusal::Unknown`] if no leader acknowledged the keepalive before the
    /// deadline.
    pub(super) async fn be_noted(&mut self, session: SessionId) -> Result<(), Refusal> {
        loop {
            let until = match self.sign {
                _ if mutant::is(Mutant::KeepAliveUnnoted) => return Ok(()),
                Sign::Noted => return Ok(()),
                Sign::Asked => self.deadline,
                Sign::Open if self.context.replica.state.read().session(session).is_none() => {
                    return Err(Refusal::LeaseOver);
                }
                Sign::Open => {
                    self.touch(session);
                    self.deadline.min(time::now() + ASK_AGAIN_AFTER)
                }
            };
            let heard = self.hear(until).await?;
            if decides!("call-is-overdue", heard.is_none() && time::now() >= self.deadline) {
                return Err(Refusal::Unknown);
            }
            if decides!("lease-is-confirmed", self.sign == Sign::Open) {
                time::sleep(ASK_AGAIN_AFTER).await;
            }
        }
    }

    /// Waits until `until` for a notice about a queue position. Returns `None` at `until`.
    pub(super) async fn notice(&mut self, until: Instant) -> Result<Option<Notice>, Refusal> {
        loop {
            match self.hear(until).await? {
                None => return Ok(None),
                Some(Heard::Notice(notice)) if !mutant::is(Mutant::NoticesUnread) => return Ok(Some(notice)),
                Some(Heard::Notice(_) | Heard::Applied(_) | Heard::Sign) => {}
            }
        }
    }

    /// Waits until `until` for the next message. Returns `None` at `until`.
    async fn hear(&mut self, until: Instant) -> Result<Option<Heard>, Refusal> {
        loop {
            while let Some(message) = self.messages.pop_front() {
                if let Some(heard) = self.understand(message)? {
                    return Ok(Some(heard));
                }
            }
            if time::timeout_at(until, self.inbox.ready()).await.is_err() {
                return Ok(None);
            }
            self.inbox.take(&mut self.messages).map_err(|_| Refusal::Unknown)?;
        }
    }

    fn understand(&mut self, message: Message) -> Result<Option<Heard>, Refusal> {
        match message {
            Message::Applied { answer, .. } => Ok(Some(Heard::Applied(answer))),
            Message::Event(frame) => Ok(notice_of(frame).map(Heard::Notice)),
            Message::Touched => {
                self.sign = Sign::Noted;
                Ok(Some(Heard::Sign))
            }
            Message::NotTouched => {
                self.sign = Sign::Open;
                Ok(Some(Heard::Sign))
            }
            Message::Close(CloseReason::SessionEnded) => Err(Refusal::LeaseOver),
            Message::Close(CloseReason::SessionMoved) => {
                self.has_moved = true;
                Err(Refusal::Unknown)
            }
            Message::Lost | Message::Close(_) => Err(Refusal::Unknown),
            // Calls of this module request neither.
            Message::Reconfigured { .. } | Message::Reported { .. } => Ok(None),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.context.metrics.api_requests_in_progress.dec();
        if let Some((connection, session)) = self.seat {
            self.context.registry.gone(connection, Some(session));
        }
    }
}

/// Decodes a frame. Returns `None` if the frame is not a notice.
fn notice_of(mut frame: Bytes) -> Option<Notice> {
    frame.try_get_u32().ok()?;
    let header = decode::reply_header(&mut frame).ok()?;
    (header.xid == Xid::NOTICE).then(|| decode::notice(&mut frame).ok()).flatten()
}
