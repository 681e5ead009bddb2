//! multi: several operations as one change, all or nothing.
//!
//! Operations run one after another, so that later operations see the earlier ones. A failure reverts the
//! earlier ones, last first. Events wait for the success of all operations.

use rowlock_proto::lock::Claim;
use rowlock_proto::request::Op;
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{CreateMode, ErrorCode};

use crate::command::Author;
use crate::done::{Cause, Done};
use crate::guard::decides;
use crate::machine::Machine;
use crate::outcome::EventSink;
use crate::steps;

impl Machine {
    /// Runs all of `ops`, or none. After a failure every result is an [`OpResult::Error`]: without a code in
    /// front of the failed operation, with its own code for the failed operation, and with
    /// `RuntimeInconsistency` behind it.
    pub(crate) fn multi<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        ops: &[Op],
        sink: &mut S,
    ) -> Vec<OpResult> {
        let before = *self.tree.totals();
        let mut all_done = Vec::with_capacity(ops.len());
        for op in ops {
            match self.one_of_multi(by, op) {
                Ok(done) => all_done.push(done),
                Err(code) => {
                    let results = self.take_back(all_done, code, ops.len());
                    assert_eq!(*self.tree.totals(), before, "a multi that fails changes nothing");
                    return results;
                }
            }
        }
        self.end_delays(&all_done);
        self.publish(Cause::new(by, None), &mut all_done, sink);
        all_done.into_iter().zip(ops).map(|(done, op)| result(op, done)).collect()
    }

    /// Changes a znode if the claim holds its lock. The path alone proves nothing, the token does: after a
    /// deletion and a new creation of a lock, a later position may have the same path.
    pub(crate) fn fenced<S: EventSink + ?Sized>(
        &mut self,
        by: &Author,
        claim: &Claim,
        change: &Op,
        sink: &mut S,
    ) -> Result<Response, ErrorCode> {
        let holder = self.holder_of(claim);
        if decides!("multi-claim-is-not-held", holder != Some(by.session)) {
            self.permit_reading((by.session, by.who), claim)?;
        }
        if decides!("multi-claim-has-no-holder", holder.is_none()) {
            let refused = [ErrorCode::NoNode, ErrorCode::RuntimeInconsistency];
            return Ok(Response::Multi(refused.map(|code| OpResult::Error(Some(code))).into()));
        }
        let token = steps::uncounted(|| self.tree.get(&claim.path).map(|place| place.meta.czxid.0));
        assert_eq!(token, Some(claim.token.0), "a token is the czxid of its place");
        let [result] = <[OpResult; 1]>::try_from(self.multi(by, std::slice::from_ref(change), sink))
            .expect("one operation has one result");
        let check =
            if matches!(result, OpResult::Error(_)) { OpResult::Error(None) } else { OpResult::Check };
        Ok(Response::Multi(vec![check, result]))
    }

    fn one_of_multi(&mut self, by: &Author, op: &Op) -> Result<Done, ErrorCode> {
        match op {
            Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create) => {
                self.create(by, create, None)
            }
            Op::CreateTtl(create, ttl_ms) => self.create(by, create, Some(*ttl_ms)),
            Op::Delete { path, version } => self.delete(by, path, *version),
            Op::SetData(set) => self.set_data(by, set),
            Op::Check { path, version } => self.check_version(by, path, *version),
        }
    }

    fn take_back(&mut self, all_done: Vec<Done>, code: ErrorCode, count: usize) -> Vec<OpResult> {
        let failed = all_done.len();
        assert!(failed < count, "all {count} operations were carried out, and one failed");
        self.take_all_back(all_done);
        let mut results = vec![OpResult::Error(Some(ErrorCode::RuntimeInconsistency)); count];
        results[..failed].fill(OpResult::Error(None));
        results[failed] = OpResult::Error(Some(code));
        results
    }
}

/// Returns the result of an operation. Results for containers and TTL znodes always have the form of create2:
/// ZooKeeper's have too, and Java clients know no other types in the response to a multi.
fn result(op: &Op, done: Done) -> OpResult {
    match op {
        Op::Create(create) if create.flags != CreateMode::Container.flags() => OpResult::Create(done.path),
        Op::Create(_) | Op::Create2(_) | Op::CreateContainer(_) | Op::CreateTtl(..) => {
            OpResult::Create2(done.path, done.stat)
        }
        Op::Delete { .. } => OpResult::Delete,
        Op::SetData(_) => OpResult::SetData(done.stat),
        Op::Check { .. } => OpResult::Check,
    }
}
