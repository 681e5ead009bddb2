//! Connections come and go: the handshake, and what becomes of what was in flight.

use bytes::Bytes;
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::time::Instant;
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::{SessionId, encode};

use super::super::Ending;
use super::super::attachment::{InFlight, Outgoing};
use super::{Done, Link, Machine};
use crate::error::Error;
use crate::limits::TRIES;
use crate::servers::Elsewhere;

impl Machine {
    /// Accepts or refuses a connection before [`Machine::connected`]. A connection that cannot keep a secret
    /// is refused while the session has credentials to send; credentials of waiting `add_auth` calls are
    /// refused instead.
    pub(crate) fn takes_connection(&mut self, keeps_secrets: bool) -> bool {
        assert!(matches!(self.link, Link::Down), "one connection at a time");
        self.keeps_secrets = keeps_secrets;
        if keeps_secrets {
            return true;
        }
        for auth in std::mem::take(&mut self.auths) {
            match auth.waiting {
                Some(signal) => self.effects.done.push(Done::Signal(signal, Err(Error::PlaintextPassword))),
                None => self.auths.push(auth),
            }
        }
        self.auths.is_empty()
    }

    /// No server can be reached over a connection that keeps a secret. Ends the session if none was opened;
    /// one that was waits for such a server.
    pub(crate) fn reaches_no_private_connection(&mut self) {
        if self.session.is_none() && self.ending.is_none() {
            self.end(Ending::PlaintextPassword);
        }
    }

    /// A connection stands: starts the handshake. `elsewhere`: where to move if the leader is there.
    pub(crate) fn connected(&mut self, now: Instant, elsewhere: Elsewhere) {
        assert!(matches!(self.link, Link::Down), "one connection at a time");
        self.effects.out.clear();
        (self.elsewhere, self.leader, self.is_invited) = (elsewhere, None, false);
        self.was_of_use = false;
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.last_zxid,
            timeout_ms: i32::try_from(self.asked.as_millis()).unwrap_or(i32::MAX),
            session_id: self.session.as_ref().map_or(SessionId::NONE, |session| session.id),
            password: self
                .session
                .as_ref()
                .map_or(Bytes::from_static(&[0; 16]), |session| session.password.clone()),
            read_only: Some(false),
        };
        encode::connect_request(&request, &mut self.effects.out);
        self.link = Link::Handshake(now);
    }

    /// The connection is gone, as of `now`: not later than its socket is closed.
    pub(crate) fn disconnected(&mut self, now: Instant) {
        if let (Link::Up(attachment), Some(session)) = (&self.link, &mut self.session)
            && attachment.told_grace
        {
            session.deadline.cut_off(now, self.grace);
        }
        self.cut();
    }

    /// The present connection, or the last one, has done more than to introduce us: the server can be relied
    /// on.
    pub(crate) fn was_of_use(&self) -> bool {
        self.was_of_use
    }

    /// The present connection stands, and nothing has failed on it: an idle session asks for little.
    pub(crate) fn is_sound(&self) -> bool {
        matches!(&self.link, Link::Up(attachment) if attachment.is_answered())
    }

    /// Puts what was in flight back in front of what waits. What takes effect once, and what may be repeated,
    /// is sent again on the next connection; other calls fail with an unknown outcome.
    pub(super) fn cut(&mut self) {
        self.effects.out.clear();
        self.paused_until = None;
        let Link::Up(attachment) = std::mem::replace(&mut self.link, Link::Down) else { return };
        let refused = std::mem::take(&mut self.refused);
        let exactly_once = attachment.extensions.is_some_and(|extensions| extensions.tagged > 0);
        let mut again: Vec<Outgoing> = refused.into();
        for (at, InFlight { job, .. }) in attachment.in_flight.into_iter().enumerate() {
            let is_first = at == 0;
            match job {
                Outgoing::Call(mut asked)
                    if decides!(
                        "unanswered-call-may-repeat",
                        exactly_once && (asked.tag.is_some() || !asked.call.request.is_write())
                    ) =>
                {
                    asked.breaks += u32::from(is_first);
                    let connections = asked.breaks;
                    if connections >= TRIES || is_first && choice::taken(Choice::GivenUpSoon, 2) {
                        self.answer(asked, Err(Error::GivenUp { connections }));
                    } else {
                        again.push(Outgoing::Call(asked));
                    }
                }
                Outgoing::Call(asked) => self.answer(asked, Err(Error::ConnectionLoss)),
                Outgoing::Removal(mut removal) => match removal.disconnected(is_first) {
                    true => again.push(Outgoing::Removal(removal)),
                    false => tracing::warn!("a queue znode could not be removed: connections break over it"),
                },
                Outgoing::Close => again.push(Outgoing::Close),
                // Of this connection only.
                Outgoing::Probe | Outgoing::AskForLeader | Outgoing::Options | Outgoing::Verify(_) => {}
            }
        }
        for job in again.into_iter().rev() {
            self.waiting.push_front(job);
        }
    }
}
