//! exactly-once: a write of our client takes effect once, however often the client sends the write, and never
//! after the client got a definite failure. In a cluster: every command that the log runs for a session is a
//! call of the session's client, each call writes distinct data, and each call runs once.

use super::super::Invariant;
use super::matching::{Matched, Matching};
use crate::history::Fact;
use crate::history::client::Failure;

#[derive(Default)]
pub struct Effects(Matching);

impl Invariant for Effects {
    fn name(&self) -> &'static str {
        "exactly-once"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match self.0.observe(fact) {
            Matched::RanUnasked(logged) if logged.result.is_ok() => Err(format!(
                "{:?} took effect at {} in session {}, which has no such unanswered call: no client sent it, or it ran twice",
                logged.op, logged.zxid, logged.session
            )),
            Matched::Answered(sent, result) => {
                let is_denied =
                    matches!(result, Err(Failure::Refused(_) | Failure::RefusedAt(..) | Failure::NotDone));
                match sent.logged {
                    Some(logged) if is_denied && logged.result.is_ok() => Err(format!(
                        "client {} was told {result:?} about {:?}, which took effect at {}",
                        sent.client.0, sent.op, logged.zxid
                    )),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::ErrorCode;

    use super::super::super::check_history;
    use super::super::durable::Durable;
    use super::super::testing::{delete, invoked, logged, returned, set};
    use super::*;
    use crate::history::client::Answer;

    const DONE: Result<Answer, Failure> = Ok(Answer::Deleted);

    fn check_facts(facts: &[Fact]) -> Result<(), String> {
        check_history(Effects::default(), facts)
    }

    #[test]
    fn a_write_that_takes_effect_twice_is_caught() {
        let op = || set("/data/a", "1");
        let once = [invoked(1, 1, op()), logged(1, 5, op(), DONE)];
        assert_eq!(check_facts(&once), Ok(()));
        assert!(check_facts(&[&once[..], &[logged(1, 6, op(), DONE)]].concat()).is_err());
        let over = [&once[..], &[returned(1, 1, DONE), logged(1, 6, op(), DONE)]].concat();
        assert!(check_facts(&over).is_err());
    }

    #[test]
    fn a_write_that_takes_effect_although_it_was_refused_is_caught() {
        let op = || set("/data/a", "1");
        let facts = |result| [invoked(1, 1, op()), logged(1, 5, op(), DONE), returned(1, 1, Err(result))];
        assert!(check_facts(&facts(Failure::Refused(ErrorCode::BadVersion))).is_err());
        assert!(check_facts(&facts(Failure::NotDone)).is_err());
        assert_eq!(check_facts(&facts(Failure::Unknown)), Ok(()));
    }

    #[test]
    fn a_write_of_unknown_fate_may_take_effect_later_but_once() {
        let op = || set("/data/a", "1");
        let facts = [invoked(1, 1, op()), returned(1, 1, Err(Failure::Unknown)), logged(1, 5, op(), DONE)];
        assert_eq!(check_facts(&facts), Ok(()));
        assert!(check_facts(&[&facts[..], &[logged(1, 6, op(), DONE)]].concat()).is_err());
    }

    #[test]
    fn two_equal_deletes_may_both_take_effect() {
        let op = || delete("/data/a");
        let facts = [
            invoked(1, 1, op()),
            returned(1, 1, Err(Failure::Unknown)),
            invoked(1, 2, op()),
            logged(1, 5, op(), DONE),
            returned(1, 2, DONE),
        ];
        assert_eq!(check_facts(&facts), Ok(()));
        assert_eq!(check_history(Durable::default(), &facts), Ok(()), "it was the second");
        let denied = [
            invoked(1, 1, op()),
            invoked(1, 2, op()),
            logged(1, 5, op(), DONE),
            returned(1, 1, Err(Failure::NotDone)),
            returned(1, 2, DONE),
        ];
        assert_eq!(check_facts(&denied), Ok(()));
        assert_eq!(check_history(Durable::default(), &denied), Ok(()), "it was the second");
    }

    #[test]
    fn a_preparing_sessions_write_is_no_call() {
        assert_eq!(check_facts(&[logged(9, 5, set("/data/a", "1"), DONE)]), Ok(()));
    }
}
