//! Input from servers: the handshake's answer, replies, events.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::Instant;
use rowlock_proto::lock::{ANNOUNCEMENT, Claim, QueuePosition};
use rowlock_proto::request::PathWatch;
use rowlock_proto::response::ReplyHeader;
use rowlock_proto::{ErrorCode, Request, Response, SessionId, Xid, decode};

use super::super::attachment::{Asked, ConnectionState, InFlight, Outgoing};
use super::super::deadline::Deadline;
use super::super::extensions::{Extensions, cluster_of, invites, leader_of};
use super::super::znode_removal::{NextStep, ZnodeRemoval};
use super::super::{Ending, Reply};
use super::{Done, Fault, Link, Machine, OpenSession, write_request};
use crate::error::Error;
use crate::limits::{CALLS_TO_ASK, REFUSED_PAUSE};

type Answer = Result<Response, ErrorCode>;

impl Machine {
    /// A whole frame came. After an error, or an ending, the connection is of no more use.
    pub(crate) fn frame(&mut self, frame: Bytes, now: Instant) -> Result<(), Fault> {
        match &mut self.link {
            Link::Down => Ok(()), // the session has just ended
            Link::Handshake(sent) => {
                let sent = *sent;
                self.handshake_answered(frame, sent, now)
            }
            Link::Up(attachment) => {
                attachment.hear(now);
                self.reply(frame, now)
            }
        }
    }

    /// Bytes came that are no whole frame yet.
    pub(crate) fn heard(&mut self, now: Instant) {
        if let Link::Up(attachment) = &mut self.link {
            attachment.hear(now);
        }
    }

    fn handshake_answered(&mut self, frame: Bytes, sent: Instant, now: Instant) -> Result<(), Fault> {
        let answer = decode::connect_response(frame)?;
        if answer.timeout_ms <= 0 || answer.session_id == SessionId::NONE {
            return match (&self.session, self.close_sent) {
                (None, _) => Err(Fault::Refused),
                // The reply to our closeSession was lost.
                (Some(_), true) => {
                    self.end(Ending::Closed);
                    Ok(())
                }
                (Some(_), false) => {
                    self.end(Ending::Expired);
                    Ok(())
                }
            };
        }
        let timeout = Duration::from_millis(u64::from(answer.timeout_ms.unsigned_abs()));
        match &mut self.session {
            Some(session) if decides!("resumed-session-differs", session.id != answer.session_id) => {
                return Err(Fault::OutOfOrder);
            }
            Some(session) => {
                session.timeout = timeout;
                session.deadline.attached(timeout, sent);
            }
            None => {
                self.session = Some(OpenSession {
                    id: answer.session_id,
                    password: answer.password,
                    timeout,
                    deadline: Deadline::new(timeout, sent),
                });
            }
        }
        self.link = Link::Up(ConnectionState::new(timeout, sent, now));
        self.introduce();
        Ok(())
    }

    /// The first frames on a new attachment: who we are, what we watch, and the question what the server
    /// understands.
    fn introduce(&mut self) {
        for index in 0..self.auths.len() {
            self.send_auth(index);
        }
        let Link::Up(attachment) = &mut self.link else { return };
        let forgets = mutant::is(Mutant::WatchesNotRegistered);
        let registrations = if forgets { Vec::new() } else { self.watches.registrations(self.last_zxid) };
        for watches in registrations {
            write_request(&mut self.effects.out, Xid::SET_WATCHES, Request::SetWatches(watches));
            attachment.set_watches += 1;
        }
        self.probe();
    }

    fn probe(&mut self) {
        let read = PathWatch { path: ANNOUNCEMENT.to_owned(), watch: false };
        self.send(Request::GetData(read), Outgoing::Probe);
    }

    fn reply(&mut self, mut frame: Bytes, now: Instant) -> Result<(), Fault> {
        let header = decode::reply_header(&mut frame)?;
        if header.err == Some(ErrorCode::SessionClosedRequireSaslAuth) {
            // The server closes, and would again.
            self.end(Ending::AuthRequired);
            return Ok(());
        }
        match header.xid {
            Xid::EVENT => {
                let mut event = decode::event(&mut frame)?;
                event.zxid = header.zxid;
                let waiters = self.watches.fire(&event);
                self.effects
                    .done
                    .extend(waiters.into_iter().map(|waiter| Done::Event(waiter, event.clone())));
                Ok(())
            }
            Xid::PING => {
                self.ping_answered(now);
                self.ask_for_leader_again();
                self.move_late()
            }
            Xid::NOTICE => {
                let notice = decode::notice(&mut frame)?;
                self.effects.done.extend(self.lock_states.notice(&notice, now).map(Done::LockState));
                Ok(())
            }
            Xid::AUTH => self.auth_answered(header.err),
            Xid::SET_WATCHES => self.watches_answered(header.err),
            _ => {
                if mutant::is(Mutant::AnyReplyCounts)
                    && let Some(session) = &mut self.session
                {
                    session.deadline.acknowledge(now);
                }
                self.request_answered(header, frame, now)
            }
        }
    }

