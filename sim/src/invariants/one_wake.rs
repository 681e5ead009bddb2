//! one-wake: a place that leaves a queue wakes its successor and no other; a node tells of the grants that
//! the log has made, of each at most once, and of no others.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::Invariant;
use crate::history::{Fact, Lock};

/// Who is in a queue, and who was woken by whose leaving.
#[derive(Default)]
pub struct OneWake {
    /// Place, and when it was left.
    places: BTreeMap<(Lock, FencingToken), Option<Zxid>>,
    woken: BTreeSet<(Lock, FencingToken, SessionId)>,
    /// Grants of the log, and whether a client was told.
    granted: BTreeMap<(Lock, FencingToken), (Zxid, bool)>,
}

impl OneWake {
    /// The first place after `gone` that was taken when `gone` was left by `at`.
    fn successor(&self, lock: Lock, gone: FencingToken, at: Zxid) -> Option<FencingToken> {
        let later = self.places.range((lock, FencingToken(gone.0 + 1))..=(lock, FencingToken(i64::MAX)));
        later.into_iter().find(|(_, left)| left.is_none_or(|left| left > at)).map(|((_, token), _)| *token)
    }
}

impl Invariant for OneWake {
    fn name(&self) -> &'static str {
        "one-wake"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Queued { lock, token, .. } => {
                self.places.insert((lock, token), None);
            }
            Fact::Left { lock, token, at } => {
                self.places.insert((lock, token), Some(at));
            }
            Fact::Woken { lock, gone, own, session, zxid } => {
                if self.places.get(&(lock, gone)).copied().flatten() != Some(zxid) {
                    return Err(format!(
                        "{lock:?}: session {session} was told that {gone} left at {zxid}, it did not"
                    ));
                }
                let successor = self.successor(lock, gone, zxid);
                if successor != Some(own) {
                    return Err(format!(
                        "{lock:?}: {gone} left and woke {own}, but its successor is {successor:?}"
                    ));
                }
                if !self.woken.insert((lock, gone, session)) {
                    return Err(format!("{lock:?}: {gone} left once and woke session {session} twice"));
                }
            }
            Fact::Entitled { lock, token, zxid, .. } => {
                self.granted.insert((lock, token), (zxid, false));
            }
            Fact::Pushed { lock, token, zxid } => match self.granted.get_mut(&(lock, token)) {
                Some((granted, told)) if *granted == zxid && !*told => *told = true,
                Some((granted, told)) if *told => {
                    return Err(format!("{lock:?}: {token} was told twice of its grant by {granted}"));
                }
                _ => return Err(format!("{lock:?}: {token} was told of a grant by {zxid} that was none")),
            },
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::lock::Mode;

    use super::super::{entitled, judge, left};
    use super::*;
    use crate::history::Millis;

    fn queued(token: i64) -> Fact {
        super::super::queued(token, token, Mode::Exclusive, None)
    }

    fn woken(gone: i64, own: i64, at: i64) -> Fact {
        Fact::Woken {
            lock: Lock(0),
            gone: FencingToken(gone),
            own: FencingToken(own),
            session: SessionId(own),
            zxid: Zxid(at),
        }
    }

    #[test]
    fn a_herd_is_caught() {
        let facts = [queued(1), queued(2), queued(3), left(1, 4), woken(1, 2, 4), woken(1, 3, 4)];
        assert!(judge(OneWake::default(), &facts).unwrap_err().contains("its successor is"));
    }

    #[test]
    fn a_wake_up_without_a_cause_or_twice_is_caught() {
        assert!(judge(OneWake::default(), &[queued(1), queued(2), woken(1, 2, 4)]).is_err());
        assert!(
            judge(OneWake::default(), &[queued(1), queued(2), left(1, 4), woken(1, 2, 4), woken(1, 2, 4)])
                .is_err()
        );
    }

    #[test]
    fn the_successor_at_that_time_is_woken_even_if_told_late() {
        let facts = [queued(1), queued(2), queued(3), left(1, 4), left(2, 5), woken(2, 3, 5), woken(1, 2, 4)];
        assert_eq!(judge(OneWake::default(), &facts), Ok(()));
    }

    #[test]
    fn telling_of_a_grant_that_was_not_made_or_twice_is_caught() {
        let pushed = |token| Fact::Pushed { lock: Lock(0), token: FencingToken(token), zxid: Zxid(2) };
        let granted = entitled(2, None, Millis(0));
        assert!(judge(OneWake::default(), &[queued(2), queued(3), granted.clone(), pushed(3)]).is_err());
        assert!(judge(OneWake::default(), &[queued(2), granted.clone(), pushed(2), pushed(2)]).is_err());
        assert_eq!(judge(OneWake::default(), &[queued(2), granted, pushed(2)]), Ok(()));
    }
}
