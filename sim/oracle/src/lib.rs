//! A second, naive model of the replicated state: a flat map from path to znode, and a list for each lock,
//! walked from the front. The model is slow, and every rule is a visible line.
//!
//! [`Oracle::check`] runs a proposal that a [`Machine`](rowlock_state::Machine) has applied, and compares
//! answer, events, queues, sessions and znodes. A difference is a mistake of one of the two. Then the
//! predicates in `promises.rs` check the oracle's own book.
//!
//! Invariant: the oracle uses the data types of `rowlock-state` and reads of a machine, and none of its
//! rules: a wrong rule there stays visible here.

mod book;
mod commands;
mod compare;
mod deadlock;
mod events;
mod promises;
mod question;
mod queue;
mod requests;
mod rights;
mod sessions;
mod shown;
mod start;
mod tree;

pub use book::Oracle;
pub use compare::Breach;
pub use events::{Event, Heard};
pub use promises::PROMISES;
