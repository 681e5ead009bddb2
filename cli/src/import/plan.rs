//! What an import will do, found by reading the whole source once: counts, what cannot be kept, conflicts.

use std::collections::BTreeMap;

use rowlock_client::Acl;

use super::limits::{LARGEST, LISTED};
use super::lineage::{Counter, Lineage, Open};
use super::record::{Lifetime, Record};
use super::target::Target;

/// How an ACL is used in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclUse {
    /// The first znode that has it.
    pub path: String,
    /// Znodes will be created below one that has it.
    pub has_children: bool,
}

/// Paths of one kind of trouble.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    pub count: u64,
    pub first: Vec<String>,
}

impl Notes {
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
    /// Those of them with a time to live.
    pub ttl: u64,
    /// Ephemeral znodes, which belong to sessions of the source.
    pub ephemerals: u64,
    pub system: u64,
    /// Every ACL, and where.
    pub acls: BTreeMap<Vec<Acl>, AclUse>,
    /// Znodes whose data version is kept.
    pub versions_kept: u64,
    /// Znodes with a data version that is not.
    pub versions_lost: u64,
    /// Znodes whose next sequential number takes creates, and how many.
    pub raised: u64,
    /// Creates for next sequential numbers, altogether.
    pub raise_steps: u64,
    /// Znodes whose next sequential number is lower than in the source.
    pub lowered: Notes,
    /// What makes the import impossible.
    pub obstacles: Notes,
    /// The largest znodes: bytes and path, the largest first.
    pub largest: Vec<(usize, String)>,
    /// Names of the source's root's children.
    pub top: Vec<String>,
    /// The last change in the source that its znodes show.
    pub last_zxid: i64,
    /// The root itself has data or an ACL of its own.
    pub root_is_special: bool,
    lineage: Lineage,
    counting: Counting,
}

/// How next sequential numbers are treated.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting {
    /// Creates spent on one znode at most.
    pub steps_max: i64,
    /// Creates that the znode that stands for the root counts already; `None`: it is to be created.
    pub root_creates: Option<i64>,
}

/// Whether a record belongs to the import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    Taken,
    /// It belongs to a session.
    Ephemeral,
    /// It belongs to the servers.
    System,
}

/// Whether a record belongs to the import.
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

    /// The next znode of the source.
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

    fn close(&mut self, open: &Open, target: &Target) {
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

    /// The source is read to its end.
    pub fn finish(&mut self, target: &Target) {
        let lineage = std::mem::take(&mut self.lineage);
        lineage.finish().for_each(|open| self.close(&open, target));
    }
}

impl Counting {
    /// What to do about the next sequential number of a znode whose children are all there.
    pub fn counter(&self, open: &Open) -> Counter {
        match self.root_creates {
            Some(before) if open.path == "/" => open.counter_of_existing(before, self.steps_max),
            _ => open.counter(self.steps_max),
        }
    }
}
