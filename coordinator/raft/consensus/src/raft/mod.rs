//! openraft's side of a node: network, adapters of log and state machine, leadership. The types are in
//! `raft_types.rs`.

pub mod acks;
pub mod append_pipeline;
pub mod classes;
pub mod compaction;
pub mod contradiction;
pub mod elections;
pub mod facts;
pub mod heartbeats;
pub mod lease;
pub mod log_store;
pub mod network;
pub mod open;
pub mod quorum_contact;
pub mod recollection;
pub mod reconfigure;
pub mod rpc;
pub mod state_machine;
pub mod stored;
mod votes;

pub use elections::Elections;
pub use facts::{is_alone, is_member, stopped, voters};
pub use lease::LeaderLease;
pub use open::{Admission, OpenError, Raft, Settings, Started, dispatch, open};
pub use quorum_contact::QuorumContact;
pub use recollection::{Admitter, Recollection, RestartEntry};

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
