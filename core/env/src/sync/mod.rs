//! Synchronization with a fixed order of wake-ups, so that a seed determines a run.

pub mod watch;
