//! What time does to locks, on the leader: proposes `LockDue` when a lock-delay is over or a lock has been
//! held for longer than its holder had asked for. Applying the command checks again, so one too many does
//! nothing.
//!
//! In the flow: apply says when an earlier moment has come into the state ([`LockAlarm`]); the leader's
//! duties ask [`LockSweep`] then, and at the moment that it has named.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::log_clock::LogClock;
use rowlock_env::sync::watch;
use rowlock_env::time::Instant;
use rowlock_state::Machine;
use rowlock_state::command::Command;
use rowlock_types::limits::LOCK_SWEEP_MAX;

use crate::leader_duties::{Due, Duty};
use crate::replica::Replica;

/// What was proposed and is still due after this time is proposed again. Also the longest that a lock is
/// late that becomes due meanwhile.
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// Wakes the leader's duties when a lock is due earlier than they know. Rung by apply, so it never waits.
pub struct LockAlarm(watch::Sender<Option<i64>>);

impl LockAlarm {
    /// The alarm and its receiver, which has the earliest moment (ms since 1970).
    pub fn new() -> (LockAlarm, watch::Receiver<Option<i64>>) {
        let (sender, receiver) = watch::channel(None);
        (LockAlarm(sender), receiver)
    }

    /// Rings if the state that has changed has an earlier moment than before.
    pub fn look(&self, machine: &Machine) {
        let next = machine.next_lock_due();
        self.0.send_if_modified(|known| {
            let is_earlier = next.is_some_and(|next| known.is_none_or(|known| next < known));
            *known = next;
            is_earlier
        });
    }
}

/// Finds the locks that are due.
pub struct LockSweep {
    pub replica: Arc<Replica>,
    /// Only this node raises it while it leads, so a pause is as long as it says.
    pub clock: Arc<LogClock>,
}

impl Duty for LockSweep {
    fn due(&mut self, _: u64, now: Instant) -> Due {
        due(&self.replica.state.read(), self.clock.now_ms(), now)
    }

    fn hears_alarm(&self) -> bool {
        true
    }
}

/// `now_ms` is `now` by the clock of the log.
fn due(machine: &Machine, now_ms: i64, now: Instant) -> Due {
    let Some(next_ms) = machine.next_lock_due() else { return Due::default() };
    if next_ms > now_ms {
        let next = Some(now + Duration::from_millis(next_ms.abs_diff(now_ms)));
        return Due { next, ..Due::default() };
    }
    let mut locks: Vec<&str> = machine.locks_due(now_ms).take(LOCK_SWEEP_MAX).collect();
    locks.sort_unstable();
    locks.dedup();
    let commands = locks.into_iter().map(|lock| Command::LockDue { lock: lock.to_owned() }).collect();
    Due { commands, next: Some(now + REPEAT_AFTER) }
}

#[cfg(test)]
mod tests;
