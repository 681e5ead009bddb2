//! The replicated state machine of Rowlock.

pub mod command;
pub mod outcome;
