//! The promises that only a whole cluster with real clients can keep or break. They judge what [`ClientFact`]s and
//! [`NodeFact`]s say, against each other and against the log.
//!
//! [`ClientFact`]: crate::history::client::ClientFact
//! [`NodeFact`]: crate::history::node::NodeFact

pub(super) mod committed_never_changes;
pub(super) mod durable;
pub(super) mod effects;
pub(super) mod leader_completeness;
pub(super) mod linearizable_writes;
pub(super) mod log_matching;
mod matching;
pub(super) mod monotonic_reads;
mod node_log;
pub(super) mod one_leader_per_term;
pub(super) mod read_your_writes;
mod reads;
pub(super) mod session_order;
pub(super) mod synced_reads;
#[cfg(test)]
pub(super) mod testing;
pub(super) mod votes_never_go_back;
pub(super) mod watches;
mod znodes;
