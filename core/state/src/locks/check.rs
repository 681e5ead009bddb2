//! Checks of the invariants of the lock index, recomputed from its queues. For tests, the simulator and
//! snapshots being read.

use rowlock_proto::lock::Mode;

use super::index::Locks;
use super::lock::Lock;

impl Locks {
    /// Recomputes all derived data of the queues, for [`crate::Machine::check`].
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut again = Locks::default();
        self.map.check()?;
        self.all.check()?;
        if self.all.len() != self.map.len() || self.all().any(|(path, lock)| *path != *lock.path) {
            return Err("a lock is known under another path".to_owned());
        }
        if self.iter().count() as u64 != self.busy {
            return Err("the locks that are not idle are miscounted".to_owned());
        }
        for (path, lock) in self.iter() {
            lock.queue.check()?;
            for (key, contender) in lock.contenders() {
                again.enter((path, lock.node), key.clone(), contender.clone(), lock.limit);
            }
            if lock.delayed_until_ms != 0 {
                again.restore_delay((path, lock.node), lock.delayed_until_ms, lock.limit);
            }
            check_times(path, lock)?;
            let copy = again.get(path).ok_or_else(|| format!("{path}: a lock without contenders is kept"))?;
            if copy.permits != lock.permits || copy.holder_count != lock.holder_count {
                return Err(format!("{path}: a waiter is among the holders, or permits are miscounted"));
            }
            if let Some(next) = lock.next() {
                return Err(format!("{path}: {:?} waits and could hold", lock.queue.at(next).0));
            }
            if lock.holder_count > 1 && lock.holders().any(|(_, holder)| holder.mode == Mode::Exclusive) {
                return Err(format!("{path}: a place is held beside an exclusive one"));
            }
        }
        let revoked =
            self.iter().flat_map(|(_, lock)| lock.contenders()).filter(|(_, it)| it.revoke_at_ms.is_some());
        if revoked.count() as u64 + self.delayed != self.due.len() as u64 {
            return Err("what is due is miscounted".to_owned());
        }
        if (again.counts(), again.delayed, again.asked()) != (self.counts(), self.delayed, self.asked())
            || again.digest != self.digest
        {
            return Err("the counts or the digest of the locks are wrong".to_owned());
        }
        if !again.due.iter().eq(self.due.iter()) || !again.owned.iter().eq(self.owned.iter()) {
            return Err("an index over the locks is wrong".to_owned());
        }
        Ok(())
    }
}

/// Checks that holders come first and have a grant time, that waiters have none, and that only holds with a
/// maximum or a deadline have a time of revocation.
fn check_times(path: &str, lock: &Lock) -> Result<(), String> {
    for (at, (key, place)) in lock.contenders().enumerate() {
        let is_holder = at < lock.holder_count as usize;
        let is_revoked = is_holder && place.is_revoked();
        if place.asked.is_some() && !is_holder {
            return Err(format!("{path}: {key:?} is asked for what it does not hold"));
        }
        if place.granted_ms.is_some() != is_holder || place.revoke_at_ms.is_some() != is_revoked {
            return Err(format!("{path}: {key:?} has the times of another kind of place"));
        }
        if place.revoke_at_ms.zip(place.granted_ms).is_some_and(|(revoke, granted)| revoke < granted) {
            return Err(format!("{path}: {key:?} is taken away before it was granted"));
        }
    }
    Ok(())
}
