//! The index itself: locks by path, each with its holders and waiters, and what is looked up across locks.
//!
//! Knows nothing of the tree, of commands or of events: `publish` tells it what has happened.

use rowlock_proto::lock::Mode;
use rowlock_proto::{SessionId, Zxid};

use super::contender::Contender;
use super::key::{Key, KeyRef};
use super::owner::{OwnerKey, owners};
use crate::digest::Hasher;
use crate::shared_map::{SharedMap, Slot};

fn find(queue: &SharedMap<Key, Contender>, key: KeyRef<'_>) -> Option<Slot> {
    queue.find_by(|known| known.as_ref().cmp(&key)).ok()
}

/// One lock's queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    pub(super) holders: SharedMap<Key, Contender>,
    pub(super) waiters: SharedMap<Key, Contender>,
    /// Permits of the holders together.
    pub(super) permits: u64,
    /// How many permits there are; `None`: no bound.
    ///
    /// Invariant: what the data of the lock's znode say now; `None` if there is no such znode.
    pub(super) limit: Option<u32>,
    /// Nobody is granted the lock before; 0: no delay.
    pub(super) delayed_until_ms: i64,
}

impl Lock {
    /// Whether a contender in this mode may hold beside the holders, if nobody were before it.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        let Some((_, holder)) = self.holders.first() else { return true };
        match (holder.mode, mode) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits(_), Mode::Permits(more)) => {
                self.limit.is_none_or(|limit| self.permits + u64::from(more) <= u64::from(limit))
            }
            _ => false,
        }
    }

    /// Whether a newcomer in this mode would hold at once.
    pub(super) fn is_free_for(&self, mode: Mode) -> bool {
        self.delayed_until_ms == 0 && self.waiters.is_empty() && self.admits(mode)
    }

    /// The waiter whose turn it is.
    pub(super) fn next(&self) -> Option<&Key> {
        let (key, waiter) = self.waiters.first()?;
        (self.delayed_until_ms == 0 && self.admits(waiter.mode)).then_some(key)
    }

    /// How many that wait could be granted the lock together, at most.
    pub(crate) fn may_grant(&self) -> usize {
        match self.waiters.first() {
            None => 0,
            Some((_, waiter)) if waiter.mode == Mode::Exclusive => 1,
            Some(_) => self.waiters.len(),
        }
    }

    /// The same once a session and all its places are gone.
    pub(crate) fn may_grant_without(&self, session: SessionId) -> usize {
        let keeps_others_out =
            |holder: &Contender| holder.mode == Mode::Exclusive && holder.session != session;
        if self.holders.first().is_some_and(|(_, holder)| keeps_others_out(holder)) {
            return 0;
        }
        match self.waiters.iter().find(|(_, waiter)| waiter.session != session) {
            None => 0,
            Some((_, waiter)) if waiter.mode == Mode::Exclusive => 1,
            Some(_) => self.waiters.len(),
        }
    }

    /// Whether the last holder may hold beside the others: nobody beside an exclusive one, and no more
    /// permits than there are, but for a holder who is alone. (The limit may have become smaller since.)
    fn last_may_hold(&self) -> bool {
        let Some(((_, first), (_, last))) = self.holders.first().zip(self.holders.last()) else {
            return false;
        };
        let is_within = self.limit.is_none_or(|limit| self.permits <= u64::from(limit));
        match (first.mode, last.mode) {
            _ if self.holders.len() == 1 => true,
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits(_), Mode::Permits(_)) => is_within,
            _ => false,
        }
    }

    /// Holders and waiters.
    pub(crate) fn len(&self) -> usize {
        self.holders.len() + self.waiters.len()
    }

    /// The whole queue in its order.
    pub(crate) fn contenders(&self) -> impl Iterator<Item = (&Key, &Contender)> {
        self.holders.iter().chain(self.waiters.iter())
    }

    /// The last one in the queue.
    pub(super) fn last_key(&self) -> Option<&Key> {
        self.waiters.last_key().or_else(|| self.holders.last_key())
    }

    /// Nobody is granted the lock before; 0: no delay.
    pub(crate) fn delayed_until_ms(&self) -> i64 {
        self.delayed_until_ms
    }

    /// Nobody holds or waits, and nobody has to.
    fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.delayed_until_ms == 0
    }

    /// Whether the place is in the queue.
    pub(crate) fn contains(&self, key: KeyRef<'_>) -> bool {
        self.holder(key).is_some() || self.waiter(key).is_some()
    }

    /// The holder at this place.
    pub(super) fn holder(&self, key: KeyRef<'_>) -> Option<&Contender> {
        find(&self.holders, key).map(|place| self.holders.at(place).1)
    }

    /// The waiter at this place.
    pub(super) fn waiter(&self, key: KeyRef<'_>) -> Option<&Contender> {
        find(&self.waiters, key).map(|place| self.waiters.at(place).1)
    }

    /// How many are before the waiter at this place.
    pub(super) fn ahead(&self, key: KeyRef<'_>) -> usize {
        self.holders.len() + find(&self.waiters, key).map_or(0, |place| self.waiters.rank_of(place))
    }

    /// Its part of the digest besides its contenders'. An idle one has none: it is not in a snapshot.
    fn hash(&self, path: &str) -> u64 {
        let hasher = |kind| Hasher::new(kind).bytes(path.as_bytes()).int(self.delayed_until_ms);
        match self.limit.filter(|_| !self.is_idle()) {
            Some(limit) => hasher(9).word(u64::from(limit)).finish(),
            None if self.delayed_until_ms == 0 => 0,
            None => hasher(7).finish(),
        }
    }
}

