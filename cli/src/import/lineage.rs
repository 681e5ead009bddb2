//! Ancestors of the current znode while a tree is read in order. Some facts of a znode (number of children,
//! sequence numbers in use) are known only after its last descendant: when the znode closes.

use rowlock_proto::path as paths;

use super::record::{Lifetime, Record, sequence_number};

/// Znode with possible further descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenZnode {
    pub path: String,
    pub children: i64,
    /// Largest sequence number at the end of a child's name.
    pub highest: Option<i64>,
    /// Next sequence number in the source.
    pub creates: i32,
    /// True if the servers delete the znode after its last child.
    pub is_container: bool,
}

#[derive(Debug, Default)]
pub struct Lineage {
    open: Vec<OpenZnode>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} comes without its parent: the snapshot is not in order")]
pub struct Orphan(pub String);

impl Lineage {
    /// Enters the next znode. Returns the znodes closed by it, the lowest first.
    pub fn enter(&mut self, record: &Record) -> Result<Vec<OpenZnode>, Orphan> {
        let mut closed = Vec::new();
        if let Some(parent) = paths::parent(&record.path) {
            while self.open.last().is_some_and(|open| open.path != parent) {
                closed.extend(self.open.pop());
            }
            let parent = self.open.last_mut().ok_or_else(|| Orphan(record.path.clone()))?;
            parent.children += 1;
            parent.highest = parent.highest.max(sequence_number(paths::name(&record.path)));
        }
        self.open.push(OpenZnode {
            path: record.path.clone(),
            children: 0,
            highest: None,
            creates: record.creates,
            is_container: record.kind == Lifetime::Container,
        });
        Ok(closed)
    }

    /// Closes the remaining znodes, the root last.
    pub fn finish(self) -> impl Iterator<Item = OpenZnode> {
        self.open.into_iter().rev()
    }
}

/// Treatment of a znode's next sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Correct without further creates.
    Kept,
    /// Reaches the source's value by this many creates.
    Raised(i64),
    /// Stays below the source's value, but exceeds every number in use after this many creates (often none).
    Lowered(i64),
    /// Would need this many creates, too many, to exceed the numbers in use.
    Collides(i64),
}

impl OpenZnode {
    /// Returns the treatment of a new znode with all its children. `steps_max` bounds the creates.
    pub fn counter(&self, steps_max: i64) -> Counter {
        if self.is_container && self.children == 0 {
            // A create and delete below an empty container would end the container.
            return if self.creates == 0 { Counter::Kept } else { Counter::Lowered(0) };
        }
        match i64::from(self.creates) - self.children {
            0 => Counter::Kept,
            steps if (1..=steps_max).contains(&steps) => Counter::Raised(steps),
            _ => match self.needed(self.children) {
                steps if steps > steps_max => Counter::Collides(steps),
                steps => Counter::Lowered(steps),
            },
        }
    }

    /// Returns the treatment of an existing znode with `before` earlier creates, whose own value is kept if
    /// possible.
    pub fn counter_of_existing(&self, before: i64, steps_max: i64) -> Counter {
        match self.needed(before + self.children) {
            0 => Counter::Kept,
            steps if steps > steps_max => Counter::Collides(steps),
            steps => Counter::Raised(steps),
        }
    }

    /// Returns the number of creates needed to exceed all numbers in use.
    fn needed(&self, created: i64) -> i64 {
        self.highest.map_or(0, |highest| (highest + 1 - created).max(0))
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
            assert!(lineage.enter(&record(path, 9)).unwrap().is_empty());
        }
        let closed = lineage.enter(&record("/a/y-0000000003", 0)).unwrap();
        assert_eq!(paths_of(&closed), ["/a/x-0000000007"]);
        let closed = lineage.enter(&record("/b", 0)).unwrap();
        assert_eq!(paths_of(&closed), ["/a/y-0000000003", "/a"]);
        assert_eq!((closed[1].children, closed[1].highest, closed[1].creates), (2, Some(7), 9));
        let rest: Vec<OpenZnode> = lineage.finish().collect();
        assert_eq!(paths_of(&rest), ["/b", "/"]);
        assert_eq!(rest[1].children, 2);
    }

    #[test]
    fn a_znode_without_its_parent_is_an_orphan() {
        let mut lineage = Lineage::default();
        lineage.enter(&record("/", 0)).unwrap();
        lineage.enter(&record("/a", 0)).unwrap();
        assert_eq!(lineage.enter(&record("/b/c", 0)), Err(Orphan("/b/c".to_owned())));
    }

    #[test]
    fn a_counter_reaches_the_source_or_exceeds_numbers_in_use() {
        let open = |creates, highest| OpenZnode {
            path: "/q".to_owned(),
            children: 3,
            highest,
            creates,
            is_container: false,
        };
        let counter = |creates, highest| open(creates, highest).counter(100);
        assert_eq!(counter(3, Some(2)), Counter::Kept);
        assert_eq!(counter(12, Some(11)), Counter::Raised(9));
        assert_eq!(counter(103, None), Counter::Raised(100));
        assert_eq!(counter(104, None), Counter::Lowered(0));
        assert_eq!(counter(5_000, Some(50)), Counter::Lowered(48));
        assert_eq!(counter(5_000, Some(4_999)), Counter::Collides(4_997));
        assert_eq!(counter(i32::MIN, Some(3)), Counter::Lowered(1));
        assert_eq!(open(900, Some(20)).counter_of_existing(0, 100), Counter::Raised(18));
        assert_eq!(open(900, Some(20)).counter_of_existing(18, 100), Counter::Kept);
        assert_eq!(open(900, Some(200)).counter_of_existing(18, 100), Counter::Collides(180));
        let empty = OpenZnode { children: 0, is_container: true, ..open(9, None) };
        assert_eq!(empty.counter(100), Counter::Lowered(0));
    }
}
