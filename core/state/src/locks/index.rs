//! The index of locks: lookup by path and by number, and lookups across locks.
//!
//! Knows nothing of the tree, of commands or of events: `publish` reports each change.

use std::sync::Arc;

use rowlock_proto::lock::Mode;

use super::contender::{Contender, Key, KeyRef, OwnerKey, owners};
use super::lock::Lock;
use crate::arena::{Arena, Number, unshared};
use crate::digest::Hasher;
use crate::guard::decides;
use crate::guesses::LookupHints;
use crate::shared_map::{SharedMap, Slot};
use crate::steps;

/// A position removed from its queue.
type Left = (Key, triomphe::Arc<Contender>);

/// All locks with contenders or a delay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    /// Numbers by path, including hidden idle locks: most free locks are soon taken again, and need no
    /// removal in between.
    ///
    /// Invariant: an idle lock is a znode that ever had children.
    pub(super) map: SharedMap<Arc<str>, Number>,
    pub(super) all: Arena<Lock>,
    hints: LookupHints,
    /// Number of locks that are not idle.
    pub(super) busy: u64,
    pub(super) delayed: u64,
    /// Times at which the leader must propose a command: time, lock, and holder ([`Key::before_all`] for the
    /// end of a delay).
    pub(super) due: SharedMap<(i64, Arc<str>, Key), ()>,
    /// Positions of owners that take part in deadlock detection.
    pub(super) owned: SharedMap<(OwnerKey, Arc<str>, Key), ()>,
    pub(super) digest: u64,
    holders: u64,
    waiters: u64,
    /// Holders with a question.
    asked: u64,
}

impl Locks {
    pub(crate) fn get(&self, path: &str) -> Option<&Lock> {
        self.busy(self.find(path))
    }

    /// Returns a lock and the index's copy of its path.
    pub(super) fn get_entry(&self, path: &str) -> Option<(&str, &Lock)> {
        self.get(path).map(|lock| (&*lock.path, lock))
    }

    /// Returns the lock's number, also if idle.
    pub(crate) fn find(&self, path: &str) -> Option<Number> {
        let hash = Hasher::new(0).bytes(path.as_bytes()).finish();
        let is_it = |number| self.all.get(Number::from_raw(number)).is_some_and(|lock| *lock.path == *path);
        if let Some(number) = self.hints.find(hash, is_it) {
            steps::take(1);
            return Some(Number::from_raw(number));
        }
        let id = *self.map.get(path)?;
        self.hints.record(hash, id.raw());
        Some(id)
    }

    #[inline(always)]
    pub(super) fn at(&self, id: Number) -> &Lock {
        self.all.at(id)
    }

    /// Returns the lock unless idle.
    pub(super) fn busy(&self, found: Option<Number>) -> Option<&Lock> {
        found.map(|id| self.all.at(id)).filter(|lock| !lock.is_idle())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Lock)> {
        self.all().filter(|(_, lock)| !lock.is_idle())
    }

