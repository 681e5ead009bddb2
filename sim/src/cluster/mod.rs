//! Whole nodes and clients: the production code, unchanged, on a simulated network, clock, disk and
//! scheduler.
//!
//! - `node`: the process of a node; `workload`: those of clients;
//! - `witness`: what the nodes' log does, as facts; `record`: where all facts go, and are judged;
//! - `injector` (with `schedule`, `cuts`): does what the script of faults says;
//! - `operator`: adds and removes nodes over the client port; `membership`: which there are;
//! - `contestant`: the cluster among the lock designs of `rowlock_designs`;
//! - `run`: one run from its seed to its verdict; `terms`: what may be demanded of it.
//!
//! What is not simulated: the lock history (sled has files and threads of its own), HTTP (nobody asks), TLS
//! (there is none).

mod audit;
mod contestant;
mod cuts;
mod injector;
mod membership;
mod node;
mod node_statuses;
mod operator;
mod record;
mod run;
mod scenario;
mod schedule;
mod shape;
mod stats;
mod terms;
#[cfg(test)]
mod tests;
mod witness;
mod workload;

pub use contestant::Rowlock;
pub use run::{Outcome, Plan, run};
pub use scenario::Scenario;
pub use stats::Stats;
