//! Clients with ZooKeeper's requests only: `queues` works on the locks' own znodes, `follow` keeps persistent
//! watches, `frames` sends the largest allowed requests, `flood` sends as many writes at once as a connection
//! may have pending, `ghost` takes a lock and dies, `bystander` sends small requests beside
//! floods, `access` works under changing rules (`guarded`)
//! and changing ACLs (`closed`).
//!
//! `session` is a session over many connections.

pub(super) mod access;
pub(super) mod bystander;
mod closed;
pub(super) mod flood;
pub(super) mod follow;
pub(super) mod frames;
pub(super) mod ghost;
pub(super) mod guarded;
pub(super) mod queues;
mod session;
