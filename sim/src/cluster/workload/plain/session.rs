//! Session with a hand-written protocol: one request at a time, over one connection after another. Like
//! third-party clients, the session sends writes without numbers and understands no notices.
//!
//! The session reports its opening, all events, all zxids of replies, and lost connections to the checkers.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::time::{self, Instant};
use rowlock_frames::wire::{Wire, connect_request};
use rowlock_proto::request::{ConnectRequest, SetWatches};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, OpCode, Request, SessionId, Xid, Zxid, decode};

use super::super::Journal;
use super::super::chance::{chance, millis, pick};
use crate::cluster::membership::Membership;
use crate::history::access::Access;
use crate::history::client::{ClientFact, Connect, Follow};

/// Time after which an unaccepted connection means that the node is absent.
const DIAL: Duration = Duration::from_millis(500);
/// Pings within one session timeout.
const PINGS_PER_TIMEOUT: u32 = 5;
/// Percentage of the session timeout, counted from the sending of the last answered ping, after which the
/// client gives up its session.
const BELIEVED_PERCENT: u32 = 90;

/// Percentage of handshakes that the client soon abandons for another node.
const IMPATIENT_PERCENT: u64 = 40;

/// Percentage of handshakes that request a shorter timeout than the session has, and the shortest timeout.
const SHORTER_PERCENT: u64 = 15;
const SHORTEST: Duration = Duration::from_millis(1_500);

/// Reason for a call without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The connection is gone: the call may have taken effect.
    Lost,
    Over,
}

impl From<io::Error> for Fate {
    fn from(_: io::Error) -> Fate {
        Fate::Lost
    }
}

/// A reply: zxid of the header, and the result.
pub(super) type Answered = (Zxid, Result<Response, ErrorCode>);

/// A session, with or without a connection.
pub(super) struct Session {
    journal: Journal,
    membership: Membership,
    id: SessionId,
    password: Bytes,
    timeout: Duration,
    last_zxid: Zxid,
    next_xid: i32,
    wire: Option<Wire>,
    /// Send time of the last answered ping or handshake. Only these answers confirm the session.
    confirmed: Instant,
    /// Send time of the unanswered ping.
    pinged: Option<Instant>,
    /// Arrival of the last frame from the node.
    heard: Instant,
    /// Whether the session reports events and zxids.
    follows: bool,
    /// User and password of each digest that the session proves on each connection. `Some`: the session
    /// records the locks that a node shows to it.
    proofs: Option<Vec<Bytes>>,
    is_over: bool,
}

impl Session {
    /// Opens a session at a random node. Returns `None` if the node is out of reach.
    pub(super) async fn open(
        journal: &Journal,
        membership: &Membership,
        timeout: Duration,
    ) -> Option<Session> {
        Session::open_with(journal, membership, timeout, None).await
    }

    /// Opens a session that will request this disconnect grace.
    pub(super) async fn open_with(
        journal: &Journal,
        membership: &Membership,
        timeout: Duration,
        grace_ms: Option<u32>,
    ) -> Option<Session> {
        let mut session = Session {
            journal: journal.clone(),
            membership: membership.clone(),
            id: SessionId::NONE,
            password: Bytes::from_static(&[0; 16]),
            timeout,
            last_zxid: Zxid(0),
            next_xid: 1,
            wire: None,
            confirmed: time::now(),
            pinged: None,
            heard: time::now(),
            follows: false,
            proofs: None,
            is_over: false,
        };
        session.attach().await.ok()?;
        let timeout_ms = u32::try_from(session.timeout.as_millis()).unwrap_or(u32::MAX);
        journal.record(ClientFact::Session { session: session.id, timeout_ms, grace_ms });
        journal.record(ClientFact::Plain { session: session.id });
        Some(session)
    }

    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns whether the session is alive as far as the client knows.
    pub(super) fn is_alive(&self) -> bool {
        !self.is_over && time::now() < self.confirmed + self.timeout * BELIEVED_PERCENT / 100
    }

    /// Begins to report events, zxids and connections.
    pub(super) fn follow(&mut self) {
        self.follows = true;
    }

    /// Proves these digests from now on, and records all locks that a node shows.
    pub(super) async fn prove(&mut self, proofs: Vec<Bytes>) -> Result<(), Fate> {
        self.proofs = Some(proofs);
        self.authenticate().await
    }

    async fn authenticate(&mut self) -> Result<(), Fate> {
        let (Some(proofs), Some(wire)) = (&self.proofs, &mut self.wire) else { return Ok(()) };
        for auth in proofs.iter().cloned() {
            wire.queue_request(Xid::AUTH, &Request::Auth { auth_type: 0, scheme: "digest".to_owned(), auth });
        }
        Ok(wire.flush().await?)
    }

