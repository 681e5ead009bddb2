//! Whole nodes and clients: the production code, unchanged, on a simulated network, clock, disk and
//! scheduler.
//!
//! - `node`: process of a node; `workload`: processes of clients;
//! - `witness`: turns events of the nodes' logs into facts; `record`: passes all facts to the checkers;
//! - `injector` (with `schedule`, `cuts`, `flood`): applies the script of faults;
//! - `rebirth`: an operator makes a new cluster from a backup or from the last node; `revenant`: a returning
//!   node of the old cluster;
//! - `operator`: adds and removes nodes over the client port; `autopilot`: the operator's knowledge of nodes
//!   that the leader adds and removes; `membership`: which nodes exist;
//! - `contestant`: the cluster among the lock designs of `rowlock_designs`;
//! - `connected`: service that links, processes and disks allow during faults; `probe`: requests that
//!   service;
//! - `cast`: hosts that a script may name;
//! - `run`: one run from its seed to its verdict; `terms`: demands that the checkers may make of the run.
//!
//! Not simulated: sled below the lock history, TLS, and HTTP connections (`rest_door`).

mod audit;
mod autopilot;
mod backups;
mod cast;
mod connected;
mod contestant;
mod cuts;
mod flood;
mod injector;
mod membership;
mod node;
mod node_statuses;
mod operator;
mod probe;
mod rebirth;
mod record;
mod releases;
mod rest_door;
mod revenant;
mod run;
mod scenario;
mod schedule;
mod shape;
mod stats;
mod terms;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_cuts;
mod tokens;
mod traits;
mod witness;
mod workload;

pub use contestant::Rowlock;
pub use rest_door::PORT as REST_PORT;
pub(crate) use run::CLIENTS;
pub use run::{Outcome, Plan, run};
pub use scenario::{Faults, Scenario};
pub(crate) use shape::Shape;
pub use stats::Stats;
pub(crate) use traits::{Trait, traits_of};
