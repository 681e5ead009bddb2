//! Plan of an import, from one pass over the source beside the target: counts, losses, conflicts, and the
//! znodes that the target lacks. The same pass, repeated after all creates, verifies the import.
//!
//! Kinds of znodes cannot be compared: ZooKeeper's protocol shows containers and TTL znodes as persistent
//! ones. The only evidence is the accepted transaction.

use std::collections::BTreeMap;

use rowlock_client::{Acl, Stat};
use rowlock_proto::path as paths;
use rowlock_terminal::print::count;

use super::limits::{LARGEST, LISTED};
use super::record::{Found, Lifetime, Record, Selection, creates, select, sequence_number};
use super::target::{Comparison, Target};

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pass {
    /// Nothing was created yet.
    #[default]
    Before,
    /// Everything was created and is read back.
    After,
}

/// Creates and deletes below a znode that raise its next sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raise {
    /// Path in the target.
    pub path: String,
    pub from: i64,
    pub to: i64,
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
    /// Raises of the pass [`Pass::After`], to be taken out by the caller after each znode.
    pub raises: Vec<Raise>,
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
    /// True if the target's root is not only this import's.
    pub root_is_shared: bool,
    /// Znodes that the target has, equal to the source's.
    pub existing: u64,
    /// Znodes of the target that differ from the source's.
    pub conflicts: Issues,
    /// Persistent znodes that the target lacks, and data versions that are too low.
    pub lacking: Issues,
    /// Containers and TTL znodes that the target lacks. Servers delete them if they are idle.
    pub ended: u64,
    /// Znodes whose data or ACL this client may not read.
    pub unreadable: u64,
    lineage: Lineage,
    steps_max: i64,
    pass: Pass,
}

impl Plan {
    /// Creates an empty plan; `steps_max` bounds the creates spent on one next sequence number.
    pub fn new(pass: Pass, steps_max: i64) -> Self {
        Plan { pass, steps_max, ..Plan::default() }
    }

    /// Returns true if the target has everything.
    pub fn is_complete(&self) -> bool {
        self.lacking.count + self.ended + self.raise_steps == 0
    }

    /// Returns the first differences between source and target after all creates.
    pub fn differences(&self) -> Vec<String> {
        let all = [&self.conflicts, &self.lacking, &self.obstacles];
        all.into_iter().flat_map(|issues| issues.first.clone()).take(LISTED).collect()
    }

    /// Adds the next znode of the source, and the znode that the target has at its path.
    pub fn add(&mut self, record: &Record, found: Option<&Found>, target: &Target) {
        self.last_zxid = self.last_zxid.max(record.zxid);
        match select(record) {
            Selection::System => self.system += 1,
            Selection::Ephemeral => self.ephemerals += 1,
            Selection::Taken => self.take(record, found, target),
        }
    }

