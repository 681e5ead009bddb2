//! How a connection begins: a request and its answer, repeated if either gets lost, until the caller's time
//! is over.

use std::io::{self, ErrorKind};
use std::net::SocketAddrV4;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::conn::{ConnId, End, Side};
use super::effects::{Deed, Effects};
use super::flow::Load;
use super::state::State;
use super::wire::CONNECTED;
use crate::time::{HostId, Nanos};

/// The pause before the first request is repeated; it doubles (Linux: 1, 2, 4, ... seconds).
const REPEAT_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Attempt {
    from: HostId,
    /// `None`: there is no machine of this address.
    to: Option<HostId>,
    addr: SocketAddrV4,
    local: SocketAddrV4,
    repeated: u32,
    outcome: Option<Result<ConnId, ErrorKind>>,
    waker: Option<Waker>,
}

impl State {
    /// Begins to connect; returns the attempt's number.
    pub fn dial(
        &mut self,
        from: HostId,
        addr: &str,
        timeout: Duration,
        fx: &mut Effects<'_>,
    ) -> io::Result<u64> {
        let (to, addr) = self.ports.resolve(from, addr)?;
        let local = self.ports.take_port(from, *addr.ip())?;
        self.serial += 1;
        let id = self.serial;
        let attempt = Attempt { from, to, addr, local, repeated: 0, outcome: None, waker: None };
        self.attempts.insert(id, attempt);
        fx.at(fx.now + timeout, Deed::TooLate(id));
        self.knock(id, fx);
        Ok(id)
    }

    pub fn knock(&mut self, id: u64, fx: &mut Effects<'_>) {
        let Some(attempt) = self.pending(id) else { return };
        let (from, Some(to)) = (attempt.from, attempt.to) else { return };
        match self.wire.due(from, to, fx.now) {
            (due, false) => fx.at(due, Deed::Knocked(id)),
            (_, true) => self.knock_again(id, fx),
        }
    }

    fn knock_again(&mut self, id: u64, fx: &mut Effects<'_>) {
        let Some(attempt) = self.pending(id) else { return };
        let pause = REPEAT_AFTER * 2_u32.pow(attempt.repeated.min(6));
        attempt.repeated += 1;
        fx.at(fx.now + pause, Deed::Knock(id));
    }

    pub fn knocked(&mut self, id: u64, fx: &mut Effects<'_>) {
        let Some(attempt) = self.pending(id) else { return };
        let (from, Some(to), addr) = (attempt.from, attempt.to, attempt.addr) else { return };
        let listener = self.ports.find(to, addr);
        let silent = listener.is_some_and(|listener| self.ports.is_full(listener));
        if silent || self.wire.links.blocked(from, to) {
            return self.knock_again(id, fx);
        }
        match self.wire.due(to, from, fx.now) {
            (due, false) => fx.at(due, Deed::Answered(id, listener)),
            (_, true) => self.knock_again(id, fx),
        }
    }

    /// The answer arrives: the connection is there for the client, and will be for the server.
    pub fn answered(&mut self, id: u64, listener: Option<u64>, fx: &mut Effects<'_>) {
        let Some(attempt) = self.pending(id) else { return };
        let (from, Some(to), addr, local) = (attempt.from, attempt.to, attempt.addr, attempt.local) else {
            return;
        };
        if self.wire.links.blocked(to, from) {
            return self.knock_again(id, fx);
        }
        let Some(listener) = listener else {
            self.wire.stats.refused += 1;
            return self.conclude(id, Err(ErrorKind::ConnectionRefused), fx);
        };
        self.wire.stats.connects += 1;
        let conn = self.conns.add(listener, End::new(from, local), End::new(to, addr));
        fx.trace.print(&[CONNECTED, fx.now.0, conn.serial, from.0 as u64, to.0 as u64]);
        if let Some(opening) = self.conns.get(conn) {
            opening.send(Side::Client, Load::Open, &mut self.wire, fx);
        }
        self.conclude(id, Ok(conn), fx);
    }

    pub fn too_late(&mut self, id: u64, fx: &mut Effects<'_>) {
        if self.pending(id).is_some() {
            self.wire.stats.unanswered += 1;
            self.conclude(id, Err(ErrorKind::TimedOut), fx);
        }
    }

    /// An attempt without an outcome.
    fn pending(&mut self, id: u64) -> Option<&mut Attempt> {
        self.attempts.get_mut(&id).filter(|attempt| attempt.outcome.is_none())
    }

    fn conclude(&mut self, id: u64, outcome: Result<ConnId, ErrorKind>, fx: &mut Effects<'_>) {
        let attempt = self.pending(id).expect("only an attempt without an outcome gets one");
        attempt.outcome = Some(outcome);
        fx.wake(&mut attempt.waker);
    }

    /// The outcome of an attempt; the attempt is forgotten with it.
    pub fn poll_dial(
        &mut self,
        id: u64,
        cx: &Context<'_>,
        fx: &mut Effects<'_>,
    ) -> Poll<Result<ConnId, ErrorKind>> {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return Poll::Ready(Err(ErrorKind::NotConnected)); // the process that asked is gone
        };
        let Some(outcome) = attempt.outcome else {
            fx.wait(&mut attempt.waker, cx);
            return Poll::Pending;
        };
        let (from, port) = (attempt.from, attempt.local.port());
        self.attempts.remove(&id);
        if outcome.is_err() {
            self.ports.free_up(from, port);
        }
        Poll::Ready(outcome)
    }

    /// The process no longer waits for an attempt.
    pub fn cancel_dial(&mut self, id: u64, fx: &mut Effects<'_>) {
        let Some(mut attempt) = self.attempts.remove(&id) else { return };
        fx.forget(&mut attempt.waker);
        match attempt.outcome {
            Some(Ok(conn)) => self.release(conn, Side::Client, fx),
            _ => self.ports.free_up(attempt.from, attempt.local.port()),
        }
    }

    /// The attempts of a host whose process is gone.
    pub fn cancel_dials(&mut self, host: HostId, fx: &mut Effects<'_>) {
        let mine = self.attempts.iter().filter(|(_, attempt)| attempt.from == host);
        for id in mine.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(mut attempt) = self.attempts.remove(&id) {
                fx.forget(&mut attempt.waker);
                // A connection that is there already is ended with the host's others.
                if !matches!(attempt.outcome, Some(Ok(_))) {
                    self.ports.free_up(host, attempt.local.port());
                }
            }
        }
    }

    /// Attempts that are under way.
    pub fn attempts_open(&self) -> usize {
        self.attempts.len()
    }

    /// When a deed of the network's happens.
    pub fn happen(&mut self, when: Nanos, deed: Deed, fx: &mut Effects<'_>) {
        match deed {
            Deed::Arrive(conn, way) => self.arrive(conn, way, when, fx),
            Deed::GiveUp(conn, way, since) => self.give_up(conn, way, since, fx),
            Deed::Knock(attempt) => self.knock(attempt, fx),
            Deed::Knocked(attempt) => self.knocked(attempt, fx),
            Deed::Answered(attempt, listener) => self.answered(attempt, listener, fx),
            Deed::TooLate(attempt) => self.too_late(attempt, fx),
        }
    }
}
