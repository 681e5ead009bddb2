//! What servers say: the handshake's answer, replies, events.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time::Instant;
use rowlock_proto::response::ReplyHeader;
use rowlock_proto::{ErrorCode, Request, Response, SessionId, Xid, decode};

use super::super::attachment::{Attachment, InFlight, Job};
use super::super::chore::{Chore, Next};
use super::super::deadline::Deadline;
use super::super::{Call, Ending, Reply};
use super::{Done, Fault, Link, Machine, Session, put};
use crate::error::Error;

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
                self.reply(frame)
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
            Some(session) if session.id != answer.session_id => return Err(Fault::OutOfOrder),
            Some(session) => {
                session.timeout = timeout;
                session.deadline.set_timeout(timeout);
                session.deadline.acknowledge(sent);
            }
            None => {
                self.session = Some(Session {
                    id: answer.session_id,
                    password: answer.password,
                    timeout,
                    deadline: Deadline::new(timeout, sent),
                });
            }
        }
        self.link = Link::Up(Attachment::new(timeout, sent, now));
        self.attachments += 1;
        self.introduce();
        Ok(())
    }

    /// The first frames on a new attachment: who we are, and what we watch.
    fn introduce(&mut self) {
        for index in 0..self.auths.len() {
            self.send_auth(index);
        }
        let Link::Up(attachment) = &mut self.link else { return };
        for watches in self.watches.registrations(self.last_zxid) {
            put(&mut self.effects.out, Xid::SET_WATCHES, Request::SetWatches(watches));
            attachment.set_watches += 1;
        }
    }

    fn reply(&mut self, mut frame: Bytes) -> Result<(), Fault> {
        let header = decode::reply_header(&mut frame)?;
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
                self.ping_answered();
                Ok(())
            }
            Xid::AUTH => self.auth_answered(header.err),
            Xid::SET_WATCHES => self.watches_answered(header.err),
            _ => self.request_answered(header, frame),
        }
    }

    fn ping_answered(&mut self) {
        if let (Link::Up(attachment), Some(session)) = (&mut self.link, &mut self.session)
            && let Some(sent) = attachment.ping_answered()
        {
            session.deadline.acknowledge(sent);
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

    fn request_answered(&mut self, header: ReplyHeader, mut body: Bytes) -> Result<(), Fault> {
        let Link::Up(attachment) = &mut self.link else { return Ok(()) };
        let expected = attachment.in_flight.front().map(|first| first.xid);
        if expected != Some(header.xid) {
            return Err(Fault::OutOfOrder);
        }
        let response = match header.err {
            None => {
                let opcode = attachment.in_flight.front().expect("just looked at").opcode;
                Ok(decode::response(&mut body, opcode)?)
            }
            Some(code) => Err(code),
        };
        let InFlight { job, .. } = attachment.in_flight.pop_front().expect("just looked at");
        if header.zxid.0 > 0 {
            self.last_zxid = self.last_zxid.max(header.zxid);
        }
        let expired = header.err == Some(ErrorCode::SessionExpired);
        match job {
            Job::Call(call) => self.call_answered(call, response),
            Job::Chore(chore) => self.chore_answered(chore, response),
            Job::Close => self.end(Ending::Closed),
        }
        if expired && self.ending.is_none() {
            self.end(Ending::Expired);
        }
        Ok(())
    }

    fn call_answered(&mut self, call: Call, response: Result<Response, ErrorCode>) {
        if let Some(watch) = call.watch {
            self.watches.register(watch, response.as_ref().err().copied());
        }
        let result = match response {
            Ok(response) => Ok(Reply { response }),
            Err(ErrorCode::SessionExpired) => Err(Error::SessionExpired),
            Err(code) => Err(Error::Rejected(code)),
        };
        self.effects.done.push(Done::Call(call.reply, result));
    }

    fn chore_answered(&mut self, mut chore: Chore, response: Result<Response, ErrorCode>) {
        match chore.replied(response.as_ref().map_err(|code| *code)) {
            Next::Again => self.waiting.push_back(Job::Chore(chore)),
            Next::Done => {}
            Next::GivenUp(code) => {
                tracing::warn!(%code, "a queue znode could not be removed; it stays until the session ends");
            }
        }
    }
}
