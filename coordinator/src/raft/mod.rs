//! openraft's side of a node: types, runtime, network, state machine adapter. Nothing outside this folder and
//! `storage/` names openraft.

pub mod append_pipeline;
pub mod network;
pub mod rpc;
pub mod runtime;
pub mod snapshot_transfer;
pub mod state_machine;
pub mod types;
