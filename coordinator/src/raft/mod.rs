//! openraft's side of a node: types, runtime, network, state machine adapter. Nothing outside this folder and
//! `storage/` names openraft.

pub mod acks;
pub mod admission;
pub mod append_pipeline;
pub mod compaction;
pub mod leadership;
pub mod network;
pub mod news;
pub mod open;
pub mod reconfigure;
pub mod rpc;
pub mod runtime;
pub mod snapshot_transfer;
pub mod state_machine;
pub mod succession;
pub mod thrift;
pub mod types;

pub use acks::QuorumContact;
pub use admission::Admission;
pub use open::{
    Raft, dispatch, has_joined, is_alone, is_member, open, open_storage, stopped, take_part, voters,
};

#[cfg(test)]
mod tests;
