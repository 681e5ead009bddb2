//! Pass that creates znodes in the order of the source, grouped into transactions, each with its journal
//! entry.

use rowlock_client::{Acl, CreateMode, Transaction};

use super::journal;
use super::limits::{BATCH_BYTES, BATCH_OPS, RECORDS_PER_TURN, TRANSACTION_BYTES_MAX};
use super::lineage::{Counter, Lineage, OpenZnode};
use super::plan::{Counting, Selection, select};
use super::record::{Lifetime, Record};
use super::show::Progress;
use super::snapshot::Snapshot;
use super::target::Target;
use super::trouble::ImportError;
use super::window::{Amount, SentTransaction, Window};

/// Bytes of a create and its delete beside their paths.
const STEP_BYTES: usize = 100;

pub struct Creator<'a> {
    target: &'a Target,
    counting: Counting,
    /// Name of the temporary child that raises a counter.
    step_name: String,
    lineage: Lineage,
    next_entry: u64,
    pending: PendingTransaction,
}

#[derive(Default)]
struct PendingTransaction {
    transaction: Transaction,
    ops: usize,
    bytes: usize,
    paths: String,
    about: Vec<(usize, String)>,
    amount: Amount,
    /// True if the last znode has a time to live and may get children: the first child must be in the same
    /// transaction, because the servers might find the znode idle and delete it.
    is_open_ended: bool,
}

impl PendingTransaction {
    fn is_full(&self, cost: usize) -> bool {
        let bytes = self.bytes + cost;
        let is_full = bytes > BATCH_BYTES || self.ops >= BATCH_OPS;
        self.ops > 0 && (bytes > TRANSACTION_BYTES_MAX || is_full && !self.is_open_ended)
    }
}

impl<'a> Creator<'a> {
    /// Creates the pass; `id` identifies the import.
    pub fn new(target: &'a Target, counting: Counting, id: &str) -> Self {
        Creator {
            target,
            counting,
            step_name: format!("rowlock-import-{id}"),
            lineage: Lineage::default(),
            next_entry: 0,
            pending: PendingTransaction::default(),
        }
    }

    /// Creates everything; returns after the last transaction took effect.
    pub async fn run(
        mut self,
        source: &Snapshot,
        window: &mut Window,
        progress: &mut Progress,
    ) -> Result<(), ImportError> {
        let mut records = source.records();
        let mut count = 0_usize;
        while let Some(record) = records.next()? {
            count += 1;
            if count.is_multiple_of(RECORDS_PER_TURN) {
                tokio::task::yield_now().await;
            }
            if select(&record) == Selection::Taken {
                self.take(&record, window).await?;
                progress.show(window.done);
            }
        }
        let rest: Vec<OpenZnode> = std::mem::take(&mut self.lineage).finish().collect();
        self.close_all(&rest, window).await?;
        self.flush(window).await?;
        window.finish().await?;
        progress.show(window.done);
        Ok(())
    }

    async fn take(&mut self, record: &Record, window: &mut Window) -> Result<(), ImportError> {
        let closed = self.lineage.enter(record)?;
        self.close_all(&closed, window).await?;
        if record.path == "/" && self.counting.root_creates.is_some() {
            return Ok(());
        }
        let cost = self.target.cost(record);
        if self.pending.is_full(cost) {
            self.flush(window).await?;
        }
        let pending = &mut self.pending;
        let path = self.target.path(&record.path);
        let (transaction, ops) = self.target.add(record, std::mem::take(&mut pending.transaction));
        pending.transaction = transaction;
        pending.about.push((pending.ops, path.clone()));
        pending.paths.push_str(&path);
        pending.paths.push('\n');
        pending.ops += ops;
        pending.bytes += cost;
        pending.amount.znodes += 1;
        pending.amount.bytes += record.data.as_ref().map_or(0, |data| data.len() as u64);
        pending.is_open_ended = matches!(record.kind, Lifetime::Ttl(_)) && record.creates != 0;
        Ok(())
    }

    async fn close_all(&mut self, closed: &[OpenZnode], window: &mut Window) -> Result<(), ImportError> {
        for open in closed {
            match self.counting.counter(open) {
                Counter::Kept => {}
                Counter::Raised(steps) | Counter::Lowered(steps) => {
                    self.raise(&self.target.path(&open.path), steps, window).await?;
                }
                Counter::Collides(_) => unreachable!("the plan refuses collisions"),
            }
        }
        Ok(())
    }

    /// Raises a counter: each create counts, and the delete does not lower the counter.
    async fn raise(&mut self, parent: &str, steps: i64, window: &mut Window) -> Result<(), ImportError> {
        let path = rowlock_proto::path::join(parent, &self.step_name);
        let cost = 2 * path.len() + STEP_BYTES;
        for _ in 0..steps {
            if self.pending.is_full(cost) {
                self.flush(window).await?;
            }
            let pending = &mut self.pending;
            if pending.about.last().is_none_or(|(_, last)| last != parent) {
                pending.about.push((pending.ops, parent.to_owned()));
            }
            pending.transaction = std::mem::take(&mut pending.transaction)
                .create(&path, None, CreateMode::Persistent, Acl::open())
                .delete(&path, None);
            pending.ops += 2;
            pending.bytes += cost;
            pending.is_open_ended = false;
        }
        Ok(())
    }

    async fn flush(&mut self, window: &mut Window) -> Result<(), ImportError> {
        let PendingTransaction { transaction, ops, mut about, paths, amount, .. } =
            std::mem::take(&mut self.pending);
        if ops == 0 {
            return Ok(());
        }
        let entry = journal::entry(self.next_entry);
        self.next_entry += 1;
        about.push((ops, entry.clone()));
        let transaction = transaction.create(&entry, Some(paths.into()), CreateMode::Persistent, Acl::open());
        window.send(SentTransaction { entry, transaction, about, amount }).await?;
        Ok(())
    }
}
