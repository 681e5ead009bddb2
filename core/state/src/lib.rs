//! The replicated state machine of Rowlock: znodes, sessions, ACLs, multi, and the queues of locks.
//!
//! Every node feeds the same [`command::Batch`]es, in log order, to its own [`Machine`]. The results are a
//! response per proposal ([`outcome::Applied`]) and the events of each change ([`outcome::EventSink`]).
//!
//! The caller's duties:
//! 1. Apply every batch of the log once, in order, each proposal with the batch's stamp, and nothing else.
//! 2. Let one thread apply at a time; reads may run beside each other, never beside an apply.
//! 3. Validate nothing before: the machine answers all input of clients, identically on every replica. But
//!    let no command into the log if the leader gets no price ([`Machine::price`]).
//! 4. Keep the log until a [`Frozen`] of a later state has been written out and flushed.
//!
//! Invariant: no clock, no randomness, no IO, no unordered iteration; [`Machine::apply`] is total.

pub mod acl;
mod acl_table;
mod arena;
pub mod codec;
pub mod command;
mod cost;
mod dedup;
mod digest;
mod done;
mod enforce;
pub mod guard;
mod guesses;
mod invariants;
mod load;
mod locks;
mod machine;
mod multi;
pub mod mutant;
mod ops;
pub mod outcome;
mod query;
pub mod quota;
mod reap;
mod restart;
mod restore;
pub mod rules;
mod sequence;
mod sessions;
mod shared_map;
mod snapshot;
mod steps;
mod tree;
mod upgrade;
pub mod version;
mod znode;

pub use codec::{BATCH_MAX_BYTES, BatchError};
pub use command::Proof;
pub use cost::{
    ANCESTORS_MAX, COMMAND_BYTES_MAX, COMMAND_STEPS_MAX, Cost, ENTRY_STEPS_MAX, EPHEMERALS_MAX,
    EXPANSION_MAX_BYTES, QUEUE_PLACES_MAX,
};
pub use locks::{
    ASK_PAUSE_MS, ASKED_MAX, ASKERS_MAX, AskedHolder, Asker, ContenderView, Deadline, LABEL_MAX, LockView,
    PARTIES_MAX_BYTES, PARTY_PATH_MAX, PLACES_MAX, QUEUE_MAX, Question, Wish,
};
pub use machine::{Counts, Machine};
pub use outcome::{OUTCOMES_ALL_BYTES, OUTCOMES_MAX, OUTCOMES_MAX_BYTES, OUTCOMES_SMALL_BYTES};
pub use query::{Exported, Lifetime};
pub use restart::FORGOTTEN_MAX;
pub use restore::{LeftBehind, Rule, TOKEN_FLOOR_MAX, ZxidsUsedUp};
pub use sessions::{Host, LASTING_MS, Opened, STATE_LOCK_MS, Session};
pub use snapshot::{Frozen, SNAPSHOT_VERSION, SnapshotError};
pub use version::{ClusterVersion, Layout, NewCluster};
pub use znode::Kind;
