//! Setup of a connection: a request and its answer, repeated after losses, until the caller's timeout.

use std::io::{self, ErrorKind};
use std::net::SocketAddrV4;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::conn::{ConnId, End, Side};
use super::effects::{Effects, NetworkEvent};
use super::flow::Load;
use super::state::State;
use super::wire::CONNECTED;
use crate::time::{HostId, Nanos};

/// Pause before the first request is repeated; doubles each time (Linux: 1, 2, 4, ... seconds).
const REPEAT_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Attempt {
    from: HostId,
    /// `None`: no machine has this address.
    to: Option<HostId>,
    addr: SocketAddrV4,
    local: SocketAddrV4,
    repeated: u32,
    outcome: Option<Result<ConnId, ErrorKind>>,
    waker: Option<Waker>,
}

impl State {
    /// Begins to connect. Returns the attempt's number.
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
        fx.at(fx.now + timeout, NetworkEvent::TimedOut(id));
        self.send_request(id, fx);
        Ok(id)
    }

    pub fn send_request(&mut self, id: u64, fx: &mut Effects<'_>) {
        let Some(attempt) = self.pending(id) else { return };
        let (from, Some(to)) = (attempt.from, attempt.to) else { return };
        match self.wire.due(from, to, fx.now) {
            (due, false) => fx.at(due, NetworkEvent::RequestArrived(id)),
            (_, true) => self.repeat_request(id, fx),
        }
    }

    fn repeat_request(&mut self, id: u64, fx: &mut Effects<'_>) {
        let Some(attempt) = self.pending(id) else { return };
        let pause = REPEAT_AFTER * 2_u32.pow(attempt.repeated.min(6));
        attempt.repeated += 1;
        fx.at(fx.now + pause, NetworkEvent::Request(id));
    }

    pub fn request_arrived(&mut self, id: u64, fx: &mut Effects<'_>) {
        let Some(attempt) = self.pending(id) else { return };
        let (from, Some(to), addr) = (attempt.from, attempt.to, attempt.addr) else { return };
        let listener = self.ports.find(to, addr);
        let silent = listener.is_some_and(|listener| self.ports.is_full(listener));
        if silent || self.wire.links.blocked(from, to) {
            return self.repeat_request(id, fx);
        }
        match self.wire.due(to, from, fx.now) {
            (due, false) => fx.at(due, NetworkEvent::Answered(id, listener)),
            (_, true) => self.repeat_request(id, fx),
        }
    }

    /// Handles the arrival of the answer: the connection exists for the client now, and later for the server.
    pub fn answered(&mut self, id: u64, listener: Option<u64>, fx: &mut Effects<'_>) {
        let Some(attempt) = self.pending(id) else { return };
        let (from, Some(to), addr, local) = (attempt.from, attempt.to, attempt.addr, attempt.local) else {
            return;
        };
        if self.wire.links.blocked(to, from) {
            return self.repeat_request(id, fx);
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

    pub fn timed_out(&mut self, id: u64, fx: &mut Effects<'_>) {
        if self.pending(id).is_some() {
            self.wire.stats.unanswered += 1;
            self.conclude(id, Err(ErrorKind::TimedOut), fx);
        }
    }

    /// Returns an attempt without an outcome.
    fn pending(&mut self, id: u64) -> Option<&mut Attempt> {
        self.attempts.get_mut(&id).filter(|attempt| attempt.outcome.is_none())
    }

    fn conclude(&mut self, id: u64, outcome: Result<ConnId, ErrorKind>, fx: &mut Effects<'_>) {
        let attempt = self.pending(id).expect("only an attempt without an outcome gets one");
        attempt.outcome = Some(outcome);
        fx.wake(&mut attempt.waker);
    }

    /// Returns the outcome of an attempt, and forgets the attempt.
    pub fn poll_dial(
        &mut self,
        id: u64,
        cx: &Context<'_>,
        fx: &mut Effects<'_>,
    ) -> Poll<Result<ConnId, ErrorKind>> {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return Poll::Ready(Err(ErrorKind::NotConnected)); // the calling process is gone
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

    /// Cancels an attempt that the process no longer needs.
    pub fn cancel_dial(&mut self, id: u64, fx: &mut Effects<'_>) {
        let Some(mut attempt) = self.attempts.remove(&id) else { return };
        fx.forget(&mut attempt.waker);
        match attempt.outcome {
            Some(Ok(conn)) => self.release(conn, Side::Client, fx),
            _ => self.ports.free_up(attempt.from, attempt.local.port()),
        }
    }

    /// Cancels the attempts of a host whose process is gone.
    pub fn cancel_dials(&mut self, host: HostId, fx: &mut Effects<'_>) {
        let mine = self.attempts.iter().filter(|(_, attempt)| attempt.from == host);
        for id in mine.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(mut attempt) = self.attempts.remove(&id) {
                fx.forget(&mut attempt.waker);
                // An established connection ends with the host's other connections.
                if !matches!(attempt.outcome, Some(Ok(_))) {
                    self.ports.free_up(host, attempt.local.port());
                }
            }
        }
    }

    pub fn attempts_open(&self) -> usize {
        self.attempts.len()
    }

    /// Carries out an event of the network.
    pub fn handle(&mut self, when: Nanos, event: NetworkEvent, fx: &mut Effects<'_>) {
        match event {
            NetworkEvent::Arrive(conn, way) => self.arrive(conn, way, when, fx),
            NetworkEvent::GiveUp(conn, way, since) => self.abandon(conn, way, since, fx),
            NetworkEvent::Request(attempt) => self.send_request(attempt, fx),
            NetworkEvent::RequestArrived(attempt) => self.request_arrived(attempt, fx),
            NetworkEvent::Answered(attempt, listener) => self.answered(attempt, listener, fx),
            NetworkEvent::TimedOut(attempt) => self.timed_out(attempt, fx),
        }
    }
}
