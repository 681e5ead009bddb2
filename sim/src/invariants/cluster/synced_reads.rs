//! synced-reads: a read after a sync sees everything that any answer to any client had shown before the
//! client sent the sync.

use rowlock_proto::Zxid;

use super::super::Invariant;
use super::matching::{Matched, Matching};
use super::reads::Reads;
use super::znodes::Read;
use crate::history::Fact;
use crate::history::client::{ClientFact, Op};

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

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::{data, get, invoked, returned, set, stat, znode};
    use super::*;
    use crate::history::client::{Answer, ZnodeChange};

    #[test]
    fn a_synced_read_that_misses_an_answered_write_is_caught() {
        let history = [
            znode(2, "/data/a", ZnodeChange::Created, Some(("x", stat(2, 2, 0)))),
            znode(4, "/data/a", ZnodeChange::Data, Some(("y", stat(2, 4, 1)))),
        ];
        let write = [invoked(1, 1, set("/data/a", "y")), returned(1, 1, Ok(Answer::Set(stat(2, 4, 1))))];
        let read = |synced| {
            let old = Ok(Answer::Data(data("x"), stat(2, 2, 0)));
            [invoked(2, 2, get("/data/a", synced)), returned(2, 2, old)]
        };
        let check_facts = |facts: &[&[Fact]]| check_history(SyncedReads::default(), &facts.concat());
        assert!(check_facts(&[&history, &write, &read(true)]).is_err());
        assert_eq!(check_facts(&[&history, &write, &read(false)]), Ok(()), "a plain read may be old");
        assert_eq!(check_facts(&[&history, &read(true), &write]), Ok(()));
        let [ask, answer] = read(true);
        assert_eq!(check_facts(&[&history, &[ask], &write, &[answer]]), Ok(()), "asked before the answer");
    }
}
