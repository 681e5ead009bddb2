//! Publication of a completed command to watchers: znode changes first, then changes of the locks' queues.

use std::borrow::Cow;

use rowlock_proto::acl::Acl;
use rowlock_proto::lock::Claim;
use rowlock_proto::{FencingToken, SessionId, Zxid};
use smallvec::SmallVec;

use super::contender::{Contender, KeyRef, LABEL_MAX};
use super::lock::limit_in;
use crate::arena::Number;
use crate::done::{Cause, Done};
use crate::guard::decides;
use crate::machine::Machine;
use crate::outcome::{ChangeKind, EndReason, EventContext, EventSink, LockEvent, LockEventKind, PositionEnd};
use crate::sessions::Sessions;
use crate::tree::Path;
use crate::{acl, steps};

impl Machine {
    /// Passes all changes in `done` to the sink, in order, then the changes of queues, and grants free locks.
    pub(crate) fn publish<S: EventSink + ?Sized>(
        &mut self,
        cause: Cause<'_>,
        done: &mut [Done],
        sink: &mut S,
    ) {
        assert!(cause.zxid == self.last_zxid, "what is told is what was done last");
        for done in &*done {
            done.fire((&self.tree, &self.rules), cause.zxid, sink);
        }
        let is_alone = done.len() == 1;
        let mut changed = SmallVec::<[&str; 2]>::new();
        for done in &mut *done {
            match (done.kind(), done.contender.take()) {
                (Some(ChangeKind::Created), Some(contender)) => {
                    self.entered(cause.zxid, (done, is_alone), contender, sink);
                    changed.push(done.parent());
                }
                (Some(ChangeKind::Deleted), _)
                    if decides!(
                        "deleted-znode-was-ephemeral",
                        done.stat.ephemeral_owner != SessionId::NONE
                    ) =>
                {
                    changed.extend(self.left(cause, done, sink));
                }
                _ => {}
            }
            changed.extend(self.limit_changed(done));
        }
        changed.sort_unstable();
        changed.dedup();
        let mut granted = 0;
        for lock in changed {
            let Some(number) = self.locks.find(lock) else { continue };
            let grants = self.locks.at(number).may_grant();
            if decides!("grants-exceed-entry", granted > 0 && granted + grants > cause.grants_max) {
                // A longer delay stays.
                self.locks.delay(lock, self.time_ms.max(1));
            } else {
                self.grant_ready_at(cause.zxid, number, sink);
                granted += grants;
            }
        }
        for done in done.iter().filter(|done| done.was_parent(&self.tree)) {
            self.locks.forget_if_idle(done.path());
        }
        debug_assert!(done.iter().all(|done| self.is_all_granted_after(done)), "a waiter could hold");
        done.iter().for_each(|done| self.forget_gone(done));
    }

    /// Frees the number of a deleted znode, after the last event of the znode.
    fn forget_gone(&mut self, done: &Done) {
        if let (Some(ChangeKind::Deleted), Some(id)) = (done.kind(), done.id()) {
            self.tree.forget(id);
        }
    }

    /// Returns whether no waiter could hold, for all locks that a change may have affected. Only for
    /// assertions.
    fn is_all_granted_after(&self, done: &Done) -> bool {
        let is_all_granted = |path: &str| {
            let lock = self.locks.get(path);
            lock.is_none_or(|lock| lock.next().is_none() && lock.limit == self.limit_of(path))
        };
        // A change of data affects no queue that contains the znode.
        let has_parent = done.name_at != 0;
        steps::uncounted(|| is_all_granted(done.path()) && (!has_parent || is_all_granted(done.parent())))
    }

    /// Grants the lock to all waiters that may hold now.
    pub(super) fn grant_ready<S: EventSink + ?Sized>(&mut self, zxid: Zxid, path: &str, sink: &mut S) {
        if let Some(lock) = self.locks.find(path) {
            self.grant_ready_at(zxid, lock, sink);
        }
    }

