//! Early ends of a connection: resets, silence, death of a process or a machine.

use std::io::ErrorKind;

use super::conn::{Conn, Side};
use super::effects::Effects;
use super::flow::Load;
use super::wire::{BROKE, Wire};
use crate::time::Nanos;
use crate::trace::{MessageId, What};

impl Conn {
    /// Sends a reset to the other end of `way`, behind the segments in flight; a lost reset is not repeated.
    pub fn send_reset(&mut self, way: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let (from, to) = self.hosts(way);
        let (due, lost) = wire.due(from, to, fx.now);
        // A sender without room probes until an answer arrives.
        let probed = self.flow(way.other()).outstanding >= wire.window;
        let flow = self.flow(way);
        if (lost && !probed) || flow.reset_due.is_some() {
            return;
        }
        let behind = if flow.held { None } else { flow.flight.back().map(|segment| segment.due) };
        flow.reset_due = Some(due.max(behind.unwrap_or_default()));
        self.set_alarm(way, fx);
    }

    /// Handles a reset that has arrived. Unread data survives (Linux) or is lost (other systems).
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

    /// Breaks an end, and wakes its users. With `forget` the unread data is lost.
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

    /// Discards the segments that `way`'s sender would have had to repeat. With `all` also those in flight.
    fn lose(&mut self, way: Side, all: bool, wire: &mut Wire, fx: &mut Effects<'_>) {
        let flow = self.flow(way);
        for segment in flow.lose(all) {
            if let Load::Data(_, message) = segment.load {
                wire.stats.lost += 1;
                fx.trace.record(fx.now, || What::Lost { message: MessageId(message) });
            }
        }
        flow.held = false;
        flow.update_stuck();
    }

    /// Handles the death of a side's process. Its kernel continues: written data still arrives, then the end
    /// of the stream, or a reset, which follows unread data or (seeded) comes anyway.
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

    /// Handles the power loss of a side's machine: segments in flight still arrive, no others.
    pub fn power_lost(&mut self, side: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        self.silence(side, fx);
        self.lose(side, false, wire, fx);
        let incoming = self.flow(side.other());
        incoming.clear_arrived();
        if incoming.outstanding >= wire.window {
            incoming.unacknowledged = true; // probes of the window stay unanswered
            self.start_giving_up(side.other(), fx);
        }
    }

    /// Rejects a connection on the server's side.
    pub fn turn_away(&mut self, wire: &mut Wire, fx: &mut Effects<'_>) {
        if self.silence(Side::Server, fx) {
            self.send_reset(Side::Server, wire, fx);
        }
    }

    /// Detaches the process from a side.
    pub fn leave(&mut self, side: Side, fx: &mut Effects<'_>) {
        fx.forget(&mut self.flow(side).writer);
        fx.forget(&mut self.flow(side.other()).reader);
        self.end_mut(side).in_use = false;
    }

    /// Handles the end of a side's process without waking tasks. Returns whether its kernel knew the
    /// connection until now.
    fn silence(&mut self, side: Side, fx: &mut Effects<'_>) -> bool {
        self.leave(side, fx);
        let end = self.end_mut(side);
        let knew = end.broken.is_none();
        end.broken.get_or_insert(ErrorKind::NotConnected);
        knew
    }

    /// Breaks a side whose kernel received no acknowledgement since `since`.
    pub fn abandon(&mut self, way: Side, since: Nanos, wire: &mut Wire, fx: &mut Effects<'_>) {
        if self.flow(way).stuck_since == Some(since) {
            self.break_end(way, ErrorKind::TimedOut, false, wire, fx);
            self.lose(way, true, wire, fx); // also data sent by a closed end
        }
    }
}
