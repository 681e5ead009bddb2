//! One connection of a session to a server: the requests in flight and the keepalives.

use std::collections::VecDeque;
use std::time::Duration;

use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time::Instant;
use rowlock_proto::lock::Claim;
use rowlock_proto::{OpCode, Xid};

use super::Call;
use super::extensions::Extensions;
use super::znode_removal::ZnodeRemoval;
use crate::limits::TAGGED_IN_FLIGHT;

/// An entry in the queue of requests.
pub(crate) enum Outgoing {
    Call(Asked),
    Removal(Box<ZnodeRemoval>),
    /// Probe of the server's extensions: the first request of an attachment; every other request waits for
    /// the answer.
    Probe,
    /// Query for the current leader and the leader's room.
    AskForLeader,
    /// Sends the options of this connection.
    Options,
    /// Are these still held? Asked on each new attachment.
    Verify(Vec<Claim>),
    Close,
}

/// Call with its progress.
pub(crate) struct Asked {
    /// Boxed from caller to answer, since calls are large.
    pub call: Box<Call>,
    /// The request went to a server, and may have taken effect.
    pub sent: bool,
    /// Id of a write that takes effect once, kept over reconnects.
    pub tag: Option<u64>,
    /// Connections that broke while this call was the oldest without an answer.
    pub breaks: u32,
}

/// A request that waits for its reply. Servers answer in the order of sending.
pub(crate) struct InFlight {
    pub xid: Xid,
    pub opcode: OpCode,
    pub job: Outgoing,
}

/// State that lives as long as one connection.
pub(crate) struct ConnectionState {
    /// A third of the negotiated session timeout. (Kept, because every turn asks for these two.)
    ping_every: Duration,
    /// Two thirds of it.
    silence_max: Duration,
    last_xid: i32,
    /// `None`: not answered yet.
    pub extensions: Option<Extensions>,
    /// The client has sent the disconnect grace to the server.
    pub told_grace: bool,
    pub in_flight: VecDeque<InFlight>,
    /// Answers to calls since the last heartbeat.
    pub answers: u32,
    /// Credentials (by index) whose replies are due, in order.
    pub auths: VecDeque<usize>,
    /// Replies to setWatches that are due.
    pub set_watches: usize,
    heard: Instant,
    pinged: Instant,
    ping_open: bool,
}

impl ConnectionState {
    /// `sent`: when the handshake was sent, which counts as the first heartbeat.
    pub(crate) fn new(timeout: Duration, sent: Instant, now: Instant) -> Self {
        ConnectionState {
            ping_every: timeout / 3,
            silence_max: timeout * 2 / 3,
            last_xid: 0,
            extensions: None,
            told_grace: false,
            in_flight: VecDeque::new(),
            answers: 0,
            auths: VecDeque::new(),
            set_watches: 0,
            heard: now,
            pinged: sent,
            ping_open: false,
        }
    }

    /// The next request number; positive, since the others have their own meanings.
    pub(crate) fn next_xid(&mut self) -> Xid {
        self.last_xid = self.last_xid.checked_add(1).unwrap_or(1);
        Xid(self.last_xid)
    }

    pub(crate) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Decides on a heartbeat now. Heartbeats keep their schedule whatever else is sent, because only
    /// heartbeats extend the local deadline; at most one is in flight.
    pub(crate) fn take_ping(&mut self, now: Instant) -> bool {
        let due = decides!(
            "ping-is-due",
            !self.ping_open && (now >= self.ping_due() || choice::taken(Choice::PingEarly, 50))
        );
        if due {
            self.pinged = now;
            self.ping_open = true;
        }
        due
    }

    /// The reply to a heartbeat came; when that had been sent.
    pub(crate) fn ping_answered(&mut self) -> Option<Instant> {
        std::mem::take(&mut self.ping_open).then_some(self.pinged)
    }

    /// No byte for two thirds of the timeout: try another server while there is time left.
    /// Whether the server has answered everything that was sent on it, the handshake's questions included.
    pub(crate) fn is_answered(&self) -> bool {
        let has_introduced_itself = self.extensions.is_some();
        let is_asked = self.ping_open || self.set_watches > 0;
        has_introduced_itself && !is_asked && self.in_flight.is_empty() && self.auths.is_empty()
    }

    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        now >= self.silent_at()
    }

    pub(crate) fn next_timer(&self) -> Instant {
        if self.ping_open { self.silent_at() } else { self.silent_at().min(self.ping_due()) }
    }

    fn ping_due(&self) -> Instant {
        self.pinged + self.ping_every
    }

    fn silent_at(&self) -> Instant {
        self.heard + self.silence_max
    }
}

