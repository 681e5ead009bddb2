//! Promises about the replicated state alone: mutual-exclusion, fifo, no-deadlock and the others of
//! [`rowlock_oracle::PROMISES`]. The oracle (`sim/oracle`), a naive model without the rules of the state,
//! finds the same answer, events and effects for each command of the log, and its book keeps the promises
//! (`sim/oracle/src/promises.rs`).

use super::Invariant;
use crate::history::{Book, Fact};

/// Checker of the promise with this name.
pub struct OfTheState(pub &'static str);

impl Invariant for OfTheState {
    fn name(&self) -> &'static str {
        self.0
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Disagreed { promise, what } if *promise == self.0 => Err(what.clone()),
            _ => Ok(()),
        }
    }
}
