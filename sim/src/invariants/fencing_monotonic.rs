//! fencing-monotonic: the tokens that the log grants for a lock strictly increase. `cluster/fenced_store.rs`
//! checks the writes that a protected store accepts.

use std::collections::BTreeMap;

use rowlock_proto::FencingToken;

use super::Invariant;
use crate::history::{Fact, Lock};

/// The last token of each lock.
#[derive(Default)]
pub struct FencingMonotonic {
    last: BTreeMap<Lock, FencingToken>,
}

impl Invariant for FencingMonotonic {
    fn name(&self) -> &'static str {
        "fencing-monotonic"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        if let Fact::Entitled { lock, token, session, .. } = *fact {
            let last = self.last.insert(lock, token);
            if last.is_some_and(|last| token <= last) {
                return Err(format!("{lock:?}: {token} of session {session} was granted it after {last:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{check_history, entitled};
    use super::*;
    use crate::history::Millis;

    #[test]
    fn a_grant_with_an_older_token_or_the_same_is_caught() {
        let granted = |token| entitled(token, None, Millis(0));
        assert!(check_history(FencingMonotonic::default(), &[granted(5), granted(4)]).is_err());
        assert!(check_history(FencingMonotonic::default(), &[granted(5), granted(5)]).is_err());
        assert_eq!(check_history(FencingMonotonic::default(), &[granted(4), granted(5)]), Ok(()));
    }
}
