//! linearizable-verify: the answer to "is this lock held?" was right at a moment between question and answer.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::FencingToken;

use super::super::Invariant;
use crate::history::client::{Answer, CallId, ClientFact, Op};
use crate::history::{Fact, Lock};

/// A question that is not answered yet.
struct Asked {
    place: (Lock, FencingToken),
    was_held: bool,
    was_not_held: bool,
}

/// Holds in the log, and pending questions about them.
#[derive(Default)]
pub struct LinearizableVerify {
    held: BTreeSet<(Lock, FencingToken)>,
    asked: BTreeMap<CallId, Asked>,
}

impl LinearizableVerify {
    fn changed(&mut self, place: (Lock, FencingToken), is_held: bool) {
        if is_held {
            self.held.insert(place);
        } else {
            self.held.remove(&place);
        }
        for asked in self.asked.values_mut().filter(|asked| asked.place == place) {
            asked.was_held |= is_held;
            asked.was_not_held |= !is_held;
        }
    }
}

impl Invariant for LinearizableVerify {
    fn name(&self) -> &'static str {
        "linearizable-verify"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Entitled { lock, token, .. } => self.changed((*lock, *token), true),
            Fact::Left { lock, token, .. } => self.changed((*lock, *token), false),
            Fact::Client { what: ClientFact::Invoked { call, op, .. }, .. } => {
                if let Op::Verify { lock, token } = &**op {
                    let place = (*lock, *token);
                    let was_held = self.held.contains(&place);
                    self.asked.insert(*call, Asked { place, was_held, was_not_held: !was_held });
                }
            }
            Fact::Client { client, what: ClientFact::Returned { call, result }, .. } => {
                let Some(asked) = self.asked.remove(call) else { return Ok(()) };
                let Ok(Answer::Verified(is_held)) = result else { return Ok(()) };
                let could_be = if *is_held { asked.was_held } else { asked.was_not_held };
                if !could_be {
                    let (lock, token) = asked.place;
                    return Err(format!(
                        "client {} was told that {token} of {lock:?} is held: {is_held}, wrong throughout the call",
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
    use super::super::super::{entitled, judge, left};
    use super::super::testing::{invoked, returned};
    use super::*;
    use crate::history::Millis;

    #[test]
    fn an_answer_that_was_right_at_no_moment_of_the_call_is_caught() {
        let ask = || invoked(1, 1, Op::Verify { lock: Lock(0), token: FencingToken(5) });
        let told = |is_held| returned(1, 1, Ok(Answer::Verified(is_held)));
        let granted = || entitled(5, None, Millis(0));
        let opinion = |facts: &[Fact]| judge(LinearizableVerify::default(), facts);
        assert!(opinion(&[granted(), left(5, 6), ask(), told(true)]).is_err());
        assert!(opinion(&[granted(), ask(), told(false)]).is_err());
        assert!(opinion(&[ask(), told(true)]).is_err());
        assert_eq!(opinion(&[granted(), ask(), told(true)]), Ok(()));
        assert_eq!(opinion(&[granted(), ask(), left(5, 6), told(true)]), Ok(()));
        assert_eq!(opinion(&[granted(), ask(), left(5, 6), told(false)]), Ok(()));
    }
}
