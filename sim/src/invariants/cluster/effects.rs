//! exactly-once: a write of our client takes effect once, however often the client sends the write, and never
//! after the client got a definite failure. In a cluster: every command that the log runs for a session is a
//! call of the session's client, each call writes distinct data, and each call runs once.

use super::super::Invariant;
use super::matching::{Matched, Matching};
use crate::history::client::Failure;
use crate::history::{Book, Fact};

#[derive(Default)]
pub struct Effects(Matching);

impl Invariant for Effects {
    fn name(&self) -> &'static str {
        "exactly-once"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
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
