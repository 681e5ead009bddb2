//! Requests on locks: acquire, release, abandon, forceRelease, convert and verify.

use std::collections::BTreeSet;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::{Acquire, Attempt, Claim, Mode, Owner, Party, QueuePosition, limit_data};
use rowlock_proto::path::{join, parent, validate};
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, Right, Version};
use rowlock_state::outcome::{EndReason, LockEventKind};
use rowlock_state::{Lifetime, PLACES_MAX, QUEUE_MAX};
use sha1::{Digest as _, Sha1};

use crate::book::{Author, Cause, Change, Oracle, Position, Reply, split};
use crate::rights::{allows, is_proof, permit};
use crate::shown::Room;

/// Returns the number of a user's owner, which no other user can have.
pub(crate) fn number_of_user(number: u64, who: &[Id]) -> u64 {
    let user = who.iter().find(|id| is_proof(id)).or_else(|| who.iter().find(|id| id.scheme == "ip"));
    let Some(Id { scheme, id }) = user else { return number };
    let text = [&number.to_be_bytes()[..], scheme.as_bytes(), &[0], id.as_bytes()].concat();
    let hash = Sha1::digest(text);
    u64::from_be_bytes(*hash.first_chunk().expect("a SHA-1 has 20 bytes"))
}

fn is_good(acquire: &Acquire) -> bool {
    let is_reserved = acquire.lock == "/zookeeper" || acquire.lock.starts_with("/zookeeper/");
    let is_name = !acquire.prefix.is_empty() && !acquire.prefix.contains('/');
    let is_lock = acquire.lock != "/" && !is_reserved && validate(&acquire.lock).is_ok();
    is_lock && is_name && acquire.mode != Mode::Permits(0) && acquire.has_good_times()
}

/// Result for one requested position, before the publication.
enum Placed {
    /// An earlier attempt has the position, or the change at this index creates the position.
    At(Claim),
    Refused(QueuePosition),
}

impl Oracle {
    pub(crate) fn acquire(&mut self, by: &Author, all: &[Acquire]) -> Reply<Response> {
        let mut locks = BTreeSet::new();
        let is_by_first = |acquire: &Acquire| acquire.owner == all[0].owner;
        let are_good = all
            .iter()
            .all(|acquire| is_good(acquire) && is_by_first(acquire) && locks.insert(&*acquire.lock));
        if all.is_empty() || all.len() > PLACES_MAX || !are_good {
            return Err(ErrorCode::BadArguments);
        }
        let (mut changes, mut claims, room) = (Vec::new(), Vec::new(), &mut Room::default());
        for (index, acquire) in all.iter().enumerate() {
            match self.place(by, (index, acquire), &mut changes, room) {
                Ok(Placed::At(claim)) => claims.push(claim),
                Ok(Placed::Refused(refusal)) => {
                    self.revert(0);
                    let mut positions = self.positions_of(by, all, room);
                    positions[index] = refusal;
                    return Ok(Response::QueuePositions(positions.into()));
                }
                Err(code) => {
                    self.revert(0);
                    return Err(code);
                }
            }
        }
        self.publish(&Cause::of(by, None), changes);
        let positions = claims.iter().map(|claim| self.shown_position(by, claim, room)).collect();
        Ok(Response::QueuePositions(positions))
    }

