//! A Rowlock node: Raft, storage, sessions, watches, client listener, HTTP.

pub mod limits;
pub mod metrics;
pub mod status;