    /// Grants like [`Machine::grant_ready`], for a lock found by the caller.
    pub(super) fn grant_ready_at<S: EventSink + ?Sized>(&mut self, zxid: Zxid, number: Number, sink: &mut S) {
        let Machine { tree, sessions, locks, time_ms, .. } = self;
        while let Some((lock, key, holder)) =
            locks.grant_next(number, |waiter| grant(waiter, sessions, *time_ms))
        {
            let waited_ms = *time_ms - holder.requested_ms;
            let (lock_znode, znode) = (tree.node(lock.node), tree.node(holder.node));
            debug_assert_eq!(znode.meta.czxid, key.czxid, "a contender is a znode");
            let label = label_of(znode.data().map(|data| &data[..]));
            let acls = (znode.acl.entries(), lock_znode.acl.entries());
            let place = EventPlace { lock: &lock.path, path: &key.path, czxid: key.czxid, label, acls };
            place.publish((zxid, *time_ms), holder, LockEventKind::Granted { waited_ms }, sink);
        }
    }

    /// Adds a newcomer. A newcomer alone in the command holds at once, if permitted; several newcomers wait
    /// for [`Machine::grant_ready`] behind all changes of the command.
    fn entered<S: EventSink + ?Sized>(
        &mut self,
        zxid: Zxid,
        (done, is_alone): (&Done, bool),
        mut contender: Contender,
        sink: &mut S,
    ) {
        let lock = done.parent();
        let key = done.key().expect("a place in a queue is an ephemeral znode");
        let time_ms = self.time_ms;
        assert!(contender.session == done.stat.ephemeral_owner, "a place is its znode's session's");
        debug_assert_eq!((contender.requested_ms, contender.granted_ms), (time_ms, None), "it asks now");
        let found = self.locks.find(lock);
        let known = self.locks.busy(found);
        assert!(
            known.and_then(|queue| queue.queue.last_key()).is_none_or(|last| last.czxid <= key.czxid),
            "{lock}: a newcomer is before somebody"
        );
        let ahead = known.map_or(0, |queue| queue.len() as u32);
        contender.node = done.id().expect("it was created");
        let (label, acls) = (label_of(done.data(&self.tree)), done.acls(&self.tree));
        let place = EventPlace { lock, path: &key.path, czxid: key.czxid, label, acls };
        place.publish((zxid, time_ms), &contender, LockEventKind::Requested { ahead }, sink);
        if decides!(
            "contender-holds-at-once",
            is_alone && known.is_none_or(|queue| queue.is_free_for(contender.mode))
        ) {
            grant(&mut contender, &self.sessions, time_ms);
            place.publish((zxid, time_ms), &contender, LockEventKind::Granted { waited_ms: 0 }, sink);
        }
        let node = self.tree.node(contender.node).parent;
        let limit = limit_in(self.tree.node(node).data());
        let number = found.unwrap_or_else(|| self.locks.make(lock, node, limit));
        self.locks.enter_at((number, node), key, contender, limit);
    }