    fn take(&mut self, record: &Record, found: Option<&Found>, target: &Target) {
        match self.lineage.enter(record, found.map(|found| &found.stat)) {
            Ok(closed) => closed.iter().for_each(|open| self.close(open, target)),
            Err(orphan) => return self.obstacles.add(orphan.to_string()),
        }
        let is_root = record.path == "/";
        let comparison = target.compare(record, found);
        if comparison == Comparison::Kept {
            let has_data = record.data.as_ref().is_some_and(|data| !data.is_empty());
            self.root_is_special = has_data || *record.acl != Acl::open();
            self.root_is_shared = true;
            return self.lineage.keep_counter();
        }
        if let Some(obstacle) = target.obstacle(record) {
            self.obstacles.add(obstacle);
        }
        self.count(record, target);
        self.count_comparison(record, comparison, target);
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
        match (record.version, target.version(record)) {
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

    fn count_comparison(&mut self, record: &Record, comparison: Comparison, target: &Target) {
        let path = target.path(&record.path);
        match comparison {
            Comparison::Missing if matches!(record.kind, Lifetime::Container | Lifetime::Ttl(_)) => {
                self.ended += 1
            }
            Comparison::Missing => self.lacking.add(format!("{path} is missing")),
            Comparison::Equal { from, to } => {
                self.existing += 1;
                if from < to {
                    self.lacking.add(format!("{path} has data version {from} instead of {to}"));
                }
            }
            Comparison::Unreadable if self.pass == Pass::After => self.unreadable += 1,
            Comparison::Unreadable => self.conflicts.add(format!(
                "{path} exists and cannot be compared: this credential may not read it (set ROWLOCK_AUTH)"
            )),
            Comparison::Different(why) => self.conflicts.add(format!("{path} exists and {why}")),
            Comparison::Kept => {}
        }
    }

    fn close(&mut self, open: &OpenZnode, target: &Target) {
        let path = target.path(&open.path);
        let extra = open.found.map_or(0, |found| found.children - open.present);
        if extra > 0 && open.path == "/" {
            self.root_is_shared = true;
        } else if extra > 0 {
            self.conflicts.add(format!("{path} has {} outside of the source", count(extra, "child znode")));
        }
        if self.pass == Pass::After && open.found.is_none() {
            return;
        }
        let created = open.created(self.pass);
        let steps = match open.counter(created, self.steps_max) {
            Counter::Kept => 0,
            Counter::Raised(steps) => steps,
            Counter::Lowered(steps) => {
                self.lowered.add(format!("{path} ({} in the source)", open.creates));
                steps
            }
            Counter::Collides(steps) => {
                self.obstacles.add(format!(
                    "{path}: its next sequential number would collide with names in use; {steps} creates can raise it, \
                     with --counter-steps {steps}"
                ));
                0
            }
        };
        self.raised += u64::from(steps > 0);
        self.raise_steps += steps.cast_unsigned();
        if steps > 0 && self.pass == Pass::After {
            self.raises.push(Raise { path, from: created, to: created + steps });
        }
    }

    /// Ends the plan after the last record.
    pub fn finish(&mut self, target: &Target) {
        let lineage = std::mem::take(&mut self.lineage);
        lineage.finish().for_each(|open| self.close(&open, target));
    }
}

/// Children of a znode in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Children {
    /// Children created so far.
    creates: i64,
    children: i64,
}

/// Znode with possible further descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OpenZnode {
    path: String,
    /// Children in the source that the target has.
    present: i64,
    /// Children in the source that the target lacks.
    missing: i64,
    /// Largest sequence number at the end of a child's name.
    highest: Option<i64>,
    /// Next sequence number in the source.
    creates: i32,
    /// True if the servers delete the znode after its last child.
    is_container: bool,
    /// Znode of the target.
    found: Option<Children>,
}

/// Ancestors of the current znode while a tree is read in order. Some facts of a znode (number of children,
/// sequence numbers in use) are known only after its last descendant: when the znode closes.
#[derive(Debug, Default)]
struct Lineage {
    open: Vec<OpenZnode>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} comes without its parent: the snapshot is not in order")]
struct Orphan(String);

impl Lineage {
    /// Enters the next znode. Returns the znodes closed by it, the lowest first.
    fn enter(&mut self, record: &Record, found: Option<&Stat>) -> Result<Vec<OpenZnode>, Orphan> {
        let mut closed = Vec::new();
        if let Some(parent) = paths::parent(&record.path) {
            while self.open.last().is_some_and(|open| open.path != parent) {
                closed.extend(self.open.pop());
            }
            let parent = self.open.last_mut().ok_or_else(|| Orphan(record.path.clone()))?;
            *(if found.is_some() { &mut parent.present } else { &mut parent.missing }) += 1;
            parent.highest = parent.highest.max(sequence_number(paths::name(&record.path)));
        }
        self.open.push(OpenZnode {
            path: record.path.clone(),
            present: 0,
            missing: 0,
            highest: None,
            creates: record.creates,
            is_container: record.kind == Lifetime::Container,
            found: found.map(|stat| Children { creates: creates(stat), children: stat.num_children.into() }),
        });
        Ok(closed)
    }

    /// Keeps the next sequence number of the current znode if it exceeds the numbers in use.
    fn keep_counter(&mut self) {
        if let Some(open) = self.open.last_mut() {
            open.creates = 0;
        }
    }

    /// Closes the remaining znodes, the root last.
    fn finish(self) -> impl Iterator<Item = OpenZnode> {
        self.open.into_iter().rev()
    }
}

/// Treatment of a znode's next sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counter {
    /// Correct without further creates.
    Kept,
    /// Reaches the source's value, or exceeds every number in use, by this many creates.
    Raised(i64),
    /// Stays below the source's value, but exceeds every number in use after this many creates (often none).
    Lowered(i64),
    /// Would need this many creates, too many, to exceed the numbers in use.
    Collides(i64),
}

impl OpenZnode {
    /// Returns the next sequence number in the target after the creates of all missing children.
    fn created(&self, pass: Pass) -> i64 {
        let missing = if pass == Pass::Before { self.missing } else { 0 };
        self.found.map_or(0, |found| found.creates) + missing
    }

