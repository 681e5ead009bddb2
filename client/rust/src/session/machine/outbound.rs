//! Output to the server; the answer of the attachment's probe decides the form.
//!
//! Invariant: calls go out in the order of the session, also those that are sent again after a reconnect.
//! Nothing overtakes a call that has to wait (for an id, or because a server asked for patience).

use bytes::BytesMut;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::Instant;
use rowlock_proto::lock::SessionOptions;
use rowlock_proto::{Request, Xid, encode, frame};

use super::super::attachment::{Asked, InFlight, Outgoing, Tags};
use super::super::extensions::Extensions;
use super::{Link, Machine, write_request};
use crate::error::Error;
use crate::limits::REQUEST_BYTES;

/// The number of an attachment's first request; calls have positive ones.
const PROBE: Xid = Xid(0);

/// The next step for a call.
enum Step {
    /// Send it, with its number if it has one.
    Send(Asked),
    /// No caller waits for it any more.
    Skip(Option<u64>),
    /// The call is impossible on this connection.
    Fail(Asked, Error),
    /// The call and everything behind must wait.
    Hold(Asked),
}

impl Machine {
    /// A call that comes now would be the only one under way: nothing is gained by waiting for others to go
    /// with it. An unwaited release in front is no call: its client may be about to take the next lock.
    pub(crate) fn is_at_rest(&self, now: Instant) -> bool {
        let Link::Up(attachment) = &self.link else { return false };
        let nothing_is_due = self.next_timer().is_none_or(|at| now < at);
        let is_alone = match attachment.in_flight.len() {
            0 => true,
            1 => matches!(attachment.in_flight[0].job, Outgoing::Removal(_)),
            _ => false,
        };
        attachment.extensions.is_some() && is_alone && nothing_is_due
    }

    /// Sends the waiting calls if a server is connected.
    pub(crate) fn pump(&mut self, now: Instant) {
        if self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        self.paused_until = None;
        while let Link::Up(attachment) = &mut self.link
            && let Some(extensions) = attachment.extensions
            && let Some(job) = self.refused.pop_front().or_else(|| self.waiting.pop_front())
        {
            match job {
                Outgoing::Call(asked) => match step_of(asked, extensions, &mut self.tags) {
                    Step::Send(asked) => self.send_call(asked),
                    Step::Skip(tag) => tag.into_iter().for_each(|tag| self.tags.answered(tag)),
                    Step::Fail(asked, error) => self.answer(asked, Err(error)),
                    Step::Hold(asked) => {
                        self.waiting.push_front(Outgoing::Call(asked));
                        return;
                    }
                },
                Outgoing::Removal(mut removal) => {
                    let request = removal.request(extensions);
                    self.send(request, Outgoing::Removal(removal));
                }
                Outgoing::Close => {
                    self.close_sent = true;
                    self.send(Request::CloseSession, Outgoing::Close);
                }
                Outgoing::Verify(claims) => {
                    self.send(Request::Verify(claims.clone().into()), Outgoing::Verify(claims))
                }
                // Each connection has its own, which never wait.
                Outgoing::Probe | Outgoing::AskForLeader | Outgoing::Options => {}
            }
        }
    }

    pub(super) fn send(&mut self, request: Request, job: Outgoing) {
        let (max, begin) = (self.request_bytes(), self.effects.out.len());
        let Link::Up(attachment) = &mut self.link else { return };
        let opcode = request.opcode();
        let xid = if let Outgoing::Probe = job { PROBE } else { attachment.next_xid() };
        write_request(&mut self.effects.out, xid, request);
        if let Err(error) = bounded(&mut self.effects.out, begin, max) {
            // A removal whose path is that long: the znode goes with the session.
            tracing::warn!(%error, ?opcode, "a request of the session's own is not sent");
            return;
        }
        attachment.in_flight.push_back(InFlight { xid, opcode, job });
    }

