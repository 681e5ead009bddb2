//! The client against a fake ZooKeeper, through its public surface only.

mod cancel;
mod fake;
mod guard;
mod mutex;
mod session;
mod znode;
