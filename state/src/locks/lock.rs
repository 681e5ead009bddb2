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

pub(super) fn find(queue: &SharedMap<Key, Contender>, key: KeyRef<'_>) -> Option<Slot> {
    queue.find_by(|known| known.as_ref().cmp(&key)).ok()
}

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
    pub(super) holders: SharedMap<Key, Contender>,
    pub(super) waiters: SharedMap<Key, Contender>,
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
        let (holders, waiters) = (SharedMap::default(), SharedMap::default());
        let hasher = hasher(&path);
        let levels = levels(&path) as u64 + u64::from(path.len() > 1);
        Lock { path, levels, hasher, node, holders, waiters, permits: 0, limit, delayed_until_ms: 0 }
    }

    /// The number of its znode, where it is known.
    pub(crate) fn znode(&self) -> Option<Number> {
        (self.len() > 0 || self.delayed_until_ms == 0).then_some(self.node)
    }

    /// Whether a contender in this mode may hold beside the holders, if none were before it.
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

    /// The first waiter that may hold now.
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

    /// As [`Lock::may_grant`], once a session and all its places are gone.
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

    /// Whether the last holder may hold beside the others: none beside an exclusive one, and no more
    /// permits than there are, but for a holder who is alone. (The limit may have become smaller since.)
    pub(super) fn last_may_hold(&self) -> bool {
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

    /// No place is granted the lock before; 0: no delay.
    pub(crate) fn delayed_until_ms(&self) -> i64 {
        self.delayed_until_ms
    }

    /// No place holds or waits, and no delay lasts.
    pub(super) fn is_idle(&self) -> bool {
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
