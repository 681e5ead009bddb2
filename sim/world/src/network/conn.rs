//! Connection: two ends, and a flow in each direction.
//!
//! An end belongs to a kernel. A kernel outlives its process: sent data still arrives, and then the end of
//! the stream. A kernel that lost power has no memory: it answers arriving segments with a reset.

use std::io::ErrorKind;
use std::net::SocketAddrV4;
use std::time::Duration;

use super::effects::{Effects, NetworkEvent};
use super::flow::{Flow, Load, Segment};
use super::wire::{ARRIVED, Hop, Wire};
use crate::time::{HostId, Nanos};
use crate::trace::{MessageId, What};

/// Time without an acknowledgement after which a kernel gives up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Identity of a connection. Slots are reused, serials are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnId {
    pub slot: usize,
    pub serial: u64,
}

/// The connecting or the accepting side. Also the direction of that side's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub const BOTH: [Side; 2] = [Side::Client, Side::Server];

    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

#[derive(Debug)]
pub(super) struct End {
    pub host: HostId,
    pub addr: SocketAddrV4,
    /// Error of a broken end.
    pub broken: Option<ErrorKind>,
    pub reads_closed: bool,
    pub writes_closed: bool,
    /// The kernel discarded data that no process will read.
    pub discarded: bool,
    /// The end has a handle, or waits in a backlog.
    pub in_use: bool,
}

impl End {
    pub fn new(host: HostId, addr: SocketAddrV4) -> Self {
        let (reads_closed, writes_closed, discarded) = (false, false, false);
        End { host, addr, broken: None, reads_closed, writes_closed, discarded, in_use: true }
    }

    fn is_closed(&self) -> bool {
        self.broken.is_some() || (self.reads_closed && self.writes_closed)
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    pub id: ConnId,
    pub listener: u64,
    /// The server's kernel knows the connection.
    opened: bool,
    ends: [End; 2],
    flows: [Flow; 2],
}

impl Conn {
    /// Creates a connection after the listener's answer reached the client; the server sees the connection
    /// when its [`Load::Open`] arrives.
    pub fn new(id: ConnId, listener: u64, client: End, server: End) -> Self {
        let server = End { in_use: false, ..server };
        let flows = [Flow::default(), Flow::default()];
        Conn { id, listener, opened: false, ends: [client, server], flows }
    }

    /// Completes the handshake on the server's side.
    pub fn open(&mut self) {
        self.opened = true;
        self.end_mut(Side::Server).in_use = true;
    }

    /// Returns whether `host`'s kernel has this side of the connection.
    pub fn is_at(&self, side: Side, host: HostId) -> bool {
        self.end(side).host == host && (side == Side::Client || self.opened)
    }

    pub fn end(&self, side: Side) -> &End {
        &self.ends[side as usize]
    }

