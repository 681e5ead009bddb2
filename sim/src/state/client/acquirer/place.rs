//! One place in one queue, as its client knows it.

use rowlock_proto::acl::Acl;
use rowlock_proto::lock::{Acquire, Attempt, Claim, Mode, Owner};

use crate::history::{CLOCK_SPREAD_MS, Lock, Millis};
use crate::state::client::lock_path;
use crate::state::mutant::Mutant;
use rowlock_world::rng::Rng;

/// What was asked for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) mode: Mode,
    pub(super) owner: Owner,
    pub(super) limit: u32,
    pub(super) wait: bool,
    pub(super) max_hold_ms: u32,
    pub(super) lock_delay_ms: u32,
}

impl Wish {
    /// Anything that one may ask for.
    pub(super) fn random(owner: Owner, wait: bool, rng: &mut Rng) -> Self {
        let mode = match rng.below(10) {
            0..=4 => Mode::Exclusive,
            5..=7 => Mode::Shared,
            _ => Mode::Permits(1 + rng.below(3) as u32),
        };
        Wish {
            mode,
            owner,
            limit: rng.pick(&[3, 3, 3, 0]),
            wait,
            max_hold_ms: rng.pick(&[0, 0, 0, 100, 300]),
            lock_delay_ms: rng.pick(&[0, 0, 0, 200, 500]),
        }
    }
}

/// How far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Asked for, without an answer.
    Asked,
    /// In the queue.
    Waiting(Claim),
    /// Granted, as far as the cluster has said.
    Held(Claim),
    /// Asked to be taken out of the queue.
    Leaving,
}

/// A place.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) lock: Lock,
    /// Which of the client's attempts; several places may belong to one.
    pub(super) attempt: u64,
    pub(super) prefix: String,
    pub(super) wish: Wish,
    pub(super) stage: Stage,
    /// It was not granted before: when the last request was sent to which the answer was "waiting".
    pub(super) waited_at: Millis,
    /// The client gives up then at the latest; set when it learns of the grant.
    pub(super) cap: Option<Millis>,
    /// The client believes that it holds the lock.
    pub(super) believed: bool,
    /// It has asked to hold it alone instead of with others, under this name; the answer is to come.
    pub(super) upgrade: Option<String>,
}

impl Place {
    /// The request for it.
    pub(super) fn acquire(&self, limit: u32) -> Acquire {
        let Wish { mode, owner, wait, max_hold_ms, lock_delay_ms, .. } = self.wish;
        Acquire {
            lock: lock_path(self.lock).into(),
            prefix: self.prefix.as_str().into(),
            data: Some(self.prefix.clone().into()),
            acl: Some(Acl::shared_open()),
            mode,
            limit,
            wait,
            owner,
            max_hold_ms,
            lock_delay_ms,
        }
    }

    /// Names it for those who leave.
    pub(super) fn as_attempt(&self) -> Attempt {
        Attempt { lock: lock_path(self.lock), prefix: self.prefix.clone() }
    }

    /// The claim of a held place.
    pub(super) fn held(&self) -> Option<&Claim> {
        match &self.stage {
            Stage::Held(claim) => Some(claim),
            _ => None,
        }
    }

    /// The same, unless its name is about to change.
    pub(super) fn settled(&self) -> Option<&Claim> {
        self.held().filter(|_| self.upgrade.is_none())
    }

    /// Until when the client may believe in it if it learns of the grant at `now`.
    ///
    /// The cluster takes the lock away `max_hold` and a session timeout after the grant. The client may learn
    /// of the grant later than that: over several lost connections, or from a node that lags. So it counts
    /// from when it knows that it did not hold yet.
    pub(super) fn cap_at(&self, now: Millis, timeout_ms: u32, mutant: Option<Mutant>) -> Millis {
        let max_hold_ms = i64::from(self.wish.max_hold_ms);
        let after = now.0 + max_hold_ms;
        let before_revoked = self.waited_at.0 + i64::from(timeout_ms) + max_hold_ms - CLOCK_SPREAD_MS;
        match mutant {
            _ if max_hold_ms == 0 => Millis(i64::MAX),
            Some(Mutant::IgnoreMaxHold) => Millis(i64::MAX),
            Some(Mutant::MaxHoldFromLearning) => Millis(after),
            _ => Millis(after.min(before_revoked)),
        }
    }
}

/// For whom a client asks: one answer for its whole life.
pub(super) fn owner_of(number: usize) -> Owner {
    match number % 4 {
        0 => Owner::Unnamed,
        1 | 2 => Owner::Session,
        _ => Owner::Named((number / 4 % 2) as u64),
    }
}
