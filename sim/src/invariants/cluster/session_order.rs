//! session-order: the writes of a session take effect in the client's order of sending, also with many
//! pipelined writes and lost connections in between.

use super::super::Invariant;
use super::matching::{Matched, Matching};
use crate::history::{Book, Fact};

#[derive(Default)]
pub struct SentOrder(Matching);

impl Invariant for SentOrder {
    fn name(&self) -> &'static str {
        "session-order"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match (self.0.observe(fact), fact) {
            (Matched::Ran { overtaken_by: Some(later) }, Fact::Logged(logged)) => Err(format!(
                "{:?} of session {} took effect at {}, behind {later:?}, which was sent after it",
                logged.op, logged.session, logged.zxid
            )),
            _ => Ok(()),
        }
    }
}