    /// Records an answer about locks, if the session proves digests.
    pub(super) fn record_access(&self, what: Access) {
        if self.proofs.is_some() {
            self.journal.record(ClientFact::Access(what));
        }
    }

    /// Returns the zxid of the newest state that a node has shown to the session.
    pub(super) fn last_zxid(&self) -> Zxid {
        self.last_zxid
    }

    /// Reports a fact about the session's watches.
    pub(super) fn report(&self, what: Follow) {
        if self.follows {
            self.journal.record(ClientFact::Follows { session: self.id, what });
        }
    }

    fn connects(&self, what: Connect) {
        if self.id != SessionId::NONE {
            self.journal.record(ClientFact::Connects { session: self.id, what });
        }
    }

    /// Closes the connection as a dying process does; the session stays.
    pub(super) fn hang_up(&mut self) {
        if self.wire.take().is_some() {
            self.connects(Connect::Left);
            self.report(Follow::Cut);
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        self.wire.is_some()
    }

    /// Connects to a random node, for the current session or for a new session.
    pub(super) async fn attach(&mut self) -> Result<(), Fate> {
        self.hang_up();
        let endpoints = self.membership.endpoints();
        let endpoints: Vec<&str> = endpoints.split(',').collect();
        let mut wire = Wire::connect(pick(&endpoints), DIAL).await?;
        if self.id != SessionId::NONE && chance(SHORTER_PERCENT) {
            // The shorter timeout counts from now on, since the node may accept the handshake without an
            // answer.
            self.timeout = self.timeout.min(SHORTEST.max(self.timeout * 2 / 3));
        }
        let hello = ConnectRequest {
            last_zxid_seen: self.last_zxid,
            session_id: self.id,
            password: self.password.clone(),
            ..connect_request(i32::try_from(self.timeout.as_millis()).unwrap_or(i32::MAX))
        };
        let sent = time::now();
        self.connects(Connect::Begins { has_seen: self.last_zxid > Zxid(0) });
        let limit = if chance(IMPATIENT_PERCENT) { millis(20, 300) } else { self.silence_max() };
        let answer = time::timeout(limit, wire.open(&hello)).await.map_err(|_| Fate::Lost)??;
        if answer.session_id == SessionId::NONE || answer.timeout_ms <= 0 {
            self.is_over = true;
            return Err(Fate::Over);
        }
        (self.id, self.password) = (answer.session_id, answer.password);
        self.timeout = Duration::from_millis(u64::try_from(answer.timeout_ms).unwrap_or(0));
        (self.confirmed, self.pinged, self.heard, self.wire) = (sent, None, time::now(), Some(wire));
        self.connects(Connect::Done);
        self.authenticate().await
    }

    fn silence_max(&self) -> Duration {
        self.timeout * 2 / 3
    }

    /// Sends a request and waits for its reply. Processes all frames that arrive before.
    pub(super) async fn ask(&mut self, request: Request) -> Result<Answered, Fate> {
        let mut answers = Vec::new();
        self.pour(&[request], &mut answers).await?;
        answers.pop().ok_or(Fate::Lost)
    }

    /// Sends a request whose refusal does not matter.
    pub(super) async fn attempt(&mut self, request: Request) -> Result<(), Fate> {
        self.ask(request).await.map(drop)
    }

    /// Sends all requests before the first reply. Adds the replies to `answers` in the order of the requests,
    /// including the replies before a failure.
    pub(super) async fn pour(
        &mut self,
        requests: &[Request],
        answers: &mut Vec<Answered>,
    ) -> Result<(), Fate> {
        let result = self.exchange(requests, answers).await;
        if result.is_err() {
            self.hang_up();
        }
        result
    }

    async fn exchange(&mut self, requests: &[Request], answers: &mut Vec<Answered>) -> Result<(), Fate> {
        let (first, silence) = (self.next_xid, self.silence_max());
        let wire = self.wire.as_mut().ok_or(Fate::Lost)?;
        for (xid, request) in (first..).zip(requests) {
            wire.queue_request(Xid(xid), request);
            self.next_xid = xid + 1;
        }
        let mut deadline = time::now() + silence;
        time::timeout_at(deadline, wire.flush()).await.map_err(|_| Fate::Lost)??;
        for (xid, request) in (first..).zip(requests) {
            let answered = loop {
                let wire = self.wire.as_mut().ok_or(Fate::Lost)?;
                let frame = time::timeout_at(deadline, wire.frame()).await.map_err(|_| Fate::Lost)??;
                if let Some(answered) = self.take(frame, Some((Xid(xid), request.opcode())))? {
                    break self.unless_lost(answered)?;
                }
            };
            answers.push(answered);
            deadline = time::now() + silence;
        }
        Ok(())
    }

    /// Returns a reply unless the reply ends the session or the connection.
    fn unless_lost(&mut self, answered: Answered) -> Result<Answered, Fate> {
        match answered.1 {
            Err(ErrorCode::SessionExpired) => {
                self.is_over = true;
                Err(Fate::Over)
            }
            Err(ErrorCode::SessionMoved) => {
                self.connects(Connect::ToldMoved);
                Err(Fate::Lost)
            }
            _ => Ok(answered),
        }
    }

    /// Processes a frame. Returns the reply if the frame answers `asked`.
    fn take(&mut self, mut frame: Bytes, asked: Option<(Xid, OpCode)>) -> Result<Option<Answered>, Fate> {
        let header = decode::reply_header(&mut frame).map_err(|_| Fate::Lost)?;
        self.heard = time::now();
        if header.xid == Xid::EVENT {
            let mut event = decode::event(&mut frame).map_err(|_| Fate::Lost)?;
            event.zxid = header.zxid;
            let (kind, path, zxid) = (event.event_type, event.path, event.zxid);
            self.record_access(Access::Shown { session: self.id, zxid, path: path.clone() });
            self.report(Follow::Told { kind, path, zxid });
            self.last_zxid = self.last_zxid.max(header.zxid);
            return Ok(None);
        }
        if header.xid == Xid::NOTICE {
            let place = decode::notice(&mut frame).map_err(|_| Fate::Lost)?.claim.path.to_string();
            self.record_access(Access::Noticed { session: self.id, place });
        }
        if header.xid == Xid::PING {
            self.confirmed = self.pinged.take().unwrap_or(self.confirmed);
        }
        let Some((xid, opcode)) = asked.filter(|_| header.xid.0 > 0) else { return Ok(None) };
        assert_eq!(header.xid, xid, "answers come in the order of their requests");
        self.last_zxid = self.last_zxid.max(header.zxid);
        // A refusal of the session itself shows no state.
        if matches!(header.err, None | Some(ErrorCode::NoNode | ErrorCode::NoWatcher)) {
            self.report(Follow::Shown { zxid: header.zxid });
        }
        let body = match header.err {
            None => Ok(decode::response(&mut frame, opcode).map_err(|_| Fate::Lost)?),
            Some(code) => Err(code),
        };
        Ok(Some((header.zxid, body)))
    }

    /// Lets time pass, pings, and processes arriving frames. Returns early when the connection ends.
    pub(super) async fn idle(&mut self, long: Duration) {
        let end = time::now() + long;
        while self.pass(end).await.unwrap_or(false) {}
    }

    /// Returns whether time is left to pass.
    async fn pass(&mut self, end: Instant) -> Result<bool, Fate> {
        let now = time::now();
        let is_silent = now >= self.heard + self.silence_max();
        let is_time_to_ping =
            self.pinged.is_none() && now >= self.confirmed + self.timeout / PINGS_PER_TIMEOUT;
        let Some(wire) = self.wire.as_mut().filter(|_| !is_silent) else {
            self.hang_up();
            return Err(Fate::Lost);
        };
        if now >= end {
            return Ok(false);
        }
        if is_time_to_ping {
            self.pinged = Some(now);
            wire.queue_request(Xid::PING, &Request::Ping);
            if wire.flush().await.is_err() {
                self.hang_up();
                return Err(Fate::Lost);
            }
        }
        let until = end.min(now + self.timeout / (2 * PINGS_PER_TIMEOUT));
        let Some(wire) = self.wire.as_mut() else { return Err(Fate::Lost) };
        match time::timeout_at(until, wire.frame()).await {
            Err(_) => Ok(true),
            Ok(Ok(frame)) => match self.take(frame, None) {
                Ok(_) => Ok(true),
                Err(fate) => {
                    self.hang_up();
                    Err(fate)
                }
            },
            Ok(Err(_)) => {
                self.hang_up();
                Err(Fate::Lost)
            }
        }
    }

    /// Registers persistent watches again on a new connection, in one request.
    pub(super) async fn rearm(
        &mut self,
        persistent: Vec<String>,
        recursive: Vec<String>,
    ) -> Result<Zxid, Fate> {
        let relative_zxid = self.last_zxid;
        let watches = SetWatches {
            relative_zxid,
            persistent,
            persistent_recursive: recursive,
            ..SetWatches::default()
        };
        let (zxid, result) = self.ask(Request::SetWatches2(watches)).await?;
        result.map(|_| zxid).map_err(|_| Fate::Lost)
    }

    /// Closes the session. On return the ephemeral znodes are gone, if the cluster was in reach.
    pub(super) async fn close(mut self) {
        if self.wire.is_none() {
            let _ = self.attach().await;
        }
        // A session that cannot be closed expires by itself.
        let _ = self.attempt(Request::CloseSession).await;
    }
}
