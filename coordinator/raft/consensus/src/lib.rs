//! Raft in a Rowlock node: one order of all commands, on a majority of disks. No other crate uses openraft.
//!
//! | module | purpose |
//! |---|---|
//! | [`raft`] | openraft's side: network, adapters of the log and the state machine, leadership, pacing |
//! | [`raft::facts`] | state of Raft and requests to Raft, in the node's own terms |
//! | [`raft_types`] | openraft's types as chosen by Rowlock, and Raft's messages |
//! | [`runtime`] | openraft's asynchronous runtime, on `rowlock_env` |
//! | [`peer`] | messages between nodes, on the connections of `rowlock_transport` |
//! | [`batching`] | the leader's side of proposals: many commands become one log entry |
//! | [`applied_state`] | the applied state on this node |
//! | [`entry_times`] | arrival and flush times of the newest entries |
//! | [`room`] | disk room of the members, as reported to the leader |
//! | [`invitations`] | load of this node, and invitations of sessions to the leader |
//! | [`log_clock`] | the time in the log, which ignores jumps of the wall clock |
//! | [`reconfiguration`] | a change of the membership in ZooKeeper's terms |
//! | [`operation`] | an operator's command to a node |
//! | [`status`] | role, term, leader and log end of a node |
//! | [`node_hook`] | changes of a node's log and state, for simulators, audits and tests |
//! | [`limits`] | every bound with its action, and every deliberate delay |
//!
//! # Guarantees
//!
//! - A committed entry is on the disks of a majority, and every node applies the entry once, in one order
//!   ([`raft::state_machine`]). No node acknowledges before its flush.
//! - Proposals of one term keep their order: every node skips an entry that overtook another one, and the
//!   leader proposes the entry again ([`batching`]).
//! - A quorum confirms the index of a read ([`raft::facts::read_index`]), never a lease.
//! - A node that may have lost its data neither votes nor acknowledges before the other nodes confirm that no
//!   data is missing ([`raft::Admission`]).
//! - When the leader dies, the first electable follower wins as soon as the leader's lease has ended
//!   ([`raft::lease`]); with slow disks, too ([`raft::elections`]).
//!
//! `docs/raft.md` describes on one page the use of Raft, and the overridden parts of openraft with the
//! reasons.
//!
//! # Limits
//!
//! This crate has no clients and no client connections: the [`Apply`](raft::state_machine::Apply) of the
//! layer above performs the effects of a committed entry beside the state change, and sends the answers.
//! Sessions appear only in forwarded touches, without timers. Watches, reports and history belong to the
//! layers above. Requests between nodes beyond Raft go to a trait ([`peer::PeerService`]), implemented above.

pub mod applied_state;
pub mod batching;
pub mod config;
pub mod entry_times;
pub mod invitations;
pub mod limits;
pub mod log_clock;
pub mod node_hook;
pub mod operation;
pub mod peer;
pub mod raft;
pub mod raft_types;
pub mod reconfiguration;
pub mod room;
pub mod runtime;
pub mod status;

// Lets the crate above include the test support of `peer` by its path.
#[cfg(test)]
extern crate self as rowlock_consensus;
