//! exactly-once: the answer whether a release gave a lock back is true, also when an answer
//! got lost and the release came again.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::FencingToken;
use rowlock_state::outcome::Why;

use super::super::Invariant;
use crate::history::client::{Answer, CallId, ClientFact, Op};
use crate::history::{Fact, Lock};

/// Pending releases, and releases in the log.
#[derive(Default)]
pub struct Releases {
    asked: BTreeMap<CallId, (Lock, FencingToken)>,
    released: BTreeSet<(Lock, FencingToken)>,
}

impl Invariant for Releases {
    fn name(&self) -> &'static str {
        "exactly-once"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Gone { lock, token, why: Why::Released } => {
                self.released.insert((*lock, *token));
            }
            Fact::Client { what: ClientFact::Invoked { call, op, .. }, .. } => {
                if let Op::Release { lock, token } = **op {
                    self.asked.insert(*call, (lock, token));
                }
            }
            Fact::Client { client, what: ClientFact::Returned { call, result }, .. } => {
                let (Some(place), Ok(Answer::Released(told))) = (self.asked.remove(call), result) else {
                    return Ok(());
                };
                let was_released = self.released.contains(&place);
                if was_released != *told {
                    let (lock, token) = place;
                    return Err(format!(
                        "client {} was told that its release has given {token} of {lock:?} back: {told}, and the log says {was_released}",
                        client.0
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::judge;
    use super::super::testing::{invoked, returned};
    use super::*;

    #[test]
    fn an_answer_to_a_release_that_the_log_does_not_bear_out_is_caught() {
        let ask = || invoked(1, 1, Op::Release { lock: Lock(0), token: FencingToken(5) });
        let told = |released| returned(1, 1, Ok(Answer::Released(released)));
        let gone = |why| Fact::Gone { lock: Lock(0), token: FencingToken(5), why };
        let opinion = |facts: &[Fact]| judge(Releases::default(), facts);
        assert!(opinion(&[ask(), gone(Why::Released), told(false)]).is_err());
        assert!(opinion(&[ask(), gone(Why::Forced), told(true)]).is_err());
        assert!(opinion(&[ask(), told(true)]).is_err());
        assert_eq!(opinion(&[ask(), gone(Why::Released), told(true)]), Ok(()));
        assert_eq!(opinion(&[gone(Why::Forced), ask(), told(false)]), Ok(()));
    }
}
