//! The session machine: decides what to send, what to answer and when the session is lost.
//!
//! Pure: inputs are commands of the handles, frames of a server, the fate of connections, and `now`; outputs
//! collect in [`Effects`]. [`super::core::Core`] feeds and executes it. It must never read a clock, do IO,
//! or complete a call directly: states are published before completions, so that a caller that sees an error
//! also sees the state behind it.

mod inbound;
#[cfg(test)]
mod leader_tests;
mod link;
mod outbound;
#[cfg(test)]
mod rowlock_tests;
#[cfg(test)]
pub(super) mod tests;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::choice::{self, Choice};
use rowlock_env::time::Instant;
use rowlock_proto::frame::FrameError;
use rowlock_proto::{
    ClusterId, DecodeError, Request, RequestFrame, SessionId, WatchedEvent, Xid, Zxid, encode,
};
use tokio::sync::oneshot;

use super::attachment::{Asked, ConnectionState, Outgoing, Tags};
use super::deadline::Deadline;
use super::extensions::Extensions;
use super::lock_states::{LockStates, StateChange};
use super::watches::{WatchSender, Watches};
use super::{Action, Ending, Reply, ReplySender, SessionState, SessionTicket, Vitals};
use crate::error::Error;
use crate::servers::Elsewhere;
use crate::settings::Credential;

type Signal = oneshot::Sender<Result<(), Error>>;

