//! linearizable-writes: writes take effect in one order, each between its request and its reply. A write sent
//! after the answer to another write has the larger zxid and, among sequential znodes of one name, the larger
//! number; and each write's answer is the log's answer.

use std::collections::BTreeMap;

use rowlock_proto::Zxid;
use rowlock_proto::path::parent;

use super::super::Invariant;
use super::matching::{Matched, Matching, Sent};
use crate::history::Fact;
use crate::history::client::{Answer, CallId, ClientFact, Failure, Op, ZnodeChange};

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

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use rowlock_proto::{CreateMode, ErrorCode};

    use super::super::super::check_history;
    use super::super::testing::{data, delete, invoked, logged, returned, set, stat, znode};
    use super::*;

    fn check_facts(facts: &[Fact]) -> Result<(), String> {
        check_history(LinearizableWrites::default(), facts)
    }

    fn answer(zxid: i64) -> Result<Answer, Failure> {
        Ok(Answer::Set(stat(1, zxid, 1)))
    }

    #[test]
    fn a_write_ordered_before_an_earlier_answer_is_caught() {
        let (one, other) = (set("/data/a", "1"), set("/data/b", "2"));
        let facts = [
            invoked(1, 1, one.clone()),
            returned(1, 1, answer(5)),
            invoked(2, 2, other.clone()),
            returned(2, 2, answer(4)),
        ];
        assert!(check_facts(&facts).is_err());
        let beside = [facts[0].clone(), facts[2].clone(), facts[1].clone(), facts[3].clone()];
        assert_eq!(check_facts(&beside), Ok(()));
    }

    #[test]
    fn a_delete_counts_by_its_place_in_the_log() {
        let facts = [
            invoked(1, 1, delete("/data/a")),
            logged(1, 5, delete("/data/a"), Ok(Answer::Deleted)),
            returned(1, 1, Ok(Answer::Deleted)),
            invoked(2, 2, set("/data/b", "2")),
            returned(2, 2, answer(4)),
        ];
        assert!(check_facts(&facts).is_err());
    }

    #[test]
    fn an_answer_that_the_log_has_not_given_is_caught() {
        let refused = Err(Failure::Refused(ErrorCode::BadVersion));
        let op = || set("/data/a", "1");
        let facts = |told| [invoked(1, 1, op()), logged(1, 5, op(), answer(5)), returned(1, 1, told)];
        assert_eq!(check_facts(&facts(answer(5))), Ok(()));
        assert!(check_facts(&facts(Ok(Answer::Set(stat(1, 5, 2))))).is_err());
        assert!(check_facts(&facts(refused)).is_err());
        assert_eq!(check_facts(&facts(Err(Failure::Unknown))), Ok(()));
    }

    #[test]
    fn numbers_that_go_back_in_real_time_are_caught() {
        let op = || {
            let mode = CreateMode::PersistentSequential;
            Op::Create { path: "/data/q/n-".to_owned(), data: data("1"), mode }
        };
        let named = |zxid, number: &str| {
            Ok(Answer::Created { path: format!("/data/q/n-{number}"), stat: stat(zxid, zxid, 0) })
        };
        let facts = |second| {
            [
                invoked(1, 1, op()),
                returned(1, 1, named(5, "0000000007")),
                invoked(2, 2, op()),
                returned(2, 2, named(6, second)),
            ]
        };
        assert!(check_facts(&facts("0000000006")).is_err());
        assert!(check_facts(&facts("x")).is_err());
        assert_eq!(check_facts(&facts("0000000008")), Ok(()));
    }

    #[test]
    fn numbers_restart_below_a_znode_that_is_created_again() {
        let op = || {
            let mode = CreateMode::PersistentSequential;
            Op::Create { path: "/data/q/n-".to_owned(), data: data("1"), mode }
        };
        let named = |zxid, number: i64| {
            Ok(Answer::Created { path: format!("/data/q/n-{number:010}"), stat: stat(zxid, zxid, 0) })
        };
        let facts = [
            invoked(1, 1, op()),
            invoked(2, 2, op()),
            returned(1, 1, named(5, 7)),
            invoked(1, 3, op()),
            znode(7, "/data/q", ZnodeChange::Deleted, None),
            returned(2, 2, named(6, 8)),
            returned(1, 3, named(9, 0)),
            invoked(1, 4, op()),
            returned(1, 4, named(10, 1)),
        ];
        assert_eq!(check_facts(&facts), Ok(()));
        let again = [invoked(1, 5, op()), returned(1, 5, named(11, 1))];
        assert!(check_facts(&[&facts[..], &again[..]].concat()).is_err());
    }
}
