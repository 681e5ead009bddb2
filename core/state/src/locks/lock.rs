//! One lock: its holders, its waiters, and the next to hold.
//!
//! Knows nothing of other locks: [`super::index`] contains all locks and the totals.

use std::sync::Arc;

use rowlock_proto::SessionId;
use rowlock_proto::lock::Mode;
use rowlock_proto::path::levels;

use super::contender::{Contender, Key, KeyRef, hasher};
use crate::arena::Number;
use crate::digest::Hasher;
use crate::guard::decides;
use crate::shared_map::{SharedMap, Slot};

/// Longest queue that is searched for times that outlast their sessions.
const SEARCHED_MAX: usize = 1_024;

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    /// Path of the lock's znode.
    pub(super) path: Arc<str>,
    /// Levels of the positions' paths.
    pub(super) levels: u64,
    /// Result of [`hasher`] for the lock's path.
    pub(super) hasher: Hasher,
    /// Number of the znode in the tree.
    ///
    /// Invariant: valid if the queue has a position, or the lock is idle.
    pub(super) node: Number,
    /// Holders, then waiters. The map has pointers to contenders: when the first of many leaves, the others
    /// move up cheaply.
    pub(super) queue: SharedMap<Key, triomphe::Arc<Contender>>,
    /// Number of holders at the front of the queue.
    pub(super) holder_count: u32,
    /// Total permits of all holders.
    pub(super) permits: u64,
    /// Number of permits; `None`: unlimited.
    ///
    /// Invariant: the number in the data of the lock's znode; `None` without a znode.
    pub(super) limit: Option<u32>,
    /// End of a lock-delay or minimum hold, before which no position gets the lock; 0: no delay.
    pub(super) delayed_until_ms: i64,
}

impl Lock {
    pub(super) fn new(path: Arc<str>, node: Number, limit: Option<u32>) -> Self {
        let hasher = hasher(&path);
        let levels = levels(&path) as u64 + u64::from(path.len() > 1);
        let (queue, holder_count, permits, delayed_until_ms) = (SharedMap::default(), 0, 0, 0);
        Lock { path, levels, hasher, node, queue, holder_count, permits, limit, delayed_until_ms }
    }

    /// Returns the number of the znode, if known.
    pub(crate) fn znode(&self) -> Option<Number> {
        (self.len() > 0 || self.delayed_until_ms == 0).then_some(self.node)
    }

    /// Returns whether a contender in this mode may hold beside the holders, with no waiter in front.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        let Some((_, holder)) = self.first_holder() else { return true };
        match (holder.mode, mode) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits(_), Mode::Permits(more)) => self.limit.is_none_or(|limit| {
                decides!("permits-suffice", self.permits + u64::from(more) <= u64::from(limit))
            }),
            _ => false,
        }
    }

    /// Returns whether a newcomer in this mode holds at once.
    pub(super) fn is_free_for(&self, mode: Mode) -> bool {
        decides!("lock-is-free", self.delayed_until_ms == 0 && self.waiter_count() == 0 && self.admits(mode))
    }

    /// Returns the first waiter, if permitted to hold now.
    pub(super) fn next(&self) -> Option<Slot> {
        let place = self.first_waiter()?;
        decides!("waiter-is-admitted", self.delayed_until_ms == 0 && self.admits(self.queue.at(place).1.mode))
            .then_some(place)
    }

    fn first_waiter(&self) -> Option<Slot> {
        (self.waiter_count() > 0).then(|| self.queue.nth(self.holder_count as usize))
    }

    /// Returns the greatest number of waiters that could get the lock together.
    pub(crate) fn may_grant(&self) -> usize {
        match self.waiters().next() {
            None => 0,
            Some((_, waiter)) if decides!("first-waiter-is-exclusive", waiter.mode == Mode::Exclusive) => 1,
            Some(_) => self.waiter_count(),
        }
    }

    /// Returns [`Lock::may_grant`] after the end of a session and all its positions.
    pub(crate) fn may_grant_without(&self, session: SessionId) -> usize {
        let keeps_others_out = |holder: &Contender| {
            decides!("holder-excludes-session", holder.mode == Mode::Exclusive && holder.session != session)
        };
        if self.first_holder().is_some_and(|(_, holder)| keeps_others_out(holder)) {
            return 0;
        }
        match self.waiters().find(|(_, waiter)| waiter.session != session) {
            None => 0,
            Some((_, waiter)) if waiter.mode == Mode::Exclusive => 1,
            Some(_) => self.waiter_count(),
        }
    }

    /// Returns whether the last holder, in this mode, may hold beside the other holders. An exclusive holder
    /// has no other beside, and permits stay within the limit, except for a single holder. (The limit may
    /// have become smaller since.)
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

    /// Returns whether no position has a lock-delay or a minimum hold. A long queue is not searched.
    pub(crate) fn has_no_times(&self) -> bool {
        self.len() <= SEARCHED_MAX
            && self.queue.iter().all(|(_, one)| (one.lock_delay_ms, one.min_hold_ms) == (0, 0))
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Iterates over the whole queue in order.
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

    /// Returns the time before which no position gets the lock; 0: no delay.
    pub(crate) fn delayed_until_ms(&self) -> i64 {
        self.delayed_until_ms
    }

    /// Returns whether the lock has no position and no delay.
    pub(super) fn is_idle(&self) -> bool {
        decides!("lock-is-idle", self.queue.is_empty() && self.delayed_until_ms == 0)
    }

    pub(super) fn find(&self, key: KeyRef<'_>) -> Option<Slot> {
        // In the usual case the holder leaves.
        if self.queue.first().is_some_and(|(first, _)| first.as_ref() == key) {
            return Some(Slot::default());
        }
        self.queue.find_by(|known| known.as_ref().cmp(&key)).ok()
    }

    pub(crate) fn contender(&self, key: KeyRef<'_>) -> Option<&Contender> {
        self.find(key).map(|place| &**self.queue.at(place).1)
    }

    /// Returns the holder at this position.
    pub(super) fn holder(&self, key: KeyRef<'_>) -> Option<&Contender> {
        self.contender(key).filter(|contender| contender.granted_ms.is_some())
    }

    /// Returns the number of positions in front of this position.
    pub(super) fn ahead(&self, key: KeyRef<'_>) -> usize {
        self.find(key).map_or(self.holder_count as usize, |place| self.queue.rank_of(place))
    }

    /// Returns the lock's contribution to the digest, without its contenders'. An idle lock contributes 0:
    /// snapshots do not contain idle locks.
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

/// Returns the limit of permits in the data of a lock's znode.
pub(super) fn limit_in(data: Option<&bytes::Bytes>) -> Option<u32> {
    data.and_then(|data| rowlock_proto::lock::limit_in(data))
}

/// Returns whether no lock may have this path: znodes at and below `/zookeeper` belong to the cluster, and a
/// container made by acquire would lie among quotas.
pub(super) fn is_reserved(lock: &str) -> bool {
    lock.strip_prefix("/zookeeper")
        .is_some_and(|rest| decides!("lock-is-reserved", rest.is_empty() || rest.starts_with('/')))
}
