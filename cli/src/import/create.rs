//! Creates of an import: steps in the order of the source, grouped into transactions, of which several are in
//! flight.
//!
//! Each step can be repeated: after a lost connection, or if another client was faster, the znodes of a
//! transaction are read and only what they still lack is sent again. Invariant: no step overwrites or deletes
//! another client's znode.
//!
//! Before the first create every ACL of the source is tried: the cluster accepts the ACL, and the import can
//! create and remove znodes below a znode with the ACL. The servers apply their own rules; each transaction
//! removes what it creates.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use futures_util::future::join_all;
use rowlock_client::{Acl, Client, CreateMode, Error, ErrorCode, Outcome, Transaction};
use rowlock_env::{rng, time};

use super::limits::{
    BATCH_BYTES, BATCH_OPS, BATCHES_IN_FLIGHT, OVERTAKEN_MAX, PAUSE, READS_IN_FLIGHT, TRANSACTION_BYTES_MAX,
};
use super::pairs::read;
use super::plan::{Plan, Raise};
use super::record::{Found, Lifetime, Record, creates};
use super::target::{Comparison, Target};
use super::trouble::{ImportError, is_open, retry};

/// Bytes of a create and its delete beside their paths.
const RAISE_BYTES: usize = 120;

type Reply = Pin<Box<dyn Future<Output = Result<Vec<Outcome>, Error>>>>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub znodes: u64,
    pub bytes: u64,
}

/// Repeatable part of an import.
#[derive(Clone)]
enum ImportStep {
    /// The znode exists, with its data version.
    Create(Record),
    /// The next sequence number is at least `to`.
    Raise(Raise),
}

/// Transaction that is being filled, or was sent.
#[derive(Default)]
struct Batch {
    transaction: Transaction,
    ops: usize,
    bytes: usize,
    /// Each step with its first operation.
    steps: Vec<(usize, ImportStep)>,
    created: Amount,
    /// True if the last znode has a time to live and may get children: the first child must be in the same
    /// transaction, because the servers might find the znode idle and delete it.
    is_open_ended: bool,
}

impl Batch {
    fn is_full(&self, cost: usize) -> bool {
        let bytes = self.bytes + cost;
        let is_full = bytes > BATCH_BYTES || self.ops >= BATCH_OPS;
        self.ops > 0 && (bytes > TRANSACTION_BYTES_MAX || is_full && !self.is_open_ended)
    }

    /// Names the path of the refused operation.
    fn refused(&self, target: &Target, error: Error) -> ImportError {
        let step = match &error {
            Error::TransactionRejected { index, .. } => {
                self.steps.iter().rev().find(|(first, _)| first <= index)
            }
            _ => None,
        };
        let about = step.map_or_else(|| "the import".to_owned(), |(_, step)| step.path(target));
        ImportError::Request(about, error)
    }
}

impl ImportStep {
    fn path(&self, target: &Target) -> String {
        match self {
            ImportStep::Create(record) => target.path(&record.path),
            ImportStep::Raise(raise) => raise.path.clone(),
        }
    }
}

struct Sent {
    batch: Batch,
    reply: Reply,
}

/// Sender of the steps.
pub struct Creator<'a> {
    client: &'a Client,
    target: &'a Target,
    /// Beginning of the names of the temporary children that raise a counter.
    raise_name: String,
    pending: Batch,
    sent: VecDeque<Sent>,
    /// Confirmed creates; there may be more in the cluster, never fewer.
    pub created: Amount,
}

impl<'a> Creator<'a> {
    /// Creates a sender that has sent nothing.
    pub fn new(client: &'a Client, target: &'a Target) -> Self {
        Creator {
            client,
            target,
            raise_name: format!("rowlock-import-{:016x}-", rng::u64()),
            pending: Batch::default(),
            sent: VecDeque::new(),
            created: Amount::default(),
        }
    }

    /// Creates a znode, or raises its data version, unless the target has everything of it.
    ///
    /// # Errors
    /// Another client created or changed the znode; or an earlier step failed.
    pub async fn create(&mut self, record: Record, found: Option<&Found>) -> Result<(), ImportError> {
        let cost = self.target.cost(&record);
        let is_open_ended = matches!(record.kind, Lifetime::Ttl(_)) && record.creates != 0;
        self.add(ImportStep::Create(record), found, cost).await?;
        self.pending.is_open_ended = is_open_ended && self.pending.ops > 0;
        Ok(())
    }