/// Reason for giving up a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("closed by the server")]
    Closed,
    /// Before it had done anything for us.
    #[error(
        "it hangs up without opening a session: it has no quorum or no room, or this is no port for clients"
    )]
    ClosedAtOnce,
    #[error("this port speaks HTTP, and is not the one for clients")]
    Http,
    #[error(transparent)]
    Socket(io::Error),
    #[error("the server is silent")]
    Silent,
    #[error("the server opens no session")]
    Refused,
    #[error("the server answers out of order")]
    OutOfOrder,
    #[error("the server refused setWatches")]
    WatchesRefused,
    #[error("the session was resumed on another connection")]
    Moved,
    /// Nothing is under way on this connection that would not be sent again.
    #[error("{0} leads")]
    LedFrom(String),
    /// The connection goes to another machine, unencrypted.
    #[error("a password is not sent over a plain connection")]
    PlaintextPassword,
    #[error("the server wants TLS")]
    WantsTls,
    #[error("bad frame: {0}")]
    Frame(#[from] FrameError),
    #[error("bad frame: {0}")]
    Decode(#[from] DecodeError),
}

/// Something to tell a waiting handle.
pub(crate) enum Done {
    Call(ReplySender, Result<Reply, Error>),
    Signal(Signal, Result<(), Error>),
    Event(WatchSender, WatchedEvent),
    /// A change of a place in a queue.
    LockState(StateChange),
    /// Dropping them tells their waiters that they will never fire.
    Watches(Watches),
}

impl Done {
    /// Completes calls, for the executor of the machine's effects, after the vitals are published.
    pub(crate) fn complete(self) {
        match self {
            // The caller may have gone: nothing to do.
            Done::Call(reply, result) => drop(reply.send(result)),
            Done::Signal(signal, result) => drop(signal.send(result)),
            Done::Event(watch, event) => drop(watch.send(event)),
            Done::LockState((cell, news)) => cell.hear(news),
            Done::Watches(watches) => drop(watches),
        }
    }
}

/// Effects that the machine requests.
#[derive(Default)]
pub(crate) struct Effects {
    /// Bytes for the server.
    pub out: BytesMut,
    /// Completions to deliver after the vitals are published.
    pub done: Vec<Done>,
}

/// A session that a server has opened.
struct OpenSession {
    id: SessionId,
    password: Bytes,
    timeout: Duration,
    deadline: Deadline,
}

enum Link {
    Down,
    /// The handshake was sent then.
    Handshake(Instant),
    Up(ConnectionState),
}

/// A credential of the session, and who waits for its acceptance.
struct Auth {
    credential: Credential,
    waiting: Option<Signal>,
}

/// One session, from its first handshake to its end.
pub(crate) struct Machine {
    /// The timeout to ask for.
    asked: Duration,
    /// The disconnect grace to ask for, where the server knows of such; zero: none.
    grace: Duration,
    session: Option<OpenSession>,
    /// The last position that a reply showed. Events do not move it: another event of the same change may be
    /// on its way.
    last_zxid: Zxid,
    link: Link,
    /// Endpoints to move to from this connection if the leader is there.
    elsewhere: Elsewhere,
    /// The endpoint among these where it is.
    leader: Option<String>,
    /// The leader has room for this session, which moves there with nothing to lose.
    is_invited: bool,
    /// Not sent yet, or to be sent again, in the order of the session.
    waiting: VecDeque<Outgoing>,
    /// Requests that a server refused for the moment; they go before `waiting`.
    refused: VecDeque<Outgoing>,
    /// No request is sent before this time: a server was throttling.
    paused_until: Option<Instant>,
    tags: Tags,
    lock_states: LockStates,
    auths: Vec<Auth>,
    /// Permission to send credentials on the present or last connection.
    keeps_secrets: bool,
    watches: Watches,
    /// Present once the session is to be closed: no new calls.
    closing: Option<Vec<Signal>>,
    close_sent: bool,
    /// The present connection, or the last one, has done more than to introduce us.
    was_of_use: bool,
    attachments: u64,
    extensions: Option<Extensions>,
    /// Servers of another cluster are refused. `None`: none has said its cluster yet.
    cluster: Option<ClusterId>,
    ending: Option<Ending>,
    pub effects: Effects,
}

impl Machine {
    pub(crate) fn new(asked: Duration, grace: Duration, credentials: Vec<Credential>) -> Self {
        Machine {
            asked,
            grace,
            session: None,
            last_zxid: Zxid(0),
            link: Link::Down,
            elsewhere: Elsewhere::default(),
            leader: None,
            is_invited: false,
            waiting: VecDeque::new(),
            refused: VecDeque::new(),
            paused_until: None,
            tags: Tags::default(),
            lock_states: LockStates::default(),
            auths: credentials.into_iter().map(|credential| Auth { credential, waiting: None }).collect(),
            keeps_secrets: true,
            watches: Watches::default(),
            closing: None,
            close_sent: false,
            was_of_use: false,
            attachments: 0,
            extensions: None,
            cluster: None,
            ending: None,
            effects: Effects::default(),
        }
    }

    /// Takes over the session of this ticket, which lives if a server accepts the ticket. The timeout counts
    /// from now until then.
    pub(crate) fn of_session(mut self, ticket: Option<SessionTicket>, now: Instant) -> Self {
        let timeout = self.asked;
        self.session = ticket.map(|SessionTicket { id, password, writes }| {
            self.tags = Tags::after(writes);
            OpenSession { id, password, timeout, deadline: Deadline::new(timeout, now) }
        });
        self
    }

    /// The right to the session; `None` before a server has opened it.
    pub(crate) fn ticket(&self) -> Option<SessionTicket> {
        let session = self.session.as_ref()?;
        Some(SessionTicket { id: session.id, password: session.password.clone(), writes: self.tags.last() })
    }

    /// Ends here without a message to the servers, which keep the session until its timeout. Returns the
    /// right to the session; `None` if it is not open, or is being closed.
    pub(crate) fn detach(&mut self) -> Option<SessionTicket> {
        if self.ending.is_some() || self.closing.is_some() {
            return None;
        }
        let ticket = self.ticket()?;
        self.end(Ending::Closed);
        Some(ticket)
    }

    /// Accepts only servers of this cluster.
    pub(crate) fn of_cluster(mut self, cluster: Option<ClusterId>) -> Self {
        self.cluster = cluster;
        self
    }

    /// The cluster of the servers. `None`: no server has reported one.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    pub(crate) fn vitals(&self) -> Vitals {
        let valid_until = self.session.as_ref().map(|session| session.deadline.valid_until());
        let state = match (self.ending, &self.link, valid_until) {
            (Some(ending), _, _) => ending.state(),
            (None, Link::Up(attachment), _) if attachment.extensions.is_some() => SessionState::Connected,
            (None, _, Some(until)) => SessionState::Suspended { until },
            (None, _, None) => SessionState::Connecting,
        };
        Vitals {
            state,
            session: self.session.as_ref().map_or(SessionId::NONE, |session| session.id),
            timeout: self.session.as_ref().map_or(Duration::ZERO, |session| session.timeout),
            valid_until: valid_until.filter(|_| self.ending.is_none()),
            attachments: self.attachments,
            extensions: self.extensions,
            ending: self.ending,
        }
    }

    /// A handle wants something.
    pub(crate) fn command(&mut self, command: Action) {
        let refused = self.ending.or(self.closing.is_some().then_some(Ending::Closed)).map(Ending::error);
        match (command, refused) {
            (Action::Call(call), Some(error)) => self.effects.done.push(Done::Call(call.reply, Err(error))),
            (Action::Call(call), None) => {
                if let Some(error) = self.refusal_while_down(&call.request) {
                    return self.effects.done.push(Done::Call(call.reply, Err(error)));
                }
                self.waiting.push_back(Outgoing::Call(Asked { call, sent: false, tag: None, breaks: 0 }));
            }
            (Action::Auth(_, signal), Some(error)) => {
                self.effects.done.push(Done::Signal(signal, Err(error)))
            }
            (Action::Auth(_, signal), None) if !self.keeps_secrets && !matches!(self.link, Link::Down) => {
                self.effects.done.push(Done::Signal(signal, Err(Error::PlaintextPassword)));
            }
            (Action::Auth(credential, signal), None) => {
                self.auths.push(Auth { credential, waiting: Some(signal) });
                self.send_auth(self.auths.len() - 1);
            }
            // Without a session, or with a closed one, the znode is as good as gone.
            (Action::Removal(_), Some(_)) => {}
            (Action::Removal(removal), None) => self.waiting.push_back(Outgoing::Removal(Box::new(removal))),
            (Action::Close(signal), _) => self.close(Some(signal)),
        }
    }

    /// Ends the session in good order: behind the requests that wait already. Without a session there is
    /// nothing to wait for.
    pub(crate) fn close(&mut self, signal: Option<Signal>) {
        if let Some(ending) = self.ending {
            self.effects.done.extend(signal.map(|signal| Done::Signal(signal, ending.of_close())));
            return;
        }
        if self.closing.is_none() {
            self.waiting.push_back(Outgoing::Close);
        }
        self.closing.get_or_insert_default().extend(signal);
        if self.session.is_none() {
            self.end(Ending::Closed);
        }
    }

    /// Does what is due at `now`, and sends what waits.
    pub(crate) fn tick(&mut self, now: Instant) -> Result<(), Fault> {
        if self.ending.is_some() {
            return Ok(());
        }
        if self.session.as_ref().is_some_and(|session| now >= session.deadline.valid_until()) {
            self.end(Ending::DeadlinePassed);
            return Ok(());
        }
        match &mut self.link {
            Link::Down => {}
            Link::Handshake(sent) if now >= *sent + self.asked / 3 => return Err(Fault::Silent),
            Link::Handshake(_) => {}
            Link::Up(attachment) if attachment.is_silent(now) => return Err(Fault::Silent),
            // Not with a grace, which a server would begin to count.
            Link::Up(attachment)
                if self.was_of_use
                    && attachment.is_answered()
                    && !attachment.told_grace
                    && choice::taken(Choice::ClientMoves, 200) =>
            {
                return Err(Fault::Closed);
            }
            Link::Up(attachment) => {
                if attachment.take_ping(now) {
                    write_request(&mut self.effects.out, Xid::PING, Request::Ping);
                }
                self.pump(now);
            }
        }
        Ok(())
    }

    /// Latest time of the next call of [`Machine::tick`].
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let link = match &self.link {
            Link::Down => None,
            Link::Handshake(sent) => Some(*sent + self.asked / 3),
            Link::Up(attachment) => Some(attachment.next_timer()),
        };
        let deadline = self.session.as_ref().map(|session| session.deadline.valid_until());
        link.into_iter().chain(deadline).chain(self.paused_until).min()
    }

    fn send_auth(&mut self, index: usize) {
        let Link::Up(attachment) = &mut self.link else { return };
        let Credential { scheme, secret } = self.auths[index].credential.clone();
        write_request(&mut self.effects.out, Xid::AUTH, Request::Auth { auth_type: 0, scheme, auth: secret });
        attachment.auths.push_back(index);
    }

    /// Completes a call, with a known outcome or an unknown one for good.
    fn answer(&mut self, asked: Asked, result: Result<Reply, Error>) {
        if let Some(tag) = asked.tag {
            self.tags.answered(tag);
        }
        self.effects.done.push(Done::Call(asked.call.reply, result));
    }

    /// The task ends, whatever the session is in.
    pub(crate) fn stop(&mut self) {
        if self.ending.is_none() {
            self.end(Ending::Stopped);
        }
    }

    /// Ends the session and all calls and waiters.
    fn end(&mut self, ending: Ending) {
        assert!(self.ending.is_none(), "a session ends once");
        let unasked =
            matches!(ending, Ending::DeadlinePassed | Ending::OtherCluster | Ending::Stopped) && self.is_up();
        let unsent = unasked.then(|| std::mem::take(&mut self.effects.out));
        self.cut();
        self.ending = Some(ending);
        if let Some(unsent) = unsent {
            // The server may live (and only the way back be cut): a final_write frees our locks sooner.
            self.effects.out = unsent;
            write_request(&mut self.effects.out, Xid(i32::MAX), Request::CloseSession);
        }
        for job in std::mem::take(&mut self.waiting) {
            if let Outgoing::Call(asked) = job {
                let error = if asked.sent { Error::ConnectionLoss } else { ending.error() };
                self.answer(asked, Err(error));
            }
        }
        for waiting in self.auths.iter_mut().filter_map(|auth| auth.waiting.take()) {
            self.effects.done.push(Done::Signal(waiting, Err(ending.error())));
        }
        for signal in self.closing.iter_mut().flat_map(std::mem::take) {
            let result = ending.of_close().map_err(|_| Error::ConnectionLoss);
            self.effects.done.push(Done::Signal(signal, result));
        }
        self.effects.done.push(Done::Watches(std::mem::take(&mut self.watches)));
    }
}

fn write_request(out: &mut BytesMut, xid: Xid, request: Request) {
    encode::request(&RequestFrame { xid, request }, out);
}