    pub(super) fn end_mut(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    pub fn flow(&mut self, way: Side) -> &mut Flow {
        &mut self.flows[way as usize]
    }

    /// Returns whether no process can observe this connection any more.
    pub fn is_over(&self) -> bool {
        self.ends.iter().all(|end| !end.in_use) && self.flows.iter().all(Flow::is_idle)
    }

    /// Returns sender and receiver of a direction.
    pub fn hosts(&self, way: Side) -> (HostId, HostId) {
        (self.end(way).host, self.end(way.other()).host)
    }

    pub(super) fn hop(&self, way: Side) -> Hop {
        let (from, to) = self.hosts(way);
        Hop { serial: self.id.serial, way, from, to, port: self.end(Side::Server).addr.port() }
    }

    /// Accounts bytes that the reader consumed: the sender may send as many more after the acknowledgement.
    pub(super) fn make_room(&mut self, way: Side, bytes: usize, wire: &Wire, fx: &mut Effects<'_>) {
        let (from, to) = self.hosts(way);
        let flow = self.flow(way);
        if wire.links.blocked(to, from) {
            flow.unacked += bytes;
            return;
        }
        assert!(flow.outstanding >= bytes, "more was read than was sent");
        flow.outstanding -= bytes;
        fx.wake(&mut flow.writer);
    }

    pub fn send(&mut self, way: Side, load: Load, wire: &mut Wire, fx: &mut Effects<'_>) {
        let (from, to) = self.hosts(way);
        let (due, resent) = wire.due(from, to, fx.leaves);
        let cut = wire.links.is_cut(from, to);
        let flow = self.flow(way);
        let due = due.max(flow.not_before);
        flow.not_before = due;
        flow.flight.push_back(Segment { due, load, resent });
        if cut {
            self.hold(way, wire, fx);
        } else {
            self.set_alarm(way, fx);
        }
    }

    /// Holds segments until the link or the machine works again. A kernel does not retry for ever.
    fn hold(&mut self, way: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        if !self.flow(way).held {
            wire.stats.held += 1;
            self.flow(way).held = true;
        }
        self.start_giving_up(way, fx);
    }

    pub(super) fn start_giving_up(&mut self, way: Side, fx: &mut Effects<'_>) {
        let id = self.id;
        let flow = self.flow(way);
        if flow.stuck_since.is_none() {
            flow.stuck_since = Some(fx.now);
            fx.at(fx.now + GIVE_UP_AFTER, NetworkEvent::GiveUp(id, way, fx.now));
        }
    }

    /// Schedules an event at the next arrival, unless one exists.
    pub fn set_alarm(&mut self, way: Side, fx: &mut Effects<'_>) {
        let id = self.id;
        let flow = self.flow(way);
        let earlier = |due: &Nanos| flow.alarm.is_none_or(|alarm| *due < alarm);
        if let Some(due) = flow.next_due().filter(earlier) {
            flow.alarm = Some(due);
            fx.at(due, NetworkEvent::Arrive(id, way));
        }
    }

    /// Continues after a repair: of the link or the machine at the end of `way`, or of the way back.
    pub fn release(&mut self, way: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let (from, to) = self.hosts(way);
        let flow = self.flow(way);
        if flow.held && !wire.links.blocked(from, to) {
            let stuck = fx.now - flow.stuck_since.unwrap_or(fx.now);
            flow.release(fx.now + wire.resend_delay(stuck));
        }
        if !wire.links.blocked(to, from) {
            flow.unacknowledged = false;
            let unacked = std::mem::take(&mut flow.unacked);
            if unacked > 0 {
                flow.outstanding -= unacked;
                fx.wake(&mut flow.writer);
            }
        }
        flow.update_stuck();
        if flow.outstanding >= wire.window((from, to)) && self.end(way.other()).broken.is_some() {
            self.send_reset(way.other(), wire, fx); // the answer to a probe of the window
        }
        self.set_alarm(way, fx);
    }

    pub fn next_arrived(&mut self, way: Side, wire: &mut Wire, fx: &mut Effects<'_>) -> Option<Load> {
        let (from, to) = self.hosts(way);
        let flow = self.flow(way);
        if flow.held || flow.flight.front()?.due > fx.now {
            return None;
        }
        if wire.links.blocked(from, to) {
            self.hold(way, wire, fx);
            return None;
        }
        if wire.links.blocked(to, from) {
            flow.unacknowledged = true;
            self.start_giving_up(way, fx);
        }
        self.flow(way).flight.pop_front().map(|segment| segment.load)
    }

    /// Delivers data at the other end of `way`.
    pub fn receive(
        &mut self,
        way: Side,
        bytes: Vec<u8>,
        message: u64,
        wire: &mut Wire,
        fx: &mut Effects<'_>,
    ) {
        fx.trace.print(&[ARRIVED, fx.now.0, self.id.serial, way as u64, bytes.len() as u64]);
        fx.trace.record(fx.now, || What::Arrived { message: MessageId(message) });
        let end = self.end_mut(way.other());
        if end.is_closed() {
            self.send_reset(way.other(), wire, fx);
        } else if end.reads_closed {
            end.discarded = true;
            self.make_room(way, bytes.len(), wire, fx);
        } else {
            let flow = self.flow(way);
            flow.push_arrived(bytes);
            fx.wake(&mut flow.reader);
        }
    }

    /// Delivers the end of the stream.
    pub fn receive_end(&mut self, way: Side, fx: &mut Effects<'_>) {
        fx.trace.print(&[ARRIVED, fx.now.0, self.id.serial, way as u64, 0]);
        let flow = self.flow(way);
        flow.ended = true;
        fx.wake(&mut flow.reader);
    }
}
