//! the-oracle-agrees: each command of the log has the answer, the events and the effects on queues, sessions
//! and znodes that the oracle (`sim/oracle`), a naive model without the rules of the state, finds for the
//! same log.

use super::Invariant;
use crate::history::Fact;

/// The comparison itself is in `sim/oracle/src/compare.rs`.
pub struct TheOracleAgrees;

impl Invariant for TheOracleAgrees {
    fn name(&self) -> &'static str {
        "the-oracle-agrees"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Disagreed { promise, what } if *promise == self.name() => Err(what.clone()),
            Fact::Disagreed { promise, what } => Err(format!("{promise}: {what}")),
            _ => Ok(()),
        }
    }
}