    fn left<'a, S: EventSink + ?Sized>(
        &mut self,
        cause: Cause<'_>,
        done: &'a Done,
        sink: &mut S,
    ) -> Option<&'a str> {
        let lock = done.parent();
        let queue = self.locks.find(lock)?;
        let czxid = done.stat.czxid;
        debug_assert!(czxid <= cause.zxid, "{} goes before it came", done.path());
        let (_, contender) = self.locks.leave(queue, KeyRef { czxid, path: done.path() })?;
        let reason =
            cause.why.unwrap_or(if decides!("holder-left-by-itself", cause.session == contender.session) {
                EndReason::Released
            } else {
                EndReason::Deleted
            });
        assert!(contender.session == done.stat.ephemeral_owner, "a place is its znode's session's");
        let until_ms = contender.granted_ms.unwrap_or(self.time_ms);
        debug_assert!(
            contender.requested_ms <= until_ms && until_ms <= self.time_ms,
            "{lock}: a place was asked for, granted and left in another order"
        );
        let place = EventPlace {
            lock,
            path: done.path(),
            czxid,
            label: label_of(done.data(&self.tree)),
            acls: done.acls(&self.tree),
        };
        let is_taken_away = matches!(reason, EndReason::Deleted | EndReason::Forced);
        let by = is_taken_away.then(|| acl::name_of(cause.who)).filter(|by| !by.is_empty());
        let kind = LockEventKind::ended(PositionEnd {
            reason,
            waited_ms: until_ms - contender.requested_ms,
            held_ms: contender.granted_ms.map(|granted_ms| self.time_ms - granted_ms),
            by: by.as_deref(),
        });
        place.publish((cause.zxid, self.time_ms), &contender, kind, sink);
        // A delay ends with the lock's znode, which the same command may have deleted.
        if let Some(until_ms) = contender.delays_until_ms(reason, self.time_ms)
            && decides!("delayed-lock-has-znode", self.tree.find(lock).is_some())
        {
            self.locks.delay(lock, until_ms);
        }
        Some(lock)
    }

    /// Updates the limit of a known lock after a change of its znode. A lock-delay keeps a lock known without
    /// its znode. Skips the data of most znodes, since most znodes are no locks. Returns the path of a lock
    /// whose limit changed.
    fn limit_changed<'a>(&mut self, done: &'a Done) -> Option<&'a str> {
        // An ephemeral znode has no queue below: only a delay can be known there.
        let may_be_known = decides!(
            "changed-znode-may-be-lock",
            done.stat.ephemeral_owner == SessionId::NONE || self.locks.has_delays()
        );
        let path = done.kind().filter(|_| may_be_known).map(|_| done.path())?;
        if !self.locks.knows(path) {
            return None;
        }
        let limit = self.limit_of(path);
        self.locks.set_limit(path, limit).then_some(path)
    }

    /// Returns the limit in the data of the lock's znode.
    pub(crate) fn limit_of(&self, lock: &str) -> Option<u32> {
        self.tree.get(lock).and_then(|znode| limit_in(znode.data()))
    }

    /// Publishes the new mode of a hold.
    pub(super) fn notify_converted<S: EventSink + ?Sized>(
        &self,
        zxid: Zxid,
        lock: &str,
        key: KeyRef<'_>,
        sink: &mut S,
    ) {
        self.holder_event(zxid, (lock, key), |event, context, _| {
            sink.lock(event, context);
        });
    }

    /// Publishes a new question to a holder.
    pub(super) fn notify_asked<S: EventSink + ?Sized>(
        &self,
        zxid: Zxid,
        lock: &str,
        key: KeyRef<'_>,
        sink: &mut S,
    ) {
        self.holder_event(zxid, (lock, key), |event, context, holder| {
            let question = holder.asked.as_ref().expect("it was asked");
            let whole = question.text();
            let text = label_of(Some(whole.as_bytes()));
            let kind = LockEventKind::Asked { question: &*text };
            sink.asked(&LockEvent { kind, label: "", ..*event }, context, question);
        });
    }

    /// Passes the event of a holder that continues to hold, as a conversion.
    fn holder_event(
        &self,
        zxid: Zxid,
        (lock, key): (&str, KeyRef<'_>),
        publish: impl FnOnce(&LockEvent<&str>, &EventContext<'_>, &Contender),
    ) {
        let holder = self.locks.get(lock).and_then(|lock| lock.holder(key)).expect("it was changed");
        assert!(holder.granted_ms.is_some_and(|granted| granted <= self.time_ms), "it has been granted");
        let znode = self.tree.get(key.path).expect("a contender is a znode");
        let label = label_of(znode.data().map(|data| &data[..]));
        let lock_acl = self.tree.get(lock).map_or(&[][..], |lock| lock.acl.entries());
        let acls = (znode.acl.entries(), lock_acl);
        let place = EventPlace { lock, path: key.path, czxid: key.czxid, label, acls };
        publish(&place.event(holder, LockEventKind::Converted), &place.context(zxid, self.time_ms), holder);
    }
}

pub(super) fn grant(waiter: &mut Contender, sessions: &Sessions, now_ms: i64) {
    assert!(waiter.requested_ms <= now_ms, "a lock is granted before it was asked for");
    waiter.granted_ms = Some(now_ms);
    waiter.revoke_at_ms = revoke_at_ms(waiter, sessions);
    debug_assert_eq!(waiter.revoke_at_ms.is_some(), waiter.is_revoked(), "a longest hold ends, no other");
    assert!(waiter.revoke_at_ms.is_none_or(|at_ms| at_ms >= now_ms), "a hold ends before it begins");
}

/// Returns the time at which the leader revokes a hold, by the session's timeouts so far.
///
/// The client counts from the time when it learns of the grant, at the latest from a session timeout after it
/// last knew that it held nothing. So the client gives up earlier, even with a slower clock. Only the client
/// knows which of the session's timeouts it counts with: the longest one is safe. The same holds for a
/// question with a deadline, counted from the question.
pub(super) fn revoke_at_ms(holder: &Contender, sessions: &Sessions) -> Option<i64> {
    if decides!("holder-is-not-revoked", !holder.is_revoked()) {
        return None;
    }
    let session = sessions.get(holder.session).expect("an ephemeral znode has its session");
    let granted_ms = holder.granted_ms?;
    let longest = (holder.max_hold_ms != 0).then_some((granted_ms, holder.max_hold_ms));
    let asked = holder.deadline().map(|deadline| (deadline.since_ms, deadline.within_ms));
    let end_ms = |(since_ms, most_ms): (i64, u32)| {
        let most_ms = i64::from(most_ms);
        since_ms.saturating_add(most_ms + most_ms / 8 + i64::from(session.longest_timeout_ms()))
    };
    // A position made by a convert may be granted after the deadline: the hold then ends at once.
    longest.into_iter().chain(asked).map(end_ms).min().map(|at_ms| at_ms.max(granted_ms))
}

pub(super) struct EventPlace<'a> {
    pub lock: &'a str,
    /// Path of the queue znode.
    pub path: &'a str,
    pub czxid: Zxid,
    pub label: Cow<'a, str>,
    /// ACLs of the queue znode and of the lock's znode.
    pub acls: (&'a [Acl], &'a [Acl]),
}

