//! A connection: two ends, and a flow in each direction.
//!
//! An end belongs to a kernel, which may outlive the process that opened it (what was sent still arrives, and the end
//! of the stream after it) or lose its memory (the power was lost: what gets there is answered with a reset).

use std::io::{self, ErrorKind};
use std::net::SocketAddrV4;
use std::task::{Context, Poll};
use std::time::Duration;

use super::effects::{Deed, Effects};
use super::flow::{Flow, Load, Segment};
use super::wire::{ARRIVED, BROKE, Hop, Wire};
use crate::time::{HostId, Nanos};
use crate::trace::{MessageId, What};

/// A kernel gives up after so long without an acknowledgement.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// A segment is at most so long.
const SEGMENT_MAX: usize = 64 * 1024;
/// One of so many reads returns less than it could.
const SHORT_READS: usize = 32;
/// One of so many writes travels in two segments.
const SPLIT_WRITES: usize = 16;

/// Names a connection. Slots are used again, serials are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnId {
    pub slot: usize,
    pub serial: u64,
}

/// Who connected, and who accepted. Also a direction: that of what this side writes.
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

/// One end.
#[derive(Debug)]
pub(super) struct End {
    pub host: HostId,
    pub addr: SocketAddrV4,
    /// Why it does not work any more.
    pub broken: Option<ErrorKind>,
    pub reads_closed: bool,
    pub writes_closed: bool,
    /// Something arrived that nobody will read.
    threw_away: bool,
    /// Somebody may still use it: it has a handle, or waits to be accepted.
    pub in_use: bool,
}

impl End {
    pub fn new(host: HostId, addr: SocketAddrV4) -> Self {
        let (reads_closed, writes_closed, threw_away) = (false, false, false);
        End { host, addr, broken: None, reads_closed, writes_closed, threw_away, in_use: true }
    }

    fn is_closed(&self) -> bool {
        self.broken.is_some() || (self.reads_closed && self.writes_closed)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub id: ConnId,
    /// The listener that it was made with.
    pub listener: u64,
    /// The server's kernel knows it.
    opened: bool,
    ends: [End; 2],
    flows: [Flow; 2],
}

impl Conn {
    /// The client has the listener's answer; the server will see the connection when its [`Load::Open`] arrives.
    pub fn new(id: ConnId, listener: u64, client: End, server: End) -> Self {
        let server = End { in_use: false, ..server };
        let flows = [Flow::default(), Flow::default()];
        Conn { id, listener, opened: false, ends: [client, server], flows }
    }

    /// The handshake's last word got to the server's listener.
    pub fn open(&mut self) {
        self.opened = true;
        self.end_mut(Side::Server).in_use = true;
    }

    /// Nobody accepts it at the server.
    pub fn turn_away(&mut self, wire: &mut Wire, fx: &mut Effects<'_>) {
        if self.silence(Side::Server, fx) {
            self.send_reset(Side::Server, wire, fx);
        }
    }

    /// Nobody uses a side any more.
    pub fn leave(&mut self, side: Side, fx: &mut Effects<'_>) {
        fx.forget(&mut self.flow(side).writer);
        fx.forget(&mut self.flow(side.other()).reader);
        self.end_mut(side).in_use = false;
    }

    /// Whether `host`'s kernel has this side of it.
    pub fn is_at(&self, side: Side, host: HostId) -> bool {
        self.end(side).host == host && (side == Side::Client || self.opened)
    }

