//! mutual-exclusion: at no point of the log do two queue positions hold a lock in excluding modes, and the
//! log grants no lock during the lock-delay. `cluster/beliefs.rs` checks the clients' beliefs.

use std::collections::BTreeMap;

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId};

use super::Invariant;
use crate::history::{CLOCK_SPREAD_MS, Fact, Lock, Millis};

/// Queue position that holds a lock.
#[derive(Clone, Copy)]
struct Holder {
    token: FencingToken,
    session: SessionId,
    mode: Mode,
}

/// Holders of each lock, and delayed locks.
#[derive(Default)]
pub struct MutualExclusion {
    modes: BTreeMap<(Lock, FencingToken), Mode>,
    entitled: BTreeMap<(Lock, FencingToken), Holder>,
    /// Semaphore limit at each grant.
    limits: BTreeMap<(Lock, FencingToken), Option<u32>>,
    delayed: BTreeMap<Lock, Millis>,
}

impl MutualExclusion {
    /// Returns an error if `holders`, the last of whom was granted last, may not hold the lock together.
    fn check(&self, lock: Lock, mut holders: Vec<Holder>) -> Result<(), String> {
        holders.sort_by_key(|holder| holder.token);
        let [.., last] = holders[..] else { return Ok(()) };
        let permits = |holder: &Holder| if let Mode::Permits(n) = holder.mode { u64::from(n) } else { 0 };
        let taken: u64 = holders.iter().map(permits).sum();
        let limit = self.limits.get(&(lock, last.token)).copied().flatten();
        let go_together = holders.len() == 1
            || holders.iter().all(|holder| holder.mode == Mode::Shared)
            || holders.iter().all(|holder| matches!(holder.mode, Mode::Permits(_)))
                && limit.is_none_or(|limit| taken <= u64::from(limit));
        if go_together {
            return Ok(());
        }
        let all =
            holders.iter().map(|one| format!("{} ({:?} of session {})", one.token, one.mode, one.session));
        let all = all.collect::<Vec<_>>().join(", ");
        Err(format!("{lock:?} is held by {all} at once, with limit {limit:?}"))
    }

    fn check_log(&self, lock: Lock) -> Result<(), String> {
        let of_lock = self.entitled.iter().filter(|((of, _), _)| *of == lock);
        self.check(lock, of_lock.map(|(_, holder)| *holder).collect())
    }

    fn entitle(&mut self, lock: Lock, holder: Holder, limit: Option<u32>, at: Millis) -> Result<(), String> {
        if let Some(until) = self.delayed.get(&lock)
            && at.0 < until.0 - CLOCK_SPREAD_MS
        {
            return Err(format!(
                "{lock:?} was granted to {} before its delay is over at {until:?}",
                holder.token
            ));
        }
        self.limits.insert((lock, holder.token), limit);
        self.entitled.insert((lock, holder.token), holder);
        self.check_log(lock)
    }
}

impl Invariant for MutualExclusion {
    fn name(&self) -> &'static str {
        "mutual-exclusion"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Queued { lock, token, mode, .. } => {
                self.modes.insert((lock, token), mode);
            }
            Fact::Entitled { lock, token, session, limit, at, .. } => {
                let mode = self.modes.get(&(lock, token)).copied();
                let mode =
                    mode.ok_or_else(|| format!("{lock:?} was granted to {token}, which is nowhere"))?;
                self.entitle(lock, Holder { token, session, mode }, limit, at)?;
            }
            Fact::Converted { lock, token, mode } => {
                self.modes.insert((lock, token), mode);
                if let Some(holder) = self.entitled.get_mut(&(lock, token)) {
                    holder.mode = mode;
                }
                self.check_log(lock)?;
            }
            Fact::Left { lock, token, .. } => {
                self.entitled.remove(&(lock, token));
                self.modes.remove(&(lock, token));
            }
            Fact::Delayed { lock, until } => {
                let known = self.delayed.entry(lock).or_insert(until);
                *known = until.max(*known);
            }
            Fact::Undelayed { lock } => drop(self.delayed.remove(&lock)),
            _ => {}
        }
        Ok(())
    }
}
