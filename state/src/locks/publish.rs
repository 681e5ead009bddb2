//! What a command that has been carried out means to those who watch: znode changes first, then what became of the
//! locks' queues.

use std::collections::BTreeSet;

use rowlock_proto::path as paths;
use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::contender::Contender;
use super::index::Key;
use super::{LABEL_MAX, limit_in, queue_path};
use crate::machine::Machine;
use crate::ops::Done;
use crate::outcome::{ChangeKind, EventSink, LockEvent, LockEventKind, Why};
use crate::tree::split;

/// Why znodes come and go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    pub zxid: Zxid,
    /// On whose behalf.
    pub session: SessionId,
    /// Why places are gone, where the command says so; otherwise it depends on whose they were.
    pub why: Option<Why>,
}

impl Cause {
    /// Nobody's wish.
    pub(crate) fn of_the_cluster(zxid: Zxid) -> Self {
        Cause { zxid, session: SessionId::NONE, why: None }
    }
}

impl Machine {
    /// Tells the sink of everything that was `done`, in order, and then of the queues; grants what is free now.
    pub(crate) fn publish<S: EventSink + ?Sized>(&mut self, cause: Cause, done: &[Done], sink: &mut S) {
        for done in done {
            done.fire(cause.zxid, sink);
        }
        let mut changed = BTreeSet::new();
        for done in done {
            let Some(kind) = done.kind() else { continue };
            let lock = match kind {
                ChangeKind::Created if done.contender.is_some() => self.entered(cause.zxid, done, sink),
                ChangeKind::Deleted if done.stat.ephemeral_owner != SessionId::NONE => {
                    self.left(cause, done, sink)
                }
                ChangeKind::DataChanged => self.limit_changed(&done.path),
                ChangeKind::Created | ChangeKind::Deleted => None,
            };
            changed.extend(lock);
        }
        for lock in changed {
            self.settle(cause.zxid, lock, sink);
        }
    }

    /// Grants the lock to all whose turn it is.
    pub(super) fn settle<S: EventSink + ?Sized>(&mut self, zxid: Zxid, path: &str, sink: &mut S) {
        while let Some(key) = self.locks.get(path).and_then(|lock| lock.next().cloned()) {
            let now_ms = self.time_ms;
            let sessions = &self.sessions;
            self.locks.change(path, &key, |waiter| {
                waiter.granted_ms = Some(now_ms);
                // The client counts from when it learns of the grant, but from a session timeout after it last knew that
                // there was none at the latest: so it gives up before this, also if its clock runs slower.
                waiter.revoke_at_ms = (waiter.max_hold_ms > 0).then(|| {
                    let session = sessions.get(waiter.session).expect("an ephemeral znode has its session");
                    let most_ms = i64::from(waiter.max_hold_ms);
                    now_ms.saturating_add(most_ms + most_ms / 8 + i64::from(session.timeout_ms))
                });
            });
            let lock = self.locks.get(path).expect("it has a holder");
            let holder = lock.holders.get(&key).expect("it was granted the lock");
            let kind = LockEventKind::Granted { waited_ms: now_ms - holder.requested_ms };
            self.tell(zxid, path, &key, holder, None, kind, sink);
        }
        self.locks.forget_if_idle(path);
    }

    fn entered<'a, S: EventSink + ?Sized>(
        &mut self,
        zxid: Zxid,
        done: &'a Done,
        sink: &mut S,
    ) -> Option<&'a str> {
        let (lock, name) = split(&done.path).expect("a znode was created there");
        let contender = done.contender.clone().expect("the caller has looked");
        let key: Key = (done.stat.czxid, name.into());
        let limit = self.tree.get(lock).and_then(|znode| limit_in(znode.data()));
        self.locks.enter(lock, key.clone(), contender, limit);
        let queue = self.locks.get(lock).expect("it has a contender");
        let ahead = (queue.len() - 1) as u32;
        let contender = queue.waiters.get(&key).expect("it has entered");
        self.tell(zxid, lock, &key, contender, None, LockEventKind::Requested { ahead }, sink);
        Some(lock)
    }

    fn left<'a, S: EventSink + ?Sized>(
        &mut self,
        cause: Cause,
        done: &'a Done,
        sink: &mut S,
    ) -> Option<&'a str> {
        let (lock, name) = split(&done.path).expect("a znode was deleted there");
        let key: Key = (done.stat.czxid, name.into());
        let contender = self.locks.leave(lock, &key)?;
        let why = cause.why.unwrap_or(if cause.session == contender.session {
            Why::Released
        } else {
            Why::Deleted
        });
        let until_ms = contender.granted_ms.unwrap_or(self.time_ms);
        let kind = LockEventKind::Gone {
            held_ms: contender.granted_ms.map(|granted_ms| self.time_ms - granted_ms),
            waited_ms: until_ms - contender.requested_ms,
            why,
        };
        self.tell(cause.zxid, lock, &key, &contender, done.last_data(), kind, sink);
        if why == Why::SessionExpired && contender.granted_ms.is_some() && contender.lock_delay_ms > 0 {
            self.locks.delay(lock, self.time_ms.saturating_add(i64::from(contender.lock_delay_ms)));
        }
        Some(lock)
    }

    /// Most znodes are no locks: their data are not looked at.
    fn limit_changed<'a>(&mut self, path: &'a str) -> Option<&'a str> {
        self.locks.get(path)?;
        let limit = self.tree.get(path).and_then(|znode| limit_in(znode.data()));
        self.locks.set_limit(path, limit).then_some(path)
    }

    #[expect(clippy::too_many_arguments, reason = "an event has many sides; each comes from elsewhere")]
    pub(super) fn tell<S: EventSink + ?Sized>(
        &self,
        zxid: Zxid,
        lock: &str,
        key: &Key,
        contender: &Contender,
        last_data: Option<&[u8]>,
        kind: LockEventKind,
        sink: &mut S,
    ) {
        let path = queue_path(lock, &key.1);
        let label = last_data.or_else(|| self.tree.get(&path)?.data().map(|data| &data[..]));
        sink.lock(&LockEvent {
            zxid,
            time_ms: self.time_ms,
            lock,
            path: &path,
            token: FencingToken(key.0.0),
            session: contender.session,
            address: &contender.address,
            label: shortened(label.unwrap_or_default()),
            mode: contender.mode,
            is_acquired: contender.is_acquired,
            kind,
        });
    }
}

/// The beginning of a label.
pub(super) fn shortened(label: &[u8]) -> &[u8] {
    &label[..label.len().min(LABEL_MAX)]
}

/// The place of a queue znode: its lock, and its key there.
pub(super) fn place(path: &str, token: FencingToken) -> Option<(&str, Key)> {
    paths::validate(path).ok()?;
    let (lock, name) = split(path)?;
    Some((lock, (Zxid(token.0), name.into())))
}