    fn place(
        &mut self,
        by: &Author,
        (index, acquire): (usize, &Acquire),
        changes: &mut Vec<Change>,
        room: &mut Room,
    ) -> Reply<Placed> {
        let path = &*acquire.lock;
        if let Some(known) = self.attempt(by.session, path, &acquire.prefix) {
            return Ok(Placed::At(known.claim()));
        }
        permit(self.nearest(path), perms::CREATE, &by.who)?;
        self.require(by, path, Right::Take)?;
        if let Some(refusal) = self.refusal(by, (index, acquire), room) {
            return Ok(Placed::Refused(refusal));
        }
        if self.locks.get(path).is_some_and(|lock| lock.positions.len() >= QUEUE_MAX) {
            return Err(ErrorCode::QuotaExceeded);
        }
        self.make_lock(by, path, changes)?;
        if let Some(refusal) = self.agree_on_limit(by, acquire, changes)? {
            return Ok(Placed::Refused(refusal));
        }
        let name = join(path, &acquire.prefix);
        let lists = (acquire.data.clone(), acquire.acl.as_deref());
        let (mut change, _) = self.create_as(by, &name, lists, true, Lifetime::Session)?;
        let position = Position {
            mode: acquire.mode,
            owner: named(acquire.owner, by),
            is_acquired: true,
            max_hold_ms: acquire.max_hold_ms,
            lock_delay_ms: acquire.lock_delay_ms,
            min_hold_ms: acquire.min_hold_ms,
            min_hold_lapses: acquire.min_hold_lapses,
            ..Position::plain(&change.path, by, self.zxid, self.time_ms)
        };
        let claim = position.claim();
        change.position = Some(position);
        changes.push(change);
        Ok(Placed::At(claim))
    }

    /// Returns why the queue refuses the position, if the queue does.
    fn refusal(
        &self,
        by: &Author,
        (index, acquire): (usize, &Acquire),
        room: &mut Room,
    ) -> Option<QueuePosition> {
        let lock = self.locks.get(&*acquire.lock)?;
        if self.is_free_for(&acquire.lock, acquire.mode) {
            return None;
        }
        if !acquire.wait {
            let ahead = self.ahead_shown(by, &acquire.lock, lock.positions.len());
            let holder = self.first_holder(&acquire.lock);
            let holder = holder.and_then(|holder| self.party(by, &acquire.lock, holder, room));
            return Some(QueuePosition::Busy { ahead, holder });
        }
        let newcomer = Position {
            mode: acquire.mode,
            owner: named(acquire.owner, by),
            ..Position::plain(&"/".into(), by, self.zxid, self.time_ms)
        };
        let given =
            if let Ok(Response::QueuePositions(given)) = &self.given { given.get(index) } else { None };
        let circle = if let Some(QueuePosition::Deadlock(circle)) = given { Some(circle) } else { None };
        let is_circle = |is_wide| self.is_circle(&acquire.lock, &newcomer, is_wide);
        if !(is_circle(false) || circle.is_some() && is_circle(true)) {
            return None;
        }
        // Any circle will do, if its positions exist.
        let is_there = |party: &Party| {
            let is_it = |it: &Position| it.path.starts_with(&*party.path) && it.token == party.token;
            let mut all = self.locks.values().flat_map(|lock| &lock.positions);
            party.token == FencingToken(0) || all.any(is_it)
        };
        let circle = circle.filter(|circle| circle.iter().all(is_there)).cloned();
        Some(QueuePosition::Deadlock(circle.unwrap_or_default()))
    }