    fn ping_answered(&mut self, now: Instant) {
        if let (Link::Up(attachment), Some(session)) = (&mut self.link, &mut self.session)
            && let Some(sent) = attachment.ping_answered()
        {
            self.was_of_use = true;
            let from_receipt = mutant::is(Mutant::DeadlineFromReceipt);
            session.deadline.acknowledge(if from_receipt { now } else { sent });
        }
    }

    fn auth_answered(&mut self, err: Option<ErrorCode>) -> Result<(), Fault> {
        let Link::Up(attachment) = &mut self.link else { return Ok(()) };
        let index = attachment.auths.pop_front().ok_or(Fault::OutOfOrder)?;
        match err {
            None => {
                let waiting = self.auths[index].waiting.take();
                self.effects.done.extend(waiting.map(|signal| Done::Signal(signal, Ok(()))));
            }
            Some(code) => {
                tracing::warn!(scheme = %self.auths[index].credential.scheme, %code, "credential refused: session closed");
                self.end(Ending::AuthFailed);
            }
        }
        Ok(())
    }

    fn watches_answered(&mut self, err: Option<ErrorCode>) -> Result<(), Fault> {
        let Link::Up(attachment) = &mut self.link else { return Ok(()) };
        attachment.set_watches = attachment.set_watches.checked_sub(1).ok_or(Fault::OutOfOrder)?;
        if err.is_some() { Err(Fault::WatchesRefused) } else { Ok(()) }
    }

    fn request_answered(&mut self, header: ReplyHeader, mut body: Bytes, now: Instant) -> Result<(), Fault> {
        let Link::Up(attachment) = &mut self.link else { return Ok(()) };
        let expected = attachment
            .in_flight
            .front()
            .filter(|first| decides!("reply-is-expected", first.xid == header.xid));
        let first = expected.ok_or(Fault::OutOfOrder)?;
        let answer = match header.err {
            None => match decode::response(&mut body, first.opcode) {
                Ok(response) => Ok(response),
                // Asked again, the server would say the same again, without end.
                Err(_) if is_read(&first.job) => Err(ErrorCode::MarshallingError),
                Err(e) => return Err(e.into()),
            },
            // Our session is fine, but this server takes us for one of its former connections. The calls are
            // kept.
            Some(ErrorCode::SessionMoved) if attachment.extensions.is_some_and(|e| e.tagged > 0) => {
                return Err(Fault::Moved);
            }
            Some(code) => Err(code),
        };
        let InFlight { job, .. } = attachment.in_flight.pop_front().expect("just looked at");
        if decides!("reply-has-zxid", header.zxid.0 > 0) {
            self.last_zxid = self.last_zxid.max(header.zxid);
        }
        self.was_of_use |= matches!(job, Outgoing::Call(_) | Outgoing::Removal(_));
        match job {
            Outgoing::Call(asked) => {
                let waits = has_to_wait(&answer) && self.elsewhere.when_waiting;
                self.call_answered(asked, answer, now);
                self.count_answer();
                if waits || self.is_invited {
                    self.use_the_rest()?;
                }
            }
            Outgoing::Removal(removal) => self.removal_answered(removal, answer),
            Outgoing::Probe => self.probe_answered(answer)?,
            Outgoing::AskForLeader => self.leader_answered(answer)?,
            Outgoing::Options => self.options_answered(answer),
            Outgoing::Verify(claims) => self.verify_answered(claims, answer, now),
            Outgoing::Close => self.end(Ending::Closed),
        }
        if header.err == Some(ErrorCode::SessionExpired) && self.ending.is_none() {
            self.end(Ending::Expired);
        }
        Ok(())
    }

    fn call_answered(&mut self, mut asked: Asked, answer: Answer, now: Instant) {
        if decides!(
            "refused-call-is-repeated",
            answer.as_ref().is_err_and(|code| self.is_to_be_repeated(&asked, *code))
        ) {
            return self.repeat(Outgoing::Call(asked), now);
        }
        if let Some(watch) = asked.call.watch.take() {
            self.watches.register(watch, answer.as_ref().err().copied());
        }
        if let Ok(Response::QueuePositions(positions)) = &answer {
            self.follow(&asked, positions, now);
        }
        if let (Request::Release(claims), Ok(_)) = (&asked.call.request, &answer) {
            self.lock_states.given_back(claims);
        }
        let result = match answer {
            Ok(response) => Ok(Reply { response }),
            Err(ErrorCode::SessionExpired) => Err(Error::SessionExpired),
            Err(code) => Err(Error::Rejected(code)),
        };
        self.answer(asked, result);
    }

