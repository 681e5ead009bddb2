//! release, abandon, forceRelease, verify: the ways out of a queue, and the question whether one is still in it.

use std::borrow::Cow;

use rowlock_proto::acl::perms;
use rowlock_proto::lock::{Attempt, Claim};
use rowlock_proto::{ErrorCode, SessionId, Zxid};
use smallvec::SmallVec;

use super::PLACES_MAX;
use super::key::KeyRef;
use super::publish::{Cause, path_of, place};
use crate::machine::Machine;
use crate::ops::{Author, Done, permit};
use crate::outcome::{EventSink, Outcome, Why};
use crate::sessions::LastLock;
use crate::shared_map::Slot;
use crate::tree::{Path, Trail};

impl Machine {
    /// Gives back those of the claims that the session holds: exactly this znode with exactly this token. No permission is
    /// asked: whoever may stand in a queue may leave it.
    pub(crate) fn release<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        claims: &[Claim],
        sink: &mut S,
    ) -> Result<Outcome, ErrorCode> {
        if claims.len() > PLACES_MAX {
            return Err(ErrorCode::BadArguments);
        }
        let mut done: SmallVec<[Done; 1]> = SmallVec::with_capacity(claims.len());
        let mut held = Vec::with_capacity(claims.len());
        let guess = self.last_lock((by.session, by.place));
        for claim in claims {
            let found = self.find_held(by, claim, guess.as_deref());
            held.push(found.is_some());
            if let Some((queue, path, trail, place)) = found {
                let mut gone = self.remove_at((by.zxid, by.place), path, (&trail, place));
                gone.queue = Some(Ok(queue));
                done.push(gone);
            }
        }
        let why = Some(Why::Released);
        self.publish(Cause { zxid: by.zxid, session: by.session, why }, &mut done, sink);
        Ok(Outcome::Held(held))
    }

    /// Leaves the queues of the session's attempts, whether they hold, wait or are gone.
    pub(crate) fn abandon<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        attempts: &[Attempt],
        sink: &mut S,
    ) -> Result<Outcome, ErrorCode> {
        if attempts.len() > PLACES_MAX || attempts.iter().any(|attempt| attempt.prefix.is_empty()) {
            return Err(ErrorCode::BadArguments);
        }
        let mut done = Vec::with_capacity(attempts.len());
        for Attempt { lock, prefix } in attempts {
            if let Some(key) = self.find_attempt((by.session, by.place), lock, prefix) {
                done.push(self.remove(by.zxid, &key.path));
            }
        }
        let why = Some(Why::Released);
        self.publish(Cause { zxid: by.zxid, session: by.session, why }, &mut done, sink);
        Ok(Outcome::Done)
    }

    /// Ends somebody's hold, whoever asks, with permission to delete below the lock.
    pub(crate) fn force_release<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        claim: &Claim,
        sink: &mut S,
    ) -> Result<Outcome, ErrorCode> {
        if self.holder_of(claim).is_none() {
            return Ok(Outcome::Held(vec![false]));
        }
        let (lock, _) = place(claim).ok_or(ErrorCode::BadArguments)?;
        let znode = self.tree.get(lock).expect("a lock with a holder is a znode");
        permit(&znode.acl, perms::DELETE, by.who)?;
        let mut done = [self.remove(by.zxid, &claim.path)];
        let why = Some(Why::Forced);
        self.publish(Cause { zxid: by.zxid, session: by.session, why }, &mut done, sink);
        Ok(Outcome::Held(vec![true]))
    }

    /// Which of the claims are held, by whomsoever.
    pub(crate) fn verify(&self, claims: &[Claim]) -> Result<Outcome, ErrorCode> {
        if claims.len() > PLACES_MAX {
            return Err(ErrorCode::BadArguments);
        }
        Ok(Outcome::Held(claims.iter().map(|claim| self.holder_of(claim).is_some()).collect()))
    }

    /// The session that holds a lock by this claim.
    pub(super) fn holder_of(&self, claim: &Claim) -> Option<SessionId> {
        let (lock, key) = place(claim)?;
        Some(self.locks.get(lock)?.holder(key)?.session)
    }

    /// Where the queue and the znode of a claim are that the session holds. The index changes only at the end of a
    /// command: that a claim which comes twice is held once, the tree says.
    fn find_held<'a>(
        &self,
        by: &Author,
        claim: &'a Claim,
        guess: Option<&'a LastLock>,
    ) -> Option<(Slot, Path<'a>, Cow<'a, Trail>, Slot)> {
        let path = path_of(claim)?;
        let known = guess.map(|guess| guess.queue).unwrap_or_default();
        let queue = self.locks.find_near(path.parent(), known);
        let key = KeyRef { czxid: Zxid(claim.token.0), path: path.full };
        let holder = self.locks.at(queue)?.holder(key)?;
        if holder.session != by.session {
            return None;
        }
        let (trail, parent) = self.tree.find_near(path.parent(), guess.map(|guess| &guess.trail))?;
        let place = parent.children.find(path.name()).ok()?;
        Some((queue.ok()?, path, trail, place))
    }
}
