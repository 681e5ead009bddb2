//! Effects of time: ends of lock-delays and minimum holds, and revocation of holds beyond their maximum.
//!
//! The state reads no clock. The leader checks [`Machine::locks_due`] by its own clock and proposes
//! `LockDue`; apply checks again, at the time of the batch.

use rowlock_proto::Zxid;

use super::cause::Cause;
use crate::guard::decides;
use crate::machine::Machine;
use crate::ops::Done;
use crate::outcome::{EndReason, EventSink};
use crate::steps;

impl Machine {
    /// Returns the time at which the next lock is due, in milliseconds of the log's clock.
    pub fn next_lock_due(&self) -> Option<i64> {
        self.locks.due().first().map(|((due_ms, _, _), ())| *due_ms)
    }

    /// Iterates over the paths of locks due at `now_ms`, the longest overdue first. A lock that is due twice
    /// comes twice.
    pub fn locks_due(&self, now_ms: i64) -> impl Iterator<Item = &str> {
        let due = self.locks.due().iter().map(|(due, ())| due);
        due.take_while(move |(due_ms, _, _)| *due_ms <= now_ms).map(|(_, path, _)| &**path)
    }

    /// Applies `LockDue`: grants and revokes whatever is due at the lock at the time of the batch.
    pub(crate) fn lock_due<S: EventSink + ?Sized>(&mut self, zxid: Zxid, path: &str, sink: &mut S) {
        let Some(lock) = self.locks.get(path) else { return };
        let now_ms = self.time_ms;
        let is_over =
            decides!("lock-delay-is-over", lock.delayed_until_ms != 0 && lock.delayed_until_ms <= now_ms);
        let due = lock.holders().filter(|(_, holder)| holder.revoke_at_ms.is_some_and(|at| at <= now_ms));
        // The holder's session may have a longer timeout since the grant.
        let (overdue, later): (Vec<_>, Vec<_>) = due
            .map(|(key, holder)| (key.clone(), self.revoke_at_ms(holder)))
            .partition(|(_, revoke_at_ms)| revoke_at_ms.is_some_and(|at| at <= now_ms));
        if is_over {
            self.locks.delay(path, 0);
        }
        for (key, revoke_at_ms) in later {
            assert!(revoke_at_ms.is_some(), "{path}: {key:?} has lost its longest hold");
            self.locks.change(path, key.as_ref(), |holder| holder.revoke_at_ms = revoke_at_ms);
        }
        let mut done: Vec<Done> = overdue.into_iter().map(|(key, _)| self.remove(zxid, &key.path)).collect();
        let cause = Cause { why: Some(EndReason::Revoked), ..Cause::of_the_cluster(zxid) };
        self.publish(cause, &mut done, sink);
        assert!(done.iter().all(|done| done.parent() == path), "a place elsewhere was taken away");
        self.grant_ready(zxid, path, sink);
        let is_left = |done: &Done| {
            self.locks
                .get(path)
                .is_some_and(|lock| done.key().is_some_and(|key| lock.contender(key.as_ref()).is_some()))
        };
        debug_assert!(!steps::uncounted(|| done.iter().any(is_left)), "{path} is still held for too long");
        // The znode may have gone during the delay.
        self.locks.forget_if_idle(path);
    }
}
