//! A process's operations on its end of a connection: read, write, close.

use std::io::{self, ErrorKind};
use std::task::{Context, Poll};

use super::conn::{Conn, Side};
use super::effects::Effects;
use super::flow::Load;
use super::wire::Wire;

const SEGMENT_MAX: usize = 64 * 1024;
/// One of this many reads is shorter than possible.
const SHORT_READS: usize = 32;
/// One of this many writes is sent in two segments.
const SPLIT_WRITES: usize = 16;

impl Conn {
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
        let room = wire.window(self.hosts(side)).saturating_sub(self.flow(side).outstanding);
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

    pub fn close_read(&mut self, side: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let end = self.end_mut(side);
        if end.broken.is_some() || std::mem::replace(&mut end.reads_closed, true) {
            return;
        }
        let flow = self.flow(side.other());
        fx.forget(&mut flow.reader);
        let unread = flow.clear_arrived();
        if unread > 0 {
            self.end_mut(side).discarded = true;
            self.make_room(side.other(), unread, wire, fx);
        }
        self.closed(side, wire, fx);
    }

    pub fn close_write(&mut self, side: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let end = self.end_mut(side);
        if end.broken.is_some() || std::mem::replace(&mut end.writes_closed, true) {
            return;
        }
        fx.forget(&mut self.flow(side).writer);
        self.send(side, Load::End, wire, fx);
        self.closed(side, wire, fx);
    }

    /// Sends a reset to the other side if both directions are closed with unread data, as close(2) does.
    fn closed(&mut self, side: Side, wire: &mut Wire, fx: &mut Effects<'_>) {
        let end = self.end(side);
        if end.reads_closed && end.writes_closed && end.discarded {
            self.send_reset(side, wire, fx);
        }
    }
}
