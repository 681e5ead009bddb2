//! no-lost-wakeup: the log never leaves a lock free for an eligible first waiter.
//! `cluster/grant_in_time.rs` checks the notification of the waiter.

use std::collections::BTreeMap;

use rowlock_proto::FencingToken;
use rowlock_proto::lock::Mode;

use super::Invariant;
use crate::history::{Fact, Lock};

/// Waiters, holders and permits of a lock's queue.
#[derive(Default)]
struct Queue {
    waiters: BTreeMap<FencingToken, Mode>,
    holders: BTreeMap<FencingToken, Mode>,
    /// Semaphore limit; `None` means unlimited.
    limit: Option<u32>,
    /// A lock-delay blocks the next grant; the next grant ends the delay.
    delayed: bool,
}

impl Queue {
    /// Returns the first waiter of a free lock that the log has not granted to that waiter.
    fn passed_over(&self) -> Option<FencingToken> {
        let (token, wanted) = self.waiters.first_key_value().filter(|_| !self.delayed)?;
        let taken: u64 = self.holders.values().map(permits).sum();
        let is_free = match (self.holders.values().next(), wanted) {
            (None, _) | (Some(Mode::Shared), Mode::Shared) => true,
            (Some(Mode::Permits(_)), Mode::Permits(more)) => {
                self.limit.is_none_or(|limit| taken + u64::from(*more) <= u64::from(limit))
            }
            _ => false,
        };
        is_free.then_some(*token)
    }
}

fn permits(mode: &Mode) -> u64 {
    if let Mode::Permits(permits) = mode { u64::from(*permits) } else { 0 }
}

#[derive(Default)]
pub struct NoLostWakeup {
    queues: BTreeMap<Lock, Queue>,
}

impl NoLostWakeup {
    fn queue(&mut self, lock: Lock) -> &mut Queue {
        self.queues.entry(lock).or_default()
    }
}

impl Invariant for NoLostWakeup {
    fn name(&self) -> &'static str {
        "no-lost-wakeup"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Queued { lock, token, mode, .. } => {
                self.queue(lock).waiters.insert(token, mode);
            }
            Fact::Entitled { lock, token, .. } => {
                let queue = self.queue(lock);
                let mode = queue.waiters.remove(&token).unwrap_or(Mode::Exclusive);
                queue.holders.insert(token, mode);
                queue.delayed = false;
            }
            Fact::Converted { lock, token, mode } => {
                self.queue(lock).holders.insert(token, mode);
            }
            Fact::Limit { lock, limit } => self.queue(lock).limit = limit,
            Fact::Left { lock, token, .. } => {
                let queue = self.queue(lock);
                queue.waiters.remove(&token);
                queue.holders.remove(&token);
            }
            Fact::Delayed { lock, .. } => self.queue(lock).delayed = true,
            Fact::Undelayed { lock } => self.queue(lock).delayed = false,
            Fact::Committed { zxid } => {
                let stuck = |(lock, queue): (&Lock, &Queue)| Some((*lock, queue.passed_over()?));
                if let Some((lock, first)) = self.queues.iter().find_map(stuck) {
                    return Err(format!("{lock:?} is free after {zxid} for {first}, which waits for it"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
