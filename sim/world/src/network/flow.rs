//! One direction of a connection: segments in flight, arrived bytes, and waiting readers and writers.
//!
//! Invariant: `flight` is ordered by `due`, so segments of a stream never overtake each other.

use std::collections::VecDeque;
use std::task::Waker;

use crate::time::Nanos;

#[derive(Debug)]
pub(super) enum Load {
    /// The client's last message of the handshake.
    Open,
    /// Bytes, and their number in the record.
    Data(Vec<u8>, u64),
    End,
}

#[derive(Debug)]
pub(super) struct Segment {
    pub due: Nanos,
    pub load: Load,
    /// The segment was lost once: its sender's kernel still has to repeat it.
    pub resent: bool,
}

#[derive(Debug, Default)]
pub(super) struct Flow {
    pub flight: VecDeque<Segment>,
    /// Earliest arrival of the next segment.
    pub not_before: Nanos,
    /// Arrival of a reset in flight. A reset is not part of the stream and is never repeated.
    pub reset_due: Option<Nanos>,
    /// The next arrival with a scheduled event.
    pub alarm: Option<Nanos>,
    arrived: VecDeque<Vec<u8>>,
    /// Consumed bytes of the first piece of `arrived`.
    consumed: usize,
    /// Sent bytes without an acknowledgement.
    pub outstanding: usize,
    /// Consumed bytes among `outstanding` whose acknowledgement is blocked.
    pub unacked: usize,
    /// The end of the stream has arrived.
    pub ended: bool,
    /// Segments wait for the link or the machine.
    pub held: bool,
    /// A segment arrived, but its acknowledgement is blocked.
    pub unacknowledged: bool,
    /// Start of the time without acknowledgements to the sender.
    pub stuck_since: Option<Nanos>,
    pub reader: Option<Waker>,
    /// Waker of a task that waits for room to write here.
    pub writer: Option<Waker>,
}

impl Flow {
    /// Returns whether no segment is in flight.
    pub fn is_idle(&self) -> bool {
        self.flight.is_empty() && self.reset_due.is_none()
    }

    /// Returns the time of the next arrival.
    pub fn next_due(&self) -> Option<Nanos> {
        let segment = self.flight.front().filter(|_| !self.held).map(|segment| segment.due);
        segment.into_iter().chain(self.reset_due).min()
    }

    pub fn has_unread(&self) -> bool {
        !self.arrived.is_empty()
    }

    pub fn push_arrived(&mut self, bytes: Vec<u8>) {
        debug_assert!(!bytes.is_empty(), "an empty write sends nothing");
        self.arrived.push_back(bytes);
    }

    /// Discards unread bytes and returns their number.
    pub fn clear_arrived(&mut self) -> usize {
        let bytes = self.arrived.iter().map(Vec::len).sum::<usize>() - self.consumed;
        self.arrived.clear();
        self.consumed = 0;
        bytes
    }

    pub fn take(&mut self, buf: &mut [u8]) -> usize {
        let mut read = 0;
        while let Some(piece) = self.arrived.front() {
            let rest = &piece[self.consumed..];
            let bytes = rest.len().min(buf.len() - read);
            buf[read..read + bytes].copy_from_slice(&rest[..bytes]);
            read += bytes;
            if bytes < rest.len() {
                self.consumed += bytes;
                break;
            }
            self.arrived.pop_front();
            self.consumed = 0;
        }
        read
    }

    /// Removes the segments that cannot arrive after the sender's kernel is gone: every lost segment that
    /// needs a repetition, and all later ones. With `all`: every segment.
    pub fn lose(&mut self, all: bool) -> impl Iterator<Item = Segment> + '_ {
        let stays = if all || self.held {
            0
        } else {
            self.flight.iter().position(|segment| segment.resent).unwrap_or(self.flight.len())
        };
        self.flight.drain(stays..)
    }

    /// Releases held segments, to arrive no earlier than `due`.
    pub fn release(&mut self, due: Nanos) {
        self.held = false;
        for segment in &mut self.flight {
            segment.due = segment.due.max(due);
        }
        self.not_before = self.not_before.max(due);
    }

    /// Updates `stuck_since`: the sender is stuck while a segment is held or unacknowledged.
    pub fn update_stuck(&mut self) {
        if !self.held && !self.unacknowledged {
            self.stuck_since = None;
        }
    }
}
