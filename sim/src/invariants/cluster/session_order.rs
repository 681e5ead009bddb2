//! session-order: the writes of a session take effect in the client's order of sending, also with many
//! pipelined writes and lost connections in between.

use super::super::Invariant;
use super::matching::{Matched, Matching};
use crate::history::Fact;

#[derive(Default)]
pub struct SentOrder(Matching);

impl Invariant for SentOrder {
    fn name(&self) -> &'static str {
        "session-order"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match (self.0.observe(fact), fact) {
            (Matched::Ran { overtaken_by: Some(later) }, Fact::Logged(logged)) => Err(format!(
                "{:?} of session {} took effect at {}, behind {later:?}, which was sent after it",
                logged.op, logged.session, logged.zxid
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::{delete, invoked, logged, set};
    use super::*;
    use crate::history::client::Answer;

    #[test]
    fn a_write_that_overtakes_an_earlier_one_is_caught() {
        let (one, other) = (set("/data/a", "1"), delete("/data/b"));
        let sent = [invoked(1, 1, one.clone()), invoked(1, 2, other.clone())];
        let ran = [logged(1, 5, one, Ok(Answer::Deleted)), logged(1, 6, other, Ok(Answer::Deleted))];
        assert_eq!(check_history(SentOrder::default(), &[&sent[..], &ran[..]].concat()), Ok(()));
        let [first, second] = ran;
        assert!(check_history(SentOrder::default(), &[&sent[..], &[second, first]].concat()).is_err());
    }

    #[test]
    fn a_write_that_never_arrived_may_be_left_out() {
        let sent = [invoked(1, 1, delete("/data/b")), invoked(1, 2, set("/data/a", "1"))];
        let ran = [logged(1, 5, set("/data/a", "1"), Ok(Answer::Deleted))];
        assert_eq!(check_history(SentOrder::default(), &[&sent[..], &ran[..]].concat()), Ok(()));
    }
}
