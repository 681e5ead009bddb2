//! The client against a fake ZooKeeper, through its public surface only.

#![allow(clippy::unwrap_used)] // tests and what only tests use

mod apache;
mod barrier;
#[cfg(feature = "blocking")]
mod blocking;
mod cancel;
mod connect;
mod contention;
mod counter;
mod double_barrier;
mod election;
mod ending;
mod exactly_once;
mod fake;
mod guard;
mod hazards;
mod kinds;
mod latch;
mod mutex;
mod observer;
mod plaintext;
mod questions;
mod reentrant;
mod served;
mod served_cancel;
mod served_guard;
mod served_recipes;
mod session;
mod stories;
mod znode;
