//! fencing-monotonic: the tokens of successive holders of a lock strictly increase, and the protected resource never
//! takes a write with a token below one that it has seen.

use std::collections::BTreeMap;

use rowlock_proto::{FencingToken, SessionId};

use super::Invariant;
use crate::history::{Fact, Lock};

/// The last token of each lock.
#[derive(Default)]
pub struct FencingMonotonic {
    granted: BTreeMap<Lock, (FencingToken, SessionId)>,
    written: BTreeMap<Lock, FencingToken>,
}

impl Invariant for FencingMonotonic {
    fn name(&self) -> &'static str {
        "fencing-monotonic"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Granted { lock, token, session, .. } => {
                // The same holder may find again, after a lost connection, that it holds.
                let last = self.granted.insert(lock, (token, session));
                if last.is_some_and(|(last, holder)| token < last || (token == last && holder != session)) {
                    return Err(format!("{lock:?}: token {token} of session {session} after {last:?}"));
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
    use rowlock_proto::Zxid;

    use super::super::judge;
    use super::*;
    use crate::history::Millis;

    fn granted(session: i64, token: i64) -> Fact {
        Fact::Granted {
            lock: Lock(0),
            token: FencingToken(token),
            session: SessionId(session),
            seen: Zxid(1),
            now: Millis(0),
            until: Millis(1),
        }
    }

    #[test]
    fn a_token_that_goes_back_is_caught() {
        assert!(judge(FencingMonotonic::default(), &[granted(1, 5), granted(2, 4)]).is_err());
    }

    #[test]
    fn one_token_for_two_holders_is_caught() {
        assert!(judge(FencingMonotonic::default(), &[granted(1, 5), granted(2, 5)]).is_err());
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
}