/// All locks that have contenders, or a delay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    /// Those, and idle ones, which nobody is shown: a lock that comes free mostly is taken again soon, and
    /// need not come and go for that.
    ///
    /// Invariant: an idle one is a znode that has had children.
    pub(super) map: SharedMap<Box<str>, Lock>,
    /// How many are not idle.
    pub(super) busy: u64,
    /// How many have a delay.
    pub(super) delayed: u64,
    /// What the leader must propose something for: time, lock, and the holder's czxid (0 for the end of a
    /// delay).
    pub(super) due: SharedMap<(i64, Box<str>, Zxid), ()>,
    /// The places of owners that take part in deadlock detection.
    pub(super) owned: SharedMap<(OwnerKey, Box<str>, Key), ()>,
    pub(super) digest: u64,
    holders: u64,
    waiters: u64,
}

impl Locks {
    pub(crate) fn get(&self, path: &str) -> Option<&Lock> {
        self.map.get(path).filter(|lock| !lock.is_idle())
    }

    /// With the path as it is kept here.
    pub(super) fn get_entry(&self, path: &str) -> Option<(&str, &Lock)> {
        self.map.get_entry(path).filter(|(_, lock)| !lock.is_idle()).map(|(path, lock)| (&**path, lock))
    }

    /// Where the lock is, or belongs; sooner known if it is at `guess`.
    pub(super) fn find_near(&self, path: &str, guess: Slot) -> Result<Slot, Slot> {
        self.map.find_near(path, guess)
    }

    /// The same without a guess.
    pub(super) fn find(&self, path: &str) -> Result<Slot, Slot> {
        self.map.find(path)
    }

    /// The lock at a place that [`Locks::find_near`] gave.
    pub(super) fn at(&self, place: Result<Slot, Slot>) -> Option<&Lock> {
        place.ok().map(|place| self.map.at(place).1).filter(|lock| !lock.is_idle())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Lock)> {
        self.map.iter().filter(|(_, lock)| !lock.is_idle()).map(|(path, lock)| (&**path, lock))
    }

    /// Paths of those that are idle.
    pub(crate) fn idle(&self) -> impl Iterator<Item = &str> {
        self.map.iter().filter(|(_, lock)| lock.is_idle()).map(|(path, _)| &**path)
    }

