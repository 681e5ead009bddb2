//! Critical section: a client's work under its held locks, and their release.
//! Invariant: the client reports [`ClientFact::Holds`] in the poll in which it checks the guard, and
//! [`ClientFact::LetGo`] before any step that releases the lock, including the drop of a section.

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

/// Held locks, by kind of request.
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
    /// Returns the guards in the order of the request.
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
    /// Whether the hold has been reported and its end has not.
    is_reported: bool,
    /// Time of the newest reported question.
    heard_ms: i64,
}

/// Held locks, until their release or drop.
#[must_use = "dropping it lets go of the locks"]
pub(super) struct Section {
    caller: Caller,
    /// Reported as let go before its drop; see [`Drop`].
    held_lock: Option<HeldLock>,
    stakes: Vec<Stake>,
}

impl Section {
    /// Creates a section. `wanted` has the locks of `held_lock`, in the same order.
    pub(super) fn new(caller: Caller, held_lock: HeldLock, wanted: Vec<(Lock, Mode)>) -> Self {
        let stake = |((lock, mode), guard): ((Lock, Mode), &Guard)| {
            let token = guard.token();
            Stake { lock, token, mode, is_reported: false, heard_ms: i64::MIN }
        };
        let stakes = wanted.into_iter().zip(held_lock.guards()).map(stake).collect();
        Section { caller, held_lock: Some(held_lock), stakes }
    }

    /// Returns the mean duration of a critical section.
    pub(super) fn mean_work(&self) -> Duration {
        self.caller.profile().work
    }

    /// Checks each guard once and reports the result. Returns whether all locks are held.
    pub(super) fn is_held(&mut self) -> bool {
        let Some(held_lock) = &self.held_lock else { return false };
        let guards = held_lock.guards();
        let held: Vec<bool> = guards.iter().map(|guard| guard.is_held()).collect();
        let given_up = |guard: &&Guard| guard.loss().reason() == Some(LostReason::Asked);
        let journal = self.caller.journal();
        for (guard, stake) in guards.iter().zip(&mut self.stakes) {
            let Stake { lock, token, is_reported, .. } = *stake;
            if let Some(question) = guard.asked().newest().filter(|it| it.asked_ms > stake.heard_ms) {
                stake.heard_ms = question.asked_ms;
                journal.record(ClientFact::Heard { lock, token, asked: Millis(question.asked_ms) });
            }
            if is_reported && given_up(guard) {
                journal.record(ClientFact::GaveUp { lock, token });
            }
        }
        for (at, is_held) in held.iter().enumerate() {
            if *is_held { self.report_held(at) } else { self.report_gone(at) }
        }
        held.into_iter().all(|is_held| is_held)
    }

    /// Works for `long` in small steps, and stops after a known loss of a lock. Returns whether all locks are
    /// still held.
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
                // The write is on its way to the store; a loss of the lock meanwhile does not recall the
                // write.
                let stakes = self.stakes.clone();
                time::sleep(millis(0, 30)).await;
                for stake in stakes {
                    self.write(stake).await;
                }
            } else {
                time::sleep(millis(10, 150).min(left)).await;
            }
        }
    }

    /// Writes to the store under an exclusive lock. Tokens of shared holders and permits have no order that a
    /// store could check.
    async fn write(&self, Stake { lock, token, mode, .. }: Stake) {
        if mode == Mode::Exclusive {
            let report = |store| self.caller.journal().record(ClientFact::Wrote { lock, token, store });
            self.caller.profile().stores.write(lock, token, report).await;
        }
    }

    /// Reads from the log whether the lock is held. Applies to a section of one lock, held as far as the
    /// client knows.
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
            // The server has replied so, or has reported the loss.
            Ok(false) if guard.loss().reason() == Some(LostReason::Deleted) => Ok(Answer::Verified(false)),
            // Lost by the client's own clock: the server's reply is unknown.
            Ok(false) => Err(Failure::NotDone),
            Err(error) => Err(failure(&error)),
        });
    }

    /// Downgrades a writer to a reader, or tries to upgrade a reader to the writer. Changes nothing on
    /// failure.
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
            // A new queue position, granted by the same command that released the old one.
            self.report_gone(0);
            (self.stakes[0].token, self.stakes[0].heard_ms) = (token, i64::MIN);
        }
        self.stakes[0].mode = mode;
        self.held_lock = Some(held_lock);
    }

    /// Releases all locks and waits for the reply.
    pub(super) async fn release(mut self) {
        let is_held = self.is_held();
        self.report_all_gone();
        let Some(held_lock) = self.held_lock.take() else { return };
        if !is_held {
            // Some locks are lost; the drop releases the rest.
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
                // The error does not name the lock.
                Err(_) => Err(Failure::Unknown),
            });
        }
    }

    /// Returns the held lock for a release without a report.
    pub(super) fn into_held_lock(mut self) -> Option<HeldLock> {
        self.report_all_gone();
        self.held_lock.take()
    }

    fn report_all_gone(&mut self) {
        (0..self.stakes.len()).for_each(|at| self.report_gone(at));
    }

    fn report_held(&mut self, at: usize) {
        let Stake { lock, token, mode, is_reported, .. } = self.stakes[at];
        self.caller.journal().record(ClientFact::Holds { lock, token, mode });
        if !is_reported {
            self.stakes[at].is_reported = true;
            let host = self.caller.profile().host;
            let path = || self.caller.lock_path(lock).to_owned();
            self.caller.journal().trace(|| What::Holds { host, lock: path(), token: token.0 });
        }
    }

    fn report_gone(&mut self, at: usize) {
        let Stake { lock, token, .. } = self.stakes[at];
        if std::mem::replace(&mut self.stakes[at].is_reported, false) {
            self.caller.journal().record(ClientFact::LetGo { lock, token });
            let host = self.caller.profile().host;
            let path = || self.caller.lock_path(lock).to_owned();
            self.caller.journal().trace(|| What::LetGo { host, lock: path(), token: token.0 });
        }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        self.report_all_gone();
    }
}
