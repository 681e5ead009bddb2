//! A Rowlock node: Raft, storage, sessions, watches, client listener, HTTP.

pub mod client;
pub mod codec;
pub mod config;
pub mod http;
pub mod limits;
pub mod metrics;
pub mod peer;
pub mod proposer;
pub mod raft;
pub mod replica;
pub mod session;
pub mod status;
pub mod storage;
pub mod watch;
