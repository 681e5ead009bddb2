//! Containers and TTL znodes that have served their purpose.
//!
//! The leader sweeps with [`Machine::reap_due`] and proposes a `Reap` for each. Apply checks again, because
//! the znode may have a new child since.

use rowlock_proto::{ErrorCode, Zxid};

use crate::done::Done;
use crate::guard::decides;
use crate::machine::Machine;
use crate::znode::{Kind, Znode};

impl Machine {
    /// Iterates over containers and TTL znodes in order of their paths.
    pub fn containers_and_ttl(&self) -> impl Iterator<Item = (&str, Kind)> {
        self.tree.reapable().iter().map(|(path, ())| {
            let znode = self.tree.get(path).expect("the index holds existing znodes");
            (&**path, znode.meta.kind)
        })
    }

    /// Iterates over the znodes that would be reaped at `now_ms` (the log's clock), without containers that
    /// had a child after `empty_since`.
    pub fn reap_due(&self, now_ms: i64, empty_since: Zxid) -> impl Iterator<Item = &str> {
        let is_idle =
            move |znode: &Znode| znode.meta.kind != Kind::Container || znode.meta.pzxid <= empty_since;
        let due = move |path: &&str| {
            decides!(
                "znode-may-be-reaped",
                !self.has_delay(path)
                    && self.tree.get(path).is_some_and(|znode| is_due(znode, now_ms) && is_idle(znode))
            )
        };
        self.tree.reapable().iter().map(|(path, ())| &**path).filter(due)
    }

    /// A lock-delay would end with the lock's znode.
    fn has_delay(&self, path: &str) -> bool {
        self.locks.get(path).is_some_and(|lock| lock.delayed_until_ms() != 0)
    }

    /// Applies `Reap`: deletes the znode if still due.
    pub(crate) fn reap(&mut self, zxid: Zxid, path: &str) -> Result<Done, ErrorCode> {
        let znode = self.tree.get(path).ok_or(ErrorCode::NoNode)?;
        if decides!("reaped-znode-has-children", !znode.children.is_empty()) {
            return Err(ErrorCode::NotEmpty);
        }
        if decides!("reaped-znode-is-early", !is_due(znode, self.time_ms) || self.has_delay(path)) {
            return Err(ErrorCode::BadVersion);
        }
        Ok(self.remove(zxid, path))
    }
}

fn is_due(znode: &Znode, now_ms: i64) -> bool {
    znode.children.is_empty()
        && match znode.meta.kind {
            Kind::Persistent | Kind::Ephemeral(_) => false,
            // A container without any child so far is about to get its first.
            Kind::Container => znode.meta.creates != 0,
            Kind::Ttl(ttl_ms) => now_ms.saturating_sub(znode.meta.mtime_ms) > ttl_ms,
        }
}
