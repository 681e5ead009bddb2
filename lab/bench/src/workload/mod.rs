//! Workloads: the work on a system, and its measurements.

mod cluster;
pub mod contended;
mod crash;
pub mod crowd;
pub mod floor;
mod herd;
mod idle;
mod kind;
mod leader_kill;
mod overload;
pub mod phase;
mod pulse;
mod read_mostly;
mod relay;
mod scale;
mod snapshot;
mod storm;
pub mod uncontended;
mod wide;
mod witness;

pub use kind::Workload;
