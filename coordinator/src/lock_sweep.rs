//! The leader's timer for locks: proposes `LockDue` when a lock-delay is over or a holder has exceeded its
//! `max_hold_ms`. Applying the command checks again, so a surplus command changes nothing.
//!
//! In the flow: apply rings the [`LockAlarm`] when the state has an earlier due time than before. The
//! leader's duties call [`LockSweep`] then, and at the time that the last call returned.

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

/// Interval at which due locks are proposed again while the state still has them. Bounds also the delay of a
/// lock that becomes due meanwhile.
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// Wakes the leader's duties when a lock becomes due earlier than they expect. Apply rings the alarm, so
/// ringing never waits.
pub struct LockAlarm(watch::Sender<Option<i64>>);

impl LockAlarm {
    /// Creates the alarm and its receiver. The channel holds the earliest due time (ms since 1970).
    pub fn new() -> (LockAlarm, watch::Receiver<Option<i64>>) {
        let (sender, receiver) = watch::channel(None);
        (LockAlarm(sender), receiver)
    }

    /// Rings if the changed state has an earlier due time than before.
    pub fn look(&self, machine: &Machine) {
        let next = machine.next_lock_due();
        self.0.send_if_modified(|known| {
            let is_earlier = next.is_some_and(|next| known.is_none_or(|known| next < known));
            *known = next;
            is_earlier
        });
    }
}

/// Proposes the locks that are due.
pub struct LockSweep {
    pub replica: Arc<Replica>,
    /// The log's clock, which only the leader advances: a lock-delay lasts as long as the lock requires.
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

/// Returns the commands that are due at `now_ms` (log clock), and the next call relative to `now`.
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
