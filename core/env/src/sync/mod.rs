//! Synchronization that wakes in a fixed order, so that a seed fixes a run.

pub mod watch;
