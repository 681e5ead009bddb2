//! A critical section: what a client does under the locks that it holds, and how it releases them.
//!
//! Invariant: [`ClientFact::Holds`] is reported in the poll in which the guard was asked, and
//! [`ClientFact::LetGo`] before anything that releases the lock, also when a section is dropped half-way.

use std::time::Duration;

use rowlock_client::{
    FencingToken, Guard, Leadership, LostReason, MultiGuard, Permits, ReadGuard, ReentrantGuard,
    ReleaseError, WriteGuard,
};
use rowlock_env::time;
use rowlock_proto::lock::Mode;
use rowlock_world::trace::What;

use super::caller::{Caller, failure};
use super::chance::{chance, millis};
use crate::history::client::{Answer, ClientFact, Failure, Op};
use crate::history::{Lock, Millis};

/// A hold, by what was asked for.
pub(super) enum HeldLock {
    Lock(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permits(Permits),
    Many(MultiGuard),
    Reentrant(ReentrantGuard),
    Lead(Leadership),
}

impl HeldLock {
    /// In the order in which they were asked for.
    pub(super) fn guards(&self) -> Vec<&Guard> {
        match self {
            HeldLock::Lock(guard) => vec![guard],
            HeldLock::Read(guard) => vec![guard],
            HeldLock::Write(guard) => vec![guard],
            HeldLock::Permits(guard) => vec![guard],
            HeldLock::Many(guards) => guards.guards().iter().collect(),
            HeldLock::Reentrant(guard) => vec![guard],
            HeldLock::Lead(guard) => vec![guard],
        }
    }

    async fn release(self) -> Result<(), ReleaseError> {
        match self {
            HeldLock::Lock(guard) => guard.release().await,
            HeldLock::Read(guard) => guard.release().await,
            HeldLock::Write(guard) => guard.release().await,
            HeldLock::Permits(guard) => guard.release().await,
            HeldLock::Many(guards) => guards.release().await,
            HeldLock::Reentrant(guard) => guard.release().await,
            HeldLock::Lead(guard) => guard.resign().await,
        }
    }
}

/// A held part of one lock.
#[derive(Clone, Copy)]
struct Stake {
    lock: Lock,
    token: FencingToken,
    mode: Mode,
    /// The hold has been reported, its end not yet.
    is_told: bool,
    /// Of the newest question that has been reported.
    heard_ms: i64,
}

/// Locks that are held, until they are released or dropped.
#[must_use = "dropping it lets go of the locks"]
pub(super) struct Section {
    caller: Caller,
    /// Reported before it is dropped: see [`Drop`].
    held_lock: Option<HeldLock>,
    stakes: Vec<Stake>,
}

impl Section {
    /// `wanted`: the locks of the held lock, in its order.
    pub(super) fn new(caller: Caller, held_lock: HeldLock, wanted: Vec<(Lock, Mode)>) -> Self {
        let stake = |((lock, mode), guard): ((Lock, Mode), &Guard)| {
            let token = guard.token();
            Stake { lock, token, mode, is_told: false, heard_ms: i64::MIN }
        };
        let stakes = wanted.into_iter().zip(held_lock.guards()).map(stake).collect();
        Section { caller, held_lock: Some(held_lock), stakes }
    }

    /// How long a critical section takes in the mean.
    pub(super) fn mean_work(&self) -> Duration {
        self.caller.profile().work
    }

    /// Checks each guard once and reports the result. True: all are held.
    pub(super) fn is_held(&mut self) -> bool {
        let Some(held_lock) = &self.held_lock else { return false };
        let guards = held_lock.guards();
        let held: Vec<bool> = guards.iter().map(|guard| guard.is_held()).collect();
        let given_up = |guard: &&Guard| guard.loss().reason() == Some(LostReason::Asked);
        let journal = self.caller.journal();
        for (guard, stake) in guards.iter().zip(&mut self.stakes) {
            let Stake { lock, token, is_told, .. } = *stake;
            if let Some(question) = guard.asked().newest().filter(|it| it.asked_ms > stake.heard_ms) {
                stake.heard_ms = question.asked_ms;
                journal.tell(ClientFact::Heard { lock, token, asked: Millis(question.asked_ms) });
            }
            if is_told && given_up(guard) {
                journal.tell(ClientFact::GaveUp { lock, token });
            }
        }
        for (at, is_held) in held.iter().enumerate() {
            if *is_held { self.tell_held(at) } else { self.tell_gone(at) }
        }
        held.into_iter().all(|is_held| is_held)
    }

    /// Works for `long` in small steps, and stops when it knows that a lock is lost. True: all are still
    /// held.
    pub(super) async fn work(&mut self, long: Duration) -> bool {
        let end = time::now() + long;
        loop {
            if !self.is_held() {
                return false;
            }
            let left = end.saturating_since(time::now());
            if left.is_zero() {
                return true;
            }
            if chance(40) {
                // On its way to the store; what happens to the lock meanwhile does not call it back.
                let stakes = self.stakes.clone();
                time::sleep(millis(0, 30)).await;
                stakes.into_iter().for_each(|stake| self.write(stake));
            } else {
                time::sleep(millis(10, 150).min(left)).await;
            }
        }
    }

