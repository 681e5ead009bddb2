//! openraft's side of a node: types, runtime, network, state machine adapter. Nothing outside this folder and
//! `storage/` names openraft.

pub mod runtime;
pub mod types;
