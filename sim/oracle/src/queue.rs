//! Queues of locks: a list of positions each, in the order of entry, walked from the front after every
//! change.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{ASK_BY_MAX_BYTES, Claim, Mode, Owner, limit_in};
use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::outcome::{ChangeKind, EndReason, LockEvent, LockEventKind, PositionEnd};
use rowlock_state::{LABEL_MAX, Question};

use crate::rights::Author;
use crate::{Event, Oracle, address_in, split};

/// Lock with positions or a delay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    pub positions: Vec<Position>,
    /// End of a delay, before which no position gets the lock; 0: no delay.
    pub delayed_until_ms: i64,
}

/// Position in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    pub path: Arc<str>,
    pub token: FencingToken,
    pub session: SessionId,
    pub mode: Mode,
    pub owner: Owner,
    pub is_acquired: bool,
    pub max_hold_ms: u32,
    pub lock_delay_ms: u32,
    pub min_hold_ms: u32,
    pub min_hold_lapses: bool,
    pub requested_ms: i64,
    /// Time of the grant; `None` for a waiter.
    pub granted_ms: Option<i64>,
    pub asked: Option<Question>,
    pub address: String,
}

impl Position {
    /// Makes the position of a plain create. The name states the mode, as in Curator's and kazoo's recipes.
    pub(crate) fn plain(path: &Arc<str>, by: &Author, zxid: Zxid, now_ms: i64) -> Position {
        let has = |word: &str| split(path).is_some_and(|(_, name)| name.contains(word));
        let mode = match (has("__READ__") || has("__rlock__"), has("-lease-")) {
            (true, _) => Mode::Shared,
            (false, true) => Mode::Permits(1),
            (false, false) => Mode::Exclusive,
        };
        Position {
            path: path.clone(),
            token: FencingToken(zxid.0),
            session: by.session,
            mode,
            owner: Owner::Unnamed,
            is_acquired: false,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            min_hold_ms: 0,
            min_hold_lapses: false,
            requested_ms: now_ms,
            granted_ms: None,
            asked: None,
            address: address_in(&by.who).to_owned(),
        }
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim { path: self.path.clone(), token: self.token }
    }

    /// Returns the time until which the lock is kept if this hold ends now for this reason.
    fn kept_until_ms(&self, why: EndReason, now_ms: i64) -> Option<i64> {
        let granted_ms = self.granted_ms?;
        let after_session = [EndReason::SessionExpired, EndReason::SessionEnded].contains(&why);
        let delay_ms = if after_session { self.lock_delay_ms } else { 0 };
        let minimum_ms = match why {
            EndReason::Forced => 0,
            EndReason::Released => self.min_hold_ms,
            _ if self.min_hold_lapses => 0,
            _ => self.min_hold_ms,
        };
        let until_ms = (now_ms + i64::from(delay_ms)).max(granted_ms + i64::from(minimum_ms));
        (until_ms > now_ms).then_some(until_ms)
    }
}

/// Change of a znode by the running command.
pub(crate) struct Change {
    pub path: Arc<str>,
    kind: ChangeKind,
    acl: Vec<Acl>,
    parent_acl: Vec<Acl>,
    data: Option<Bytes>,
    owner: SessionId,
    czxid: Zxid,
    /// The created znode as a queue position.
    pub position: Option<Position>,
}

impl Change {
    pub(crate) fn new(
        path: &str,
        kind: ChangeKind,
        (acl, parent_acl): (Vec<Acl>, Vec<Acl>),
        data: Option<Bytes>,
        owner: SessionId,
        czxid: Zxid,
    ) -> Change {
        Change { path: path.into(), kind, acl, parent_acl, data, owner, czxid, position: None }
    }
}

/// Cause of a command's changes.
pub(crate) struct Cause {
    session: SessionId,
    who: Arc<[Id]>,
    why: Option<EndReason>,
}

impl Cause {
    pub(crate) fn of(by: &Author, why: Option<EndReason>) -> Cause {
        Cause { session: by.session, who: by.who.clone(), why }
    }

    pub(crate) fn of_the_cluster(why: Option<EndReason>) -> Cause {
        Cause { session: SessionId::NONE, who: [].into(), why }
    }

    /// Returns the name of the client: the first proven identity, else the address; of a digest the user.
    fn name(&self) -> Option<String> {
        let is_name = |id: &&Id| !["ip", "super", "world"].contains(&&*id.scheme);
        let id = self.who.iter().find(is_name).or(self.who.first())?;
        let shown = if id.scheme == "digest" { id.id.split(':').next()? } else { &id.id };
        let name = if shown.is_empty() { id.scheme.clone() } else { format!("{}:{shown}", id.scheme) };
        let mut bytes = 0;
        let fits = |letter: &char| {
            bytes += letter.len_utf8();
            bytes <= ASK_BY_MAX_BYTES
        };
        Some(name.chars().take_while(fits).collect())
    }
}

/// Reports whether modes hold beside each other, up to a limit of permits.
pub(crate) fn go_together(one: Mode, other: Mode) -> bool {
    matches!((one, other), (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_)))
}

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
