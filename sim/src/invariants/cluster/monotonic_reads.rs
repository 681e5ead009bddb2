//! monotonic-reads: a session never reads an older state than before, also on another node; and each read
//! matches the state at one point of the log.

use std::collections::BTreeMap;

use rowlock_proto::{SessionId, Zxid};

use super::super::Invariant;
use super::reads::Reads;
use crate::history::client::{ClientFact, Op, WatchId};
use crate::history::{Book, Fact};

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

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
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
