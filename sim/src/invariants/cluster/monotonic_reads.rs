//! monotonic-reads: a session never reads an older state than before, also on another node; and each read
//! matches the state at one point of the log.

use std::collections::BTreeMap;

use rowlock_proto::{SessionId, Zxid};

use super::super::Invariant;
use super::reads::Reads;
use crate::history::Fact;
use crate::history::client::{ClientFact, Op, WatchId};

/// Newest zxid seen by each session.
#[derive(Default)]
pub struct MonotonicReads {
    reads: Reads,
    seen: BTreeMap<SessionId, Zxid>,
    watches: BTreeMap<WatchId, SessionId>,
}

impl MonotonicReads {
    fn see(&mut self, session: SessionId, zxid: Zxid) {
        let seen = self.seen.entry(session).or_default();
        *seen = (*seen).max(zxid);
    }
}

impl Invariant for MonotonicReads {
    fn name(&self) -> &'static str {
        "monotonic-reads"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        self.reads.observe(fact);
        let Fact::Client { what, .. } = fact else { return Ok(()) };
        match what {
            ClientFact::Invoked { call, session, op } => {
                self.reads.raise(*call, self.seen.get(session).copied().unwrap_or_default());
                if let Op::Read { watch: Some(watch), .. } = &**op {
                    self.watches.insert(*watch, *session);
                }
            }
            // An event raises the floor of later calls only; replies under way may be older.
            ClientFact::Event { watch, zxid, .. } => {
                if let Some(session) = self.watches.remove(watch) {
                    self.see(session, *zxid);
                }
            }
            ClientFact::Returned { call, result } => {
                if let Some((asked, since)) = self.reads.answered(*call, result)? {
                    self.see(asked.session, since);
                    self.reads.raise_behind(&asked, since);
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
    use super::super::testing::{data, get, invoked, returned, stat, znode};
    use super::*;
    use crate::history::client::{Answer, ZnodeChange};

    fn history() -> Vec<Fact> {
        vec![
            znode(2, "/data/a", ZnodeChange::Created, Some(("x", stat(2, 2, 0)))),
            znode(4, "/data/a", ZnodeChange::Data, Some(("y", stat(2, 4, 1)))),
        ]
    }

    fn read(who: usize, call: u64, text: &str, mzxid: i64, version: i32) -> [Fact; 2] {
        let answer = Ok(Answer::Data(data(text), stat(2, mzxid, version)));
        [invoked(who, call, get("/data/a", false)), returned(who, call, answer)]
    }

    #[test]
    fn a_session_that_reads_the_past_is_caught() {
        let (new, old) = (read(1, 1, "y", 4, 1), read(1, 2, "x", 2, 0));
        let facts = [&history()[..], &new, &old].concat();
        assert!(check_history(MonotonicReads::default(), &facts).is_err());
        let facts = [&history()[..], &old, &new].concat();
        assert_eq!(check_history(MonotonicReads::default(), &facts), Ok(()));
        let facts = [&history()[..], &new, &read(2, 2, "x", 2, 0)].concat();
        assert_eq!(check_history(MonotonicReads::default(), &facts), Ok(()), "another session may");
    }

    #[test]
    fn pipelined_reads_do_not_go_back_either() {
        let ([ask_new, new], [ask_old, old]) = (read(1, 1, "y", 4, 1), read(1, 2, "x", 2, 0));
        let facts = [&history()[..], &[ask_new, ask_old, new, old]].concat();
        assert!(check_history(MonotonicReads::default(), &facts).is_err());
    }

    #[test]
    fn what_never_was_is_caught() {
        let facts = [&history()[..], &read(1, 1, "z", 4, 1)].concat();
        assert!(check_history(MonotonicReads::default(), &facts).unwrap_err().contains("never"));
    }
}