    pub fn end(&self, side: Side) -> &End {
        &self.ends[side as usize]
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    pub fn flow(&mut self, way: Side) -> &mut Flow {
        &mut self.flows[way as usize]
    }

    /// Whether nobody can notice any more that this connection exists.
    pub fn is_over(&self) -> bool {
        self.ends.iter().all(|end| !end.in_use) && self.flows.iter().all(Flow::is_idle)
    }

    /// From whom to whom a direction goes.
    pub fn hosts(&self, way: Side) -> (HostId, HostId) {
        (self.end(way).host, self.end(way.other()).host)
    }

    fn hop(&self, way: Side) -> Hop {
        let (from, to) = self.hosts(way);
        Hop { serial: self.id.serial, way, from, to, port: self.end(Side::Server).addr.port() }
    }

    /// Reads at `side`.
    pub fn read(
        &mut self,
        side: Side,
        cx: Option<&mut Context<'_>>,
        buf: &mut [u8],
        wire: &mut Wire,
        fx: &mut Effects<'_>,
    ) -> Poll<io::Result<usize>> {
        let end = self.end(side);
        if end.reads_closed || buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let broken = end.broken;
        let flow = self.flow(side.other());
        if flow.has_unread() {
            let short = buf.len() > 1 && wire.rng.below(SHORT_READS) == 0;
            let most = if short { 1 + wire.rng.below(buf.len().min(64) - 1) } else { buf.len() };
            let bytes = flow.take(&mut buf[..most]);
            self.make_room(side.other(), bytes, wire, fx);
            return Poll::Ready(Ok(bytes));
        }
        if let Some(kind) = broken {
            return Poll::Ready(Err(kind.into()));
        }
        if flow.ended {
            return Poll::Ready(Ok(0));
        }
        if let Some(cx) = cx {
            fx.wait(&mut flow.reader, cx);
        }
        Poll::Pending
    }

    /// The reader of a direction is done with some bytes: its sender may send as many more once it knows.
    fn make_room(&mut self, way: Side, bytes: usize, wire: &Wire, fx: &mut Effects<'_>) {
        let (from, to) = self.hosts(way);
        let flow = self.flow(way);
        if wire.links.blocked(to, from) {
            flow.untold += bytes;
            return;
        }
        assert!(flow.outstanding >= bytes, "more was read than was sent");
        flow.outstanding -= bytes;
        fx.wake(&mut flow.writer);
    }

    /// Writes at `side`.
    pub fn write(
        &mut self,
        side: Side,
        cx: Option<&mut Context<'_>>,
        buf: &[u8],
        wire: &mut Wire,
        fx: &mut Effects<'_>,
    ) -> Poll<io::Result<usize>> {
        let end = self.end(side);
        if let Some(kind) = end.broken {
            return Poll::Ready(Err(kind.into()));
        }
        if end.writes_closed {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let room = wire.window.saturating_sub(self.flow(side).outstanding);
        if room == 0 {
            if let Some(cx) = cx {
                fx.wait(&mut self.flow(side).writer, cx);
            }
            return Poll::Pending;
        }
        let bytes = &buf[..buf.len().min(room).min(SEGMENT_MAX)];
        let hop = self.hop(side);
        let label = wire.label(&hop, bytes, fx);
        let split = bytes.len() > 1 && wire.rng.below(SPLIT_WRITES) == 0;
        let (first, rest) =
            bytes.split_at(if split { 1 + wire.rng.below(bytes.len() - 1) } else { bytes.len() });
        let id = wire.sent(&hop, first, label, fx);
        self.send(side, Load::Data(first.to_vec(), id), wire, fx);
        if !rest.is_empty() {
            let id = wire.sent(&hop, rest, String::new(), fx);
            self.send(side, Load::Data(rest.to_vec(), id), wire, fx);
        }
        self.flow(side).outstanding += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    /// Puts a segment under way.
    pub fn send(&mut self, way: Side, load: Load, wire: &mut Wire, fx: &mut Effects<'_>) {
        let (from, to) = self.hosts(way);
        let (due, resent) = wire.due(from, to, fx.now);
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

    /// What is under way waits for the link or the machine. A kernel does not try for ever.
    fn hold(&mut self, way: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        if !self.flow(way).held {
            wire.stats.held += 1;
            self.flow(way).held = true;
        }
        self.start_giving_up(way, fx);
    }

    fn start_giving_up(&mut self, way: Side, fx: &mut Effects<'_>) {
        let id = self.id;
        let flow = self.flow(way);
        if flow.stuck_since.is_none() {
            flow.stuck_since = Some(fx.now);
            fx.at(fx.now + GIVE_UP_AFTER, Deed::GiveUp(id, way, fx.now));
        }
    }

    /// Asks for an event at the next arrival, unless there is one.
    pub fn set_alarm(&mut self, way: Side, fx: &mut Effects<'_>) {
        let id = self.id;
        let flow = self.flow(way);
        let earlier = |due: &Nanos| flow.alarm.is_none_or(|alarm| *due < alarm);
        if let Some(due) = flow.next_due().filter(earlier) {
            flow.alarm = Some(due);
            fx.at(due, Deed::Arrive(id, way));
        }
    }

    /// The link or the machine `way` leads to, or the way back, works again.
    pub fn release(&mut self, way: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let (from, to) = self.hosts(way);
        let flow = self.flow(way);
        if flow.held && !wire.links.blocked(from, to) {
            let stuck = fx.now - flow.stuck_since.unwrap_or(fx.now);
            flow.release(fx.now + wire.resend_delay(stuck));
        }
        if !wire.links.blocked(to, from) {
            flow.unacknowledged = false;
            let untold = std::mem::take(&mut flow.untold);
            if untold > 0 {
                flow.outstanding -= untold;
                fx.wake(&mut flow.writer);
            }
        }
        flow.settle();
        if flow.outstanding >= wire.window && self.end(way.other()).broken.is_some() {
            self.send_reset(way.other(), wire, fx); // the answer to a probe of the window
        }
        self.set_alarm(way, fx);
    }

    /// The next load that has arrived.
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

    /// Data has arrived at the other end of `way`.
    pub fn receive(
        &mut self,
        way: Side,
        bytes: Vec<u8>,
        message: u64,
        wire: &mut Wire,
        fx: &mut Effects<'_>,
    ) {
        fx.trace.print(&[ARRIVED, fx.now.0, self.id.serial, way as u64, bytes.len() as u64]);
        fx.trace.note(fx.now, || What::Arrived { message: MessageId(message) });
        let end = self.end_mut(way.other());
        if end.is_closed() {
            self.send_reset(way.other(), wire, fx);
        } else if end.reads_closed {
            end.threw_away = true;
            self.make_room(way, bytes.len(), wire, fx);
        } else {
            let flow = self.flow(way);
            flow.push_arrived(bytes);
            fx.wake(&mut flow.reader);
        }
    }

    /// The end of the stream has arrived.
    pub fn receive_end(&mut self, way: Side, fx: &mut Effects<'_>) {
        fx.trace.print(&[ARRIVED, fx.now.0, self.id.serial, way as u64, 0]);
        let flow = self.flow(way);
        flow.ended = true;
        fx.wake(&mut flow.reader);
    }

    /// A reset leaves for the other end of `way`, behind what is under way; it is not sent again if it gets lost.
    pub fn send_reset(&mut self, way: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let (from, to) = self.hosts(way);
        let (due, lost) = wire.due(from, to, fx.now);
        // A sender without room probes until it gets an answer.
        let probed = self.flow(way.other()).outstanding >= wire.window;
        let flow = self.flow(way);
        if (lost && !probed) || flow.reset_due.is_some() {
            return;
        }
        let behind = if flow.held { None } else { flow.flight.back().map(|segment| segment.due) };
        flow.reset_due = Some(due.max(behind.unwrap_or_default()));
        self.set_alarm(way, fx);
    }

    /// Looks whether a reset has arrived. What was not read yet is there (Linux) or gone (others).
    pub fn receive_reset(&mut self, way: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let flow = self.flow(way);
        if flow.reset_due.is_none_or(|due| due > fx.now) {
            return;
        }
        flow.reset_due = None;
        let (from, to) = self.hosts(way);
        if !wire.links.blocked(from, to) {
            let forget = wire.rng.chance(50);
            self.break_end(way.other(), ErrorKind::ConnectionReset, forget, wire, fx);
        }
    }

    /// An end stops to work; who uses it hears of it. `forget`: what it has not read is gone.
    pub fn break_end(
        &mut self,
        side: Side,
        why: ErrorKind,
        forget: bool,
        wire: &mut Wire,
        fx: &mut Effects<'_>,
    ) {
        if self.end(side).broken.is_some() {
            return;
        }
        self.end_mut(side).broken = Some(why);
        match why {
            ErrorKind::ConnectionReset => wire.stats.resets += 1,
            ErrorKind::TimedOut => wire.stats.timeouts += 1,
            _ => {}
        }
        fx.trace.print(&[BROKE, fx.now.0, self.id.serial, side as u64, why as u64]);
        self.lose(side, true, wire, fx);
        fx.wake(&mut self.flow(side).writer);
        let incoming = self.flow(side.other());
        if forget {
            incoming.clear_arrived();
        }
        fx.wake(&mut incoming.reader);
    }

    /// What `way`'s sender would have had to send (again) is gone. `all`: what is under way, too.
    fn lose(&mut self, way: Side, all: bool, wire: &mut Wire, fx: &mut Effects<'_>) {
        let flow = self.flow(way);
        for segment in flow.lose(all) {
            if let Load::Data(_, message) = segment.load {
                wire.stats.lost += 1;
                fx.trace.note(fx.now, || What::Lost { message: MessageId(message) });
            }
        }
        flow.held = false;
        flow.settle();
    }

    /// A side reads no more.
    pub fn close_read(&mut self, side: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let end = self.end_mut(side);
        if end.broken.is_some() || std::mem::replace(&mut end.reads_closed, true) {
            return;
        }
        let flow = self.flow(side.other());
        fx.forget(&mut flow.reader);
        let unread = flow.clear_arrived();
        if unread > 0 {
            self.end_mut(side).threw_away = true;
            self.make_room(side.other(), unread, wire, fx);
        }
        self.closed(side, wire, fx);
    }

    /// A side writes no more.
    pub fn close_write(&mut self, side: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let end = self.end_mut(side);
        if end.broken.is_some() || std::mem::replace(&mut end.writes_closed, true) {
            return;
        }
        fx.forget(&mut self.flow(side).writer);
        self.send(side, Load::End, wire, fx);
        self.closed(side, wire, fx);
    }

    /// If both directions are closed now and something was not read, the other side gets a reset: so does close(2).
    fn closed(&mut self, side: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let end = self.end(side);
        if end.reads_closed && end.writes_closed && end.threw_away {
            self.send_reset(side, wire, fx);
        }
    }

    /// The process of a side died. Its kernel goes on: what was written still arrives, then the end of the stream, or
    /// a reset if something was not read, or (seeded) anyhow.
    pub fn process_died(&mut self, side: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let unread = self.flow(side.other()).clear_arrived() > 0;
        if !self.silence(side, fx) {
            return;
        }
        if unread || wire.rng.chance(25) {
            self.send_reset(side, wire, fx);
        } else if !self.end(side).writes_closed {
            self.send(side, Load::End, wire, fx);
        }
    }

    /// The machine of a side lost its power: what is already on the wire arrives, and nothing else.
    pub fn power_lost(&mut self, side: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        self.silence(side, fx);
        self.lose(side, false, wire, fx);
        let incoming = self.flow(side.other());
        incoming.clear_arrived();
        if incoming.outstanding >= wire.window {
            incoming.unacknowledged = true; // probes of the window stay without an answer
            self.start_giving_up(side.other(), fx);
        }
    }

    /// A side's process is gone: nobody is woken. Returns whether its kernel knew the connection until now.
    fn silence(&mut self, side: Side, fx: &mut Effects<'_>) -> bool {
        self.leave(side, fx);
        let end = self.end_mut(side);
        let knew = end.broken.is_none();
        end.broken.get_or_insert(ErrorKind::NotConnected);
        knew
    }

    /// A side's kernel heard no acknowledgement since `since`.
    pub fn give_up(&mut self, way: Side, since: Nanos, wire: &mut Wire, fx: &mut Effects<'_>) {
        if self.flow(way).stuck_since == Some(since) {
            self.break_end(way, ErrorKind::TimedOut, false, wire, fx);
            self.lose(way, true, wire, fx); // also what an end that was closed had left behind
        }
    }
}
