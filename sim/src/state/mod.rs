//! The replicated state alone: `rowlock_state` under a seeded world, with everything around it modelled.
//!
//! What runs for real: `rowlock_state` as it is: one log, several replicas that apply it at different speeds,
//! crash, come back from a snapshot and the log behind it, or get another replica's snapshot.
//!
//! What is modelled here, in place of the real thing:
//! - connections, watches and the two-way traffic of a node (`node`, `message`): ordered, delayed at will,
//!   lost at the ends;
//! - the leader's memory of signs of life and its decision to expire (`leader`);
//! - the notices by which a node tells sessions of grants and losses, and the leader's look at what is due;
//! - clients that heartbeat, re-attach, pause and die, and queue for the same locks by the sequential recipe
//!   or by acquire and its like, with numbered writes that they send again after every lost connection
//!   (`client`);
//! - a resource that looks at fencing tokens.
//!
//! What is not here: Raft (the log is agreed by decree), the network, the disk, clocks that run at different
//! rates, and the code of `coordinator` and of the client library. They are under `crate::cluster`. This
//! level is about a hundred times faster, so it reaches rarer orders of the same commands.
//!
//! Everything follows from the seed: no clock, no thread, no unordered iteration. Facts (`history`) are told
//! to the checkers (`invariants`) as they happen; the first broken promise ends the run. `mutant`s are
//! deliberate mistakes that runs must catch.

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
