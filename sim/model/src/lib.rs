//! A model beside the code: how a session lives and ends, and who believes in it meanwhile.
//!
//! [`rules`] says once what no event may do. `space` explores a cluster of three nodes, a client that holds
//! a lock and its successor: all interleavings of heartbeats, elections, lost and late answers and stalls.
//! The simulator shows the facts of each run to the same rules
//! (`sim/src/invariants/cluster/session_expiry.rs`), so that model and code cannot drift apart.
//!
//! What is modeled, and where its code is:
//! - the client believes until a time after the *sending* of the last answered heartbeat:
//!   `client/rust/src/session/deadline.rs`
//! - the leader's timer, which no touch restarts after the decision:
//!   `coordinator/raft/sessions/src/tracker.rs`
//! - contact, stalls, forgiving, expiry: `coordinator/raft/sessions/src/liveness.rs`
//! - a heartbeat is answered after a quorum has acknowledged the leader:
//!   `coordinator/raft/sessions/src/heartbeat_ack.rs`
//! - an answer counts for its request: `coordinator/raft/consensus/src/raft/acks.rs`
//!
//! Why they are so: `docs/decisions/heartbeats.md`, `docs/decisions/quorum-loss.md`, and "The clock
//! assumption" in `docs/guarantees.md`.

pub mod rules;
#[cfg(feature = "explore")]
pub mod space;
