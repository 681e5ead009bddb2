//! fifo-in-real-time: a client that requests a lock after another client's queue position has been committed
//! gets the lock after that client. A client hears only of grants in the log; at the time of the grant no
//! earlier position still waits.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{FencingToken, SessionId};

use super::super::Invariant;
use crate::history::client::{Answer, CallId, ClientFact, Op};
use crate::history::{Fact, Lock};

struct Asked {
    lock: Lock,
    /// Last queue position when the call began.
    behind: FencingToken,
    /// Positions of the session at that time: an owner may acquire a held lock again.
    had: BTreeSet<FencingToken>,
}

/// Queues of the log, and waiting calls.
#[derive(Default)]
pub struct FifoInRealTime {
    last: BTreeMap<Lock, FencingToken>,
    waiting: BTreeSet<(Lock, FencingToken)>,
    /// Grants of the log, never removed: a client may hear of a grant after its release.
    granted: BTreeSet<(Lock, FencingToken)>,
    held: BTreeMap<(Lock, FencingToken), SessionId>,
    asked: BTreeMap<CallId, Asked>,
}

impl FifoInRealTime {
    fn invoked(&mut self, call: CallId, session: SessionId, op: &Op) {
        let Op::Acquire { lock, .. } = op else { return };
        let behind = self.last.get(lock).copied().unwrap_or_default();
        let own = self.held.iter().filter(|((of, _), holder)| of == lock && **holder == session);
        let had = own.map(|((_, token), _)| *token).collect();
        self.asked.insert(call, Asked { lock: *lock, behind, had });
    }

    fn acquired(&mut self, asked: &Asked, token: FencingToken) -> Result<(), String> {
        let Asked { lock, behind, had } = asked;
        if had.contains(&token) {
            return Ok(());
        }
        if !self.granted.contains(&(*lock, token)) {
            return Err(format!("{lock:?} was acquired with {token}, which the log has not granted it"));
        }
        if token <= *behind {
            return Err(format!(
                "{lock:?} was acquired with {token} by who asked when {behind} was in the queue"
            ));
        }
        match self.waiting.range((*lock, FencingToken(i64::MIN))..(*lock, token)).next() {
            Some((_, before)) => Err(format!("{lock:?} was acquired with {token}, and {before} still waits")),
            None => Ok(()),
        }
    }
}

impl Invariant for FifoInRealTime {
    fn name(&self) -> &'static str {
        "fifo-in-real-time"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Queued { lock, token, .. } => {
                self.last.insert(*lock, *token);
                self.waiting.insert((*lock, *token));
            }
            Fact::Entitled { lock, token, session, .. } => {
                self.waiting.remove(&(*lock, *token));
                self.granted.insert((*lock, *token));
                self.held.insert((*lock, *token), *session);
            }
            Fact::Left { lock, token, .. } => {
                self.waiting.remove(&(*lock, *token));
                self.held.remove(&(*lock, *token));
            }
            Fact::Client { what: ClientFact::Invoked { call, session, op }, .. } => {
                self.invoked(*call, *session, op);
            }
            Fact::Client { what: ClientFact::Returned { call, result }, .. } => {
                if let (Some(asked), Ok(Answer::Acquired(token))) = (self.asked.remove(call), result) {
                    return self.acquired(&asked, *token);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::lock::Mode;

    use super::super::super::{check_history, entitled, left};
    use super::super::testing::{invoked, returned};
    use super::*;
    use crate::history::Millis;

    fn queued(token: i64) -> Fact {
        super::super::super::queued(token, token, Mode::Exclusive, None)
    }

    fn granted(token: i64) -> Fact {
        entitled(token, None, Millis(0))
    }

    fn asks(who: usize) -> Fact {
        invoked(who, who as u64, Op::Acquire { lock: Lock(0), mode: Mode::Exclusive })
    }

    fn gets(who: usize, token: i64) -> Fact {
        returned(who, who as u64, Ok(Answer::Acquired(FencingToken(token))))
    }

    fn check_facts(facts: &[Fact]) -> Result<(), String> {
        check_history(FifoInRealTime::default(), facts)
    }

    #[test]
    fn who_asked_later_and_gets_it_first_is_caught() {
        let facts = [asks(1), queued(1), asks(2), queued(2), granted(2), gets(2, 2)];
        assert!(check_facts(&facts).unwrap_err().contains("waits"));
        let gave_up = [asks(1), queued(1), asks(2), queued(2), left(1, 3), granted(2), gets(2, 2)];
        assert_eq!(check_facts(&gave_up), Ok(()));
    }

    #[test]
    fn a_place_from_before_the_call_is_caught_unless_it_is_held() {
        let facts = [queued(1), asks(1), granted(1), gets(1, 1)];
        assert!(check_facts(&facts).is_err());
        let again = [queued(1), granted(1), asks(1), gets(1, 1)];
        assert_eq!(check_facts(&again), Ok(()));
    }

    #[test]
    fn an_acquire_without_a_grant_in_the_log_is_caught() {
        assert!(check_facts(&[asks(1), queued(1), gets(1, 1)]).is_err());
        assert_eq!(check_facts(&[asks(1), queued(1), granted(1), gets(1, 1)]), Ok(()));
        assert_eq!(
            check_facts(&[asks(1), queued(1), granted(1), left(1, 2), gets(1, 1)]),
            Ok(()),
            "told late"
        );
    }
}
