//! no-lost-wakeup: once faults have ended, holders have released and messages have arrived, nobody still waits.

use std::collections::BTreeSet;

use rowlock_proto::SessionId;

use super::Invariant;
use crate::history::{Fact, Lock};

/// Who waits.
#[derive(Default)]
pub struct NoLostWakeup {
    waiting: BTreeSet<(Lock, SessionId)>,
}

impl Invariant for NoLostWakeup {
    fn name(&self) -> &'static str {
        "no-lost-wakeup"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
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
    use super::super::judge;
    use super::*;

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
}