    /// Moves to the leader, if that is elsewhere, while this session does nothing, except wait in queues.
    /// Calls that wait ask again there, and keep their places.
    ///
    /// A session that holds something stays, so that a leader that cannot be reached costs it no lock; so
    /// does one with a disconnect grace, which the closing of this connection would set going.
    fn use_the_rest(&mut self) -> Result<(), Fault> {
        let Link::Up(attachment) = &self.link else { return Ok(()) };
        let is_idle = attachment.in_flight.is_empty() && self.waiting.is_empty() && self.refused.is_empty();
        let may_go =
            is_idle && self.closing.is_none() && self.grace.is_zero() && self.lock_states.hold_nothing();
        self.go_to_the_leader(may_go)
    }

    /// Leaves this connection for the leader, if that is elsewhere.
    fn go_to_the_leader(&mut self, may_go: bool) -> Result<(), Fault> {
        let Some(leader) = self.leader.take_if(|_| may_go) else { return Ok(()) };
        if self.is_invited {
            rare::taken(Rare::ClientInvited);
        }
        Err(Fault::LedFrom(leader))
    }

    /// A session that returns is served where it is first, and moves to the leader with its next heartbeat:
    /// when a leader dies, all sessions return at once, and to connect each of them twice would keep the last
    /// ones from being back in time. Not with a disconnect grace, which the late move would set going.
    fn moves_late(&self) -> bool {
        self.attachments > 0 && self.grace.is_zero()
    }

    /// Moves to the leader behind a heartbeat that was answered, unless a call is under way that would not be
    /// sent again there.
    fn move_late(&mut self) -> Result<(), Fault> {
        let Link::Up(attachment) = &self.link else { return Ok(()) };
        let is_sent_again = |it: &InFlight| match &it.job {
            Outgoing::Call(asked) => asked.tag.is_some() || !asked.call.request.is_write(),
            _ => false,
        };
        let loses_nothing = attachment.in_flight.iter().all(is_sent_again);
        let may_go = self.elsewhere.at_once && self.moves_late() && loses_nothing && self.closing.is_none();
        self.go_to_the_leader(may_go)
    }

    /// Asked again, it has no second effect, and will be answered.
    fn is_to_be_repeated(&self, asked: &Asked, code: ErrorCode) -> bool {
        // The node that it is meant for may be down for long, and its operator wants to hear of that.
        let is_given_up = matches!(asked.call.request, Request::Operate(_)) && code != ErrorCode::ThrottledOp;
        if decides!("refusal-is-final", is_given_up || !is_passing(code)) {
            return false;
        }
        let exactly_once = self.extensions.is_some_and(|extensions| extensions.tagged > 0);
        decides!(
            "refused-call-may-repeat",
            exactly_once && (asked.tag.is_some() || !asked.call.request.is_write())
        )
    }

    fn repeat(&mut self, job: Outgoing, now: Instant) {
        self.paused_until = Some(now + REFUSED_PAUSE);
        self.refused.push_back(job);
    }

    /// Follows these queue znodes: from now on the server pushes their grants and losses.
    fn follow(&mut self, asked: &Asked, positions: &[QueuePosition], now: Instant) {
        for (position, cell) in positions.iter().zip(&asked.call.cells) {
            let (claim, held): (&Claim, _) = match position {
                QueuePosition::Held(claim) => (claim, Some(now)),
                QueuePosition::Waiting { claim, .. } => (claim, None),
                QueuePosition::Busy { .. }
                | QueuePosition::Deadlock(_)
                | QueuePosition::LimitIs(_)
                | QueuePosition::Absent => {
                    continue;
                }
            };
            let news = self.lock_states.follow(claim, held, cell);
            self.effects.done.extend(news.map(Done::LockState));
        }
    }

    /// Decides on following invitations.
    fn may_be_invited(&self) -> bool {
        let has_announcement = self.extensions.is_some_and(|extensions| extensions.has_locks());
        let may_move = self.elsewhere.by_invitation && self.grace.is_zero() && self.closing.is_none();
        may_move && has_announcement
    }