    /// Iterates over all locks, idle locks included.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Lock)> {
        self.map.iter().map(|(path, id)| (&**path, self.all.at(*id)))
    }

    /// Iterates over all locks, idle or not: path, znode if known, and limit.
    pub(crate) fn znodes(&self) -> impl Iterator<Item = (&str, Option<Number>, Option<u32>)> {
        self.all().map(|(path, lock)| (path, lock.znode(), lock.limit))
    }

    /// Iterates over the paths of idle locks.
    pub(crate) fn idle(&self) -> impl Iterator<Item = &str> {
        self.all().filter(|(_, lock)| lock.is_idle()).map(|(path, _)| path)
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        (self.busy, self.holders, self.waiters)
    }

    /// Returns the number of holders with a question.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    pub(super) fn due(&self) -> &SharedMap<(i64, Arc<str>, Key), ()> {
        &self.due
    }

    /// Returns the positions of an owner: lock and key.
    pub(super) fn places_of(&self, owner: OwnerKey) -> impl Iterator<Item = (&str, &Key)> {
        let from = (owner, Arc::from(""), Key::before_all());
        self.owned
            .from(&from)
            .map(|(entry, ())| entry)
            .take_while(move |entry| entry.0 == owner)
            .map(|(_, lock, key)| (&**lock, key))
    }

    /// Adds a newcomer at the end of the queue, as a holder if granted. `node` and `limit` belong to the
    /// lock's znode.
    pub(crate) fn enter(
        &mut self,
        (path, node): (&str, Number),
        key: Key,
        contender: Contender,
        limit: Option<u32>,
    ) {
        let lock = self.find(path);
        let lock = lock.unwrap_or_else(|| self.make(path, node, limit));
        self.enter_at((lock, node), key, contender, limit);
    }

    /// Adds an unknown lock.
    pub(super) fn make(&mut self, path: &str, node: Number, limit: Option<u32>) -> Number {
        let path: Arc<str> = path.into();
        let id = self.all.insert(Lock::new(path.clone(), node, limit));
        let old = self.map.insert(path, id);
        assert!(old.is_none(), "a lock is made once");
        self.hints.fit(self.map.len());
        id
    }

    /// Adds a newcomer like [`Locks::enter`], to a lock found by the caller.
    pub(super) fn enter_at(
        &mut self,
        (lock, node): (Number, Number),
        key: Key,
        mut contender: Contender,
        limit: Option<u32>,
    ) {
        self.add(lock, &key, &mut contender);
        self.alter(lock, |lock| {
            (lock.limit, lock.node) = (limit, node);
            if contender.granted_ms.is_some() {
                lock.holder_count += 1;
                lock.permits += contender.permits();
            }
            let old = lock.queue.insert(key, triomphe::Arc::new(contender));
            assert!(old.is_none(), "a znode enters a queue once");
        });
    }

    /// Changes a lock, and updates the totals apart from its contenders.
    fn alter<R>(&mut self, lock: Number, change: impl FnOnce(&mut Lock) -> R) -> R {
        let lock = self.all.at_mut(lock);
        let before = (u64::from(!lock.is_idle()), lock.hash());
        let was_delayed = lock.delayed_until_ms != 0;
        let result = change(lock);
        assert!(
            lock.permits == 0 || lock.holder_count > 0,
            "{}: nobody holds {} permits",
            lock.path,
            lock.permits
        );
        debug_assert!(
            self.delayed >= u64::from(was_delayed) && self.busy >= before.0,
            "{} was not counted",
            lock.path
        );
        self.delayed = self.delayed - u64::from(was_delayed) + u64::from(lock.delayed_until_ms != 0);
        self.busy = self.busy - before.0 + u64::from(!lock.is_idle());
        self.digest = self.digest.wrapping_sub(before.1).wrapping_add(lock.hash());
        debug_assert!(self.delayed <= self.busy, "a lock with a delay is not idle");
        debug_assert!(self.busy <= self.map.len() as u64, "more locks are busy than there are");
        result
    }

    /// Makes the next waiter of this lock a holder; `grant` records the grant in the contender.
    pub(super) fn grant_next(
        &mut self,
        lock: Number,
        grant: impl FnOnce(&mut Contender),
    ) -> Option<(&Lock, &Key, &Contender)> {
        let Locks { all, due, digest, holders, waiters, .. } = self;
        let place = all.at(lock).next()?;
        let lock = all.at_mut(lock);
        let path = &lock.path;
        let (key, contender) = lock.queue.at_mut(place);
        let contender = unshared(contender);
        assert!(contender.granted_ms.is_none(), "{path}: a waiter has been granted the lock");
        *digest = digest.wrapping_sub(contender.counted_hash());
        grant(contender);
        assert!(contender.granted_ms.is_some(), "a holder has been granted the lock");
        *digest = digest.wrapping_add(contender.count_hash((lock.hasher, path.len()), key));
        assert!(*waiters > 0, "{path}: a waiter was not counted");
        (*waiters, *holders) = (*waiters - 1, *holders + 1);
        if let Some(due_ms) = contender.revoke_at_ms {
            let old = due.insert((due_ms, path.clone(), key.clone()), ());
            assert!(old.is_none(), "{path}: a hold ends once");
        }
        lock.permits += contender.permits();
        lock.holder_count += 1;
        let lock = &*lock;
        let (key, contender) = lock.queue.at(place);
        assert!(contender.granted_ms.is_some(), "{}: the place was granted", lock.path);
        assert!(lock.last_may_hold(contender.mode), "{}: the lock was granted to too many", lock.path);
        Some((lock, key, contender))
    }

    /// Removes a position from the queue of this lock, if present.
    pub(crate) fn leave(&mut self, lock: Number, key: KeyRef<'_>) -> Option<Left> {
        self.all.at(lock).find(key).map(|place| self.leave_at(lock, place))
    }

    /// Removes a position like [`Locks::leave`], found by the caller.
    pub(super) fn leave_at(&mut self, lock: Number, place: Slot) -> Left {
        let left = self.alter(lock, |lock| {
            let left = lock.queue.take(place);
            if left.1.granted_ms.is_some() {
                let permits = left.1.permits();
                assert!(
                    lock.holder_count > 0 && lock.permits >= permits,
                    "{}: {:?} holds it",
                    lock.path,
                    left.0
                );
                lock.holder_count -= 1;
                lock.permits -= permits;
            }
            assert!(
                lock.holder_count as usize <= lock.queue.len(),
                "{}: holders are in the queue",
                lock.path
            );
            left
        });
        self.sub(lock, &left.0, &left.1);
        if self.busy == 0 {
            assert!(self.digest == 0 && self.holders + self.waiters == 0, "no lock is left, and places are");
            debug_assert!(
                self.due.is_empty() && self.owned.is_empty(),
                "no lock is left, and the indexes are"
            );
        }
        left
    }

    /// Changes a holder: its mode, its question, or its time of revocation.
    pub(crate) fn change(&mut self, path: &str, key: KeyRef<'_>, change: impl FnOnce(&mut Contender)) {
        let lock = self.find(path).expect("the caller has found the place");
        let Lock { limit, node, .. } = *self.all.at(lock);
        let (key, contender) = self.leave(lock, key).expect("the caller has found the place");
        let mut contender = triomphe::Arc::unwrap_or_clone(contender);
        let granted_ms = contender.granted_ms;
        change(&mut contender);
        assert_eq!(contender.granted_ms, granted_ms, "{path}: {key:?} stays a holder since it became one");
        assert!(granted_ms.is_some(), "{path}: {key:?} is changed and only waits");
        self.enter_at((lock, node), key, contender, limit);
    }

    pub(super) fn has_delays(&self) -> bool {
        self.delayed != 0
    }

    /// Returns whether a change of the znode at `path` may change a limit: a lock is there, idle or not.
    pub(super) fn knows(&self, path: &str) -> bool {
        self.find(path).is_some()
    }

    /// Sets the limit read from the lock's znode. Returns whether the limit changed.
    pub(super) fn set_limit(&mut self, path: &str, limit: Option<u32>) -> bool {
        let Some(lock) =
            self.find(path).filter(|lock| decides!("limit-differs", self.all.at(*lock).limit != limit))
        else {
            return false;
        };
        self.alter(lock, |lock| lock.limit = limit);
        true
    }

    /// Delays grants of the lock until `until_ms`; 0 ends a delay. The later of two delays counts.
    pub(crate) fn delay(&mut self, path: &str, until_ms: i64) {
        let Some(lock) = self.find(path) else { return };
        let Lock { ref path, delayed_until_ms: before, .. } = *self.all.at(lock);
        let path = path.clone();
        if decides!("lock-delay-is-covered", until_ms != 0 && until_ms <= before) {
            return;
        }
        self.alter(lock, |lock| lock.delayed_until_ms = until_ms);
        if before != 0 {
            let known = self.due.remove(&(before, path.clone(), Key::before_all()));
            assert!(known.is_some(), "{path}: the end of a delay is due");
        }
        if until_ms != 0 {
            let old = self.due.insert((until_ms, path.clone(), Key::before_all()), ());
            assert!(old.is_none(), "{path}: a delay ends once");
        }
    }

    /// Sets a delay from a snapshot, like [`Locks::delay`], also for a lock without contenders.
    pub(crate) fn restore_delay(&mut self, (path, node): (&str, Number), until_ms: i64, limit: Option<u32>) {
        if self.find(path).is_none() {
            self.make(path, node, limit);
        }
        self.delay(path, until_ms);
    }

    /// Removes a lock without contenders and without a delay.
    pub(crate) fn forget_if_idle(&mut self, path: &str) {
        if let Some(lock) = self.find(path).filter(|lock| self.all.at(*lock).is_idle()) {
            self.map.remove(path);
            self.all.remove(lock);
        }
    }

    fn add(&mut self, lock: Number, key: &Key, contender: &mut Contender) {
        let lock = self.all.at(lock);
        let hash = contender.count_hash((lock.hasher, lock.path.len()), key);
        self.digest = self.digest.wrapping_add(hash);
        let path = &lock.path;
        *(if contender.granted_ms.is_some() { &mut self.holders } else { &mut self.waiters }) += 1;
        self.asked += u64::from(contender.asked.is_some());
        if let Some(due_ms) = contender.revoke_at_ms {
            self.due.insert((due_ms, path.clone(), key.clone()), ());
        }
        for owner in owners(contender) {
            let old = self.owned.insert((owner, path.clone(), key.clone()), ());
            assert!(old.is_none(), "{path}: {key:?} is {owner:?}'s once");
        }
    }

    fn sub(&mut self, lock: Number, key: &Key, contender: &Contender) {
        let path = &self.all.at(lock).path;
        self.digest = self.digest.wrapping_sub(contender.counted_hash());
        debug_assert!(contender.is_counted(path, key), "{path}: {key:?} was changed past the index");
        let count = if contender.granted_ms.is_some() { &mut self.holders } else { &mut self.waiters };
        assert!(*count > 0, "{path}: {key:?} goes and was not counted");
        *count -= 1;
        self.asked -= u64::from(contender.asked.is_some());
        if let Some(due_ms) = contender.revoke_at_ms {
            let known = self.due.remove(&(due_ms, path.clone(), key.clone()));
            assert!(known.is_some(), "{path}: the end of what {key:?} holds is due");
        }
        for owner in owners(contender) {
            let known = self.owned.remove(&(owner, path.clone(), key.clone()));
            assert!(known.is_some(), "{path}: {key:?} is not known as {owner:?}'s");
        }
    }
}

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

