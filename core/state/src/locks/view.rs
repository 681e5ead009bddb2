//! Reads about locks for operators and tools. Changes nothing.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::lock::{Mode, Owner};
use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::contender::{Contender, Key, KeyRef};
use super::lock::Lock;
use super::publish::{self, shortened};
use super::question::Question;
use crate::guard::decides;
use crate::machine::Machine;

/// A lock with its queue.
#[derive(Clone, Copy, Debug)]
pub struct LockView<'a> {
    machine: &'a Machine,
    path: &'a str,
    lock: &'a Lock,
}

/// A position in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContenderView {
    /// Path of the queue znode.
    pub path: String,
    pub token: FencingToken,
    pub session: SessionId,
    /// Address of the client at the entry; empty if unknown.
    pub address: String,
    /// The beginning of the queue znode's data.
    pub label: Bytes,
    /// The requested or held mode.
    pub mode: Mode,
    pub owner: Owner,
    pub is_acquired: bool,
    /// Requested limits of the hold, in milliseconds; 0: none.
    pub max_hold_ms: u32,
    pub lock_delay_ms: u32,
    pub min_hold_ms: u32,
    pub min_hold_lapses: bool,
    /// Time of entry, milliseconds since 1970.
    pub requested_ms: i64,
    /// Time of the grant; `None` for a waiter.
    pub granted_ms: Option<i64>,
    /// Time at which the server revokes the hold.
    pub revoke_at_ms: Option<i64>,
    pub wish: Wish,
    /// Newest question to the holder; `None` for a waiter, or without a question.
    pub asked: Option<Arc<Question>>,
}

/// Times that an acquire requests for its position, in milliseconds ([`rowlock_proto::lock::Acquire`]); all 0
/// for a plain create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    pub max_hold_ms: u32,
    pub lock_delay_ms: u32,
    pub min_hold_ms: u32,
    pub min_hold_lapses: bool,
}

impl Machine {
    /// Iterates over all locks with contenders or a delay, in order of their paths.
    pub fn locks(&self) -> impl Iterator<Item = LockView<'_>> {
        self.locks.iter().map(|(path, lock)| LockView { machine: self, path, lock })
    }

    /// Returns the lock at `path`, if the lock has contenders or a delay.
    pub fn lock_queue(&self, path: &str) -> Option<LockView<'_>> {
        let lock = self.locks.get(path)?;
        Some(LockView { machine: self, path: &lock.path, lock })
    }

    /// Returns the time at which the leader revokes a hold. The index may have an earlier time;
    /// [`Machine::lock_due`] checks again then.
    pub(super) fn revoke_at_ms(&self, contender: &Contender) -> Option<i64> {
        publish::revoke_at_ms(contender, &self.sessions)
    }

    /// Iterates over the session's ephemeral znodes in order of their paths: path, czxid, and true for a hold
    /// or false for a wait.
    pub fn session_znodes(&self, session: SessionId) -> impl Iterator<Item = (&str, Zxid, Option<bool>)> {
        let open = self.sessions.get(session).into_iter();
        open.flat_map(|open| open.ephemerals_in_order()).filter_map(|path| {
            let czxid = self.tree.get(path)?.meta.czxid;
            let lock = crate::tree::split(path).and_then(|(lock, _)| self.locks.get(lock));
            let contender = lock.and_then(|lock| lock.contender(KeyRef { czxid, path }));
            Some((path, czxid, contender.map(|contender| contender.granted_ms.is_some())))
        })
    }

    /// Returns the numbers of locks that the session holds and waits for.
    pub fn session_locks(&self, session: SessionId) -> (usize, usize) {
        let mut counts = (0, 0);
        let Some(open) = self.sessions.get(session) else { return counts };
        for (path, id) in open.shared_ephemerals() {
            let Some((lock, _)) = crate::tree::split(path) else { continue };
            let Some(lock) = self.locks.get(lock) else { continue };
            let znode = self.tree.node(id);
            let key = KeyRef { czxid: znode.meta.czxid, path };
            match lock.contender(key) {
                Some(contender) if contender.granted_ms.is_some() => counts.0 += 1,
                Some(_) => counts.1 += 1,
                None => {}
            }
        }
        assert!(counts.0 + counts.1 <= open.ephemeral_count(), "nobody holds and waits by one znode");
        counts
    }
}

impl<'a> LockView<'a> {
    /// Path of the lock's znode.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// Returns the number of permits; `None` if unlimited, or for a lock without permits.
    pub fn limit(&self) -> Option<u32> {
        self.lock.limit
    }

    /// Returns the time before which no position gets the lock, milliseconds since 1970.
    pub fn delayed_until_ms(&self) -> Option<i64> {
        (self.lock.delayed_until_ms != 0).then_some(self.lock.delayed_until_ms)
    }

    /// Iterates over holders, then waiters.
    pub(crate) fn contenders(&self) -> impl Iterator<Item = (&'a Key, &'a Contender)> {
        self.lock.contenders()
    }

    pub fn holder_count(&self) -> usize {
        self.lock.holder_count as usize
    }

    pub fn waiter_count(&self) -> usize {
        self.lock.waiter_count()
    }

    /// Returns whether an acquire of this session would have to wait now: the lock is not free, and another
    /// session's position is in front. (The session may be about to release its own positions.)
    pub fn makes_wait(&self, session: SessionId, mode: Mode) -> bool {
        let mut contenders = self.lock.contenders();
        decides!(
            "acquire-has-to-wait",
            !self.lock.is_free_for(mode) && contenders.any(|(_, contender)| contender.session != session)
        )
    }

    /// Iterates over the holders in the order of the queue.
    pub fn holders(&self) -> impl Iterator<Item = ContenderView> + use<'a> {
        let Self { machine, lock, .. } = *self;
        lock.holders().map(move |(key, contender)| view(machine, key, contender))
    }

    /// Iterates over the waiters in the order of the queue.
    pub fn waiters(&self) -> impl Iterator<Item = ContenderView> + use<'a> {
        let Self { machine, lock, .. } = *self;
        lock.waiters().map(move |(key, contender)| view(machine, key, contender))
    }
}

fn view(machine: &Machine, key: &Key, contender: &Contender) -> ContenderView {
    let label = machine.tree.node(contender.node).data().cloned().unwrap_or_default();
    ContenderView {
        path: key.path.to_string(),
        token: FencingToken(key.czxid.0),
        session: contender.session,
        address: contender.address.to_string(),
        label: label.slice_ref(shortened(&label)),
        mode: contender.mode,
        owner: contender.owner,
        is_acquired: contender.is_acquired,
        max_hold_ms: contender.max_hold_ms,
        lock_delay_ms: contender.lock_delay_ms,
        min_hold_ms: contender.min_hold_ms,
        min_hold_lapses: contender.min_hold_lapses,
        requested_ms: contender.requested_ms,
        granted_ms: contender.granted_ms,
        revoke_at_ms: machine.revoke_at_ms(contender),
        wish: Wish {
            max_hold_ms: contender.max_hold_ms,
            lock_delay_ms: contender.lock_delay_ms,
            min_hold_ms: contender.min_hold_ms,
            min_hold_lapses: contender.min_hold_lapses,
        },
        asked: contender.asked.clone(),
    }
}
