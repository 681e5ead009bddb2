//! One direction of a connection: segments under way, bytes that arrived, and waiting readers and writers.
//!
//! Invariant: `flight` is ordered by `due`, so nothing inside a stream overtakes anything.

use std::collections::VecDeque;
use std::task::Waker;

use crate::time::Nanos;

/// Content of a segment.
#[derive(Debug)]
pub(super) enum Load {
    /// The connecting side's last word of the handshake.
    Open,
    /// Bytes, and their number in the record.
    Data(Vec<u8>, u64),
    End,
}

#[derive(Debug)]
pub(super) struct Segment {
    pub due: Nanos,
    pub load: Load,
    /// It was lost once: its sender's kernel still has to send it again.
    pub resent: bool,
}

#[derive(Debug, Default)]
pub(super) struct Flow {
    pub flight: VecDeque<Segment>,
    /// Earliest arrival of the next segment.
    pub not_before: Nanos,
    /// A reset is under way. It is not part of the stream: it is never sent again.
    pub reset_due: Option<Nanos>,
    /// The next arrival that an event exists for.
    pub alarm: Option<Nanos>,
    arrived: VecDeque<Vec<u8>>,
    /// Bytes of the first piece of `arrived` that were read.
    eaten: usize,
    /// Bytes that were sent and, as far as the sender knows, not read.
    pub outstanding: usize,
    /// Bytes among these that were read without an acknowledgement to the sender.
    pub untold: usize,
    /// The end of the stream was read or can be.
    pub ended: bool,
    /// Segments wait for the link or the machine.
    pub held: bool,
    /// Something arrived, but the sender could not be told.
    pub unacknowledged: bool,
    /// Since when the sender hears no acknowledgement.
    pub stuck_since: Option<Nanos>,
    pub reader: Option<Waker>,
    /// Waits for room to write here.
    pub writer: Option<Waker>,
}

impl Flow {
    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.flight.is_empty() && self.reset_due.is_none()
    }

    /// When something arrives next.
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

    /// Throws away what was not read; returns how many bytes that were.
    pub fn clear_arrived(&mut self) -> usize {
        let bytes = self.arrived.iter().map(Vec::len).sum::<usize>() - self.eaten;
        self.arrived.clear();
        self.eaten = 0;
        bytes
    }

    pub fn take(&mut self, buf: &mut [u8]) -> usize {
        let mut read = 0;
        while let Some(piece) = self.arrived.front() {
            let rest = &piece[self.eaten..];
            let bytes = rest.len().min(buf.len() - read);
            buf[read..read + bytes].copy_from_slice(&rest[..bytes]);
            read += bytes;
            if bytes < rest.len() {
                self.eaten += bytes;
                break;
            }
            self.arrived.pop_front();
            self.eaten = 0;
        }
        read
    }

    /// Segments that cannot arrive any more because the sender's kernel is gone: everything that it would
    /// have had to send again, and everything after that. `all`: everything.
    pub fn lose(&mut self, all: bool) -> impl Iterator<Item = Segment> + '_ {
        let stays = if all || self.held {
            0
        } else {
            self.flight.iter().position(|segment| segment.resent).unwrap_or(self.flight.len())
        };
        self.flight.drain(stays..)
    }

    /// Lets what was held go on no earlier than at `due`.
    pub fn release(&mut self, due: Nanos) {
        self.held = false;
        for segment in &mut self.flight {
            segment.due = segment.due.max(due);
        }
        self.not_before = self.not_before.max(due);
    }

    /// What the sender has heard of changed: it is stuck as long as something is held or not acknowledged.
    pub fn settle(&mut self) {
        if !self.held && !self.unacknowledged {
            self.stuck_since = None;
        }
    }
}
