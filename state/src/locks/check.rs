//! What must hold within the index of the locks, recomputed from its queues. For tests and the simulator, and
//! for snapshots that are read.

use rowlock_proto::lock::Mode;

use super::index::Locks;
use super::lock::Lock;

impl Locks {
    /// Recomputes everything that is kept beside the queues, for [`crate::Machine::check`].
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
            lock.holders.check()?;
            lock.waiters.check()?;
            for (key, contender) in lock.holders.iter().chain(lock.waiters.iter()) {
                again.enter((path, lock.node), key.clone(), contender.clone(), lock.limit);
            }
            if lock.delayed_until_ms != 0 {
                again.restore_delay((path, lock.node), lock.delayed_until_ms, lock.limit);
            }
            check_times(path, lock)?;
            let copy = again.get(path).ok_or_else(|| format!("{path}: a lock without contenders is kept"))?;
            if copy.permits != lock.permits || copy.holders.len() != lock.holders.len() {
                return Err(format!("{path}: a waiter is among the holders, or permits are miscounted"));
            }
            if let (Some(last), Some((first, _))) = (lock.holders.last_key(), lock.waiters.first())
                && last >= first
            {
                return Err(format!("{path}: {first:?} waits before the holder {last:?}"));
            }
            if let Some(next) = lock.next() {
                return Err(format!("{path}: {next:?} waits and could hold"));
            }
            let excluded = lock.holders.iter().filter(|(_, holder)| holder.mode == Mode::Exclusive).count();
            if excluded > 0 && lock.holders.len() > 1 {
                return Err(format!("{path}: somebody holds beside an exclusive holder"));
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

/// Holders have been granted the lock, waiters have not; only a holder with a longest hold or a deadline is
/// taken it away.
fn check_times(path: &str, lock: &Lock) -> Result<(), String> {
    for (is_holder, queue) in [(true, &lock.holders), (false, &lock.waiters)] {
        for (key, place) in queue.iter() {
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
    }
    Ok(())
}