    /// Raises a counter in pieces that fit into a transaction.
    ///
    /// # Errors
    /// An earlier step failed.
    pub async fn raise(&mut self, raise: Raise) -> Result<(), ImportError> {
        let cost = 2 * (raise.path.len() + self.raise_name.len()) + RAISE_BYTES;
        let most = (BATCH_BYTES / cost).clamp(1, BATCH_OPS / 2);
        let mut from = raise.from;
        while from < raise.to {
            let to = raise.to.min(from + most as i64);
            let bytes = cost * usize::try_from(to - from).unwrap_or(most);
            self.add(ImportStep::Raise(Raise { path: raise.path.clone(), from, to }), None, bytes).await?;
            self.pending.is_open_ended = false;
            from = to;
        }
        Ok(())
    }

    async fn add(&mut self, step: ImportStep, found: Option<&Found>, cost: usize) -> Result<(), ImportError> {
        if self.pending.is_full(cost) {
            self.flush().await?;
        }
        let mut batch = std::mem::take(&mut self.pending);
        self.extend(&mut batch, step, found, cost)?;
        self.pending = batch;
        Ok(())
    }

    /// Adds to `batch` what the target lacks of a step, given the znode that the target has.
    fn extend(
        &self,
        batch: &mut Batch,
        step: ImportStep,
        found: Option<&Found>,
        cost: usize,
    ) -> Result<(), ImportError> {
        let before = std::mem::take(&mut batch.transaction);
        let (transaction, ops) = match &step {
            ImportStep::Raise(raise) => {
                let from = found.map_or(raise.from, |found| creates(&found.stat));
                self.raise_between(&raise.path, from, raise.to, before)
            }
            ImportStep::Create(record) => match self.target.compare(record, found) {
                Comparison::Missing => {
                    batch.created.znodes += 1;
                    batch.created.bytes += record.data.as_ref().map_or(0, |data| data.len() as u64);
                    self.target.create(record, before)
                }
                Comparison::Equal { from, to } => self.target.set(record, from, to, before),
                Comparison::Kept | Comparison::Unreadable => (before, 0),
                Comparison::Different(why) => {
                    let path = self.target.path(&record.path);
                    return Err(ImportError::Conflict(format!("{path} meanwhile exists and {why}")));
                }
            },
        };
        batch.transaction = transaction;
        if ops > 0 {
            batch.steps.push((batch.ops, step));
            batch.ops += ops;
            batch.bytes += cost;
        }
        Ok(())
    }

    /// Raises a counter: each create counts, and the delete does not lower the counter. The delete names the
    /// number that the create must get: if another client raises the counter first, nothing happens.
    fn raise_between(
        &self,
        parent: &str,
        from: i64,
        to: i64,
        mut transaction: Transaction,
    ) -> (Transaction, usize) {
        let path = rowlock_proto::path::join(parent, &self.raise_name);
        for number in from..to {
            transaction = transaction
                .create(&path, None, CreateMode::PersistentSequential, Acl::open())
                .delete(format!("{path}{number:010}"), None);
        }
        (transaction, 2 * (from..to).count())
    }

    /// Sends everything that was added, and waits until it took effect.
    pub async fn finish(&mut self) -> Result<(), ImportError> {
        self.flush().await?;
        self.wait_for_sent().await
    }

    /// Waits until all sent transactions took effect.
    pub async fn wait_for_sent(&mut self) -> Result<(), ImportError> {
        while !self.sent.is_empty() {
            self.receive().await?;
        }
        Ok(())
    }

    /// Sends the pending transaction; waits for the oldest one if too many are in flight.
    async fn flush(&mut self) -> Result<(), ImportError> {
        if self.pending.ops == 0 {
            return Ok(());
        }
        while self.sent.len() >= BATCHES_IN_FLIGHT {
            self.receive().await?;
        }
        let batch = std::mem::take(&mut self.pending);
        let (client, transaction) = (self.client.clone(), batch.transaction.clone());
        let mut reply: Reply = Box::pin(async move { client.commit(transaction).await });
        // The first poll fixes the transaction's order in the session.
        let polled = poll_fn(|cx| Poll::Ready(reply.as_mut().poll(cx))).await;
        if let Poll::Ready(outcome) = polled {
            reply = Box::pin(std::future::ready(outcome));
        }
        self.sent.push_back(Sent { batch, reply });
        Ok(())
    }

