//! no-lost-wakeup: the log never leaves a lock free while somebody waits for it; and once faults have ended, holders
//! have released and messages have arrived, nobody still waits.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{FencingToken, SessionId};

use super::Invariant;
use crate::history::{Fact, Lock};

/// A lock's queue, as far as it matters here.
#[derive(Default)]
struct Queue {
    waiters: BTreeSet<FencingToken>,
    holders: BTreeSet<FencingToken>,
    /// A delay keeps it from the next; the next grant ends it.
    delayed: bool,
}

/// Who waits.
#[derive(Default)]
pub struct NoLostWakeup {
    waiting: BTreeSet<(Lock, SessionId)>,
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
            Fact::Queued { lock, token, .. } => {
                self.queue(lock).waiters.insert(token);
            }
            Fact::Entitled { lock, token, .. } => {
                let queue = self.queue(lock);
                queue.waiters.remove(&token);
                queue.holders.insert(token);
                queue.delayed = false;
            }
            Fact::Left { lock, token, .. } => {
                let queue = self.queue(lock);
                queue.waiters.remove(&token);
                queue.holders.remove(&token);
            }
            Fact::Delayed { lock, .. } => self.queue(lock).delayed = true,
            Fact::Committed { zxid } => {
                let is_stuck =
                    |queue: &Queue| queue.holders.is_empty() && !queue.waiters.is_empty() && !queue.delayed;
                if let Some((lock, queue)) = self.queues.iter().find(|(_, queue)| is_stuck(queue)) {
                    return Err(format!(
                        "{lock:?} is free after {zxid}, and {:?} wait for it",
                        queue.waiters
                    ));
                }
            }
            Fact::Wanted { lock, session } => {
                self.waiting.insert((lock, session));
            }
            Fact::Granted { lock, session, .. } | Fact::Unwanted { lock, session } => {
                self.waiting.remove(&(lock, session));
            }
            Fact::Settled => {
                if let Some((lock, session)) = self.waiting.first() {
                    let n = self.waiting.len();
                    return Err(format!("{n} still wait, the first is session {session} for {lock:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::Zxid;
    use rowlock_proto::lock::Mode;

    use super::super::{entitled, judge, left, queued};
    use super::*;
    use crate::history::Millis;

    const WANTED: Fact = Fact::Wanted { lock: Lock(0), session: SessionId(1) };

    #[test]
    fn a_waiter_that_is_never_granted_is_caught() {
        assert!(judge(NoLostWakeup::default(), &[WANTED, Fact::Settled]).is_err());
    }

    #[test]
    fn a_waiter_that_gave_up_is_not_missed() {
        let facts = [WANTED, Fact::Unwanted { lock: Lock(0), session: SessionId(1) }, Fact::Settled];
        assert_eq!(judge(NoLostWakeup::default(), &facts), Ok(()));
    }

    #[test]
    fn a_free_lock_with_a_waiter_in_the_log_is_caught() {
        let committed = || Fact::Committed { zxid: Zxid(9) };
        let place = |token| queued(token, token, Mode::Exclusive, None);
        let facts = [place(1), entitled(1, None, Millis(0)), place(2), committed()];
        assert_eq!(judge(NoLostWakeup::default(), &facts), Ok(()));
        let freed = [&facts[..], &[left(1, 9), committed()]].concat();
        assert!(judge(NoLostWakeup::default(), &freed).unwrap_err().contains("is free"));
        let delayed = Fact::Delayed { lock: Lock(0), until: Millis(9) };
        let kept = [&facts[..], &[left(1, 9), delayed, committed()]].concat();
        assert_eq!(judge(NoLostWakeup::default(), &kept), Ok(()));
    }
}
