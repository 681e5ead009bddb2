//! Whole nodes and clients: the production code, unchanged, on a simulated network, clock, disk and
//! scheduler.
//!
//! - `node`: the process of a node; `workload`: those of clients;
//! - `witness`: turns what happens to the nodes' log into facts; `record`: collects all facts and judges
//!   them;
//! - `injector` (with `schedule`, `cuts`, `flood`): applies the script of faults;
//! - `rebirth`: an operator makes a new cluster from a backup, or from the last node; `revenant`: a node of
//!   the old one;
//! - `operator`: adds and removes nodes over the client port; `membership`: which nodes exist;
//! - `contestant`: the cluster among the lock designs of `rowlock_designs`;
//! - `connected`: which service the world allows while faults last; `probe`: asks for it;
//! - `cast`: which hosts a script may name;
//! - `run`: one run from its seed to its verdict; `terms`: what the checkers may demand of it.
//!
//! What is not simulated: sled below the lock history, TLS, and of HTTP the connections (`rest_door`).

mod audit;
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
mod traits;
mod witness;
mod workload;

pub use contestant::Rowlock;
pub use rest_door::PORT as REST_PORT;
pub(crate) use run::CLIENTS;
pub use run::{Outcome, Plan, run};
pub use scenario::Scenario;
pub(crate) use shape::Shape;
pub use stats::Stats;
pub(crate) use traits::{Trait, traits_of};
