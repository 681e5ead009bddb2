//! Promises that only a whole cluster with real clients can keep or break. The checkers compare
//! [`ClientFact`]s and [`NodeFact`]s with each other and with the log.
//!
//! [`ClientFact`]: crate::history::client::ClientFact
//! [`NodeFact`]: crate::history::node::NodeFact

pub(super) mod beliefs;
pub(super) mod committed_never_changes;
pub(super) mod deposed_leader_admits_none;
pub(super) mod disturbances;
pub(super) mod durable;
pub(super) mod effects;
pub(super) mod fenced_store;
pub(super) mod fifo_in_real_time;
pub(super) mod in_time;
pub(super) mod leader_completeness;
pub(super) mod linearizability;
pub(super) mod linearizable_writes;
pub(super) mod lock_events;
pub(super) mod log_matching;
pub(super) mod log_time;
pub(super) mod logs_never_go_back;
mod matching;
pub(super) mod may_do;
pub(super) mod may_see;
pub(super) mod monotonic_reads;
pub(super) mod one_leader_per_term;
pub(super) mod persistent_watches;
pub(super) mod read_your_writes;
mod reads;
pub(super) mod releases;
pub(super) mod reports;
pub(super) mod restored_cluster;
mod rules;
pub(super) mod session_expiry;
pub(super) mod session_moves;
pub(super) mod session_order;
pub(super) mod steady;
pub(super) mod synced_reads;
pub(super) mod verify;
pub(super) mod voters_have_the_log;
pub(super) mod votes_never_go_back;
pub(super) mod watches;
mod znodes;
