//! Raft over the node protocol, on real sockets, and its adapters on real files.

mod cluster;
mod pipeline;
mod reconfigure;
mod relay;
mod snapshots;
mod storage;
pub(super) mod support;
