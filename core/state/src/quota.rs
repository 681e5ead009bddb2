//! Quotas: limits of a subtree's znodes and bytes of data, set and read by ZooKeeper's clients.
//!
//! For a quota on `/a` a client creates `/zookeeper/quota/a/zookeeper_limits` and `zookeeper_stats`, two
//! ordinary znodes. ZooKeeper rewrites the data of `zookeeper_stats` on every change below `/a`, without a
//! version, an mzxid or an event. Rowlock writes nothing: a reader gets the totals that the tree counts
//! anyway. So a quota costs a change nothing, cannot drift, and is right in snapshots and after a reverted
//! multi.
//!
//! Apply checks limits only in batches that enforce quotas ([`crate::command::Batch::enforce_quota`]). As in
//! ZooKeeper the innermost quota around a znode counts, and a soft limit never refuses. In contrast to
//! ZooKeeper the operations of a multi see each other.

use rowlock_proto::{ErrorCode, Stat};

use crate::guard::decides;
use crate::machine::Machine;
use crate::znode::{Znode, saturating_i32};

/// Parent of a copy of each path with a quota.
const QUOTA_PATH: &str = "/zookeeper/quota";
const LIMITS: &str = "zookeeper_limits";
const STATS: &str = "zookeeper_stats";

/// Contents of a `zookeeper_limits`. Unreadable parts set no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limit of znodes for a warning, including the first one.
    pub count: Option<i64>,
    /// Limit of bytes of data for a warning.
    pub bytes: Option<i64>,
    /// Limit of znodes for a refusal, including the first one.
    pub count_hard: Option<i64>,
    /// Limit of bytes of data for a refusal.
    pub bytes_hard: Option<i64>,
}

/// Znodes and bytes of a subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Znodes, including the first one.
    pub count: i64,
    pub bytes: i64,
}

/// A quota and its usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    pub path: String,
    pub limits: Limits,
    pub usage: Usage,
}

impl Quota {
    /// Returns whether the usage exceeds any limit, soft limits included.
    pub fn is_exceeded(&self) -> bool {
        let Quota { limits, usage, .. } = self;
        let beyond = |used: i64, limits: [Option<i64>; 2]| limits.into_iter().flatten().any(|max| used > max);
        beyond(usage.count, [limits.count, limits.count_hard])
            || beyond(usage.bytes, [limits.bytes, limits.bytes_hard])
    }
}

impl Limits {
    /// Parses `count=3,bytes=-1` and `count=3,bytes=-1=;byteHardLimit=-1;countHardLimit=-1` (`StatsTrack`). A
    /// negative number means no limit.
    fn parse(data: Option<&[u8]>) -> Limits {
        let mut limits = Limits::default();
        let text = std::str::from_utf8(data.unwrap_or_default()).unwrap_or_default();
        for pair in text.split([',', ';']) {
            let mut parts = pair.split('=');
            let (key, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let value = value.parse().ok().filter(|value| *value >= 0);
            match key {
                "count" => limits.count = value,
                "bytes" => limits.bytes = value,
                "countHardLimit" => limits.count_hard = value,
                "byteHardLimit" => limits.bytes_hard = value,
                _ => {}
            }
        }
        limits
    }
}

impl Machine {
    /// Returns whether quotas may exist, without a search.
    pub fn may_have_quotas(&self) -> bool {
        self.tree.get(QUOTA_PATH).is_some_and(|root| decides!("quotas-exist", !root.children.is_empty()))
    }

    /// Iterates over all quotas in no particular order. Walks everything below `/zookeeper/quota`.
    pub fn quotas(&self) -> impl Iterator<Item = Quota> {
        let mut todo: Vec<(String, &Znode)> = Vec::new();
        todo.extend(self.tree.get(QUOTA_PATH).map(|root| (String::new(), root)));
        std::iter::from_fn(move || {
            while let Some((path, znode)) = todo.pop() {
                todo.extend(self.tree.children(znode).map(|(name, child)| (format!("{path}/{name}"), child)));
                // ZooKeeper keeps no quota on the root.
                if let Some(limits) = self.limits_in(znode).filter(|_| !path.is_empty()) {
                    let usage = self.usage(&path);
                    return Some(Quota { path, limits, usage });
                }
            }
            None
        })
    }

