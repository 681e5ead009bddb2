//! A Rowlock node: Raft, storage, sessions, watches, client listener, HTTP.

pub mod codec;
pub mod config;
pub mod http;
pub mod limits;
pub mod metrics;
pub mod peer;
pub mod raft;
pub mod status;
pub mod storage;