    /// Waits for the oldest transaction, which stays in the queue if this future is dropped.
    async fn receive(&mut self) -> Result<(), ImportError> {
        let Some(oldest) = self.sent.front_mut() else { return Ok(()) };
        let outcome = (&mut oldest.reply).await;
        let Some(Sent { batch, .. }) = self.sent.pop_front() else { return Ok(()) };
        match outcome {
            Ok(_) => {
                self.count(&batch);
                Ok(())
            }
            Err(e) if is_open(&e) || is_overtaken(&e) => self.complete_all(batch).await,
            Err(e) => Err(batch.refused(self.target, e)),
        }
    }

    /// Completes all sent transactions: later ones may have failed because of an earlier one. All replies are
    /// awaited before the first repetition, in order.
    async fn complete_all(&mut self, first: Batch) -> Result<(), ImportError> {
        let mut open = vec![first];
        while let Some(Sent { batch, reply }) = self.sent.pop_front() {
            match reply.await {
                Ok(_) => self.count(&batch),
                Err(_) => open.push(batch),
            }
        }
        for batch in open {
            self.complete(&batch).await?;
            self.count(&batch);
        }
        Ok(())
    }

    async fn complete(&self, batch: &Batch) -> Result<(), ImportError> {
        let mut overtaken = 0;
        loop {
            let rest = self.rest(batch).await?;
            if rest.ops == 0 {
                return Ok(());
            }
            match self.client.commit(rest.transaction.clone()).await {
                Ok(_) => return Ok(()),
                Err(e) if is_open(&e) => time::sleep(PAUSE).await,
                Err(e) if is_overtaken(&e) && overtaken < OVERTAKEN_MAX => overtaken += 1,
                Err(e) => return Err(rest.refused(self.target, e)),
            }
        }
    }

    /// Reads the znodes of a transaction; returns the operations that the target lacks.
    async fn rest(&self, batch: &Batch) -> Result<Batch, ImportError> {
        retry(|| self.client.sync("/")).await.map_err(ImportError::at("/"))?;
        let mut rest = Batch::default();
        for some in batch.steps.chunks(READS_IN_FLIGHT) {
            let paths: Vec<String> = some.iter().map(|(_, step)| step.path(self.target)).collect();
            let reads = join_all(paths.iter().map(|path| read(self.client, path))).await;
            for (((_, step), path), found) in some.iter().zip(&paths).zip(reads) {
                let found = found.map_err(ImportError::at(path))?;
                if found.is_none() && matches!(step, ImportStep::Raise(_)) {
                    return Err(ImportError::Conflict(format!("{path} was deleted meanwhile")));
                }
                self.extend(&mut rest, step.clone(), found.as_ref(), 0)?;
            }
        }
        Ok(rest)
    }

    fn count(&mut self, batch: &Batch) {
        self.created.znodes += batch.created.znodes;
        self.created.bytes += batch.created.bytes;
    }
}

/// Returns true if other clients changed znodes of the transaction, for example a second import.
fn is_overtaken(e: &Error) -> bool {
    matches!(e.code(), Some(ErrorCode::NodeExists | ErrorCode::NoNode | ErrorCode::BadVersion))
}

pub async fn try_acls(client: &Client, plan: &Plan) -> Result<(), ImportError> {
    let trial = format!("/zookeeper/rowlock-import-{:016x}", rng::u64());
    for (acl, used) in &plan.acls {
        let outcome = retry(|| client.commit(transaction(&trial, acl, used.has_children))).await;
        let Err(e) = outcome else { continue };
        return Err(match &e {
            // The create of the znode with the ACL is the first operation.
            Error::TransactionRejected { index: 1.., code: ErrorCode::NoAuth } => ImportError::Acl(format!(
                "{}: its ACL does not let this import create znodes below it; present the cluster's super credential \
                 (super_digest in cluster.toml) with ROWLOCK_AUTH=digest:super:PASSWORD",
                used.path
            )),
            e if e.code() == Some(ErrorCode::InvalidAcl) => {
                ImportError::Acl(format!("{}: the cluster does not accept its ACL", used.path))
            }
            _ => ImportError::Request(trial, e),
        });
    }
    Ok(())
}

/// Returns a transaction that leaves nothing in the cluster.
fn transaction(trial: &str, acl: &[Acl], has_children: bool) -> Transaction {
    let child = format!("{trial}/child");
    let mut transaction = Transaction::new().create(trial, None, CreateMode::Persistent, acl.to_vec());
    if has_children {
        transaction =
            transaction.create(&child, None, CreateMode::Persistent, Acl::open()).delete(&child, None);
    }
    transaction.delete(trial, None)
}
