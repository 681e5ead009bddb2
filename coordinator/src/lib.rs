//! A Rowlock node: Raft, storage, sessions, watches, client listener, HTTP.

pub mod config;
pub mod limits;
pub mod metrics;
pub mod status;
