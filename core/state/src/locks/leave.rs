//! release, abandon, forceRelease and verify: the ways out of a queue, and the check whether a claim still
//! holds. Also the effects of time: ends of lock-delays and minimum holds, and revocation of holds beyond
//! their maximum.
//!
//! The state reads no clock. The leader checks [`Machine::locks_due`] by its own clock and proposes
//! `LockDue`; apply checks again, at the time of the batch.

use rowlock_proto::acl::{Id, perms};
use rowlock_proto::lock::{Attempt, Claim};
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, Right, SessionId, Zxid};
use smallvec::{SmallVec, smallvec};

use super::contender::{KeyRef, PLACES_MAX};
use super::publish::{path_of, place};
use crate::arena::Number;
use crate::command::{Author, Proposal};
use crate::done::{Cause, Done};
use crate::guard::decides;
use crate::machine::Machine;
use crate::ops::permit;
use crate::outcome::{ChangeKind, EndReason, EventSink};
use crate::shared_map::Slot;
use crate::tree::{Path, TreePosition};
use crate::znode::Kind;
use crate::{mutant, steps};

/// Token of no znode; with a lock's path, the lock's delay.
const NO_TOKEN: FencingToken = FencingToken(0);

impl Machine {
    /// Releases the claims held by the session: exactly this znode with exactly this token. Checks no
    /// permission: a session may always leave its queues.
    pub(crate) fn release<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        claims: &[Claim],
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        if claims.len() > PLACES_MAX {
            return Err(ErrorCode::BadArguments);
        }
        if let [only] = claims
            && let Some(outcome) = self.release_alone(by, only, sink)
        {
            return Ok(outcome);
        }
        let mut done: SmallVec<[Done; 1]> = SmallVec::with_capacity(claims.len());
        let mut held = Vec::with_capacity(claims.len());
        for claim in claims {
            let found = self.find_held(by, claim);
            held.push(found.is_some());
            if let Some((_, _, path, place)) = found {
                let gone = self.remove_at((by.zxid, by.place), path, place);
                debug_assert!(gone.stat.czxid.0 == claim.token.0, "a claim gives back what it names");
                done.push(gone);
            }
        }
        let why = Some(EndReason::Released);
        self.publish(Cause::new(by, why), &mut done, sink);
        assert!(held.len() == claims.len(), "an answer for each claim");
        debug_assert!(
            steps::uncounted(|| claims.iter().all(|claim| self.holder_of(claim) != Some(by.session))),
            "what was given back is still held"
        );
        Ok(Response::Held(held.into()))
    }

    /// Leaves the queues of the session's attempts, in any state of the attempts.
    pub(crate) fn abandon<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        attempts: &[Attempt],
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        if attempts.len() > PLACES_MAX || attempts.iter().any(|attempt| attempt.prefix.is_empty()) {
            return Err(ErrorCode::BadArguments);
        }
        let mut done = Vec::with_capacity(attempts.len());
        for Attempt { lock, prefix } in attempts {
            if let Some(key) = self.find_attempt((by.session, by.place), lock, prefix) {
                let gone = self.remove(by.zxid, &key.path);
                assert_eq!(gone.stat.ephemeral_owner, by.session, "a session leaves its own places");
                done.push(gone);
            }
        }
        let why = Some(EndReason::Released);
        self.publish(Cause::new(by, why), &mut done, sink);
        Ok(Response::Empty)
    }

    /// Ends any hold, or a lock-delay, for a client with permission to delete below the lock.
    pub(crate) fn force_release<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        claim: &Claim,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        if decides!("force-names-delay", claim.token == NO_TOKEN) {
            return self.force_end_of_delay(by, &claim.path, sink);
        }
        let found = place(claim).and_then(|(lock, _)| self.tree.get(lock));
        if let Some(lock) = found {
            permit(&lock.acl, perms::DELETE, by.who)?;
        }
        if let Some((lock, _)) = place(claim) {
            let right = if mutant::is("force-asks-for-take") { Right::Take } else { Right::Force };
            self.require(lock, right, (by.who, by.stamp))?;
        }
        if decides!("force-names-no-holder", self.holder_of(claim).is_none()) {
            return Ok(Response::Held(smallvec![false]));
        }
        assert!(found.is_some(), "a lock with a holder is a znode");
        let mut done = [self.remove(by.zxid, &claim.path)];
        let why = Some(EndReason::Forced);
        self.publish(Cause::new(by, why), &mut done, sink);
        debug_assert_eq!(
            steps::uncounted(|| self.holder_of(claim)),
            None,
            "a release was forced, and the lock is held"
        );
        Ok(Response::Held(smallvec![true]))
    }

    /// Ends the lock's delay, and grants the lock to the next waiters.
    fn force_end_of_delay<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        lock: &str,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        permit(&self.tree.nearest(lock).acl, perms::DELETE, by.who)?;
        self.require(lock, Right::Force, (by.who, by.stamp))?;
        let lasts = self
            .locks
            .get(lock)
            .is_some_and(|lock| decides!("forced-delay-lasts", lock.delayed_until_ms() != 0));
        if lasts {
            self.locks.delay(lock, 0);
            self.grant_ready(by.zxid, lock, sink);
            self.locks.forget_if_idle(lock);
        }
        Ok(Response::Held(smallvec![lasts]))
    }

    /// Ends the lock-delays of deleted lock znodes. Call before the queues process the changes: no position
    /// waits for a lock with a deletable znode, but a position created later in the same command does.
    pub(crate) fn end_delays(&mut self, done: &[Done]) {
        if decides!("no-delays-to-drop", !self.locks.has_delays()) {
            return;
        }
        for done in done.iter().filter(|done| done.kind() == Some(ChangeKind::Deleted)) {
            self.locks.delay(done.path(), 0);
            self.locks.forget_if_idle(done.path());
        }
    }

    /// Returns which claims any session holds. Claims of other sessions need the permissions that a plain
    /// client needs: READ on the position and on its lock.
    pub(crate) fn verify(&self, proposal: &Proposal, claims: &[Claim]) -> Result<Response, ErrorCode> {
        if claims.len() > PLACES_MAX {
            return Err(ErrorCode::BadArguments);
        }
        let held = claims.iter().map(|claim| {
            let holder = self.holder_of(claim);
            if decides!("verified-claim-is-not-own", holder != Some(proposal.session)) {
                self.permit_reading((proposal.session, &proposal.identities), claim)?;
            }
            Ok(holder.is_some())
        });
        Ok(Response::Held(held.collect::<Result<_, _>>()?))
    }

    /// Refuses clients that may not read another session's existing position. Any client may learn that a
    /// position does not exist.
    pub(crate) fn permit_reading(
        &self,
        (session, who): (SessionId, &[Id]),
        claim: &Claim,
    ) -> Result<(), ErrorCode> {
        let Some((lock, key)) = place(claim) else { return Ok(()) };
        let Some(znode) = self.tree.get(key.path) else { return Ok(()) };
        if decides!("position-is-own", znode.meta.kind == Kind::Ephemeral(session)) {
            return Ok(());
        }
        self.permit_see(key.path, who)?;
        permit(&znode.acl, perms::READ, who)?;
        permit(&self.tree.nearest(lock).acl, perms::READ, who)
    }

    /// Returns the session that holds a lock by this claim.
    pub(crate) fn holder_of(&self, claim: &Claim) -> Option<SessionId> {
        let (lock, key) = place(claim)?;
        Some(self.locks.get(lock)?.holder(key)?.session)
    }

    /// Finds the queue, the position and the znode of a claim that the session holds. The index changes only
    /// at the end of a command; the tree tells whether an earlier copy of the claim was released in the same
    /// command.
    pub(super) fn find_held<'a>(
        &self,
        by: &Author,
        claim: &'a Claim,
    ) -> Option<(Number, Slot, Path<'a>, TreePosition)> {
        let path = path_of(claim)?;
        let queue = self.locks.find(path.parent())?;
        let key = KeyRef { czxid: Zxid(claim.token.0), path: path.full };
        let lock = self.locks.at(queue);
        let place = lock.find(key)?;
        let contender = lock.queue.at(place).1;
        if decides!("claim-is-not-own", contender.granted_ms.is_none() || contender.session != by.session) {
            return None;
        }
        let parent = lock.node;
        let at = self.tree.node(parent).children.find(path.name().as_bytes()).ok()?;
        Some((queue, place, path, TreePosition { parent, at }))
    }
}

