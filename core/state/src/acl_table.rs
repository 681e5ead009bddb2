//! The distinct ACLs of all znodes, each stored once, as in ZooKeeper's `ReferenceCountedACLCache`.
//!
//! An author chooses the length of a list, within the limit, and one multi may set the list on thousands of
//! znodes, by a few bytes each with `auth`. [`crate::tree::Tree`] maintains the table, and a load rebuilds
//! the table from a snapshot's znodes.

use std::cmp::Ordering;
use std::sync::Arc;

use rowlock_proto::acl::{Acl, Id};

use crate::acl::{is_anyone, may};
use crate::digest::Hasher;
use crate::shared_map::{SharedMap, Slot};

/// Bytes of an entry without its texts: two allocations.
const ENTRY_BYTES: usize = size_of::<Acl>() + 32;
/// Bytes of a list without its entries.
const LIST_BYTES: usize = 64;

/// Invariant: exactly the lists of the tree's znodes, each with the number of its znodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acls {
    lists: SharedMap<SharedAcl, u64>,
    /// Probable slot of the list used last.
    last: Slot,
    /// Bytes of all lists, approximately.
    bytes: u64,
}

/// Approximate bytes of one list.
fn bytes_of(acl: &SharedAcl) -> u64 {
    let of = |entry: &Acl| ENTRY_BYTES + entry.id.scheme.len() + entry.id.id.len();
    (LIST_BYTES + acl.entries().iter().map(of).sum::<usize>()) as u64
}

impl Acls {
    /// Counts a new znode with this list, and replaces the list by the stored one.
    pub(crate) fn add(&mut self, acl: &mut SharedAcl) {
        match self.lists.find_near(acl, self.last) {
            Ok(place) => {
                self.last = place;
                *self.lists.at_mut(place).1 += 1;
                let kept = self.lists.at(place).0;
                debug_assert_eq!(kept.entries(), acl.entries(), "two different lists are taken for one");
                if !kept.is_same(acl) {
                    *acl = kept.clone();
                }
            }
            Err(place) => {
                self.bytes += bytes_of(acl);
                self.lists.insert_at(place, acl.clone(), 1);
            }
        }
    }

    /// Counts a znode less with this list.
    pub(crate) fn sub(&mut self, acl: &SharedAcl) {
        let place = self.lists.find_near(acl, self.last).expect("the list of a znode is in the table");
        let uses = self.lists.at_mut(place).1;
        assert!(*uses > 0, "a list in the table is some znode's");
        *uses -= 1;
        if *uses == 0 {
            self.lists.take(place);
            self.bytes -= bytes_of(acl);
            assert_eq!(self.lists.is_empty(), self.bytes == 0, "the bytes of the lists are miscounted");
        }
    }

    /// Approximate bytes of all lists.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of entries of the longest list.
    pub(crate) fn longest(&self) -> usize {
        self.lists.last_key().map_or(0, |acl| acl.entries().len())
    }

    /// Returns the number of lists.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lists.len()
    }

    /// Checks that the table contains exactly these lists, for [`crate::Machine::check`].
    pub(crate) fn check<'a>(&self, of: impl Iterator<Item = &'a SharedAcl>) -> Result<(), String> {
        self.lists.check()?;
        let mut again = Acls::default();
        for acl in of {
            again.add(&mut acl.clone());
            let kept = self.lists.get_entry(acl).ok_or("a list is not in the table of ACLs")?.0;
            if !kept.is_same(acl) {
                return Err("a list is stored twice".to_owned());
            }
        }
        let is_right = again.lists.iter().eq(self.lists.iter()) && again.bytes == self.bytes;
        if is_right { Ok(()) } else { Err("the lists of the znodes are miscounted".to_owned()) }
    }
}

/// A stored list with its hash, shared by all znodes with this list.
#[derive(Clone, Debug)]
pub(crate) struct SharedAcl(Arc<Stored>);

#[derive(Debug)]
struct Stored {
    hash: u64,
    anyone: i32,
    is_open: bool,
    entries: Vec<Acl>,
}

impl SharedAcl {
    /// Shares a list returned by [`crate::acl::resolve`].
    pub(crate) fn new(entries: Vec<Acl>) -> Self {
        let hash = entries.iter().fold(Hasher::new(4), |hasher, entry| {
            hasher.int(i64::from(entry.perms)).bytes(entry.id.scheme.as_bytes()).bytes(entry.id.id.as_bytes())
        });
        let for_anyone = entries.iter().filter(|entry| is_anyone(&entry.id));
        let anyone = for_anyone.fold(0, |all, entry| all | entry.perms);
        let is_open = Acl::is_open(&entries);
        SharedAcl(Arc::new(Stored { hash: hash.finish(), anyone, is_open, entries }))
    }

    /// Checks like [`may`], without a look at entries if every client has the permission.
    pub(crate) fn allows(&self, perm: i32, who: &[Id]) -> bool {
        let is_allowed = self.0.anyone & perm != 0 || may(self.entries(), perm, who);
        debug_assert_eq!(
            is_allowed,
            may(self.entries(), perm, who),
            "a list allows more or less than it says"
        );
        is_allowed
    }

    /// Compares the list; a pointer comparison suffices for the list of open znodes.
    pub(crate) fn is_list(&self, list: &[Acl]) -> bool {
        self.0.is_open && std::ptr::eq(list, Acl::open_entries()) || self.entries() == list
    }

    /// Returns whether both share one allocation.
    fn is_same(&self, other: &SharedAcl) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn entries(&self) -> &[Acl] {
        &self.0.entries
    }

    /// Returns the contribution to the hash of a znode.
    pub(crate) fn hash(&self) -> u64 {
        self.0.hash
    }
}

/// Orders lists by length, the longest last.
impl Ord for SharedAcl {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.is_same(other) {
            return Ordering::Equal;
        }
        let key = |acl: &SharedAcl| (acl.entries().len(), acl.hash());
        key(self).cmp(&key(other)).then_with(|| self.entries().cmp(other.entries()))
    }
}

impl PartialOrd for SharedAcl {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SharedAcl {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SharedAcl {}

#[cfg(test)]
mod tests {
    use rowlock_proto::acl::perms;

    use super::*;

    fn list(ids: &[&str]) -> SharedAcl {
        let id = |id: &&str| Id { scheme: "digest".to_owned(), id: (*id).to_owned() };
        SharedAcl::new(ids.iter().map(|it| Acl { perms: perms::ALL, id: id(it) }).collect())
    }

    #[test]
    fn an_acl_is_stored_once_until_its_last_znode_is_gone() {
        let mut acls = Acls::default();
        let [mut first, mut second, mut other] = [list(&["a", "b"]), list(&["a", "b"]), list(&["c"])];
        for acl in [&mut first, &mut second, &mut other] {
            acls.add(acl);
        }
        assert!(first.is_same(&second));
        assert_eq!((acls.len(), acls.longest()), (2, 2));
        assert_eq!(acls.bytes(), bytes_of(&first) + bytes_of(&other));
        acls.check([&first, &second, &other].into_iter()).unwrap();
        assert!(acls.check([&first, &other].into_iter()).is_err(), "one znode too few");
        acls.sub(&first);
        acls.sub(&list(&["a", "b"]));
        assert_eq!((acls.len(), acls.longest()), (1, 1));
        acls.check([&other].into_iter()).unwrap();
        assert!(acls.check([&list(&["c"])].into_iter()).is_err(), "a copy of its own");
    }
}
