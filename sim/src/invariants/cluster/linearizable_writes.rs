//! linearizable-writes: writes take effect in one order, each between its request and its reply. A write sent
//! after the answer to another write has the larger zxid and, among sequential znodes of one name, the larger
//! number; and each write's answer is the log's answer.

use std::collections::BTreeMap;

use rowlock_proto::Zxid;
use rowlock_proto::path::parent;

use super::super::Invariant;
use super::matching::{Matched, Matching, Sent};
use crate::history::client::{Answer, CallId, ClientFact, Failure, Op, ZnodeChange};
use crate::history::{Book, Fact};

/// Largest values in answers so far.
#[derive(Clone, Debug, Default)]
struct Floor {
    zxid: Zxid,
    /// Largest number of sequential znodes, by requested path.
    numbers: BTreeMap<String, i64>,
    /// Last deletion of each znode: below a znode that is created again, numbers restart.
    deleted: BTreeMap<String, Zxid>,
}

/// Answered writes, and what had been answered before each unanswered call.
#[derive(Default)]
pub struct LinearizableWrites {
    matching: Matching,
    answered: Floor,
    /// Floor at the start of each call: the zxid, and the number of the call's own sequential name.
    floors: BTreeMap<CallId, (Zxid, Option<i64>)>,
}

/// Returns the requested path of a sequential znode.
fn numbered(op: &Op) -> Option<&str> {
    match op {
        Op::Create { path, mode, .. } if mode.is_sequential() => Some(path),
        _ => None,
    }
}

/// Returns the number at the end of a sequential znode's path.
fn number(asked: &str, path: &str) -> Option<i64> {
    path.strip_prefix(asked)?.parse().ok()
}

impl LinearizableWrites {
    fn invoked(&mut self, call: CallId, op: &Op) {
        if op.is_write() {
            let number = numbered(op).and_then(|asked| self.answered.numbers.get(asked).copied());
            self.floors.insert(call, (self.answered.zxid, number));
        }
    }

    fn answered(&mut self, sent: &Sent, answer: &Answer) -> Result<(), String> {
        let what = || format!("{:?} of client {} ({:?})", sent.op, sent.client.0, sent.call);
        let (floor, number_floor) = self.floors.get(&sent.call).copied().unwrap_or_default();
        if let Some(zxid) = answer.zxid().filter(|zxid| *zxid != Zxid(0)) {
            if zxid <= floor {
                return Err(format!(
                    "{} got zxid {zxid}, and {floor} was answered before it was sent",
                    what()
                ));
            }
            self.answered.zxid = self.answered.zxid.max(zxid);
        }
        if let (Some(asked), Answer::Created { path, stat }) = (numbered(&sent.op), answer) {
            let deleted = parent(asked).and_then(|parent| self.answered.deleted.get(parent));
            if deleted.is_some_and(|deleted| stat.czxid < *deleted) {
                return Ok(());
            }
            let Some(number) = number(asked, path) else {
                return Err(format!("{} was named {path}, which does not end with its number", what()));
            };
            if number_floor.is_some_and(|floor| number <= floor) {
                return Err(format!("{} was named {path}, and {number_floor:?} was answered before", what()));
            }
            let last = self.answered.numbers.entry(asked.to_owned()).or_insert(number);
            *last = (*last).max(number);
        }
        Ok(())
    }

    /// Removes the numbers below a deleted znode.
    fn deleted(&mut self, path: &str, zxid: Zxid) {
        self.answered.numbers.retain(|asked, _| parent(asked) != Some(path));
        // The floors do not record their parents, so this call removes the numbers of all unanswered calls.
        // Only calls under way lose a check.
        self.floors.values_mut().for_each(|(_, number)| *number = None);
        self.answered.deleted.insert(path.to_owned(), zxid);
    }

    fn as_in_the_log(&mut self, sent: &Sent, result: &Result<Answer, Failure>) -> Result<(), String> {
        let Some(logged) = &sent.logged else { return Ok(()) };
        let both_tell = matches!(result, Ok(_) | Err(Failure::Refused(_) | Failure::RefusedAt(..)));
        if both_tell && logged.result != *result {
            return Err(format!(
                "client {} was answered {result:?} to {:?}; the log says {:?} at {}",
                sent.client.0, sent.op, logged.result, logged.zxid
            ));
        }
        if result.is_ok() {
            self.answered.zxid = self.answered.zxid.max(logged.zxid);
        }
        Ok(())
    }
}

impl Invariant for LinearizableWrites {
    fn name(&self) -> &'static str {
        "linearizable-writes"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Client { what: ClientFact::Invoked { call, op, .. }, .. } => self.invoked(*call, op),
            Fact::Znode(znode) if znode.change == ZnodeChange::Deleted => {
                self.deleted(&znode.path, znode.zxid);
            }
            _ => {}
        }
        if let Matched::Answered(sent, result) = self.matching.observe(fact) {
            if let Ok(answer) = &result {
                self.answered(&sent, answer)?;
            }
            self.as_in_the_log(&sent, &result)?;
            self.floors.remove(&sent.call);
        }
        Ok(())
    }
}