    /// Creates the lock's missing znode, a container, and missing znodes above.
    fn make_lock(&mut self, by: &Author, path: &str, changes: &mut Vec<Change>) -> Reply<()> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]).filter(|end| *end > 0);
        for end in ends {
            if self.znode(&path[..end]).is_some() {
                continue;
            }
            let lifetime = if end == path.len() { Lifetime::Container } else { Lifetime::Persistent };
            let (data, acl) = (Some(Bytes::new()), Some(Acl::open_entries()));
            changes.push(self.create_as(by, &path[..end], (data, acl), false, lifetime)?.0);
        }
        Ok(())
    }

    /// Compares the client's limit with the lock's, and writes the limit of a lock without one.
    fn agree_on_limit(
        &mut self,
        by: &Author,
        acquire: &Acquire,
        changes: &mut Vec<Change>,
    ) -> Reply<Option<QueuePosition>> {
        let Mode::Permits(permits) = acquire.mode else { return Ok(None) };
        let znode = self.znode(&acquire.lock).expect("the lock has been made");
        let may_learn =
            allows(&znode.acl, perms::READ, &by.who) && self.has_right(&acquire.lock, Right::See, &by.who);
        let other =
            |limit| if may_learn { Ok(Some(QueuePosition::LimitIs(limit))) } else { Err(ErrorCode::NoAuth) };
        let is_empty = znode.data.as_ref().is_none_or(Bytes::is_empty);
        let limit = match self.limit(&acquire.lock) {
            Some(limit) if acquire.limit != 0 && acquire.limit != limit => return other(limit),
            Some(limit) => limit,
            None if acquire.limit == 0 => return Ok(Some(QueuePosition::LimitIs(0))),
            None if !is_empty => return Err(ErrorCode::BadArguments),
            None => {
                let (path, data) = (acquire.lock.to_string(), Some(limit_data(acquire.limit)));
                changes.push(self.set_data(by, &SetData { path, data, version: Version::ANY })?.0);
                acquire.limit
            }
        };
        if permits > limit { other(limit) } else { Ok(None) }
    }

    pub(crate) fn release(&mut self, by: &Author, claims: &[Claim]) -> Reply<Response> {
        if claims.len() > PLACES_MAX {
            return Err(ErrorCode::BadArguments);
        }
        let (mut changes, mut held) = (Vec::new(), Vec::new());
        for claim in claims {
            let is_own = self.holder_of(claim).is_some_and(|holder| holder.session == by.session);
            let is_held = is_own && self.znodes.contains_key(&claim.path);
            held.push(is_held);
            changes.extend(is_held.then(|| self.remove(&claim.path)));
        }
        self.publish(&Cause::of(by, Some(EndReason::Released)), changes);
        Ok(Response::Held(held.into()))
    }

    pub(crate) fn abandon(&mut self, by: &Author, attempts: &[Attempt]) -> Reply<Response> {
        if attempts.len() > PLACES_MAX || attempts.iter().any(|attempt| attempt.prefix.is_empty()) {
            return Err(ErrorCode::BadArguments);
        }
        let mut changes = Vec::new();
        for Attempt { lock, prefix } in attempts {
            let path = self.attempt(by.session, lock, prefix).map(|position| position.path.clone());
            changes.extend(path.map(|path| self.remove(&path)));
        }
        self.publish(&Cause::of(by, Some(EndReason::Released)), changes);
        Ok(Response::Empty)
    }

    pub(crate) fn force_release(&mut self, by: &Author, claim: &Claim) -> Reply<Response> {
        let answer = |held| Ok(Response::Held([held][..].into()));
        if claim.token == FencingToken(0) {
            permit(self.nearest(&claim.path), perms::DELETE, &by.who)?;
            self.require(by, &claim.path, Right::Force)?;
            let lock = self.locks.get_mut(&claim.path);
            let Some(lock) = lock.filter(|lock| lock.delayed_until_ms != 0) else { return answer(false) };
            lock.delayed_until_ms = 0;
            self.touched.insert(claim.path.clone());
            self.grant_ready();
            return answer(true);
        }
        if let Some((lock, _)) = split(&claim.path).filter(|_| !claim.path.starts_with("//")) {
            if let Some(znode) = self.znode(lock) {
                permit(znode, perms::DELETE, &by.who)?;
            }
            self.require(by, lock, Right::Force)?;
        }
        if self.holder_of(claim).is_none() {
            return answer(false);
        }
        let change = self.remove(&claim.path);
        self.publish(&Cause::of(by, Some(EndReason::Forced)), vec![change]);
        answer(true)
    }

    pub(crate) fn verify(&mut self, by: &Author, claims: &[Claim]) -> Reply<Response> {
        if claims.len() > PLACES_MAX {
            return Err(ErrorCode::BadArguments);
        }
        let is_held = |claim: &Claim| {
            let holder = self.holder_of(claim).map(|holder| holder.session);
            if holder != Some(by.session) {
                self.permit_reading(by, claim)?;
            }
            Ok(holder.is_some())
        };
        Ok(Response::Held(claims.iter().map(is_held).collect::<Reply<_>>()?))
    }

    /// Refuses clients that may not read another session's existing position.
    pub(crate) fn permit_reading(&self, by: &Author, claim: &Claim) -> Reply<()> {
        let Some(znode) = self.znode(&claim.path) else { return Ok(()) };
        let Some(lock) = parent(&claim.path) else { return Ok(()) };
        if znode.stat.ephemeral_owner == by.session {
            return Ok(());
        }
        self.permit_see(by, &claim.path)?;
        permit(znode, perms::READ, &by.who)?;
        permit(self.nearest(lock), perms::READ, &by.who)
    }

    pub(crate) fn convert(
        &mut self,
        by: &Author,
        claim: &Claim,
        mode: Mode,
        prefix: &str,
    ) -> Reply<Response> {
        let answer = |position| Ok(Response::QueuePositions([position].into()));
        let holder = self.holder_of(claim).filter(|holder| holder.session == by.session).cloned();
        let Some(before) = holder else { return answer(QueuePosition::Absent) };
        let (path, _) = split(&claim.path).expect("a position is a child");
        let lock = &self.locks[path];
        match (before.mode, mode) {
            (before, after) if before == after => {}
            (Mode::Exclusive, Mode::Shared) => self.weaken(claim, mode),
            (Mode::Permits(before), Mode::Permits(after)) if (1..before).contains(&after) => {
                self.weaken(claim, mode);
            }
            (Mode::Shared, Mode::Exclusive) if lock.positions.len() > 1 || lock.delayed_until_ms != 0 => {
                let ahead = self.ahead_shown(by, path, lock.positions.len() - 1);
                let is_other = |it: &&Position| it.granted_ms.is_some() && it.claim() != *claim;
                let other = lock.positions.iter().find(is_other);
                let holder = other.and_then(|other| self.party(by, path, other, &mut Room::default()));
                return answer(QueuePosition::Busy { ahead, holder });
            }
            (Mode::Shared, Mode::Exclusive) => return answer(self.upgrade(by, &before, path, prefix)?),
            _ => return Err(ErrorCode::BadArguments),
        }
        answer(QueuePosition::Held(claim.clone()))
    }

    fn weaken(&mut self, claim: &Claim, mode: Mode) {
        self.change_position(claim, |holder| holder.mode = mode);
        let holder = self.position_of(claim).expect("the position stays").clone();
        let (lock, _) = split(&claim.path).expect("a position is a child");
        self.event_of((lock, &holder), LockEventKind::Converted);
        self.grant_ready();
    }

    /// Replaces the only position of a shared lock by an exclusive one.
    fn upgrade(&mut self, by: &Author, before: &Position, lock: &str, prefix: &str) -> Reply<QueuePosition> {
        if prefix.is_empty() || prefix.contains('/') {
            return Err(ErrorCode::BadArguments);
        }
        let old = self.znode(&before.path).expect("a position is a znode");
        let create = Create {
            path: join(lock, prefix),
            data: old.data.clone(),
            acl: Some(old.acl.clone()),
            flags: CreateMode::EphemeralSequential.flags(),
        };
        let (mut created, _) = self.create(by, &create, None)?;
        let new = Position {
            path: created.path.clone(),
            token: FencingToken(self.zxid.0),
            mode: Mode::Exclusive,
            requested_ms: self.time_ms,
            granted_ms: None,
            ..before.clone()
        };
        let claim = new.claim();
        created.position = Some(new);
        // The minimum hold goes on at the new position.
        self.change_position(&before.claim(), |old| old.min_hold_ms = 0);
        let removed = self.remove(&before.path);
        self.publish(&Cause::of(by, Some(EndReason::Released)), vec![removed, created]);
        self.publish_question(&claim);
        Ok(self.shown_position(by, &claim, &mut Room::default()))
    }
}

/// Returns the owner as the queue keeps it: names belong to users.
fn named(owner: Owner, by: &Author) -> Owner {
    match owner {
        Owner::Named(number) => Owner::Named(number_of_user(number, &by.who)),
        other => other,
    }
}
