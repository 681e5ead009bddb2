//! Paths and costs of imported znodes in the target cluster.

use rowlock_client::Transaction;
use rowlock_proto::{Acl, CreateMode, path as paths};

use super::limits::{TRANSACTION_BYTES_MAX, VERSION_BYTES_MAX};
use super::record::{Lifetime, Record};

/// Bytes of an operation beside its path, data and ACL.
const OP_BYTES: usize = 40;

#[derive(Clone, Debug)]
pub struct Target {
    /// Path of the source's root in the target.
    pub under: String,
    /// Largest data version reached by repeated sets; `None`: all versions are 0.
    pub versions_max: Option<i32>,
}

impl Target {
    /// Maps a path of the source to its path in the target.
    pub fn path(&self, source: &str) -> String {
        match (self.under.as_str(), source) {
            (under, "/") => under.to_owned(),
            ("/", source) => source.to_owned(),
            (under, source) => format!("{under}{source}"),
        }
    }

    /// Returns the number of sets after the znode's create; `None` if the version is not kept.
    pub fn sets(&self, record: &Record) -> Option<usize> {
        let version = usize::try_from(record.version).ok().filter(|version| *version > 0)?;
        let max = usize::try_from(self.versions_max?).ok()?;
        let bytes = version * (self.path(&record.path).len() + OP_BYTES);
        (version <= max && bytes <= VERSION_BYTES_MAX).then_some(version)
    }

    /// Returns the bytes that the create of a znode adds to a transaction, including its journal line.
    pub fn cost(&self, record: &Record) -> usize {
        let path = self.path(&record.path).len();
        let acl: usize = record.acl.iter().map(|entry| 12 + entry.id.scheme.len() + entry.id.id.len()).sum();
        let data = record.data.as_ref().map_or(0, |data| data.len());
        2 * path + acl + data + OP_BYTES + self.sets(record).unwrap_or(0) * (path + OP_BYTES)
    }

    /// Returns the reason that forbids creating a znode, if any.
    pub fn obstacle(&self, record: &Record) -> Option<String> {
        let path = self.path(&record.path);
        if let Err(e) = paths::validate(&path) {
            return Some(format!("{path}: {e}"));
        }
        if path.len() > paths::MAX_BYTES {
            return Some(format!("{path}: the path is longer than {} bytes", paths::MAX_BYTES));
        }
        if paths::levels(&path) > paths::MAX_LEVELS {
            return Some(format!("{path}: the path has more than {} levels", paths::MAX_LEVELS));
        }
        if self.cost(record) > TRANSACTION_BYTES_MAX {
            let data = record.data.as_ref().map_or(0, |data| data.len());
            return Some(format!("{path}: {data} bytes of data do not fit into a request"));
        }
        let scheme = record.acl.iter().find(|entry| !is_known(entry));
        scheme.map(|entry| format!("{path}: ACL scheme {} is not supported", entry.id.scheme))
    }

    /// Adds the create of a znode and its sets; returns the number of operations.
    pub fn add(&self, record: &Record, transaction: Transaction) -> (Transaction, usize) {
        let path = self.path(&record.path);
        let acl = record.acl.to_vec();
        let sets = self.sets(record).unwrap_or(0);
        let first = if sets == 0 { record.data.clone() } else { None };
        let mut transaction = match record.kind {
            Lifetime::Container => transaction.create(&path, first, CreateMode::Container, acl),
            Lifetime::Ttl(ttl) => transaction.create_with_ttl(&path, first, acl, ttl),
            Lifetime::Persistent | Lifetime::Ephemeral => {
                transaction.create(&path, first, CreateMode::Persistent, acl)
            }
        };
        for set in 1..=sets {
            let data = if set == sets { record.data.clone() } else { None };
            transaction = transaction.set(&path, data, None);
        }
        (transaction, 1 + sets)
    }
}

fn is_known(entry: &Acl) -> bool {
    matches!(entry.id.scheme.as_str(), "world" | "ip" | "digest" | "sasl" | "x509")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn record(path: &str) -> Record {
        Record {
            path: path.to_owned(),
            data: Some(Bytes::new()),
            acl: Acl::open().into(),
            kind: Lifetime::Persistent,
            version: 0,
            creates: 0,
            zxid: 0,
        }
    }

    #[test]
    fn forbidden_paths_are_obstacles_before_anything_is_created() {
        let target = Target { under: "/under".to_owned(), versions_max: None };
        let obstacle = |path: &str| target.obstacle(&record(path));
        let (deep, long) = ("/a".repeat(255), format!("/{}", "n".repeat(4_090)));
        assert_eq!(obstacle(&deep), Some(format!("/under{deep}: the path has more than 255 levels")));
        assert_eq!(obstacle(&long), Some(format!("/under{long}: the path is longer than 4096 bytes")));
        assert_eq!((obstacle(&deep[2..]), obstacle(&long[..4_090])), (None, None));
    }
}
