//! The client against a fake ZooKeeper, through its public surface only.

#![allow(clippy::unwrap_used)] // tests and what only tests use

mod apache;
mod cancel;
mod fake;
mod guard;
mod mutex;
mod session;
mod znode;
