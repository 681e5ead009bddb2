//! Verification of an import: reads everything back and compares data, ACLs and children with the source.
//!
//! Kinds of znodes cannot be compared: ZooKeeper's protocol shows containers and TTL znodes as persistent
//! ones. The only evidence is the accepted transaction.

use std::collections::BTreeSet;

use rowlock_client::{AccessList, Acl, Client, Error, ErrorCode, Znode};

use super::limits::{LISTED, READS_IN_FLIGHT};
use super::lineage::{Lineage, OpenZnode};
use super::plan::{Counting, Selection, select};
use super::record::{Lifetime, Record};
use super::retry::{all, retry};
use super::show::Progress;
use super::snapshot::Snapshot;
use super::target::Target;
use super::trouble::ImportError;
use super::window::Amount;

#[derive(Debug, Default)]
pub struct Verified {
    pub amount: Amount,
    /// Znodes whose data or ACL this client may not read.
    pub unreadable: u64,
    /// Znodes changed by other clients since their creation.
    pub changed: u64,
    /// Containers and TTL znodes that have ended already.
    pub ended: u64,
}

pub struct Verifier<'a> {
    client: &'a Client,
    target: &'a Target,
    counting: Counting,
    lineage: Lineage,
    verified: Verified,
    differences: Vec<String>,
    waiting: Vec<Record>,
    /// Open znodes with their number of children on the cluster.
    counts: Vec<(String, i64)>,
    /// Rightly deleted znodes, to correct their parents' counts.
    gone: BTreeSet<String>,
}

type Read = (Result<Znode, Error>, Result<AccessList, Error>);

impl<'a> Verifier<'a> {
    /// Creates the pass over everything imported to `target`.
    pub fn new(client: &'a Client, target: &'a Target, counting: Counting) -> Self {
        Verifier {
            client,
            target,
            counting,
            lineage: Lineage::default(),
            verified: Verified::default(),
            differences: Vec::new(),
            waiting: Vec::new(),
            counts: Vec::new(),
            gone: BTreeSet::new(),
        }
    }

    /// Compares everything; fails with [`ImportError::Different`] on any difference.
    pub async fn run(mut self, source: &Snapshot, progress: &mut Progress) -> Result<Verified, ImportError> {
        retry(|| self.client.sync("/")).await.map_err(ImportError::at("/"))?;
        let mut records = source.records();
        while let Some(record) = records.next()? {
            if select(&record) != Selection::Taken {
                continue;
            }
            self.waiting.push(record);
            if self.waiting.len() >= READS_IN_FLIGHT {
                self.compare_waiting().await?;
                progress.show(self.verified.amount);
            }
        }
        self.compare_waiting().await?;
        let rest: Vec<OpenZnode> = std::mem::take(&mut self.lineage).finish().collect();
        self.close_all(&rest);
        progress.show(self.verified.amount);
        if self.differences.is_empty() {
            Ok(self.verified)
        } else {
            Err(ImportError::Different(self.differences))
        }
    }

    async fn compare_waiting(&mut self) -> Result<(), ImportError> {
        let waiting = std::mem::take(&mut self.waiting);
        let client = self.client;
        let paths: Vec<String> = waiting.iter().map(|record| self.target.path(&record.path)).collect();
        let reads = paths.iter().map(|path| async move {
            (retry(|| client.get(path)).await, retry(|| client.get_acl(path)).await)
        });
        let reads: Vec<Read> = all(reads).await;
        for ((record, path), read) in waiting.iter().zip(&paths).zip(reads) {
            let closed = self.lineage.enter(record)?;
            self.close_all(&closed);
            if record.path != "/" || self.counting.root_creates.is_none() {
                self.compare(record, path, read)?;
            }
        }
        Ok(())
    }

    fn compare(&mut self, record: &Record, path: &str, (data, acl): Read) -> Result<(), ImportError> {
        self.verified.amount.znodes += 1;
        let Znode { data, stat } = match data {
            Ok(read) => read,
            Err(Error::Rejected(ErrorCode::NoNode)) => {
                self.absent(record, path);
                return Ok(());
            }
            Err(Error::Rejected(ErrorCode::NoAuth)) => {
                self.verified.unreadable += 1;
                return Ok(());
            }
            Err(e) => return Err(ImportError::at(path)(e)),
        };
        self.verified.amount.bytes += data.as_ref().map_or(0, |data| data.len() as u64);
        self.counts.push((record.path.clone(), i64::from(stat.num_children)));
        if stat.ephemeral_owner.0 != 0 {
            self.differ(path, "belongs to a session");
        }
        if stat.mzxid != stat.czxid {
            self.verified.changed += 1;
        } else if data != record.data {
            self.differ(path, "has other data");
        } else if stat.version.0 != self.target.sets(record).map_or(0, |_| record.version) {
            self.differ(path, "has another version");
        }
        match acl {
            Ok(list) if *record.acl == list.acl || is_hidden(&list.acl, &record.acl) => {}
            Ok(list) if list.stat.aversion.0 != 0 => self.verified.changed += 1,
            Ok(_) => self.differ(path, "has another ACL"),
            Err(Error::Rejected(ErrorCode::NoNode)) => self.absent(record, path),
            Err(Error::Rejected(ErrorCode::NoAuth)) => self.verified.unreadable += 1,
            Err(e) => return Err(ImportError::at(path)(e)),
        }
        Ok(())
    }

    /// Handles a missing znode. Servers may have deleted an empty container or a TTL znode.
    fn absent(&mut self, record: &Record, path: &str) {
        match record.kind {
            Lifetime::Container | Lifetime::Ttl(_) => {
                self.verified.ended += 1;
                self.gone.insert(record.path.clone());
            }
            Lifetime::Persistent | Lifetime::Ephemeral => self.differ(path, "is missing"),
        }
    }

    fn close_all(&mut self, closed: &[OpenZnode]) {
        for open in closed {
            let parent = rowlock_proto::path::parent(&open.path);
            if self.gone.remove(&open.path)
                && let Some((_, found)) =
                    parent.and_then(|parent| self.counts.iter_mut().rev().find(|(path, _)| path == parent))
            {
                *found += 1;
            }
            let Some(at) = self.counts.iter().rposition(|(path, _)| *path == open.path) else { continue };
            let (_, found) = self.counts.remove(at);
            if found < open.children {
                let text = format!("has {found} children instead of {}", open.children);
                self.differ(&self.target.path(&open.path), &text);
            } else if found > open.children {
                self.verified.changed += 1;
            }
        }
    }

    fn differ(&mut self, path: &str, difference: &str) {
        if self.differences.len() < LISTED {
            self.differences.push(format!("{path} {difference}"));
        }
    }
}

/// Returns true for an equal list with hidden digests, as shown to clients without ADMIN.
fn is_hidden(shown: &[Acl], acl: &[Acl]) -> bool {
    shown.len() == acl.len()
        && shown.iter().zip(acl).all(|(shown, entry)| {
            let user = entry.id.id.split(':').next().unwrap_or_default();
            shown == entry
                || shown.perms == entry.perms
                    && entry.id.scheme == "digest"
                    && shown.id.scheme == "digest"
                    && shown.id.id == format!("{user}:x")
        })
}