impl EventPlace<'_> {
    #[inline]
    pub(super) fn publish<S: EventSink + ?Sized>(
        &self,
        (zxid, time_ms): (Zxid, i64),
        contender: &Contender,
        kind: LockEventKind<&str>,
        sink: &mut S,
    ) {
        sink.lock(&self.event(contender, kind), &self.context(zxid, time_ms));
    }

    fn event<'e>(&'e self, contender: &'e Contender, kind: LockEventKind<&'e str>) -> LockEvent<&'e str> {
        LockEvent {
            kind,
            lock: self.lock,
            path: self.path,
            token: FencingToken(self.czxid.0),
            session: contender.session,
            label: &self.label,
            address: Some(&*contender.address).filter(|address| !address.is_empty()),
            mode: contender.mode,
            acquired: contender.is_acquired,
        }
    }

    fn context(&self, zxid: Zxid, time_ms: i64) -> EventContext<'_> {
        EventContext { zxid, time_ms, acl: self.acls.0, lock_acl: self.acls.1 }
    }
}

/// Returns the beginning of a label.
pub(super) fn shortened(label: &[u8]) -> &[u8] {
    &label[..label.len().min(LABEL_MAX)]
}

/// Returns the text of a label in events: the beginning of the queue znode's data.
pub(super) fn label_of(data: Option<&[u8]>) -> Cow<'_, str> {
    let label = shortened(data.unwrap_or_default());
    // Most labels are plain text, which `from_utf8` checks in whole words.
    std::str::from_utf8(label).map_or_else(|_| String::from_utf8_lossy(label), Cow::Borrowed)
}

/// Returns the path of a claim; `None` if no znode can have the path.
pub(super) fn path_of(claim: &Claim) -> Option<Path<'_>> {
    // Other malformed paths have names that no znode has; this path has the names of "/a".
    Path::new(&claim.path).filter(|path| !path.full.starts_with("//"))
}

/// Returns the lock and the key of a claim.
pub(super) fn place(claim: &Claim) -> Option<(&str, KeyRef<'_>)> {
    let path = path_of(claim)?;
    Some((path.parent(), KeyRef { czxid: Zxid(claim.token.0), path: path.full }))
}
