//! Timeouts of locks, on the leader: proposes `LockDue` when a lock-delay or the longest time of holding is
//! over. Applying the command checks the lock again, so an extra command has no effect.
//!
//! In the flow: apply signals an earlier due time through the [`LockAlarm`]; the leader's duties then call
//! [`LockSweep`], and again at the due time returned by the sweep.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::log_clock::LogClock;
use rowlock_env::decides;
use rowlock_env::sync::watch;
use rowlock_env::time::Instant;
use rowlock_state::Machine;
use rowlock_state::command::Command;

use crate::limits::LOCK_SWEEP_MAX;
use crate::node::leader_duties::{Due, LeaderDuty};
use crate::node::replica::Replica;

/// Interval between two proposals for the same due lock. Also the longest delay of a lock that becomes due in
/// this interval.
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// Wakes the leader's duties when a lock becomes due earlier than scheduled. Apply signals the alarm, so the
/// alarm never waits.
pub struct LockAlarm(watch::Sender<Option<i64>>);

impl LockAlarm {
    /// Returns the alarm and its receiver, which holds the earliest due time (ms since 1970).
    pub fn new() -> (LockAlarm, watch::Receiver<Option<i64>>) {
        let (sender, receiver) = watch::channel(None);
        (LockAlarm(sender), receiver)
    }

    /// Wakes the duties if the changed state has an earlier due time.
    pub fn update(&self, machine: &Machine) {
        let next = machine.next_lock_due();
        self.0.send_if_modified(|known| {
            let is_earlier = next.is_some_and(|next| known.is_none_or(|known| next < known));
            *known = next;
            is_earlier
        });
    }
}

pub struct LockSweep {
    pub replica: Arc<Replica>,
    /// Clock of the log. Only this node advances the clock while it leads, so the computed delay is exact.
    pub clock: Arc<LogClock>,
}

impl LeaderDuty for LockSweep {
    fn due(&mut self, _: u64, now: Instant) -> Due {
        due(&self.replica.state.read(), self.clock.now_ms(), now)
    }

    fn wakes_on_alarm(&self) -> bool {
        true
    }
}

/// Returns the due locks. `now_ms` is `now` by the clock of the log.
fn due(machine: &Machine, now_ms: i64, now: Instant) -> Due {
    let Some(next_ms) = machine.next_lock_due() else { return Due::default() };
    if decides!("no-lock-is-due", next_ms > now_ms) {
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
