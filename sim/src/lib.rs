//! Seeded simulation of Rowlock, with a checker for each promise of docs/guarantees.md.
//!
//! Whole nodes and clients run on a simulated network, clock, disk and scheduler. They report facts
//! ([`history`]) to the checkers ([`invariants`]); the first broken promise ends a run.

pub mod cluster;
pub mod corpus;
pub mod fact_recorder;
pub mod fault;
pub mod history;
pub mod invariants;
pub mod judge;
pub mod report;
pub mod shrink;

pub use invariants::Violation;
