//! log-time: the time in the log follows true time, whatever an operator sets the wall clocks of running
//! nodes to. So lock-delays and maximum holds end neither early nor late after a clock was set.
//!
//! Every fact with a log time shows the log's error. The error may grow within the documented bound of
//! clocks' rates. The error may shrink while faults go on, since a node may apply an entry long after its
//! stamp; the error may not shrink after the faults have ended.

use std::time::Duration;

use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::{Book, CLOCK_SPREAD_MS, Fact, Millis};

/// Allowed difference of two clocks, in percent of the elapsed time.
const DRIFT_PERCENT: i64 = 5;
/// Bound from an entry's stamp to its effect after every fault has healed, milliseconds.
const APPLIED_WITHIN_MS: i64 = 2_000;
/// Lateness allowed for the first facts, milliseconds: the network of a forming cluster may be slow.
const FORMED_LATE_MS: i64 = 1_000;
/// Time by which the cluster has formed.
const FORMED: Nanos = Nanos::from_millis(6_000);
/// Time after the last fault within which the nodes apply all earlier entries.
const CATCH_UP: Duration = Duration::from_secs(5);

/// Lead of the log's time over true time.
#[derive(Default)]
pub struct LogTime {
    now: Nanos,
    healed: Option<Nanos>,
    /// Lead at the first fact with a log time, milliseconds.
    first_ahead_ms: Option<i64>,
    /// Largest lead of the facts while the cluster formed, milliseconds.
    ahead_ms: i64,
}

impl LogTime {
    fn shown(&self, time: Millis, ahead_ms: i64) -> Result<(), String> {
        let elapsed_ms = millis(self.now);
        let off_ms = time.0 - elapsed_ms - ahead_ms;
        let most_ms = CLOCK_SPREAD_MS + elapsed_ms * DRIFT_PERCENT / 100;
        if off_ms > most_ms {
            return Err(format!("the log's time is {off_ms} ms ahead at {}", self.now));
        }
        let is_quiet = self.healed.is_some_and(|healed| self.now > healed + CATCH_UP);
        if is_quiet && off_ms < -most_ms - APPLIED_WITHIN_MS {
            return Err(format!("the log's time is {} ms behind at {}", -off_ms, self.now));
        }
        Ok(())
    }
}

fn millis(at: Nanos) -> i64 {
    i64::try_from(at.0 / 1_000_000).unwrap_or(i64::MAX)
}

impl Invariant for LogTime {
    fn name(&self) -> &'static str {
        "log-time"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        let time = match fact {
            Fact::Healed { at } => {
                self.healed = Some(*at);
                return Ok(());
            }
            Fact::SessionOpened { at, .. }
            | Fact::SessionAttached { at, .. }
            | Fact::SessionEnded { at, .. }
            | Fact::Entitled { at, .. } => *at,
            _ => return Ok(()),
        };
        let ahead_ms = time.0 - millis(self.now);
        match self.first_ahead_ms {
            None => (self.first_ahead_ms, self.ahead_ms) = (Some(ahead_ms), ahead_ms),
            Some(first_ms) if self.now < FORMED => {
                self.ahead_ms = self.ahead_ms.max(ahead_ms.min(first_ms + FORMED_LATE_MS));
            }
            Some(_) => {}
        }
        self.shown(time, self.ahead_ms)
    }
}
