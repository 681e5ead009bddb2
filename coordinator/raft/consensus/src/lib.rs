//! Raft in a Rowlock node: one order of all commands, on a majority of disks. The only crate that knows
//! openraft.
//!
//! | module | what it does |
//! |---|---|
//! | [`raft`] | openraft's side: network, adapters of the log and the state machine, leadership, pacing |
//! | [`raft::facts`] | how Raft stands, and what it can be asked to do, in the node's own words |
//! | [`raft_types`] | openraft's types as Rowlock chooses them, and Raft's messages |
//! | [`peer`] | what nodes say to each other, on the connections of `rowlock_transport` |
//! | [`batching`] | the leader's side of proposals: many commands become one log entry |
//! | [`applied_state`] | the state that the log has led to on this node |
//! | [`entry_times`] | when the newest entries came to this node and were flushed |
//! | [`room`] | which members have room on their disks, as far as the leader knows |
//! | [`invitations`] | the load of this node, and which sessions it may send to the leader |
//! | [`log_clock`] | the time in the log, which follows no jumps of the wall clock |
//!
//! # What it promises
//!
//! - What is committed is on the disks of a majority, and is applied on every node in one order, once
//!   ([`raft::state_machine`]). No node acknowledges before its flush.
//! - Proposals of one term keep their order: an entry that has overtaken another one is skipped by every node
//!   and proposed again ([`batching`]).
//! - A read's index ([`raft::facts::read_index`]) is confirmed by a quorum, never by a lease.
//! - A node that may have lost its data neither votes nor acknowledges before the others have said that it
//!   has forgotten nothing ([`raft::Admission`]).
//! - When the leader dies, the first follower that may be elected is, as soon as the leader's lease is over
//!   ([`raft::lease`]); with slow disks, too ([`raft::elections`]).
//!
//! `docs/raft.md` says on one page how Raft is used, and what of openraft is overridden and why.
//!
//! # What it does not know
//!
//! No client and no connection of one: what a committed entry does besides changing the state is the business
//! of the [`Apply`](raft::state_machine::Apply) that it is given; answers go back by ways of their own. No
//! session: it carries their touches and knows no timer. No watch, no report, no history. What a node does
//! for the others beyond Raft is a trait here ([`peer::PeerService`]), implemented above.

pub mod applied_state;
pub mod batching;
pub mod config;
pub mod entry_times;
pub mod invitations;
pub mod log_clock;
pub mod peer;
pub mod raft;
pub mod raft_types;
pub mod room;

// The support of the tests between nodes is also that of the crate above, which includes it by its path.
#[cfg(test)]
extern crate self as rowlock_consensus;
