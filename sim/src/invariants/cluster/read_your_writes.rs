//! read-your-writes: a session's read sees its own earlier writes.

use std::collections::BTreeMap;

use rowlock_proto::{SessionId, Zxid};

use super::super::Invariant;
use super::matching::{Matched, Matching};
use super::reads::Reads;
use crate::history::client::ClientFact;
use crate::history::{Book, Fact};

/// Latest write of each session.
#[derive(Default)]
pub struct ReadYourWrites {
    reads: Reads,
    matching: Matching,
    written: BTreeMap<SessionId, Zxid>,
}

impl Invariant for ReadYourWrites {
    fn name(&self) -> &'static str {
        "read-your-writes"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.reads.observe(fact);
        let matched = self.matching.observe(fact);
        let Fact::Client { what, .. } = fact else { return Ok(()) };
        match what {
            ClientFact::Invoked { call, session, .. } => {
                self.reads.raise(*call, self.written.get(session).copied().unwrap_or_default());
            }
            ClientFact::Returned { call, result } => {
                let Some((asked, _)) = self.reads.answered(*call, result)? else { return Ok(()) };
                if let Matched::Answered(sent, Ok(answer)) = matched {
                    let zxid = sent.logged.map(|logged| logged.zxid).or(answer.zxid()).unwrap_or_default();
                    let written = self.written.entry(asked.session).or_default();
                    *written = (*written).max(zxid);
                    self.reads.raise_behind(&asked, zxid);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
