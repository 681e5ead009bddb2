//! Clients that speak only ZooKeeper's requests, beside those of Rowlock: `queues` works on the locks' own
//! znodes, `follow` keeps persistent watches, `frames` sends the largest allowed requests, `flood` as
//! many writes at once as there is room for, `ghost` takes a lock and dies, `bystander` asks little beside
//! floods.
//!
//! `session` is a session over many connections.

pub(super) mod bystander;
pub(super) mod flood;
pub(super) mod follow;
pub(super) mod frames;
pub(super) mod ghost;
pub(super) mod queues;
mod session;