    /// The request stays with the call: it may have to be sent again.
    fn send_call(&mut self, mut asked: Asked) {
        let (max, begin) = (self.request_bytes(), self.effects.out.len());
        let Link::Up(attachment) = &mut self.link else { return };
        let (xid, request, out) = (attachment.next_xid(), &asked.call.request, &mut self.effects.out);
        match asked.tag {
            Some(id) => encode::tagged(xid, id, self.tags.acked(), request, out),
            None => encode::request_of(xid, request, out),
        }
        if let Err(error) = bounded(out, begin, max) {
            // A server that took more may have got it before.
            let error = if asked.sent { Error::ConnectionLoss } else { error };
            return self.answer(asked, Err(error));
        }
        asked.sent = true;
        // A tagged write is answered as what it carries.
        let opcode = request.opcode();
        attachment.in_flight.push_back(InFlight { xid, opcode, job: Outgoing::Call(asked) });
    }

    /// The most that one request may have.
    fn request_bytes(&self) -> usize {
        self.extensions.and_then(|extensions| extensions.request_bytes()).unwrap_or(REQUEST_BYTES)
    }

    /// A call that will not be sent on any connection need not wait for one. (On a connection it is measured
    /// when it is sent.)
    pub(super) fn refusal_while_down(&self, request: &Request) -> Option<Error> {
        if self.is_up() {
            return None;
        }
        let mut frame = BytesMut::new();
        encode::tagged(PROBE, 0, 0, request, &mut frame);
        bounded(&mut frame, 0, self.request_bytes()).err()
    }

    /// Takes the server's extensions from the probe. Requests that must precede all others go out first.
    pub(super) fn probed(&mut self, extensions: Extensions) {
        let Link::Up(attachment) = &mut self.link else { return };
        attachment.extensions = Some(extensions);
        self.extensions = Some(extensions);
        self.attachments += 1;
        if !self.grace.is_zero() && extensions.session_options > 0 {
            attachment.told_grace = true;
            let disconnect_grace_ms = u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX);
            self.send(Request::SessionOptions(SessionOptions { disconnect_grace_ms }), Outgoing::Options);
        }
        if decides!("server-can-verify", extensions.has_locks()) {
            for claims in self.lock_states.unverified() {
                rare::taken(Rare::ClientVerifiesHolds);
                self.send(Request::Verify(claims.clone().into()), Outgoing::Verify(claims));
            }
        }
    }
}

/// Takes the frame that begins at `begin` back if it is longer than `max`.
fn bounded(out: &mut BytesMut, begin: usize, max: usize) -> Result<(), Error> {
    let bytes = out.len() - begin - frame::LENGTH_BYTES;
    if bytes <= max {
        return Ok(());
    }
    out.truncate(begin);
    Err(Error::TooLarge { bytes, max })
}

/// Decides the step for a call on a connection of this kind.
fn step_of(mut asked: Asked, extensions: Extensions, tags: &mut Tags) -> Step {
    // No caller waits for it: it need not happen, or its outcome does not matter.
    if decides!("caller-is-gone", asked.call.reply.is_closed()) {
        return Step::Skip(asked.tag);
    }
    if asked.sent {
        rare::taken(Rare::ClientSentAgain);
    }
    let request = &asked.call.request;
    if let Some(what) = extensions.lacks(request) {
        let error = if asked.sent { Error::ConnectionLoss } else { Error::Unsupported(what) };
        return Step::Fail(asked, error);
    }
    if decides!("call-needs-no-number", !extensions.tags(request)) {
        if asked.tag.is_some() {
            // It may have taken effect, and this server could not tell.
            return Step::Fail(asked, Error::ConnectionLoss);
        }
        return Step::Send(asked);
    }
    if mutant::is(Mutant::FreshNumberOnResend)
        && let Some(old) = asked.tag.take_if(|_| asked.sent)
    {
        tags.answered(old);
    }
    let Some(id) = asked.tag.or_else(|| tags.take()) else { return Step::Hold(asked) };
    asked.tag = Some(id);
    Step::Send(asked)
}
