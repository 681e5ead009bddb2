//! What a node's clients make it hold in memory, by its own count, and whether that is too much.
//!
//! In the flow: apply, the connections and the node's status publisher write what each part holds; the
//! leader's folder, the door for new sessions and `addWatch` ask whether there is room. Above the limit what
//! grows is refused; what gives back passes, and so do reads and heartbeats. Counts are estimates on the high
//! side: no allocator is asked.
//!
//! Must never do: decide anything that replicas have to agree on. The leader's verdict stands in the log
//! (`proposer/growth.rs`).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rowlock_state::Machine;

use crate::limits::LOG_MEMORY_BYTES;

/// A znode beside its path and its data.
const ZNODE_BYTES: u64 = 256;
/// More for one of a session: its place in the session's list and in a queue.
const EPHEMERAL_BYTES: u64 = 256;
/// A session, in the state and with the leader.
const SESSION_BYTES: u64 = 512;
/// A connection that does nothing.
pub const CONNECTION_BYTES: u64 = 1_536;
/// More for one with TLS: keys, and buffers that stay. As measured with 3,000 of them.
pub const TLS_BYTES: u64 = 8 << 10;
/// Divisor: the part of the limit at which the largest connections are closed.
const CONNECTIONS_PART: u64 = 4;
/// Divisor: the part of the limit that the log may have.
const LOG_PART: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Znodes, their ACLs, and locks.
    State,
    Sessions,
    /// Outcomes of writes that may come again.
    Outcomes,
    /// Watches of this node's connections.
    Watches,
    /// This node's connections, with what they have read and not done, or answered and not written.
    Connections,
    /// Unprocessed requests from other nodes, and unwritten frames to them.
    Peers,
    Log,
}

impl Part {
    pub const ALL: [(Part, &'static str); 7] = [
        (Part::State, "state"),
        (Part::Sessions, "sessions"),
        (Part::Outcomes, "outcomes"),
        (Part::Watches, "watches"),
        (Part::Connections, "connections"),
        (Part::Peers, "peers"),
        (Part::Log, "log"),
    ];
}

/// Bytes that many hold, who come and go: each its [`Share`].
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<AtomicU64>);

impl Tally {
    pub fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Registers one more holder of memory.
    pub fn share(&self) -> Share {
        Share { tally: self.clone(), bytes: 0 }
    }
}

/// The memory of one holder; given back when dropped.
#[derive(Debug)]
pub struct Share {
    tally: Tally,
    bytes: usize,
}

impl Share {
    /// It holds about so much now. Less than [`Share::STEP`] more or less is not worth a word.
    pub fn hold(&mut self, bytes: usize) {
        if bytes.abs_diff(self.bytes) >= Self::STEP {
            // Wraps around where it is less.
            self.tally.0.fetch_add((bytes as u64).wrapping_sub(self.bytes as u64), Relaxed);
            self.bytes = bytes;
        }
    }

    pub const STEP: usize = 4 << 10;

    /// Another one of the same kind.
    pub fn another(&self) -> Share {
        self.tally.share()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.tally.0.fetch_sub(self.bytes as u64, Relaxed);
    }
}

#[derive(Debug, Default)]
pub struct Memory {
    parts: [AtomicU64; Part::ALL.len()],
    /// [`Part::Peers`], which counts itself.
    pub peers: Tally,
    limit: AtomicU64,
}

impl Memory {
    /// Sets the limit; 0: none.
    pub fn limit_to(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// The limit; 0: none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    pub fn set(&self, part: Part, bytes: u64) {
        self.parts[part as usize].store(bytes, Relaxed);
    }

    /// The part holds so much more, or less.
    pub fn shift(&self, part: Part, bytes: i64) {
        self.parts[part as usize].fetch_add(bytes as u64, Relaxed);
    }

    /// Returns the bytes of the part.
    pub fn get(&self, part: Part) -> u64 {
        match part {
            Part::Peers => self.peers.bytes(),
            _ => self.parts[part as usize].load(Relaxed),
        }
    }

    /// Sets the bytes of the replicated state.
    pub fn set_state(&self, machine: &Machine) {
        let counts = machine.counts();
        let znodes = ZNODE_BYTES * counts.znodes + EPHEMERAL_BYTES * counts.ephemerals;
        self.set(Part::State, counts.approximate_data_bytes + machine.acl_bytes() + znodes);
        self.set(Part::Sessions, SESSION_BYTES * counts.sessions);
        self.set(Part::Outcomes, machine.outcome_bytes() as u64);
    }

    pub fn total(&self) -> u64 {
        Part::ALL.iter().map(|(part, _)| self.get(*part)).fold(0, u64::saturating_add)
    }

    /// Whether growing commands are refused.
    pub fn is_full(&self) -> bool {
        let limit = self.limit();
        limit > 0 && self.total() >= limit
    }

    /// Returns the bytes of log in memory at which a snapshot is taken and the log purged.
    pub fn log_max(&self) -> usize {
        match self.limit() {
            0 => usize::MAX,
            limit => usize::try_from(limit / LOG_PART).unwrap_or(usize::MAX).max(LOG_MEMORY_BYTES),
        }
    }

    /// The largest connections are closed.
    pub fn connections_are_full(&self) -> bool {
        let limit = self.limit();
        limit > 0 && self.get(Part::Connections) >= limit / CONNECTIONS_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_together_are_held_against_the_limit() {
        let memory = Memory::default();
        for (part, _) in Part::ALL {
            memory.set(part, 100);
        }
        let mut share = memory.peers.share();
        share.hold(10_000);
        assert!(!memory.is_full() && !memory.connections_are_full(), "there is no limit");
        memory.limit_to(10_601);
        assert!(!memory.is_full());
        share.hold(10_001);
        assert_eq!((memory.get(Part::Peers), memory.total()), (10_000, 10_600), "a byte is not worth a word");
        share.hold(20_000);
        assert!(memory.is_full());
        drop(share);
        assert_eq!(memory.get(Part::Peers), 0);
        memory.limit_to(601);
        assert!(!memory.is_full());
        memory.shift(Part::Connections, 49);
        assert!(memory.is_full() && !memory.connections_are_full());
        memory.shift(Part::Connections, 1);
        assert!(memory.connections_are_full());
        memory.shift(Part::Connections, -50);
        assert_eq!((memory.total(), memory.is_full()), (600, false));
    }

    #[test]
    fn every_part_has_its_own_place() {
        for (at, (part, _)) in Part::ALL.into_iter().enumerate() {
            assert_eq!(part as usize, at);
        }
    }
}