    /// Checks whether `path` may grow by so much. Refuses growth also above an already exceeded limit, as
    /// ZooKeeper does.
    pub(crate) fn check_quota(&self, path: &str, count_diff: i64, bytes_diff: i64) -> Result<(), ErrorCode> {
        let Some((path, limits)) = self.innermost_quota(path) else { return Ok(()) };
        let usage = self.usage(path);
        let refused =
            |hard: Option<i64>, used: i64, diff: i64| diff != 0 && hard.is_some_and(|max| used + diff > max);
        let over_count = refused(limits.count_hard, usage.count, count_diff);
        let over_bytes = refused(limits.bytes_hard, usage.bytes, bytes_diff);
        if decides!("quota-is-exceeded", over_count || over_bytes) {
            Err(ErrorCode::QuotaExceeded)
        } else {
            Ok(())
        }
    }

    /// Returns the data shown at `path` if `path` is a quota's `zookeeper_stats`.
    pub(crate) fn shown_data(&self, path: &str) -> Option<String> {
        let path = path.strip_prefix(QUOTA_PATH)?.strip_suffix(STATS)?.strip_suffix('/')?;
        path.starts_with('/').then(|| {
            let Usage { count, bytes } = self.usage(path);
            format!("count={count},bytes={bytes}")
        })
    }

    /// Returns the Stat for [`Machine::shown_data`].
    pub(crate) fn shown(&self, path: &str, stat: Stat) -> Stat {
        match self.shown_data(path) {
            Some(text) => Stat { data_length: saturating_i32(text.len() as u64), ..stat },
            None => stat,
        }
    }

    /// Returns the usage of a subtree; zero without a znode.
    fn usage(&self, path: &str) -> Usage {
        let used = |znode: &Znode| Usage {
            count: 1 + znode.descendants as i64,
            bytes: (znode.data_len() as u64 + znode.bytes_below) as i64,
        };
        self.tree.get(path).map(used).unwrap_or_default()
    }

    fn innermost_quota<'a>(&self, path: &'a str) -> Option<(&'a str, Limits)> {
        let mut quota = self.tree.find(QUOTA_PATH)?;
        let (mut innermost, mut length) = (None, 0);
        for name in path.strip_prefix('/')?.split('/') {
            let Some(below) = self.tree.child(quota, name) else { break };
            quota = below;
            length += 1 + name.len();
            let limits = self.limits_in(self.tree.node(quota));
            innermost = limits.map(|limits| (&path[..length], limits)).or(innermost);
        }
        innermost
    }

    fn limits_in(&self, quota: &Znode) -> Option<Limits> {
        let limits = self.tree.node(*quota.children.get(LIMITS.as_bytes())?);
        Some(Limits::parse(limits.data().map(|data| &**data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_zookeeper_writes_them_in_any_version() {
        let parse = |text: &str| Limits::parse(Some(text.as_bytes()));
        let count = Limits { count: Some(3), ..Limits::default() };
        assert_eq!(parse("count=3,bytes=-1"), count);
        assert_eq!(parse("count=3,bytes=-1=;byteHardLimit=-1;countHardLimit=-1"), count);
        let all = Limits { count: Some(3), bytes: Some(0), count_hard: Some(5), bytes_hard: Some(7) };
        assert_eq!(parse("count=3,bytes=0=;byteHardLimit=7;countHardLimit=5"), all);
    }

    #[test]
    fn what_cannot_be_read_is_no_limit() {
        for text in [
            "",
            "=",
            ",;,",
            "count",
            "count=",
            "count=x",
            "count=3x",
            "count=99999999999999999999",
            "bytes=-7",
        ] {
            assert_eq!(Limits::parse(Some(text.as_bytes())), Limits::default(), "{text}");
        }
        assert_eq!(Limits::parse(Some(b"\xffcount=3")), Limits::default());
        assert_eq!(Limits::parse(None), Limits::default());
    }
}
