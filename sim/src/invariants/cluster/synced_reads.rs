//! synced-reads: a read after a sync sees everything that any answer to any client had shown before the
//! client sent the sync.

use rowlock_proto::Zxid;

use super::super::Invariant;
use super::matching::{Matched, Matching};
use super::reads::Reads;
use super::znodes::Read;
use crate::history::client::{ClientFact, Op};
use crate::history::{Book, Fact};

#[derive(Default)]
pub struct SyncedReads {
    reads: Reads,
    matching: Matching,
    answered: Zxid,
}

impl Invariant for SyncedReads {
    fn name(&self) -> &'static str {
        "synced-reads"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.reads.observe_calls(fact, |op| matches!(op, Op::Read { synced: true, .. }));
        let matched = self.matching.observe(fact);
        let Fact::Client { what, .. } = fact else { return Ok(()) };
        match what {
            ClientFact::Invoked { call, op, .. } if matches!(**op, Op::Read { synced: true, .. }) => {
                self.reads.raise(*call, self.answered);
            }
            ClientFact::Returned { call, result } => {
                self.reads.answered(*call, result)?;
                let shown = Read::of(result).and_then(|read| read.since()).unwrap_or_default();
                let written = match matched {
                    Matched::Answered(sent, Ok(answer)) => {
                        sent.logged.map(|logged| logged.zxid).or(answer.zxid()).unwrap_or_default()
                    }
                    _ => Zxid(0),
                };
                self.answered = self.answered.max(shown).max(written);
            }
            _ => {}
        }
        Ok(())
    }
}
