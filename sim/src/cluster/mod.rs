//! Whole nodes and clients: the production code, unchanged, on a simulated network, clock, disk and scheduler.
//!
//! - `node`: the process of a node; `workload`: those of clients;
//! - `witness`: what the nodes' log does, as facts; `record`: where all facts go, and are judged;
//! - `injector` (with `agenda`, `cuts`): does what the script of faults says;
//! - `run`: one run from its seed to its verdict.
//!
//! What is not simulated: the lock history (sled has files and threads of its own), HTTP (nobody asks), TLS (there is
//! none).

mod agenda;
mod board;
mod cuts;
mod injector;
mod node;
mod record;
mod run;
mod scenario;
mod stats;
mod witness;
mod workload;

pub use run::{Outcome, Plan, run};
pub use scenario::Scenario;
pub use stats::Stats;
