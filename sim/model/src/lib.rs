//! Models of a session's life and end, of elections, and of restarts after a loss of power.
//!
//! [`rules`] states once which events are forbidden. `space` explores a cluster of three nodes, a client that
//! holds a lock and its successor: all interleavings of keepalives, elections, lost and late answers and
//! stalls. The simulator checks the facts of each run against the same rules
//! (`sim/src/invariants/cluster/session_expiry.rs`), so that model and code cannot drift apart.
//!
//! `election` explores votes and rounds of elections behind slow flushes.
//!
//! `restart` explores a mode that is not built: grants that nodes acknowledge before the flush, and losses of
//! power. `search` is common to all.
//!
//! Modeled behavior of sessions and its code:
//! - the client believes until a time after *sending* the last answered keepalive:
//!   `client/rust/src/session/deadline.rs`
//! - the leader's timer, which no touch restarts after the decision:
//!   `coordinator/raft/sessions/src/tracker.rs`
//! - contact, stalls, forgiving, expiry: `coordinator/raft/sessions/src/liveness.rs`
//! - the leader answers a keepalive after a quorum has acknowledged the leader:
//!   `coordinator/raft/sessions/src/heartbeat_ack.rs`
//! - an answer counts for its request: `coordinator/raft/consensus/src/raft/acks.rs`
//!
//! Reasons: `docs/decisions/heartbeats.md`, `docs/decisions/quorum-loss.md`, and "The clock assumption" in
//! `docs/guarantees.md`.

#[cfg(feature = "explore")]
pub mod election;
#[cfg(feature = "explore")]
pub mod restart;
pub mod rules;
#[cfg(feature = "explore")]
pub mod search;
#[cfg(feature = "explore")]
pub mod space;