#[cfg(test)]
mod tests {
    use rowlock_proto::{SessionId, Zxid};

    use super::*;

    #[test]
    fn an_idle_lock_is_hidden_and_rereads_its_limit() {
        let mut locks = Locks::default();
        let path: std::sync::Arc<str> = "/sem/place-0000000000".into();
        for (czxid, limit) in [(5, Some(3)), (6, Some(7)), (7, None)] {
            let contender = Contender::plain(Mode::Exclusive, SessionId(1), "".into(), 0);
            let key = Key { czxid: Zxid(czxid), path: path.clone() };
            locks.enter(("/sem", Number::default()), key.clone(), contender, limit);
            locks.check().unwrap_err();
            let found = locks.find("/sem").unwrap();
            locks.grant_next(found, |waiter| waiter.granted_ms = Some(1)).unwrap();
            locks.check().unwrap();
            assert_eq!(locks.get("/sem").unwrap().limit, limit);
            assert_eq!(locks.counts(), (1, 1, 0));
            locks.leave(found, key.as_ref()).unwrap();
            assert!(locks.get("/sem").is_none() && locks.iter().next().is_none());
            assert_eq!((locks.counts(), locks.digest()), ((0, 0, 0), 0));
            assert_eq!(locks.idle().collect::<Vec<_>>(), ["/sem"]);
            locks.check().unwrap();
        }
        locks.forget_if_idle("/sem");
        assert_eq!(locks.idle().count(), 0);
    }
}
