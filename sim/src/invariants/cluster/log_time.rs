//! log-time: the time in the log follows true time, whatever an operator sets the wall clocks of running
//! nodes to. So lock-delays and maximum holds end neither early nor late after a clock was set.
//!
//! Every fact with a log time shows the log's error. The error may grow within the documented bound of
//! clocks' rates. The error may shrink while faults go on, since a node may apply an entry long after its
//! stamp; the error may not shrink after the faults have ended.

use std::time::Duration;

use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::{CLOCK_SPREAD_MS, Fact, Millis};

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

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        let time = match fact {
            Fact::Healed { at } => {
                self.healed = Some(*at);
                return Ok(());
            }
            Fact::SessionOpened { at, .. }
            | Fact::SessionAttached { at, .. }
            | Fact::SessionEnded { at, .. }
            | Fact::Entitled { at, .. }
            | Fact::Revoked { at, .. } => *at,
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

#[cfg(test)]
mod tests {
    use super::super::super::{check_history, entitled};
    use super::*;

    const BEGAN_MS: i64 = 1_700_000_000_000;

    fn passed(ms: u64) -> Fact {
        Fact::Passed { at: Nanos::from_millis(ms) }
    }

    fn shown(ms: i64) -> Fact {
        entitled(1, None, Millis(BEGAN_MS + ms))
    }

    #[test]
    fn log_time_ahead_of_the_allowed_drift_is_caught() {
        let start = [passed(6_000), shown(6_000), passed(10_000)];
        let check_facts = |ms| check_history(LogTime::default(), &[&start[..], &[shown(ms)]].concat());
        assert_eq!(check_facts(10_550), Ok(()));
        assert!(check_facts(10_551).unwrap_err().contains("ahead"));
        assert_eq!(check_facts(1_000), Ok(()), "faults go on: it was stamped long ago");
    }

    /// The first facts may arrive late (seed 501,071).
    #[test]
    fn what_a_cluster_that_forms_shows_may_be_late() {
        let check_facts = |late_ms: i64, then_ms: i64| {
            let facts = [passed(3_000), shown(3_000 - late_ms), passed(4_000), shown(4_000), passed(10_000)];
            check_history(LogTime::default(), &[&facts[..], &[shown(then_ms)]].concat())
        };
        assert_eq!(check_facts(900, 10_550), Ok(()));
        assert!(check_facts(900, 10_551).unwrap_err().contains("ahead"));
        assert!(check_facts(1_251, 4_000).unwrap_err().contains("251 ms ahead"));
    }

    #[test]
    fn time_that_stands_still_is_caught_once_everything_is_healed() {
        let healed = Fact::Healed { at: Nanos::from_millis(3_000) };
        let check_facts = |at, ms| {
            let facts = [passed(1_000), shown(1_000), healed.clone(), passed(at), shown(ms)];
            check_history(LogTime::default(), &facts)
        };
        assert!(check_facts(43_000, 1_000).unwrap_err().contains("behind"));
        assert_eq!(check_facts(8_000, 1_000), Ok(()), "it is catching up");
        assert_eq!(check_facts(43_000, 43_000 - 2_150 - 50 - 2_000), Ok(()));
    }
}
