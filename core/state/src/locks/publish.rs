//! What a command that has been carried out means to those who watch: znode changes first, then what became
//! of the locks' queues.

use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::Claim;
use rowlock_proto::{FencingToken, SessionId, Zxid};
use smallvec::SmallVec;

use super::contender::Contender;
use super::key::KeyRef;
use super::{LABEL_MAX, limit_in};
use crate::acl;
use crate::arena::Number;
use crate::machine::Machine;
use crate::ops::{Author, Done};
use crate::outcome::{ChangeKind, EventSink, LockEvent, LockEventKind, Why};
use crate::sessions::Sessions;
use crate::steps;
use crate::tree::Path;

/// Why znodes come and go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause<'a> {
    pub zxid: Zxid,
    pub session: SessionId,
    /// Identities of the client that caused it.
    pub who: &'a [Id],
    /// Why places are gone, where the command says so; otherwise it depends on whose they were.
    pub why: Option<Why>,
    /// Locks are granted until this many places have been. Each lock after that gets a delay that is over at
    /// once, so that a `LockDue` of its own grants it.
    pub grants_max: usize,
}

impl<'a> Cause<'a> {
    pub(crate) fn new(by: &Author<'a>, why: Option<Why>) -> Self {
        Cause { zxid: by.zxid, session: by.session, who: by.who, why, grants_max: usize::MAX }
    }

    /// No session has asked for it.
    pub(crate) fn of_the_cluster(zxid: Zxid) -> Self {
        Cause { zxid, session: SessionId::NONE, who: &[], why: None, grants_max: usize::MAX }
    }
}