/// The ids of one session's writes that take effect once.
///
/// Each tagged write has an id of its own for the life of the session, and keeps it however often it is sent.
/// With every write goes the highest id up to which all are answered, so that the servers may forget those
/// outcomes.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    last: u64,
    /// Tags of writes without an answer, rising.
    ///
    /// Invariant: at most [`TAGGED_IN_FLIGHT`], since the servers keep this many outcomes and refuse more.
    unanswered: VecDeque<u64>,
}

impl Tags {
    /// Goes on behind the write with the number `last`, whatever became of it and the earlier ones.
    pub(crate) fn after(last: u64) -> Tags {
        Tags { last, unanswered: VecDeque::new() }
    }

    /// Number of the last write.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The next id; `None`: too many are unanswered, wait for one of them.
    pub(crate) fn take(&mut self) -> Option<u64> {
        // Counted from the oldest unanswered one: answered ones behind it are kept by the servers as well.
        let span = self.last - self.acked();
        let is_full = !self.unanswered.is_empty() && choice::taken(Choice::TagsFull, 8);
        if decides!("write-numbers-are-used-up", span >= TAGGED_IN_FLIGHT || is_full) {
            return None;
        }
        self.last += 1;
        self.unanswered.push_back(self.last);
        Some(self.last)
    }

    /// Records that the outcome is known, or no longer needed.
    pub(crate) fn answered(&mut self, id: u64) {
        if let Ok(at) = self.unanswered.binary_search(&id) {
            self.unanswered.remove(at);
        }
    }

    /// All ids up to this one are answered.
    pub(crate) fn acked(&self) -> u64 {
        if mutant::is(Mutant::AckUnanswered) {
            return self.last.saturating_sub(1);
        }
        self.unanswered.front().map_or(self.last, |oldest| oldest - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(9);

    #[test]
    fn a_heartbeat_goes_out_each_third_of_the_timeout_one_at_a_time() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut it = ConnectionState::new(TIMEOUT, start, start);
        assert!(!it.take_ping(at(2)));
        assert_eq!(it.next_timer(), at(3));
        assert!(it.take_ping(at(3)));
        assert!(!it.take_ping(at(6)), "a second one while the first is open");
        assert_eq!(it.ping_answered(), Some(at(3)));
        assert_eq!(it.ping_answered(), None);
        assert!(it.take_ping(at(6)));
    }

    #[test]
    fn a_server_is_given_up_after_two_thirds_of_the_timeout_without_a_byte() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut it = ConnectionState::new(TIMEOUT, start, start);
        it.take_ping(at(3));
        assert_eq!(it.next_timer(), at(6));
        assert!(!it.is_silent(at(5)) && it.is_silent(at(6)));
        it.hear(at(5));
        assert!(!it.is_silent(at(10)) && it.is_silent(at(11)));
    }

    #[test]
    fn request_numbers_stay_positive() {
        let start = Instant::now();
        let mut it = ConnectionState::new(TIMEOUT, start, start);
        it.last_xid = i32::MAX - 1;
        assert_eq!([it.next_xid(), it.next_xid(), it.next_xid()], [Xid(i32::MAX), Xid(1), Xid(2)]);
    }

    #[test]
    fn acknowledgement_stops_below_the_oldest_unanswered_id() {
        let mut it = Tags::default();
        assert_eq!([it.take(), it.take(), it.take()], [Some(1), Some(2), Some(3)]);
        assert_eq!(it.acked(), 0);
        it.answered(2);
        assert_eq!(it.acked(), 0);
        it.answered(1);
        assert_eq!(it.acked(), 2);
        it.answered(3);
        assert_eq!((it.acked(), it.take()), (3, Some(4)));
    }

    #[test]
    fn no_more_ids_are_open_than_the_servers_keep_outcomes() {
        let mut it = Tags::default();
        let first = it.take().unwrap();
        while it.take().is_some() {}
        assert_eq!(it.last - it.acked(), TAGGED_IN_FLIGHT);
        it.answered(first + 1);
        assert_eq!(it.take(), None, "the oldest is what counts");
        it.answered(first);
        assert!(it.take().is_some());
    }
}
