//! Transactions: all writes take effect at the same zxid, or none does.

use std::time::Duration;

use bytes::Bytes;
use rowlock_proto::request::{Create, SetData};
use rowlock_proto::{Acl, CreateMode, ErrorCode, Op, OpResult, Request, Response, Stat, Version};

use crate::client::Client;
use crate::error::Error;

/// Operations for [`Client::commit`], in order; later operations see the effects of earlier operations.
#[derive(Clone, Debug, Default)]
#[must_use = "a transaction does nothing until it is committed"]
pub struct Transaction {
    ops: Vec<Op>,
}

/// Result of an operation of a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The znode was created at this path. (Servers before ZooKeeper 3.8.3 leave the Stat out.)
    Created(String, Option<Stat>),
    /// The znode was deleted.
    Deleted,
    /// The data was replaced.
    Set(Stat),
    /// The version was as expected.
    Checked,
}

impl Transaction {
    /// Makes a transaction without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a create, like [`Client::create`].
    pub fn create(
        mut self,
        path: impl Into<String>,
        data: Option<Bytes>,
        mode: CreateMode,
        acl: Vec<Acl>,
    ) -> Self {
        let create = Create { path: path.into(), data, acl: Some(acl.into()), flags: mode.flags() };
        self.ops.push(if mode == CreateMode::Container {
            Op::CreateContainer(create)
        } else {
            Op::Create2(create)
        });
        self
    }

    /// Adds a create with a TTL, like [`Client::create_with_ttl`]; persistent, not sequential.
    pub fn create_with_ttl(
        mut self,
        path: impl Into<String>,
        data: Option<Bytes>,
        acl: Vec<Acl>,
        ttl: Duration,
    ) -> Self {
        let flags = CreateMode::PersistentWithTtl.flags();
        let create = Create { path: path.into(), data, acl: Some(acl.into()), flags };
        self.ops.push(Op::CreateTtl(create, i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)));
        self
    }

    /// Adds a delete, like [`Client::delete`].
    pub fn delete(mut self, path: impl Into<String>, version: Option<Version>) -> Self {
        self.ops.push(Op::Delete { path: path.into(), version: version.unwrap_or(Version::ANY) });
        self
    }

    /// Adds a write of data, like [`Client::set`].
    pub fn set(mut self, path: impl Into<String>, data: Option<Bytes>, version: Option<Version>) -> Self {
        let version = version.unwrap_or(Version::ANY);
        self.ops.push(Op::SetData(SetData { path: path.into(), data, version }));
        self
    }

    /// Requires the znode to exist with this version (`None`: any), or else nothing happens.
    pub fn check(mut self, path: impl Into<String>, version: Option<Version>) -> Self {
        self.ops.push(Op::Check { path: path.into(), version: version.unwrap_or(Version::ANY) });
        self
    }
}

impl Client {
    /// Commits a transaction; returns an outcome per operation.
    ///
    /// # Errors
    /// [`Error::TransactionRejected`] names the refused operation; no operation had an effect.
    /// [`Error::ConnectionLoss`]: either all operations may have taken effect, or none.
    /// # Cancel safety
    /// A dropped future's transaction may take effect, as with every write.
    pub async fn commit(&self, transaction: Transaction) -> Result<Vec<Outcome>, Error> {
        let ops = transaction.ops.into_iter().map(|op| self.absolute_op(op)).collect();
        let Response::Multi(results) = self.ask(Request::Multi(ops)).await?.response else {
            return Err(Error::Protocol("a multi was answered with something else"));
        };
        if let Some((index, code)) = failure(&results) {
            return Err(Error::TransactionRejected { index, code });
        }
        results.into_iter().map(|result| self.outcome(result)).collect()
    }

    fn absolute_op(&self, mut op: Op) -> Op {
        let path = match &mut op {
            Op::Create(create)
            | Op::Create2(create)
            | Op::CreateContainer(create)
            | Op::CreateTtl(create, _) => &mut create.path,
            Op::Delete { path, .. } | Op::Check { path, .. } => path,
            Op::SetData(set) => &mut set.path,
        };
        *path = self.absolute(path);
        op
    }

    fn outcome(&self, result: OpResult) -> Result<Outcome, Error> {
        Ok(match result {
            OpResult::Create(path) => Outcome::Created(self.relative(path), None),
            OpResult::Create2(path, stat)
            | OpResult::CreateContainer(path, stat)
            | OpResult::CreateTtl(path, stat) => Outcome::Created(self.relative(path), Some(stat)),
            OpResult::Delete => Outcome::Deleted,
            OpResult::SetData(stat) => Outcome::Set(stat),
            OpResult::Check => Outcome::Checked,
            OpResult::Error(_) | OpResult::GetData(..) | OpResult::GetChildren(_) => {
                return Err(Error::Protocol("a result in a multi that does not belong there"));
            }
        })
    }
}

/// Finds the refused operation: in a failed multi all results are errors, 0 (`None`) before the refused
/// operation and RuntimeInconsistency behind.
fn failure(results: &[OpResult]) -> Option<(usize, ErrorCode)> {
    results.iter().enumerate().find_map(|(index, result)| match result {
        OpResult::Error(Some(code)) => Some((index, *code)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_real_error_of_a_multi_is_the_one_that_failed() {
        let results = [
            OpResult::Error(None),
            OpResult::Error(Some(ErrorCode::NoNode)),
            OpResult::Error(Some(ErrorCode::RuntimeInconsistency)),
        ];
        assert_eq!(failure(&results), Some((1, ErrorCode::NoNode)));
        assert_eq!(failure(&[OpResult::Delete, OpResult::Check]), None);
    }
}