    /// Shared holders and permits have no order among themselves, so that no store could tell them apart.
    fn write(&self, Stake { lock, token, mode, .. }: Stake) {
        if mode == Mode::Exclusive {
            let store = self.caller.profile().stores.write(lock, token);
            self.caller.journal().tell(ClientFact::Wrote { lock, token, store });
        }
    }

    /// Asks the log whether the lock is held, if it is one lock and held as far as can be known here.
    pub(super) async fn verify(&mut self) {
        if !self.is_held() || self.stakes.len() != 1 {
            return;
        }
        let Some(held_lock) = &self.held_lock else { return };
        let (Some(guard), Stake { lock, token, .. }) = (held_lock.guards().pop(), self.stakes[0]) else {
            return;
        };
        let call = self.caller.begin_next(Op::Verify { lock, token });
        let result = guard.check().await;
        self.caller.hear();
        call.end(match result {
            Ok(true) => Ok(Answer::Verified(true)),
            // The server has said so, or told us of the loss.
            Ok(false) if guard.loss().reason() == Some(LostReason::Deleted) => Ok(Answer::Verified(false)),
            // Lost by our own clock: what the server said is not known.
            Ok(false) => Err(Failure::NotDone),
            Err(error) => Err(failure(&error)),
        });
    }

    /// The writer goes on as a reader, or a lone reader as the writer; otherwise nothing changes.
    pub(super) async fn convert(&mut self) {
        if !self.is_held() {
            return;
        }
        match self.held_lock.take() {
            Some(HeldLock::Write(guard)) => match guard.downgrade().await {
                Ok(guard) => self.become_mode(HeldLock::Read(guard), Mode::Shared),
                Err(kept) => self.held_lock = Some(HeldLock::Write(kept.guard)),
            },
            Some(HeldLock::Read(guard)) => match guard.try_upgrade().await {
                Ok(guard) => self.become_mode(HeldLock::Write(guard), Mode::Exclusive),
                Err(kept) => self.held_lock = Some(HeldLock::Read(kept.guard)),
            },
            held_lock => self.held_lock = held_lock,
        }
    }

    fn become_mode(&mut self, held_lock: HeldLock, mode: Mode) {
        let token = held_lock.guards()[0].token();
        if token != self.stakes[0].token {
            // A new place, granted in the same command that gave the old one up.
            self.tell_gone(0);
            self.stakes[0].token = token;
        }
        self.stakes[0].mode = mode;
        self.held_lock = Some(held_lock);
    }

    /// Releases everything and waits for the answer.
    pub(super) async fn release(mut self) {
        let is_held = self.is_held();
        self.tell_all_gone();
        let Some(held_lock) = self.held_lock.take() else { return };
        if !is_held {
            // Some are lost; the drop gives the others back.
            return;
        }
        let ask = |stake: &Stake| Op::Release { lock: stake.lock, token: stake.token };
        let calls: Vec<_> = self.stakes.iter().map(|stake| self.caller.begin_next(ask(stake))).collect();
        let result = held_lock.release().await;
        self.caller.hear();
        let is_one = calls.len() == 1;
        for call in calls {
            call.end(match result {
                Ok(()) => Ok(Answer::Released(true)),
                Err(ReleaseError::NotHeld) if is_one => Ok(Answer::Released(false)),
                // Of several locks it does not say which.
                Err(_) => Err(Failure::Unknown),
            });
        }
    }

    /// Hands the hold over to a task that releases it without reporting.
    pub(super) fn into_held_lock(mut self) -> Option<HeldLock> {
        self.tell_all_gone();
        self.held_lock.take()
    }

    fn tell_all_gone(&mut self) {
        (0..self.stakes.len()).for_each(|at| self.tell_gone(at));
    }

    fn tell_held(&mut self, at: usize) {
        let Stake { lock, token, mode, is_told, .. } = self.stakes[at];
        self.caller.journal().tell(ClientFact::Holds { lock, token, mode });
        if !is_told {
            self.stakes[at].is_told = true;
            let host = self.caller.profile().host;
            let path = || self.caller.lock_path(lock).to_owned();
            self.caller.journal().note(|| What::Holds { host, lock: path(), token: token.0 });
        }
    }

    fn tell_gone(&mut self, at: usize) {
        let Stake { lock, token, .. } = self.stakes[at];
        if std::mem::replace(&mut self.stakes[at].is_told, false) {
            self.caller.journal().tell(ClientFact::LetGo { lock, token });
            let host = self.caller.profile().host;
            let path = || self.caller.lock_path(lock).to_owned();
            self.caller.journal().note(|| What::LetGo { host, lock: path(), token: token.0 });
        }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        self.tell_all_gone();
    }
}
