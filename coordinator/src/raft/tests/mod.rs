//! Raft over the node protocol, on real sockets.

mod cluster;
mod pipeline;
mod relay;
mod snapshots;
mod support;
