//! The replicated state alone: `rowlock_state` in a seeded world, with everything around it modelled.
//!
//! What runs for real: `rowlock_state`. There is one log; several replicas apply it at different speeds,
//! crash, come back from a snapshot and the log after it, or get another replica's snapshot.
//!
//! What is modelled:
//! - connections, watches and the two-way traffic of a node (`node`, `message`): ordered, arbitrarily
//!   delayed, lost at the ends;
//! - the leader's record of signs of life and its decision to expire (`leader`);
//! - the notices by which a node tells sessions of grants and losses, and the leader's check of what is due;
//! - clients that heartbeat, re-attach, pause and die, and queue for the same locks by the sequential recipe
//!   or by acquire and its relatives, with numbered writes that they repeat after every lost connection
//!   (`client`);
//! - a resource that checks fencing tokens.
//!
//! What is absent: Raft (the log is agreed by decree), the network, the disk, clocks that run at different
//! rates, and the code of `coordinator` and of the client library. They are under `crate::cluster`. This
//! level is about a hundred times faster, so it reaches rarer orders of the same commands.
//!
//! Everything follows from the seed: no clock, no thread, no unordered iteration. Facts (`history`) go to the
//! checkers (`invariants`) as they happen; the first broken promise ends the run. `mutant`s are deliberate
//! mistakes that runs must catch.

mod client;
mod leader;
mod log;
mod message;
mod mutant;
mod node;
mod spoil;
mod stats;
mod trace;
mod world;

pub use mutant::{MUTANTS, Mutant};
pub use stats::Stats;
pub use world::{Outcome, Plan, run};