    /// Returns the treatment of a next sequence number of `created`. `steps_max` bounds the creates.
    fn counter(&self, created: i64, steps_max: i64) -> Counter {
        let lacking = i64::from(self.creates) - created;
        // ZooKeeper's numbers go on below zero after 2^31 - 1.
        let is_reached = lacking <= 0 && self.creates >= 0;
        if self.is_container && self.present + self.missing == 0 {
            // A create and delete below an empty container would end the container.
            return if is_reached { Counter::Kept } else { Counter::Lowered(0) };
        }
        let needed = self.highest.map_or(0, |highest| (highest + 1 - created).max(0));
        match lacking {
            0 => Counter::Kept,
            steps if (1..=steps_max).contains(&steps) => Counter::Raised(steps),
            _ if needed > steps_max => Counter::Collides(needed),
            _ if is_reached && needed == 0 => Counter::Kept,
            _ if is_reached => Counter::Raised(needed),
            _ => Counter::Lowered(needed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn record(path: &str, creates: i32) -> Record {
        let acl = Arc::new(Vec::new());
        Record {
            path: path.to_owned(),
            data: None,
            acl,
            kind: Lifetime::Persistent,
            version: 0,
            creates,
            zxid: 0,
        }
    }

    fn paths_of(closed: &[OpenZnode]) -> Vec<&str> {
        closed.iter().map(|open| open.path.as_str()).collect()
    }

    #[test]
    fn znodes_close_after_their_last_descendant() {
        let mut lineage = Lineage::default();
        for path in ["/", "/a", "/a/x-0000000007"] {
            assert!(lineage.enter(&record(path, 9), None).unwrap().is_empty());
        }
        let closed = lineage.enter(&record("/a/y-0000000003", 0), Some(&Stat::default())).unwrap();
        assert_eq!(paths_of(&closed), ["/a/x-0000000007"]);
        let closed = lineage.enter(&record("/b", 0), None).unwrap();
        assert_eq!(paths_of(&closed), ["/a/y-0000000003", "/a"]);
        let a = &closed[1];
        assert_eq!((a.missing, a.present, a.highest, a.creates), (1, 1, Some(7), 9));
        let rest: Vec<OpenZnode> = lineage.finish().collect();
        assert_eq!(paths_of(&rest), ["/b", "/"]);
        assert_eq!(rest[1].missing, 2);
    }

    #[test]
    fn a_znode_without_its_parent_is_an_orphan() {
        let mut lineage = Lineage::default();
        lineage.enter(&record("/", 0), None).unwrap();
        lineage.enter(&record("/a", 0), None).unwrap();
        assert_eq!(lineage.enter(&record("/b/c", 0), None), Err(Orphan("/b/c".to_owned())));
    }

    #[test]
    fn a_counter_reaches_the_source_or_exceeds_numbers_in_use() {
        let open = |creates, highest| OpenZnode {
            path: "/q".to_owned(),
            present: 0,
            missing: 3,
            highest,
            creates,
            is_container: false,
            found: None,
        };
        let counter = |creates, highest| open(creates, highest).counter(3, 100);
        assert_eq!(counter(3, Some(2)), Counter::Kept);
        assert_eq!(counter(12, Some(11)), Counter::Raised(9));
        assert_eq!(counter(103, None), Counter::Raised(100));
        assert_eq!(counter(104, None), Counter::Lowered(0));
        assert_eq!(counter(5_000, Some(50)), Counter::Lowered(48));
        assert_eq!(counter(5_000, Some(4_999)), Counter::Collides(4_997));
        assert_eq!(counter(i32::MIN, Some(3)), Counter::Lowered(1));
        // The target is ahead: a root with its own history, or one that clients use.
        assert_eq!(counter(0, Some(20)), Counter::Raised(18));
        assert_eq!(open(0, Some(20)).counter(21, 100), Counter::Kept);
        assert_eq!(open(0, Some(200)).counter(21, 100), Counter::Collides(180));
        let empty = OpenZnode { missing: 0, is_container: true, ..open(9, None) };
        assert_eq!(empty.counter(0, 100), Counter::Lowered(0));
    }

    #[test]
    fn a_later_run_raises_a_counter_by_what_is_still_lacking() {
        let found = Some(Children { creates: 7, children: 2 });
        let open = OpenZnode {
            path: "/q".to_owned(),
            present: 2,
            missing: 1,
            highest: Some(11),
            creates: 12,
            is_container: false,
            found,
        };
        let counter = |pass| open.counter(open.created(pass), 100);
        assert_eq!((counter(Pass::Before), counter(Pass::After)), (Counter::Raised(4), Counter::Raised(5)));
    }
}
