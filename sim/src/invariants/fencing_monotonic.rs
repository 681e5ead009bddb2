//! fencing-monotonic: the tokens of successive holders of a lock strictly increase, and the protected
//! resource never accepts a write with a token below one that it has seen.
//!
//! Holders that hold together are not successors of each other: each may learn of its grant before or after
//! the others.

use std::collections::BTreeMap;

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId};

use super::Invariant;
use crate::history::{Fact, Lock};

/// The last tokens of a lock.
#[derive(Clone, Copy, Default)]
struct Last {
    /// Of all holders, and whose it is.
    any: Option<(FencingToken, SessionId)>,
    /// Of those that hold alone.
    alone: Option<FencingToken>,
}

/// The last tokens of each lock.
#[derive(Default)]
pub struct FencingMonotonic {
    entitled: BTreeMap<Lock, FencingToken>,
    granted: BTreeMap<Lock, Last>,
    written: BTreeMap<Lock, FencingToken>,
}

impl Invariant for FencingMonotonic {
    fn name(&self) -> &'static str {
        "fencing-monotonic"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Entitled { lock, token, session, .. } => {
                let last = self.entitled.insert(lock, token);
                if last.is_some_and(|last| token <= last) {
                    return Err(format!(
                        "{lock:?}: {token} of session {session} was granted it after {last:?}"
                    ));
                }
            }
            Fact::Granted { lock, token, session, mode, .. } => {
                let Last { any, alone } = self.granted.entry(lock).or_default();
                // The same holder may find again, after a lost connection, that it holds.
                let is_stolen = any.is_some_and(|(last, holder)| token == last && holder != session);
                let is_late = match mode {
                    Mode::Exclusive => any.is_some_and(|(last, _)| token < last),
                    Mode::Shared | Mode::Permits(_) => alone.is_some_and(|last| token < last),
                };
                if is_stolen || is_late {
                    return Err(format!("{lock:?}: token {token} of session {session} after {any:?}"));
                }
                if mode == Mode::Exclusive {
                    *alone = Some(token);
                }
                if any.is_none_or(|(last, _)| token > last) {
                    *any = Some((token, session));
                }
            }
            Fact::ResourceWritten { lock, token } => {
                let last = self.written.insert(lock, token);
                if last.is_some_and(|last| token < last) {
                    return Err(format!("the resource of {lock:?} took token {token} after {last:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{entitled, judge};
    use super::*;
    use crate::history::Millis;

    fn granted(session: i64, token: i64) -> Fact {
        super::super::granted(session, token, Mode::Exclusive, (0, 1))
    }

    fn reader(session: i64, token: i64) -> Fact {
        super::super::granted(session, token, Mode::Shared, (0, 1))
    }

    #[test]
    fn a_token_that_goes_back_is_caught() {
        assert!(judge(FencingMonotonic::default(), &[granted(1, 5), granted(2, 4)]).is_err());
        assert!(judge(FencingMonotonic::default(), &[granted(1, 5), reader(2, 4)]).is_err());
        assert!(judge(FencingMonotonic::default(), &[reader(1, 5), granted(2, 4)]).is_err());
    }

    #[test]
    fn one_token_for_two_holders_is_caught() {
        assert!(judge(FencingMonotonic::default(), &[granted(1, 5), granted(2, 5)]).is_err());
    }

    #[test]
    fn a_grant_in_the_log_with_an_older_token_is_caught() {
        let granted = |token| entitled(token, None, Millis(0));
        assert!(judge(FencingMonotonic::default(), &[granted(5), granted(4)]).is_err());
        assert_eq!(judge(FencingMonotonic::default(), &[granted(4), granted(5)]), Ok(()));
    }

    #[test]
    fn a_resource_that_takes_an_old_token_is_caught() {
        let wrote = |token| Fact::ResourceWritten { lock: Lock(0), token: FencingToken(token) };
        assert!(judge(FencingMonotonic::default(), &[wrote(5), wrote(9), wrote(5)]).is_err());
    }

    #[test]
    fn growing_tokens_and_a_holder_that_finds_its_own_again_are_fine() {
        assert_eq!(
            judge(FencingMonotonic::default(), &[granted(1, 5), granted(1, 5), granted(2, 6)]),
            Ok(())
        );
    }

    #[test]
    fn readers_may_learn_of_their_grants_in_any_order() {
        let facts = [granted(1, 5), reader(3, 7), reader(2, 6), granted(4, 8)];
        assert_eq!(judge(FencingMonotonic::default(), &facts), Ok(()));
    }
}
