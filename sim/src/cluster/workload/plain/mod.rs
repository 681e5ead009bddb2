//! Clients that speak only ZooKeeper's requests, beside those of Rowlock: `queues` works on the locks' own
//! znodes, `follow` keeps persistent watches, `frames` sends the largest allowed requests, `ghost` takes a
//! lock and dies.
//!
//! `wire` is one connection, `session` a session over many of them.

pub(super) mod follow;
pub(super) mod frames;
pub(super) mod ghost;
pub(super) mod queues;
mod session;
mod wire;
