//! read-your-writes: a session's read sees its own earlier writes.

use std::collections::BTreeMap;

use rowlock_proto::{SessionId, Zxid};

use super::super::Invariant;
use super::matching::{Matched, Matching};
use super::reads::Reads;
use crate::history::Fact;
use crate::history::client::ClientFact;

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

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::{data, delete, get, invoked, logged, returned, set, stat, znode};
    use super::*;
    use crate::history::client::{Answer, Failure, Op, ZnodeChange};

    fn check_facts(facts: &[Fact]) -> Result<(), String> {
        check_history(ReadYourWrites::default(), facts)
    }

    fn history() -> Vec<Fact> {
        vec![
            znode(2, "/data/a", ZnodeChange::Created, Some(("x", stat(2, 2, 0)))),
            znode(4, "/data/a", ZnodeChange::Data, Some(("y", stat(2, 4, 1)))),
            znode(6, "/data/a", ZnodeChange::Deleted, None),
        ]
    }

    fn call(who: usize, call: u64, op: Op, result: Result<Answer, Failure>) -> [Fact; 2] {
        [invoked(who, call, op), returned(who, call, result)]
    }

    fn old(who: usize) -> [Fact; 2] {
        call(who, 2, get("/data/a", false), Ok(Answer::Data(data("x"), stat(2, 2, 0))))
    }

    #[test]
    fn a_read_that_misses_the_sessions_own_write_is_caught() {
        let write = call(1, 1, set("/data/a", "y"), Ok(Answer::Set(stat(2, 4, 1))));
        assert!(check_facts(&[&history()[..], &write, &old(1)].concat()).is_err());
        assert_eq!(check_facts(&[&history()[..], &write, &old(2)].concat()), Ok(()), "others may");
        assert_eq!(check_facts(&[&history()[..], &old(1), &write].concat()), Ok(()));
        let [ask_write, wrote] = write;
        let [ask, read] = old(1);
        let pipelined = [&history()[..], &[ask_write, ask, wrote, read]].concat();
        assert!(check_facts(&pipelined).is_err());
    }

    #[test]
    fn a_read_of_a_znode_the_session_has_deleted_is_caught() {
        let [ask, deleted] = call(1, 1, delete("/data/a"), Ok(Answer::Deleted));
        let ran = logged(1, 6, delete("/data/a"), Ok(Answer::Deleted));
        assert!(check_facts(&[&history()[..], &[ask, ran, deleted], &old(1)].concat()).is_err());
    }
}
