//! Comparison of reads with the history of the znodes. The three checkers on top of this module decide how
//! recent a read must be at least.

use std::collections::BTreeMap;
use std::sync::Arc;

use rowlock_proto::{SessionId, Zxid};

use super::znodes::{Read, Znodes};
use crate::history::Fact;
use crate::history::client::{Answer, CallId, ClientFact, ClientId, Failure, Op};

#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) client: ClientId,
    pub(super) session: SessionId,
    pub(super) op: Arc<Op>,
    /// Least zxid of the answer.
    pub(super) floor: Zxid,
    /// Rank among the calls of the run.
    order: u64,
}

/// Unanswered calls, and all znodes.
#[derive(Default)]
pub(super) struct Reads {
    znodes: Znodes,
    asked: BTreeMap<CallId, Asked>,
    asked_so_far: u64,
}

impl Reads {
    /// Consumes a fact about znodes and calls.
    pub(super) fn observe(&mut self, fact: &Fact) {
        self.observe_calls(fact, |_| true);
    }

    /// Consumes a fact about znodes, or about the calls that `matters` selects.
    pub(super) fn observe_calls(&mut self, fact: &Fact, matters: impl Fn(&Op) -> bool) {
        self.znodes.observe(fact);
        let Fact::Client { client, what: ClientFact::Invoked { call, session, op }, .. } = fact else {
            return;
        };
        if !matters(op) {
            return;
        }
        self.asked_so_far += 1;
        let (floor, order) = (Zxid(0), self.asked_so_far);
        let asked = Asked { client: *client, session: *session, op: op.clone(), floor, order };
        self.asked.insert(*call, asked);
    }

    /// Returns the ended call, and the zxid since when the read state holds.
    ///
    /// # Errors
    /// The read is older than its floor, or shows a state that never existed.
    pub(super) fn answered(
        &mut self,
        call: CallId,
        result: &Result<Answer, Failure>,
    ) -> Result<Option<(Asked, Zxid)>, String> {
        let Some(asked) = self.asked.remove(&call) else { return Ok(None) };
        let Op::Read { path, .. } = &*asked.op else { return Ok(Some((asked, Zxid(0)))) };
        let Some(read) = Read::of(result) else { return Ok(Some((asked, Zxid(0)))) };
        let since = self.znodes.read_at(path, &read, asked.floor);
        let since =
            since.map_err(|why| format!("client {} in session {}: {why}", asked.client.0, asked.session))?;
        Ok(Some((asked, since)))
    }

    /// Raises the least zxid of a call's answer to `floor`.
    pub(super) fn raise(&mut self, call: CallId, floor: Zxid) {
        if let Some(asked) = self.asked.get_mut(&call) {
            asked.floor = asked.floor.max(floor);
        }
    }

    /// Raises the floor of all calls that the session sent after `than`. A synced read is exempt: a later
    /// call may have left before the read itself, which follows the sync.
    pub(super) fn raise_behind(&mut self, than: &Asked, floor: Zxid) {
        if matches!(*than.op, Op::Read { synced: true, .. }) {
            return;
        }
        for asked in self.asked.values_mut() {
            if asked.session == than.session && asked.order > than.order {
                asked.floor = asked.floor.max(floor);
            }
        }
    }
}