impl Machine {
    /// Tells the sink of everything that was `done`, in order, and then of the queues; grants what is free
    /// now.
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
                (Some(ChangeKind::Deleted), _) if done.stat.ephemeral_owner != SessionId::NONE => {
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
            if granted > 0 && granted + grants > cause.grants_max {
                // A delay that lasts longer stays.
                self.locks.delay(lock, self.time_ms.max(1));
            } else {
                self.settle_at(cause.zxid, number, sink);
                granted += grants;
            }
        }
        for done in done.iter().filter(|done| done.was_parent(&self.tree)) {
            self.locks.forget_if_idle(done.path());
        }
        debug_assert!(done.iter().all(|done| self.is_settled_by(done)), "a waiter could hold");
        done.iter().for_each(|done| self.forget_gone(done));
    }

    /// The number of a deleted znode is free, once no event of it is outstanding.
    fn forget_gone(&mut self, done: &Done) {
        if let (Some(ChangeKind::Deleted), Some(id)) = (done.kind(), done.id()) {
            self.tree.forget(id);
        }
    }

    /// Whether no place waits that could hold, for the locks that a change may have changed: for assertions.
    fn is_settled_by(&self, done: &Done) -> bool {
        let is_settled = |path: &str| {
            let lock = self.locks.get(path);
            lock.is_none_or(|lock| lock.next().is_none() && lock.limit == self.limit_of(path))
        };
        // What only has other data changes no queue that it is in.
        let has_parent = done.name_at != 0;
        steps::uncounted(|| is_settled(done.path()) && (!has_parent || is_settled(done.parent())))
    }

    /// Grants the lock to all waiters that may hold now.
    pub(super) fn settle<S: EventSink + ?Sized>(&mut self, zxid: Zxid, path: &str, sink: &mut S) {
        if let Some(lock) = self.locks.find(path) {
            self.settle_at(zxid, lock, sink);
        }
    }

    /// As [`Machine::settle`], for a lock that has been looked up.
    pub(super) fn settle_at<S: EventSink + ?Sized>(&mut self, zxid: Zxid, number: Number, sink: &mut S) {
        let Machine { tree, sessions, locks, time_ms, .. } = self;
        while let Some((lock, key, holder)) =
            locks.grant_next(number, |waiter| grant(waiter, sessions, *time_ms))
        {
            let waited_ms = *time_ms - holder.requested_ms;
            let (lock_znode, znode) = (tree.node(lock.node), tree.node(holder.node));
            debug_assert_eq!(znode.meta.czxid, key.czxid, "a contender is a znode");
            let label = znode.data().map(|data| &data[..]);
            let acls = (znode.acl.entries(), lock_znode.acl.entries());
            let place = EventPlace { lock: &lock.path, path: &key.path, czxid: key.czxid, label, acls };
            sink.lock(&place.event(zxid, *time_ms, holder, LockEventKind::Granted { waited_ms }));
        }
    }

    /// A newcomer. One that comes alone holds the lock at once if it may; others wait until
    /// [`Machine::settle`] comes behind all changes of the command.
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
        let (label, acls) = (done.data(&self.tree), done.acls(&self.tree));
        let place = EventPlace { lock, path: &key.path, czxid: key.czxid, label, acls };
        sink.lock(&place.event(zxid, time_ms, &contender, LockEventKind::Requested { ahead }));
        if is_alone && known.is_none_or(|queue| queue.is_free_for(contender.mode)) {
            grant(&mut contender, &self.sessions, time_ms);
            sink.lock(&place.event(zxid, time_ms, &contender, LockEventKind::Granted { waited_ms: 0 }));
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
        let why = cause.why.unwrap_or(if cause.session == contender.session {
            Why::Released
        } else {
            Why::Deleted
        });
        assert!(contender.session == done.stat.ephemeral_owner, "a place is its znode's session's");
        let until_ms = contender.granted_ms.unwrap_or(self.time_ms);
        debug_assert!(
            contender.requested_ms <= until_ms && until_ms <= self.time_ms,
            "{lock}: a place was asked for, granted and left in another order"
        );
        let kind = LockEventKind::Gone {
            held_ms: contender.granted_ms.map(|granted_ms| self.time_ms - granted_ms),
            waited_ms: until_ms - contender.requested_ms,
            why,
        };
        let place = EventPlace {
            lock,
            path: done.path(),
            czxid,
            label: done.data(&self.tree),
            acls: done.acls(&self.tree),
        };
        let by = match why {
            Why::Deleted | Why::Forced => acl::name_of(cause.who),
            _ => String::new(),
        };
        sink.lock(&LockEvent { by: &by, ..place.event(cause.zxid, self.time_ms, &contender, kind) });
        // A delay goes with the lock's znode, which the same command may have deleted.
        if let Some(until_ms) = contender.delays_until_ms(why, self.time_ms)
            && self.tree.find(lock).is_some()
        {
            self.locks.delay(lock, until_ms);
        }
        Some(lock)
    }

    /// A znode has come, gone or changed, if that was done. If a lock is known there, which a lock-delay
    /// keeps without its znode too, its limit is that of the znode that is there now, if any. Most znodes are
    /// no locks: their data are not looked at.
    fn limit_changed<'a>(&mut self, done: &'a Done) -> Option<&'a str> {
        // There is no queue below an ephemeral znode: only a delay can be known there.
        let may_be_known = done.stat.ephemeral_owner == SessionId::NONE || self.locks.has_delays();
        let path = done.kind().filter(|_| may_be_known).map(|_| done.path())?;
        if !self.locks.knows(path) {
            return None;
        }
        let limit = self.limit_of(path);
        self.locks.set_limit(path, limit).then_some(path)
    }

    /// How many permits the lock's znode names.
    pub(crate) fn limit_of(&self, lock: &str) -> Option<u32> {
        self.tree.get(lock).and_then(|znode| limit_in(znode.data()))
    }

    /// The place goes on in another mode.
    pub(super) fn tell_converted<S: EventSink + ?Sized>(
        &self,
        zxid: Zxid,
        lock: &str,
        key: KeyRef<'_>,
        sink: &mut S,
    ) {
        self.tell_of_holder(zxid, (lock, key), LockEventKind::Converted, |event, _| sink.lock(event));
    }

    /// The place has a new question.
    pub(super) fn tell_asked<S: EventSink + ?Sized>(
        &self,
        zxid: Zxid,
        lock: &str,
        key: KeyRef<'_>,
        sink: &mut S,
    ) {
        self.tell_of_holder(zxid, (lock, key), LockEventKind::Asked, |event, holder| {
            let question = holder.asked.as_ref().expect("it was asked");
            let text = question.text();
            sink.asked(&LockEvent { label: shortened(text.as_bytes()), ..*event }, question);
        });
    }

    /// Something happens to the place of a holder that goes on holding.
    fn tell_of_holder(
        &self,
        zxid: Zxid,
        (lock, key): (&str, KeyRef<'_>),
        kind: LockEventKind,
        tell: impl FnOnce(&LockEvent<'_>, &Contender),
    ) {
        let holder = self.locks.get(lock).and_then(|lock| lock.holder(key)).expect("it was changed");
        assert!(holder.granted_ms.is_some_and(|granted| granted <= self.time_ms), "it has been granted");
        let znode = self.tree.get(key.path).expect("a contender is a znode");
        let label = znode.data().map(|data| &data[..]);
        let lock_acl = self.tree.get(lock).map_or(&[][..], |lock| lock.acl.entries());
        let acls = (znode.acl.entries(), lock_acl);
        let place = EventPlace { lock, path: key.path, czxid: key.czxid, label, acls };
        tell(&place.event(zxid, self.time_ms, holder, kind), holder);
    }
}

/// Makes a contender a holder.
pub(super) fn grant(waiter: &mut Contender, sessions: &Sessions, now_ms: i64) {
    assert!(waiter.requested_ms <= now_ms, "a lock is granted before it was asked for");
    waiter.granted_ms = Some(now_ms);
    waiter.revoke_at_ms = revoke_at_ms(waiter, sessions);
    debug_assert_eq!(waiter.revoke_at_ms.is_some(), waiter.is_revoked(), "a longest hold ends, no other");
    assert!(waiter.revoke_at_ms.is_none_or(|at_ms| at_ms >= now_ms), "a hold ends before it begins");
}

/// When a holder will have held the lock for too long, as far as its session's timeouts tell until now.
///
/// The client counts from when it learns of the grant, but from a session timeout after it last knew that
/// there was none at the latest: so it gives up before this, also if its clock runs slower. Which of the
/// session's timeouts it counts with, only the client knows: the longest is on the safe side. The same counts
/// for a question with a deadline, from the question on.
pub(super) fn revoke_at_ms(holder: &Contender, sessions: &Sessions) -> Option<i64> {
    if !holder.is_revoked() {
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
    // A place that another one was converted to may be granted behind the deadline: then it ends at once.
    longest.into_iter().chain(asked).map(end_ms).min().map(|at_ms| at_ms.max(granted_ms))
}

pub(super) struct EventPlace<'a> {
    pub lock: &'a str,
    /// Path of the queue znode.
    pub path: &'a str,
    pub czxid: Zxid,
    /// Data of the queue znode.
    pub label: Option<&'a [u8]>,
    /// ACLs of the queue znode and of the lock's znode.
    pub acls: (&'a [Acl], &'a [Acl]),
}

impl<'a> EventPlace<'a> {
    #[inline]
    pub(super) fn event(
        &self,
        zxid: Zxid,
        time_ms: i64,
        contender: &'a Contender,
        kind: LockEventKind,
    ) -> LockEvent<'a> {
        LockEvent {
            zxid,
            time_ms,
            lock: self.lock,
            path: self.path,
            token: FencingToken(self.czxid.0),
            session: contender.session,
            address: &contender.address,
            label: shortened(self.label.unwrap_or_default()),
            acl: self.acls.0,
            lock_acl: self.acls.1,
            mode: contender.mode,
            is_acquired: contender.is_acquired,
            by: "",
            kind,
        }
    }
}

/// The beginning of a label.
pub(super) fn shortened(label: &[u8]) -> &[u8] {
    &label[..label.len().min(LABEL_MAX)]
}

/// The path of a claim. `None` if it cannot be a znode's.
pub(super) fn path_of(claim: &Claim) -> Option<Path<'_>> {
    // Other paths that are not well formed have parts that no znode has; this one's would be those of "/a".
    Path::new(&claim.path).filter(|path| !path.full.starts_with("//"))
}

/// The place that is claimed: its lock, and its key there.
pub(super) fn place(claim: &Claim) -> Option<(&str, KeyRef<'_>)> {
    let path = path_of(claim)?;
    Some((path.parent(), KeyRef { czxid: Zxid(claim.token.0), path: path.full }))
}
