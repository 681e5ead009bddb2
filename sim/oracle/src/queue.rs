//! Queues of locks: a list of positions each, in the order of entry, walked from the front after every
//! change.

use std::sync::Arc;

use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Claim, Mode, limit_in};
use rowlock_proto::{FencingToken, SessionId};
use rowlock_state::LABEL_MAX;
use rowlock_state::outcome::{ChangeKind, EndReason, LockEvent, LockEventKind, PositionEnd};

use crate::book::{Cause, Change, Lock, Oracle, Position, go_together, split};
use crate::events::Event;

/// Returns the beginning of a text as labels show it.
pub(crate) fn label_of(data: &[u8]) -> String {
    String::from_utf8_lossy(&data[..data.len().min(LABEL_MAX)]).into_owned()
}

impl Oracle {
    /// Publishes a command's changes: znodes, then the queues in the same order, then grants.
    pub(crate) fn publish(&mut self, cause: &Cause, changes: Vec<Change>) {
        for change in &changes {
            self.events.push(Event::Changed {
                zxid: self.zxid,
                path: change.path.to_string(),
                kind: change.kind,
                acl: change.acl.clone(),
                parent_acl: change.parent_acl.clone(),
            });
        }
        for mut change in changes {
            match (change.kind, change.position.take()) {
                (ChangeKind::Created, Some(position)) => self.enter(&change, position),
                (ChangeKind::Deleted, _) if change.owner != SessionId::NONE => self.leave(cause, &change),
                _ => {}
            }
            if self.locks.contains_key(&change.path) {
                self.touched.insert(change.path);
            }
        }
        self.grant_ready();
    }

    /// Ends the delays of deleted locks.
    pub(crate) fn end_delays(&mut self, changes: &[Change]) {
        for change in changes.iter().filter(|change| change.kind == ChangeKind::Deleted) {
            if let Some(lock) = self.locks.get_mut(&change.path) {
                lock.delayed_until_ms = 0;
                self.touched.insert(change.path.clone());
            }
        }
    }

    fn enter(&mut self, change: &Change, position: Position) {
        let (path, _) = split(&change.path).expect("a position is a child");
        let path: Arc<str> = path.into();
        let ahead = self.locks.entry(path.clone()).or_default().positions.len() as u32;
        let kind = LockEventKind::Requested { ahead };
        self.queue_event((&path, &position), change, kind);
        self.news.entered.push(position.clone());
        self.locks.entry(path.clone()).or_default().positions.push(position);
        self.touched.insert(path);
    }

    fn leave(&mut self, cause: &Cause, change: &Change) {
        let (path, _) = split(&change.path).expect("a position is a child");
        let path: Arc<str> = path.into();
        let Some(lock) = self.locks.get_mut(&path) else { return };
        let is_it = |position: &Position| {
            position.path == change.path && position.token == FencingToken(change.czxid.0)
        };
        let Some(at) = lock.positions.iter().position(is_it) else { return };
        let position = lock.positions.remove(at);
        let is_own = cause.session == position.session;
        let reason = cause.why.unwrap_or(if is_own { EndReason::Released } else { EndReason::Deleted });
        let is_taken = [EndReason::Deleted, EndReason::Forced].contains(&reason);
        let kind = LockEventKind::ended(PositionEnd {
            reason,
            waited_ms: position.granted_ms.unwrap_or(self.time_ms) - position.requested_ms,
            held_ms: position.granted_ms.map(|granted_ms| self.time_ms - granted_ms),
            by: cause.name().filter(|_| is_taken).filter(|name| !name.is_empty()),
        });
        self.queue_event((&path, &position), change, kind);
        if let Some(until_ms) = position.kept_until_ms(reason, self.time_ms)
            && self.znodes.contains_key(&path)
            && let Some(lock) = self.locks.get_mut(&path)
        {
            lock.delayed_until_ms = lock.delayed_until_ms.max(until_ms);
        }
        self.news.left.push((position, reason));
        self.touched.insert(path);
    }

    /// Grants locks from the front: the first waiter holds if the waiter fits beside the holders, and so on.
    /// Forgets locks without positions and delays.
    pub(crate) fn grant_ready(&mut self) {
        for path in self.touched.clone() {
            while let Some(at) = self.next_to_hold(&path) {
                let position = &mut self.locks.get_mut(&path).expect("a position waits").positions[at];
                position.granted_ms = Some(self.time_ms);
                let waited_ms = self.time_ms - position.requested_ms;
                let position = position.clone();
                self.event_of((&path, &position), LockEventKind::Granted { waited_ms });
                self.news.granted.insert(path.clone());
            }
            let is_idle = |lock: &Lock| lock.positions.is_empty() && lock.delayed_until_ms == 0;
            if self.locks.get(&path).is_some_and(is_idle) {
                self.locks.remove(&path);
            }
        }
    }

    fn next_to_hold(&self, path: &str) -> Option<usize> {
        let lock = self.locks.get(path).filter(|lock| lock.delayed_until_ms == 0)?;
        let at = lock.positions.iter().position(|position| position.granted_ms.is_none())?;
        self.is_room_for(path, lock, lock.positions[at].mode).then_some(at)
    }