impl Machine {
    /// Returns the time at which the next lock is due, in milliseconds of the log's clock.
    pub fn next_lock_due(&self) -> Option<i64> {
        self.locks.due().first().map(|((due_ms, _, _), ())| *due_ms)
    }

    /// Iterates over the paths of locks due at `now_ms`, the longest overdue first. A lock that is due twice
    /// comes twice.
    pub fn locks_due(&self, now_ms: i64) -> impl Iterator<Item = &str> {
        let due = self.locks.due().iter().map(|(due, ())| due);
        due.take_while(move |(due_ms, _, _)| *due_ms <= now_ms).map(|(_, path, _)| &**path)
    }

    /// Applies `LockDue`: grants and revokes whatever is due at the lock at the time of the batch.
    pub(crate) fn lock_due<S: EventSink + ?Sized>(&mut self, zxid: Zxid, path: &str, sink: &mut S) {
        let Some(lock) = self.locks.get(path) else { return };
        let now_ms = self.time_ms;
        let is_over =
            decides!("lock-delay-is-over", lock.delayed_until_ms != 0 && lock.delayed_until_ms <= now_ms);
        let due = lock.holders().filter(|(_, holder)| holder.revoke_at_ms.is_some_and(|at| at <= now_ms));
        // The holder's session may have a longer timeout since the grant.
        let (overdue, later): (Vec<_>, Vec<_>) = due
            .map(|(key, holder)| (key.clone(), self.revoke_at_ms(holder)))
            .partition(|(_, revoke_at_ms)| revoke_at_ms.is_some_and(|at| at <= now_ms));
        if is_over {
            self.locks.delay(path, 0);
        }
        for (key, revoke_at_ms) in later {
            assert!(revoke_at_ms.is_some(), "{path}: {key:?} has lost its longest hold");
            self.locks.change(path, key.as_ref(), |holder| holder.revoke_at_ms = revoke_at_ms);
        }
        let mut done: Vec<Done> = overdue.into_iter().map(|(key, _)| self.remove(zxid, &key.path)).collect();
        let cause = Cause { why: Some(EndReason::Revoked), ..Cause::of_the_cluster(zxid) };
        self.publish(cause, &mut done, sink);
        assert!(done.iter().all(|done| done.parent() == path), "a place elsewhere was taken away");
        self.grant_ready(zxid, path, sink);
        let is_left = |done: &Done| {
            self.locks
                .get(path)
                .is_some_and(|lock| done.key().is_some_and(|key| lock.contender(key.as_ref()).is_some()))
        };
        debug_assert!(!steps::uncounted(|| done.iter().any(is_left)), "{path} is still held for too long");
        // The znode may have gone during the delay.
        self.locks.forget_if_idle(path);
    }
}
