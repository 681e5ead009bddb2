//! Seeded simulation of Rowlock, with a checker for each promise of docs/guarantees.md.
//!
//! Two levels: [`state`], the replicated state alone; and whole nodes and clients on a simulated network,
//! clock, disk and scheduler. Facts (`history`) are told to the checkers (`invariants`); the first broken
//! promise ends a run.

pub mod cluster;
pub mod fact_recorder;
pub mod fault;
pub mod history;
pub mod invariants;
pub mod report;
pub mod shrink;
pub mod state;

pub use invariants::{Violation, names};