    /// The limits of all, idle or not.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (&str, Option<u32>)> {
        self.map.iter().map(|(path, lock)| (&**path, lock.limit))
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Locks, holders, waiters.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        (self.busy, self.holders, self.waiters)
    }

    pub(super) fn due(&self) -> &SharedMap<(i64, Box<str>, Zxid), ()> {
        &self.due
    }

    /// The places of an owner: lock and key.
    pub(super) fn places_of(&self, owner: OwnerKey) -> impl Iterator<Item = (&str, &Key)> {
        let from = (owner, Box::from(""), Key::before_all());
        self.owned
            .from(&from)
            .map(|(entry, ())| entry)
            .take_while(move |entry| entry.0 == owner)
            .map(|(_, lock, key)| (&**lock, key))
    }

    /// A newcomer, behind all others, and a holder if it has been granted the lock. `limit` is of the lock's
    /// znode.
    pub(crate) fn enter(&mut self, path: &str, key: Key, contender: Contender, limit: Option<u32>) {
        self.enter_at(self.map.find(path), path, key, contender, limit);
    }

    /// The same for a lock that has been looked for.
    pub(super) fn enter_at(
        &mut self,
        place: Result<Slot, Slot>,
        path: &str,
        key: Key,
        mut contender: Contender,
        limit: Option<u32>,
    ) {
        self.add(path, &key, &mut contender);
        let place = place.unwrap_or_else(|place| {
            self.map.put(place, path.into(), Lock::default());
            self.map.find(path).expect("just put there")
        });
        self.alter(place, path, |lock| {
            lock.limit = limit;
            let waiting = contender.granted_ms.is_none();
            if !waiting {
                lock.permits += contender.permits();
            }
            let queue = if waiting { &mut lock.waiters } else { &mut lock.holders };
            let old = queue.insert(key, contender);
            assert!(old.is_none(), "a znode enters a queue once");
        });
    }

    /// Changes a lock, and what is counted of it besides its contenders.
    fn alter<R>(&mut self, place: Slot, path: &str, change: impl FnOnce(&mut Lock) -> R) -> R {
        let lock = self.map.at_mut(place);
        let before = (u64::from(!lock.is_idle()), lock.hash(path));
        let was_delayed = lock.delayed_until_ms != 0;
        let result = change(lock);
        assert!(
            lock.permits == 0 || !lock.holders.is_empty(),
            "{path}: nobody holds {} permits",
            lock.permits
        );
        debug_assert!(
            self.delayed >= u64::from(was_delayed) && self.busy >= before.0,
            "{path} was not counted"
        );
        self.delayed = self.delayed - u64::from(was_delayed) + u64::from(lock.delayed_until_ms != 0);
        self.busy = self.busy - before.0 + u64::from(!lock.is_idle());
        self.digest = self.digest.wrapping_sub(before.1).wrapping_add(lock.hash(path));
        debug_assert!(self.delayed <= self.busy, "a lock with a delay is not idle");
        debug_assert!(self.busy <= self.map.len() as u64, "more locks are busy than there are");
        result
    }

    /// Makes the waiter whose turn it is, in the queue of the lock that was found there, a holder, which
    /// `grant` notes in it.
    pub(super) fn grant_next(
        &mut self,
        lock: Slot,
        path: &str,
        grant: impl FnOnce(&mut Contender),
    ) -> Option<(&Key, &Contender)> {
        let Locks { map, due, digest, holders, waiters, .. } = self;
        map.at(lock).1.next()?;
        let lock = map.at_mut(lock);
        let (key, mut contender) = lock.waiters.pop_first().expect("just looked at");
        let last = lock.holders.last_key();
        assert!(last.is_none_or(|last| *last < key), "{path}: somebody waits before a holder");
        assert!(contender.granted_ms.is_none(), "{path}: a waiter has been granted the lock");
        *digest = digest.wrapping_sub(contender.counted_hash());
        grant(&mut contender);
        assert!(contender.granted_ms.is_some(), "a holder has been granted the lock");
        *digest = digest.wrapping_add(contender.count_hash(path, &key));
        assert!(*waiters > 0, "{path}: a waiter was not counted");
        (*waiters, *holders) = (*waiters - 1, *holders + 1);
        if let Some(due_ms) = contender.revoke_at_ms {
            let old = due.insert((due_ms, path.into(), key.czxid), ());
            assert!(old.is_none(), "{path}: a hold ends once");
        }
        lock.permits += contender.permits();
        let old = lock.holders.insert(key, contender);
        assert!(old.is_none(), "nobody waits and holds");
        assert!(lock.last_may_hold(), "{path}: the lock was granted to too many");
        lock.holders.last()
    }

    /// Takes a place out of the queue of the lock that was found there, if it is in it.
    pub(crate) fn leave(&mut self, lock: Slot, path: &str, key: KeyRef<'_>) -> Option<(Key, Contender)> {
        let left = self.alter(lock, path, |lock| match find(&lock.holders, key) {
            Some(place) => {
                let left = lock.holders.take(place);
                let permits = left.1.permits();
                assert!(left.1.granted_ms.is_some(), "{path}: a holder was not granted the lock");
                assert!(lock.permits >= permits, "{path}: the permits of a holder were not counted");
                lock.permits -= permits;
                Some(left)
            }
            None => Some(lock.waiters.take(find(&lock.waiters, key)?)),
        })?;
        self.sub(path, &left.0, &left.1);
        if self.busy == 0 {
            assert!(self.digest == 0 && self.holders + self.waiters == 0, "no lock is left, and places are");
            debug_assert!(
                self.due.is_empty() && self.owned.is_empty(),
                "no lock is left, and the indexes are"
            );
        }
        Some(left)
    }

    /// Changes a holder: its mode, or when it will have held for too long.
    pub(crate) fn change(&mut self, path: &str, key: KeyRef<'_>, change: impl FnOnce(&mut Contender)) {
        let lock = self.map.find(path).expect("the caller has found the place");
        let limit = self.map.at(lock).1.limit;
        let (key, mut contender) = self.leave(lock, path, key).expect("the caller has found the place");
        let granted_ms = contender.granted_ms;
        change(&mut contender);
        assert_eq!(contender.granted_ms, granted_ms, "{path}: {key:?} stays a holder since it became one");
        assert!(granted_ms.is_some(), "{path}: {key:?} is changed and only waits");
        self.enter_at(Ok(lock), path, key, contender, limit);
    }

    /// Whether there is any lock-delay.
    pub(super) fn has_delays(&self) -> bool {
        self.delayed != 0
    }

    /// Whether a change of the znode at `path` may be one of a limit: there is a lock, idle or not.
    pub(super) fn knows(&self, path: &str) -> bool {
        self.map.get(path).is_some()
    }

    /// The lock's znode says this limit now. True if that changes something here.
    pub(super) fn set_limit(&mut self, path: &str, limit: Option<u32>) -> bool {
        let Ok(place) = self.map.find(path) else { return false };
        if self.map.at(place).1.limit == limit {
            return false;
        }
        self.alter(place, path, |lock| lock.limit = limit);
        true
    }

    /// Nobody is granted the lock before `until_ms`; 0 ends a delay. The later of two delays counts.
    pub(crate) fn delay(&mut self, path: &str, until_ms: i64) {
        let Ok(place) = self.map.find(path) else { return };
        let before = self.map.at(place).1.delayed_until_ms;
        if until_ms != 0 && until_ms <= before {
            return;
        }
        self.alter(place, path, |lock| lock.delayed_until_ms = until_ms);
        if before != 0 {
            let known = self.due.remove(&(before, path.into(), Zxid(0)));
            assert!(known.is_some(), "{path}: the end of a delay is due");
        }
        if until_ms != 0 {
            let old = self.due.insert((until_ms, path.into(), Zxid(0)), ());
            assert!(old.is_none(), "{path}: a delay ends once");
        }
    }

    /// As [`Locks::delay`], for a snapshot: the lock may have no contenders.
    pub(crate) fn restore_delay(&mut self, path: &str, until_ms: i64, limit: Option<u32>) {
        self.map.get_or_insert_with(path, || (path.into(), Lock { limit, ..Lock::default() }));
        self.delay(path, until_ms);
    }

    /// A lock without contenders and delay is none.
    pub(crate) fn forget_if_idle(&mut self, path: &str) {
        self.map.remove_if(path, Lock::is_idle);
    }

    fn add(&mut self, path: &str, key: &Key, contender: &mut Contender) {
        self.digest = self.digest.wrapping_add(contender.count_hash(path, key));
        *self.count_of(contender) += 1;
        if let Some(due_ms) = contender.revoke_at_ms {
            self.due.insert((due_ms, path.into(), key.czxid), ());
        }
        for owner in owners(contender) {
            let old = self.owned.insert((owner, path.into(), key.clone()), ());
            assert!(old.is_none(), "{path}: {key:?} is {owner:?}'s once");
        }
    }

    fn sub(&mut self, path: &str, key: &Key, contender: &Contender) {
        self.digest = self.digest.wrapping_sub(contender.counted_hash());
        debug_assert!(contender.is_counted(path, key), "{path}: {key:?} was changed past the index");
        let count = self.count_of(contender);
        assert!(*count > 0, "{path}: {key:?} goes and was not counted");
        *count -= 1;
        if let Some(due_ms) = contender.revoke_at_ms {
            let known = self.due.remove(&(due_ms, path.into(), key.czxid));
            assert!(known.is_some(), "{path}: the end of what {key:?} holds is due");
        }
        for owner in owners(contender) {
            let known = self.owned.remove(&(owner, path.into(), key.clone()));
            assert!(known.is_some(), "{path}: {key:?} is not known as {owner:?}'s");
        }
    }

    fn count_of(&mut self, contender: &Contender) -> &mut u64 {
        if contender.granted_ms.is_some() { &mut self.holders } else { &mut self.waiters }
    }
}

#[cfg(test)]
mod tests;
