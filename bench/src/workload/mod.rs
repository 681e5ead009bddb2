//! What is done with a system, and what is counted meanwhile.

pub mod contended;
pub mod floor;
mod kind;
pub mod uncontended;
mod witness;

pub use kind::Workload;