    fn count_answer(&mut self) {
        let may_be_invited = self.may_be_invited();
        let Link::Up(attachment) = &mut self.link else { return };
        attachment.answers = attachment.answers.saturating_add(1);
        if may_be_invited && attachment.answers == CALLS_TO_ASK {
            self.ask_for_leader();
        }
    }

    /// Asks for the leader with a heartbeat, if the session was at work without asking by itself. An unused
    /// invitation becomes void.
    fn ask_for_leader_again(&mut self) {
        self.is_invited = false;
        let may_be_invited = self.may_be_invited();
        let Link::Up(attachment) = &mut self.link else { return };
        let answers = std::mem::take(&mut attachment.answers);
        if may_be_invited && (1..CALLS_TO_ASK).contains(&answers) {
            self.ask_for_leader();
        }
    }

    fn ask_for_leader(&mut self) {
        let read = PathWatch { path: ANNOUNCEMENT.to_owned(), watch: false };
        self.send(Request::GetData(read), Outgoing::AskForLeader);
    }

    fn leader_answered(&mut self, answer: Answer) -> Result<(), Fault> {
        let Ok(Response::Data(Some(data), _)) = answer else { return Ok(()) };
        self.leader = leader_of(&data).filter(|leader| self.elsewhere.endpoints.contains(leader));
        self.is_invited = self.leader.is_some() && invites(&data);
        if self.is_invited { self.use_the_rest() } else { Ok(()) }
    }

    fn probe_answered(&mut self, answer: Answer) -> Result<(), Fault> {
        match answer {
            Ok(Response::Data(data, _)) => {
                let data = data.unwrap_or_default();
                let cluster = cluster_of(&data);
                if decides!(
                    "server-is-of-other-cluster",
                    cluster.is_some() && self.cluster.is_some_and(|ours| cluster != Some(ours))
                ) {
                    self.end(Ending::OtherCluster);
                    return Ok(());
                }
                self.cluster = self.cluster.or(cluster);
                self.leader = leader_of(&data).filter(|leader| self.elsewhere.endpoints.contains(leader));
                self.go_to_the_leader(self.elsewhere.at_once && !self.moves_late())?;
                self.probed(Extensions::parse(&data));
            }
            Err(code) if is_passing(code) => self.probe(),
            Ok(_) | Err(_) => self.probed(Extensions::NONE),
        }
        Ok(())
    }

    fn options_answered(&mut self, answer: Answer) {
        if let Err(code) = answer {
            tracing::warn!(%code, "the server refused the disconnect grace; the whole session timeout holds");
        }
    }

    fn verify_answered(&mut self, claims: Vec<Claim>, answer: Answer, now: Instant) {
        match answer {
            Ok(Response::Held(held)) => {
                let changes = self.lock_states.verified(&claims, &held);
                self.effects.done.extend(changes.into_iter().map(Done::LockState));
            }
            Err(code) if is_passing(code) => self.repeat(Outgoing::Verify(claims), now),
            Ok(_) => tracing::warn!("a verification was answered with something else"),
            Err(code) => tracing::warn!(%code, "held locks could not be verified after a reconnect"),
        }
    }

    fn removal_answered(&mut self, mut removal: Box<ZnodeRemoval>, response: Result<Response, ErrorCode>) {
        if let (Some(claim), Ok(_)) = (removal.claim(), &response) {
            self.lock_states.given_back(std::slice::from_ref(claim));
        }
        match removal.replied(response.as_ref().map_err(|code| *code)) {
            NextStep::Again => self.waiting.push_back(Outgoing::Removal(removal)),
            NextStep::Done => {}
            NextStep::NotHeld => {
                tracing::warn!(lock = removal.lock(), "the lock was lost before its release")
            }
            NextStep::GivenUp(code) => {
                let lock = removal.lock();
                tracing::warn!(lock, %code, "a queue znode could not be removed; it stays until the session ends");
            }
        }
    }
}

fn has_to_wait(answer: &Answer) -> bool {
    let waits = |position: &QueuePosition| matches!(position, QueuePosition::Waiting { .. });
    matches!(answer, Ok(Response::QueuePositions(positions)) if positions.iter().any(waits))
}

/// Reports a call without a write.
fn is_read(job: &Outgoing) -> bool {
    matches!(job, Outgoing::Call(asked) if !asked.call.request.is_write())
}

/// The server has no room now, or does not know the outcome; asked again, it will.
fn is_passing(code: ErrorCode) -> bool {
    use ErrorCode::{ConnectionLoss, OperationTimeout, RequestTimeout, ThrottledOp};
    matches!(code, ThrottledOp | ConnectionLoss | OperationTimeout | RequestTimeout)
}
