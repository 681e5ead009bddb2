//! Estimated memory of a node's clients, against the node's limit.
//!
//! Apply, the connections and the node's status publisher record the bytes of each part; the leader's intake,
//! the admission of sessions and `addWatch` check for room. Above the limit the node refuses growing
//! commands; commands that free memory, reads and keepalives pass. Counts are estimates on the high side: the
//! allocator is not consulted.
//!
//! Must never decide anything that replicas must agree on. The leader's decision is in the log
//! (`proposer/growth.rs`).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use rowlock_state::Machine;

/// Bytes of the log in memory above which the node takes a snapshot and purges the log, however few entries
/// the log has, while the state is small: the memory is reused again and again. For a larger state the bound
/// is twice the last snapshot.
pub const LOG_MEMORY_BYTES: usize = 32 << 20;
/// A znode without path and data.
const ZNODE_BYTES: u64 = 256;
/// Additional bytes of an ephemeral znode: entries in the session's list and in a queue.
const EPHEMERAL_BYTES: u64 = 256;
/// A session, in the state and on the leader.
const SESSION_BYTES: u64 = 512;
/// A connection without traffic, in bytes.
pub const CONNECTION_BYTES: u64 = 1_536;
/// Additional bytes of a TLS connection: keys and permanent buffers. Measured with 3,000 connections.
pub const TLS_BYTES: u64 = 8 << 10;
/// Divisor: part of the limit at which the node closes the largest connections.
const CONNECTIONS_PART: u64 = 4;
/// Divisor: part of the limit for the log.
const LOG_PART: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Znodes, their ACLs, and locks.
    State,
    Sessions,
    /// Outcomes of writes that clients may repeat.
    Outcomes,
    /// Watches of this node's connections.
    Watches,
    /// This node's connections, with read but unprocessed requests and unwritten replies.
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

/// Bytes of one holder, or of many short-lived holders: each has its [`Share`].
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<AtomicU64>);

impl Tally {
    pub fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Sets the bytes of a single holder.
    pub fn set(&self, bytes: usize) {
        self.0.store(bytes as u64, Relaxed);
    }

    /// Registers one more holder.
    pub fn share(&self) -> Share {
        Share { tally: self.clone(), bytes: 0 }
    }
}

/// The bytes of one holder; released on drop.
#[derive(Debug)]
pub struct Share {
    tally: Tally,
    bytes: usize,
}

impl Share {
    /// Records that the holder has about `bytes` now. Ignores changes below [`Share::STEP`].
    pub fn hold(&mut self, bytes: usize) {
        if bytes.abs_diff(self.bytes) >= Self::STEP {
            // Wraps around for a decrease.
            self.tally.0.fetch_add((bytes as u64).wrapping_sub(self.bytes as u64), Relaxed);
            self.bytes = bytes;
        }
    }

    pub const STEP: usize = 4 << 10;

    /// Registers another holder of the same kind.
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
    /// Bytes of [`Part::Peers`], counted by the holders.
    pub peers: Tally,
    /// Bytes of [`Part::Log`], once the log is open.
    log: OnceLock<Tally>,
    limit: AtomicU64,
}

impl Memory {
    pub fn limit_to(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Returns the limit; 0: none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Counts the bytes of the open log from now on.
    pub fn count_log(&self, bytes: Tally) {
        self.log.get_or_init(|| bytes);
    }

    pub fn set(&self, part: Part, bytes: u64) {
        self.parts[part as usize].store(bytes, Relaxed);
    }

    /// Adds to the bytes of a part; negative to subtract.
    pub fn shift(&self, part: Part, bytes: i64) {
        self.parts[part as usize].fetch_add(bytes as u64, Relaxed);
    }

    pub fn get(&self, part: Part) -> u64 {
        match part {
            Part::Peers => self.peers.bytes(),
            Part::Log => self.log.get().map_or(0, Tally::bytes),
            _ => self.parts[part as usize].load(Relaxed),
        }
    }

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

    /// Returns true if the node refuses growing commands.
    pub fn is_full(&self) -> bool {
        let limit = self.limit();
        limit > 0 && self.total() >= limit
    }

    /// Returns the bytes of log in memory above which the node takes a snapshot and purges the log.
    pub fn log_max(&self) -> usize {
        match self.limit() {
            0 => usize::MAX,
            limit => usize::try_from(limit / LOG_PART).unwrap_or(usize::MAX).max(LOG_MEMORY_BYTES),
        }
    }

    /// Returns true if the node closes its largest connections.
    pub fn connections_are_full(&self) -> bool {
        let limit = self.limit();
        limit > 0 && self.get(Part::Connections) >= limit / CONNECTIONS_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_all_parts_counts_against_the_limit() {
        let memory = Memory::default();
        for (part, _) in Part::ALL {
            memory.set(part, 100);
        }
        let log = Tally::default();
        memory.count_log(log.clone());
        log.set(100);
        let mut share = memory.peers.share();
        share.hold(10_000);
        assert!(!memory.is_full() && !memory.connections_are_full(), "there is no limit");
        memory.limit_to(10_601);
        assert!(!memory.is_full());
        share.hold(10_001);
        assert_eq!(
            (memory.get(Part::Peers), memory.total()),
            (10_000, 10_600),
            "a change of one byte is not recorded"
        );
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
    fn every_part_has_its_own_index() {
        for (at, (part, _)) in Part::ALL.into_iter().enumerate() {
            assert_eq!(part as usize, at);
        }
    }
}
