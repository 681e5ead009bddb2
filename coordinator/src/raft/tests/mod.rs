//! Raft over the node protocol, on real sockets.

mod cluster;
mod pipeline;
mod reconfigure;
mod relay;
mod snapshots;
mod support;
