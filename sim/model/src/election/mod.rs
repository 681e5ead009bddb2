//! Elections while flushes are slow: [`votes`] explores which leaders are safe, [`rounds`] how many terms it
//! takes until a leader is there.
//!
//! Modeled behavior and its code:
//! - a vote is on disk before its request or its answer leaves: `coordinator/storage/wal`, openraft
//! - a term begins after the other voter has promised its vote, and each round lasts twice as long as the
//!   round before, and longer behind slow flushes: `coordinator/raft/consensus/src/raft/elections.rs`,
//!   `coordinator/raft/consensus/src/raft/lease.rs`

pub mod rounds;
pub mod votes;
