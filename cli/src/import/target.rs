//! Imported znodes in the target cluster: their paths, their costs, and what the target lacks of them.

use rowlock_client::{Transaction, Version};
use rowlock_proto::{Acl, CreateMode, path as paths};

use super::limits::{TRANSACTION_BYTES_MAX, VERSION_BYTES_MAX};
use super::record::{Found, Lifetime, Record};

/// Bytes of an operation beside its path, data and ACL.
const OP_BYTES: usize = 40;

#[derive(Clone, Debug)]
pub struct Target {
    /// Path of the source's root in the target.
    pub under: String,
    /// Largest data version reached by repeated sets; `None`: versions are not kept.
    pub versions_max: Option<i32>,
}

/// Target's znode in comparison with the source's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    Missing,
    /// Equal after sets from data version `from` up to `to`; nothing is missing if both are equal.
    Equal {
        from: i32,
        to: i32,
    },
    /// Root of the import that existed before, with its own data and ACL.
    Kept,
    Unreadable,
    Different(String),
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

    /// Returns the data version to reach; `None` if the version is not kept.
    pub fn version(&self, record: &Record) -> Option<i32> {
        let version = usize::try_from(record.version).ok()?;
        let bytes = version * (self.path(&record.path).len() + OP_BYTES);
        let is_kept = record.version <= self.versions_max? && bytes <= VERSION_BYTES_MAX;
        is_kept.then_some(record.version)
    }

    /// Returns the bytes that the create of a znode adds to a transaction.
    pub fn cost(&self, record: &Record) -> usize {
        let path = self.path(&record.path).len();
        let acl: usize = record.acl.iter().map(|entry| 12 + entry.id.scheme.len() + entry.id.id.len()).sum();
        let data = record.data.as_ref().map_or(0, |data| data.len());
        let sets = self.version(record).and_then(|version| usize::try_from(version).ok()).unwrap_or(0);
        path + acl + data + OP_BYTES + sets * (path + OP_BYTES)
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

    /// Compares a znode of the source with the one that the target has at its path.
    pub fn compare(&self, record: &Record, found: Option<&Found>) -> Comparison {
        let Some(found) = found else { return Comparison::Missing };
        match self.compare_found(record, found) {
            _ if self.under == "/" && record.path == "/" => Comparison::Kept,
            Comparison::Unreadable | Comparison::Different(_) if record.path == "/" => Comparison::Kept,
            state => state,
        }
    }

    fn compare_found(&self, record: &Record, found: &Found) -> Comparison {
        let different = |why: &str| Comparison::Different(why.to_owned());
        let Some((data, acl)) = &found.content else { return Comparison::Unreadable };
        if found.stat.ephemeral_owner.0 != 0 {
            return different("belongs to a session");
        }
        if *data != record.data {
            return different("has other data");
        }
        if *record.acl != *acl && !is_hidden(acl, &record.acl) {
            return different("has another ACL");
        }
        let from = found.stat.version.0;
        match self.version(record) {
            Some(to) if from > to => {
                Comparison::Different(format!("has data version {from} instead of {to}"))
            }
            Some(to) => Comparison::Equal { from, to },
            None => Comparison::Equal { from, to: from },
        }
    }

    /// Adds the create of a znode and its sets; returns the number of operations.
    pub fn create(&self, record: &Record, transaction: Transaction) -> (Transaction, usize) {
        let path = self.path(&record.path);
        let acl = record.acl.to_vec();
        let version = self.version(record).unwrap_or(0);
        let first = if version == 0 { record.data.clone() } else { None };
        let transaction = match record.kind {
            Lifetime::Container => transaction.create(&path, first, CreateMode::Container, acl),
            Lifetime::Ttl(ttl) => transaction.create_with_ttl(&path, first, acl, ttl),
            Lifetime::Persistent | Lifetime::Ephemeral => {
                transaction.create(&path, first, CreateMode::Persistent, acl)
            }
        };
        let (transaction, sets) = self.set(record, 0, version, transaction);
        (transaction, 1 + sets)
    }

    /// Adds the sets that raise the data version; returns their number. Each set names the version before it:
    /// no other client's data is overwritten, and no version is raised twice.
    pub fn set(
        &self,
        record: &Record,
        from: i32,
        to: i32,
        mut transaction: Transaction,
    ) -> (Transaction, usize) {
        let path = self.path(&record.path);
        for version in from..to {
            let data = if version + 1 == to { record.data.clone() } else { None };
            transaction = transaction.set(&path, data, Some(Version(version)));
        }
        (transaction, (from..to).len())
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

fn is_known(entry: &Acl) -> bool {
    matches!(entry.id.scheme.as_str(), "world" | "ip" | "digest" | "sasl" | "x509")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rowlock_client::Stat;
    use rowlock_proto::SessionId;
    use rowlock_proto::acl::Id;

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

    #[test]
    fn an_existing_znode_is_equal_or_differs_in_the_first_visible_respect() {
        let found = |data: &'static [u8], acl: Vec<Acl>, version| {
            let stat = Stat { version: Version(version), ..Stat::default() };
            Found { stat, content: Some((Some(Bytes::from_static(data)), acl)) }
        };
        let user = |id: &str| Acl { perms: 31, id: Id { scheme: "digest".to_owned(), id: id.to_owned() } };
        let record = |path: &str| Record { version: 3, acl: vec![user("a:b")].into(), ..record(path) };
        let compare = |keep: Option<i32>, found: &Found| {
            let target = Target { under: "/under".to_owned(), versions_max: keep };
            target.compare(&record("/a"), Some(found))
        };
        let different = |why: &str| Comparison::Different(why.to_owned());
        let equal = found(b"", vec![user("a:b")], 1);
        assert_eq!(compare(None, &equal), Comparison::Equal { from: 1, to: 1 });
        assert_eq!(compare(Some(9), &equal), Comparison::Equal { from: 1, to: 3 });
        assert_eq!(compare(None, &found(b"", vec![user("a:x")], 1)), Comparison::Equal { from: 1, to: 1 });
        assert_eq!(compare(None, &found(b"", vec![user("b:x")], 1)), different("has another ACL"));
        assert_eq!(compare(None, &found(b"z", vec![user("a:b")], 1)), different("has other data"));
        let newer = found(b"", vec![user("a:b")], 7);
        assert_eq!(compare(Some(9), &newer), different("has data version 7 instead of 3"));
        let hidden = Found { content: None, ..equal.clone() };
        assert_eq!(compare(None, &hidden), Comparison::Unreadable);
        let mut owned = equal;
        owned.stat.ephemeral_owner = SessionId(7);
        assert_eq!(compare(None, &owned), different("belongs to a session"));

        let root = |under: &str, found: &Found| {
            Target { under: under.to_owned(), versions_max: None }.compare(&record("/"), Some(found))
        };
        let equal = found(b"", vec![user("a:b")], 0);
        assert_eq!(root("/", &equal), Comparison::Kept);
        assert_eq!(root("/under", &equal), Comparison::Equal { from: 0, to: 0 });
        assert_eq!(root("/under", &hidden), Comparison::Kept);
    }
}
