//! A Rowlock node: Raft, storage, sessions, watches, client listener, HTTP.

pub mod bootstrap;
pub mod client;
pub mod codec;
pub mod config;
pub mod http;
pub mod limits;
pub mod metrics;
pub mod node;
pub mod peer;
pub mod proposer;
pub mod raft;
pub mod reconfig;
pub mod replica;
pub mod service;
pub mod session;
pub mod standing;
pub mod status;
pub mod storage;
pub mod sweep;
pub mod watch;
pub mod zk_config;
