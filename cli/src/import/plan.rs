//! Plan of an import, from one pass over the source: counts, losses, conflicts.

use std::collections::BTreeMap;

use rowlock_client::Acl;

use super::limits::{LARGEST, LISTED};
use super::lineage::{Counter, Lineage, OpenZnode};
use super::record::{Lifetime, Record};
use super::target::Target;

/// Use of an ACL in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclUse {
    pub path: String,
    /// True if znodes will be created below a znode with the ACL.
    pub has_children: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Issues {
    pub count: u64,
    pub first: Vec<String>,
}

impl Issues {
    pub fn add(&mut self, text: String) {
        self.count += 1;
        if self.first.len() < LISTED {
            self.first.push(text);
        }
    }
}

#[derive(Debug, Default)]
pub struct Plan {
    pub znodes: u64,
    pub bytes: u64,
    pub containers: u64,
    pub ttl: u64,
    /// Ephemeral znodes, which belong to sessions of the source.
    pub ephemerals: u64,
    pub system: u64,
    pub acls: BTreeMap<Vec<Acl>, AclUse>,
    pub versions_kept: u64,
    /// Znodes whose data version restarts at 0.
    pub versions_lost: u64,
    /// Znodes whose next sequence number takes creates.
    pub raised: u64,
    /// Creates for next sequence numbers, in total.
    pub raise_steps: u64,
    /// Znodes whose next sequence number is lower than in the source.
    pub lowered: Issues,
    pub obstacles: Issues,
    /// Largest znodes (bytes, path), the largest first.
    pub largest: Vec<(usize, String)>,
    /// Names of the children of the source's root.
    pub top: Vec<String>,
    /// Largest zxid of any znode in the source.
    pub last_zxid: i64,
    /// True if the root has data or an ACL of its own.
    pub root_is_special: bool,
    lineage: Lineage,
    counting: Counting,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counting {
    pub steps_max: i64,
    /// Earlier creates below the target's root znode; `None`: the import creates that znode.
    pub root_creates: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    Taken,
    Ephemeral,
    System,
}

/// Decides if a record belongs to the import.
pub fn select(record: &Record) -> Selection {
    let below = record.path.strip_prefix("/zookeeper");
    if below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        Selection::System
    } else if record.kind == Lifetime::Ephemeral {
        Selection::Ephemeral
    } else {
        Selection::Taken
    }
}

impl Plan {
    pub fn new(counting: Counting) -> Self {
        Plan { counting, ..Plan::default() }
    }

    /// Adds the next znode of the source.
    pub fn add(&mut self, record: &Record, target: &Target) {
        self.last_zxid = self.last_zxid.max(record.zxid);
        match select(record) {
            Selection::System => self.system += 1,
            Selection::Ephemeral => self.ephemerals += 1,
            Selection::Taken => self.take(record, target),
        }
    }

    fn take(&mut self, record: &Record, target: &Target) {
        match self.lineage.enter(record) {
            Ok(closed) => closed.iter().for_each(|open| self.close(open, target)),
            Err(orphan) => return self.obstacles.add(orphan.to_string()),
        }
        let is_root = record.path == "/";
        if is_root && self.counting.root_creates.is_some() {
            let has_data = record.data.as_ref().is_some_and(|data| !data.is_empty());
            self.root_is_special = has_data || *record.acl != Acl::open();
            return;
        }
        if let Some(obstacle) = target.obstacle(record) {
            self.obstacles.add(obstacle);
        }
        self.count(record, target);
        if let Some(("", name)) = record.path.rsplit_once('/')
            && !is_root
        {
            self.top.push(name.to_owned());
        }
        // Creating children, or raising the counter, needs the parent's permission.
        let has_children = record.creates != 0 && record.kind != Lifetime::Ephemeral;
        let path = record.path.clone();
        if let Some(used) = self.acls.get_mut(&*record.acl) {
            if has_children && !used.has_children {
                *used = AclUse { path, has_children };
            }
        } else {
            self.acls.insert(record.acl.to_vec(), AclUse { path, has_children });
        }
    }

    fn count(&mut self, record: &Record, target: &Target) {
        let bytes = record.data.as_ref().map_or(0, |data| data.len());
        self.znodes += 1;
        self.bytes += bytes as u64;
        match record.kind {
            Lifetime::Container => self.containers += 1,
            Lifetime::Ttl(_) => self.ttl += 1,
            Lifetime::Persistent | Lifetime::Ephemeral => {}
        }
        match (record.version, target.sets(record)) {
            (0, _) => {}
            (_, Some(_)) => self.versions_kept += 1,
            (_, None) => self.versions_lost += 1,
        }
        if self.largest.len() < LARGEST || self.largest.last().is_some_and(|(least, _)| bytes > *least) {
            let at = self.largest.partition_point(|(other, _)| *other >= bytes);
            self.largest.insert(at, (bytes, record.path.clone()));
            self.largest.truncate(LARGEST);
        }
    }

    fn close(&mut self, open: &OpenZnode, target: &Target) {
        let steps = match self.counting.counter(open) {
            Counter::Kept => 0,
            Counter::Raised(steps) => steps,
            Counter::Lowered(steps) => {
                self.lowered.add(format!("{} ({} in the source)", target.path(&open.path), open.creates));
                steps
            }
            Counter::Collides(steps) => {
                let path = target.path(&open.path);
                self.obstacles.add(format!(
                    "{path}: its next sequential number would collide with names in use; {steps} creates can raise it, \
                     with --counter-steps {steps}"
                ));
                0
            }
        };
        self.raised += u64::from(steps > 0);
        self.raise_steps += steps.cast_unsigned();
    }

    /// Ends the plan after the last record.
    pub fn finish(&mut self, target: &Target) {
        let lineage = std::mem::take(&mut self.lineage);
        lineage.finish().for_each(|open| self.close(&open, target));
    }
}

impl Counting {
    /// Returns the treatment of the next sequence number of a znode with all its children.
    pub fn counter(&self, open: &OpenZnode) -> Counter {
        match self.root_creates {
            Some(before) if open.path == "/" => open.counter_of_existing(before, self.steps_max),
            _ => open.counter(self.steps_max),
        }
    }
}
