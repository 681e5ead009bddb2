//! One lock: who holds it, who waits for it, and who may hold it next.
//!
//! Knows nothing of other locks: [`super::index`] keeps them all, and what is counted over them.

use std::sync::Arc;

use rowlock_proto::SessionId;
use rowlock_proto::lock::Mode;
use rowlock_proto::path::levels;

use super::contender::{Contender, hasher};
use super::key::{Key, KeyRef};
use crate::arena::Number;
use crate::digest::Hasher;
use crate::shared_map::{SharedMap, Slot};

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    /// Path of the lock's znode.
    pub(super) path: Arc<str>,
    /// How many levels the paths of its places have.
    pub(super) levels: u64,
    /// The result of [`hasher`] for its path.
    pub(super) hasher: Hasher,
    /// The znode's number in the tree.
    ///
    /// Invariant: it is, where there is anybody in the queue, or the lock is idle.
    pub(super) node: Number,
    /// The holders, and behind them the waiters. What is known of them lies elsewhere: when the first of many
    /// goes, the others move up.
    pub(super) queue: SharedMap<Key, triomphe::Arc<Contender>>,
    /// How many of the queue hold the lock.
    pub(super) holder_count: u32,
    /// Permits of the holders together.
    pub(super) permits: u64,
    /// How many permits there are; `None`: no bound.
    ///
    /// Invariant: what the data of the lock's znode say now; `None` if there is no such znode.
    pub(super) limit: Option<u32>,
    /// The lock is granted to no place before: a lock-delay or a minimum hold; 0: no delay.
    pub(super) delayed_until_ms: i64,
}

impl Lock {
    pub(super) fn new(path: Arc<str>, node: Number, limit: Option<u32>) -> Self {
        let hasher = hasher(&path);
        let levels = levels(&path) as u64 + u64::from(path.len() > 1);
        let (queue, holder_count, permits, delayed_until_ms) = (SharedMap::default(), 0, 0, 0);
        Lock { path, levels, hasher, node, queue, holder_count, permits, limit, delayed_until_ms }
    }

    /// The number of its znode, where it is known.
    pub(crate) fn znode(&self) -> Option<Number> {
        (self.len() > 0 || self.delayed_until_ms == 0).then_some(self.node)
    }

    /// Whether a contender in this mode may hold beside the holders, if none were before it.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        let Some((_, holder)) = self.first_holder() else { return true };
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
        self.delayed_until_ms == 0 && self.waiter_count() == 0 && self.admits(mode)
    }

    /// The first waiter, if it may hold now.
    pub(super) fn next(&self) -> Option<Slot> {
        let place = self.first_waiter()?;
        (self.delayed_until_ms == 0 && self.admits(self.queue.at(place).1.mode)).then_some(place)
    }

    fn first_waiter(&self) -> Option<Slot> {
        (self.waiter_count() > 0).then(|| self.queue.nth(self.holder_count as usize))
    }

    /// How many that wait could be granted the lock together, at most.
    pub(crate) fn may_grant(&self) -> usize {
        match self.waiters().next() {
            None => 0,
            Some((_, waiter)) if waiter.mode == Mode::Exclusive => 1,
            Some(_) => self.waiter_count(),
        }
    }

    /// As [`Lock::may_grant`], once a session and all its places are gone.
    pub(crate) fn may_grant_without(&self, session: SessionId) -> usize {
        let keeps_others_out =
            |holder: &Contender| holder.mode == Mode::Exclusive && holder.session != session;
        if self.first_holder().is_some_and(|(_, holder)| keeps_others_out(holder)) {
            return 0;
        }
        match self.waiters().find(|(_, waiter)| waiter.session != session) {
            None => 0,
            Some((_, waiter)) if waiter.mode == Mode::Exclusive => 1,
            Some(_) => self.waiter_count(),
        }
    }

    /// Whether the last holder, in this mode, may hold beside the others: none beside an exclusive one, and
    /// no more permits than there are, but for a holder who is alone. (The limit may have become smaller
    /// since.)
    pub(super) fn last_may_hold(&self, last: Mode) -> bool {
        let Some((_, first)) = self.first_holder() else { return false };
        let is_within = self.limit.is_none_or(|limit| self.permits <= u64::from(limit));
        match (first.mode, last) {
            _ if self.holder_count == 1 => true,
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits(_), Mode::Permits(_)) => is_within,
            _ => false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The whole queue in its order.
    pub(crate) fn contenders(&self) -> impl Iterator<Item = (&Key, &Contender)> {
        self.queue.iter().map(|(key, contender)| (key, &**contender))
    }

    pub(super) fn waiter_count(&self) -> usize {
        self.queue.len() - self.holder_count as usize
    }

    pub(super) fn first_holder(&self) -> Option<(&Key, &Contender)> {
        self.holders().next()
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = (&Key, &Contender)> {
        self.contenders().take(self.holder_count as usize)
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = (&Key, &Contender)> {
        let waiters = self.queue.starting_at(self.queue.nth(self.holder_count as usize));
        waiters.map(|(key, contender)| (key, &**contender))
    }

    /// No place is granted the lock before; 0: no delay.
    pub(crate) fn delayed_until_ms(&self) -> i64 {
        self.delayed_until_ms
    }

    /// No place holds or waits, and no delay lasts.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.delayed_until_ms == 0
    }

    pub(super) fn find(&self, key: KeyRef<'_>) -> Option<Slot> {
        // Mostly it is the holder who leaves.
        if self.queue.first().is_some_and(|(first, _)| first.as_ref() == key) {
            return Some(Slot::default());
        }
        self.queue.find_by(|known| known.as_ref().cmp(&key)).ok()
    }

    pub(crate) fn contender(&self, key: KeyRef<'_>) -> Option<&Contender> {
        self.find(key).map(|place| &**self.queue.at(place).1)
    }

    /// The holder at this place.
    pub(super) fn holder(&self, key: KeyRef<'_>) -> Option<&Contender> {
        self.contender(key).filter(|contender| contender.granted_ms.is_some())
    }

    /// How many are before this place.
    pub(super) fn ahead(&self, key: KeyRef<'_>) -> usize {
        self.find(key).map_or(self.holder_count as usize, |place| self.queue.rank_of(place))
    }

    /// Its part of the digest besides its contenders'. An idle one has none: it is not in a snapshot.
    #[inline(always)]
    pub(super) fn hash(&self) -> u64 {
        if self.limit.is_none() && self.delayed_until_ms == 0 {
            return 0;
        }
        let hasher = |kind| Hasher::new(kind).bytes(self.path.as_bytes()).int(self.delayed_until_ms);
        match self.limit.filter(|_| !self.is_idle()) {
            Some(limit) => hasher(9).word(u64::from(limit)).finish(),
            None if self.delayed_until_ms == 0 => 0,
            None => hasher(7).finish(),
        }
    }
}
