//! mutual-exclusion: no two clients believe at one time that they hold one lock. A belief ends at the client's own
//! deadline at the latest, so an expired holder has stopped before its successor is granted.

use std::collections::BTreeMap;

use rowlock_proto::SessionId;

use super::Invariant;
use crate::history::{Fact, Lock, Millis};

/// Who believes what, until when.
#[derive(Default)]
pub struct MutualExclusion {
    believers: BTreeMap<(Lock, SessionId), Millis>,
}

impl MutualExclusion {
    /// An objection to `session` believing in `lock` from `now` on.
    fn check(&self, lock: Lock, session: SessionId, now: Millis) -> Result<(), String> {
        let all = self.believers.range((lock, SessionId(i64::MIN))..=(lock, SessionId(i64::MAX)));
        for ((_, other), until) in all {
            if *other != session && *until > now {
                return Err(format!(
                    "{lock:?} is session {session}'s at {now:?}, and {other} believes until {until:?}"
                ));
            }
        }
        Ok(())
    }
}

impl Invariant for MutualExclusion {
    fn name(&self) -> &'static str {
        "mutual-exclusion"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Granted { lock, session, now, until, .. } => {
                self.check(lock, session, now)?;
                self.believers.insert((lock, session), until);
            }
            Fact::Renewed { session, now, until } => {
                let held: Vec<Lock> =
                    self.believers.keys().filter(|(_, s)| *s == session).map(|(l, _)| *l).collect();
                for lock in held {
                    self.check(lock, session, now)?;
                    self.believers.insert((lock, session), until);
                }
            }
            Fact::BeliefEnded { lock, session } => {
                self.believers.remove(&(lock, session));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::{FencingToken, Zxid};

    use super::super::judge;
    use super::*;

    fn granted(session: i64, now: i64, until: i64) -> Fact {
        Fact::Granted {
            lock: Lock(0),
            token: FencingToken(now),
            session: SessionId(session),
            seen: Zxid(1),
            now: Millis(now),
            until: Millis(until),
        }
    }

    #[test]
    fn a_second_belief_while_the_first_lasts_is_caught() {
        let objection = judge(MutualExclusion::default(), &[granted(1, 0, 100), granted(2, 99, 200)]);
        assert!(objection.unwrap_err().contains("believes until"));
    }

    #[test]
    fn a_renewed_belief_still_excludes_after_its_first_end() {
        let renewed = Fact::Renewed { session: SessionId(1), now: Millis(90), until: Millis(150) };
        assert!(
            judge(MutualExclusion::default(), &[granted(1, 0, 100), renewed, granted(2, 120, 200)]).is_err()
        );
    }

    #[test]
    fn a_renewal_after_the_lock_went_to_another_is_caught() {
        let renewed = Fact::Renewed { session: SessionId(1), now: Millis(120), until: Millis(150) };
        assert!(
            judge(MutualExclusion::default(), &[granted(1, 0, 100), granted(2, 110, 200), renewed]).is_err()
        );
    }

    #[test]
    fn beliefs_one_after_another_are_fine() {
        let ended = Fact::BeliefEnded { lock: Lock(0), session: SessionId(2) };
        let facts = [granted(1, 0, 100), granted(2, 100, 300), ended, granted(3, 120, 200)];
        assert_eq!(judge(MutualExclusion::default(), &facts), Ok(()));
    }
}