    /// Returns whether a position in this mode may hold beside the holders.
    fn is_room_for(&self, path: &str, lock: &Lock, mode: Mode) -> bool {
        let mut holders = lock.positions.iter().filter(|position| position.granted_ms.is_some()).peekable();
        if holders.peek().is_none() {
            return true;
        }
        let (mut taken, mut all_fit) = (u64::from(mode.permits().unwrap_or(0)), true);
        for holder in holders {
            taken += u64::from(holder.mode.permits().unwrap_or(0));
            all_fit &= go_together(holder.mode, mode);
        }
        all_fit && self.limit(path).is_none_or(|limit| taken <= u64::from(limit) || mode == Mode::Shared)
    }

    /// Returns whether a newcomer in this mode holds at once.
    pub(crate) fn is_free_for(&self, path: &str, mode: Mode) -> bool {
        let Some(lock) = self.locks.get(path) else { return true };
        let all_hold = lock.positions.iter().all(|position| position.granted_ms.is_some());
        lock.delayed_until_ms == 0 && all_hold && self.is_room_for(path, lock, mode)
    }

    /// Returns the limit in the data of the lock's znode.
    pub(crate) fn limit(&self, path: &str) -> Option<u32> {
        limit_in(self.znode(path)?.data.as_deref()?)
    }

    /// Applies a due time: ends a delay, and takes the lock from holders beyond their time.
    pub(crate) fn lock_due(&mut self, path: &str) {
        let now_ms = self.time_ms;
        let Some(lock) = self.locks.get_mut(path) else { return };
        if lock.delayed_until_ms <= now_ms {
            lock.delayed_until_ms = 0;
        }
        let lock = &self.locks[path];
        let is_over = |position: &&Position| self.revoke_at_ms(position).is_some_and(|at| at <= now_ms);
        let overdue = lock.positions.iter().filter(is_over).map(|position| position.path.clone()).collect();
        self.touched.insert(path.into());
        let changes = self.changes_of(overdue);
        self.publish(&Cause::of_the_cluster(Some(EndReason::Revoked)), changes);
    }

    /// Returns the time at which a hold ends: its client has given up by then, even by a slower clock.
    pub(crate) fn revoke_at_ms(&self, holder: &Position) -> Option<i64> {
        let granted_ms = holder.granted_ms?;
        let longest_ms = i64::from(self.sessions[&holder.session].longest_timeout_ms);
        let maximum = (holder.max_hold_ms != 0).then_some((granted_ms, holder.max_hold_ms));
        let deadline = holder.asked.as_ref().and_then(|question| question.deadline);
        let deadline = deadline.map(|deadline| (deadline.since_ms, deadline.within_ms));
        let ends = maximum.into_iter().chain(deadline);
        let at_ms = |(since_ms, most_ms)| since_ms + i64::from(most_ms) + i64::from(most_ms / 8) + longest_ms;
        ends.map(at_ms).min().map(|at_ms: i64| at_ms.max(granted_ms))
    }

    /// Returns the position that a claim names.
    pub(crate) fn position_of(&self, claim: &Claim) -> Option<&Position> {
        let lock = self.locks.get(split(&claim.path)?.0)?;
        lock.positions.iter().find(|position| position.path == claim.path && position.token == claim.token)
    }

    pub(crate) fn holder_of(&self, claim: &Claim) -> Option<&Position> {
        self.position_of(claim).filter(|position| position.granted_ms.is_some())
    }

    /// Changes a position of a lock.
    pub(crate) fn change_position(&mut self, claim: &Claim, change: impl FnOnce(&mut Position)) {
        let Some((path, _)) = split(&claim.path) else { return };
        let lock = self.locks.get_mut(path);
        let mut positions = lock.into_iter().flat_map(|lock| &mut lock.positions);
        if let Some(position) = positions.find(|position| position.claim() == *claim) {
            change(position);
        }
        self.touched.insert(path.into());
    }

    /// Publishes an event of a position that exists.
    pub(crate) fn event_of(&mut self, (lock, position): (&str, &Position), kind: LockEventKind) {
        let znode = self.znode(&position.path).expect("a position is a znode");
        let lists = (znode.acl.to_vec(), self.znode(lock).map(|lock| lock.acl.to_vec()).unwrap_or_default());
        let label = label_of(znode.data.as_deref().unwrap_or_default());
        self.lock_event((lock, position), lists, label, kind);
    }

    fn queue_event(&mut self, (lock, position): (&str, &Position), change: &Change, kind: LockEventKind) {
        let label = label_of(change.data.as_deref().unwrap_or_default());
        self.lock_event((lock, position), (change.acl.clone(), change.parent_acl.clone()), label, kind);
    }

    pub(crate) fn lock_event(
        &mut self,
        (lock, position): (&str, &Position),
        (acl, lock_acl): (Vec<Acl>, Vec<Acl>),
        label: String,
        kind: LockEventKind,
    ) {
        let event = LockEvent {
            kind,
            lock: lock.to_owned(),
            path: position.path.to_string(),
            token: position.token,
            session: position.session,
            label,
            address: Some(position.address.clone()).filter(|address| !address.is_empty()),
            mode: position.mode,
            acquired: position.is_acquired,
        };
        let (zxid, time_ms) = (self.zxid, self.time_ms);
        self.events.push(Event::Lock { event: Box::new(event), zxid, time_ms, acl, lock_acl });
    }
}
