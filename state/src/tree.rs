//! The tree of znodes with everything that is counted over it.
//!
//! Knows nothing of permissions, versions or sessions: `ops` decides, the tree carries out and keeps the digest,
//! the counters and the index of reapable znodes right. A clone shares all structure.

use std::sync::Arc;

use crate::acl::SharedAcl;
use crate::shared_map::SharedMap;
use crate::znode::{Kind, Meta, Znode};

/// All znodes.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: Arc<Znode>,
    totals: Totals,
    /// Paths of containers and TTL znodes.
    reapable: SharedMap<Box<str>, ()>,
}

/// What is counted over all znodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Sum of the znodes' hashes.
    pub digest: u64,
    /// Znodes, with the root.
    pub znodes: u64,
    /// Those of them that belong to a session.
    pub ephemerals: u64,
    /// Bytes of paths and data.
    pub bytes: u64,
}

impl Totals {
    /// A znode has come, or has its new form.
    pub(crate) fn add(&mut self, path: &str, znode: &Znode) {
        self.digest = self.digest.wrapping_add(znode.hash(path));
        self.znodes += 1;
        self.ephemerals += u64::from(matches!(znode.meta.kind, Kind::Ephemeral(_)));
        self.bytes += (path.len() + znode.data_len()) as u64;
    }

    /// A znode goes, or leaves its old form.
    fn sub(&mut self, path: &str, znode: &Znode) {
        self.digest = self.digest.wrapping_sub(znode.hash(path));
        self.znodes -= 1;
        self.ephemerals -= u64::from(matches!(znode.meta.kind, Kind::Ephemeral(_)));
        self.bytes -= (path.len() + znode.data_len()) as u64;
    }
}

/// Parent and name of `path`; the parent of `/a` is `/`. `None` without a slash.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let slash = path.rfind('/')?;
    Some((if slash == 0 { "/" } else { &path[..slash] }, &path[slash + 1..]))
}

/// The names from the root down; `None` if `path` does not start at the root.
fn names(path: &str) -> Option<impl Iterator<Item = &str>> {
    let below = path.strip_prefix('/')?;
    // The path "/" has no names, where splitting "" would give one.
    Some(below.split('/').skip(usize::from(below.is_empty())))
}

impl Tree {
    /// A root without children.
    pub(crate) fn new(root: Znode) -> Self {
        let mut totals = Totals::default();
        totals.add("/", &root);
        Tree::assembled(root, totals, SharedMap::default())
    }

    /// A root with everything below it, and what has been counted over it.
    pub(crate) fn assembled(root: Znode, totals: Totals, reapable: SharedMap<Box<str>, ()>) -> Self {
        Tree { root: Arc::new(root), totals, reapable }
    }

    pub(crate) fn root(&self) -> &Znode {
        &self.root
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Paths of containers and TTL znodes, in order.
    pub(crate) fn reapable(&self) -> &SharedMap<Box<str>, ()> {
        &self.reapable
    }

    /// The znode at `path`, whatever the form of `path`.
    pub(crate) fn get(&self, path: &str) -> Option<&Znode> {
        let mut znode = &*self.root;
        for name in names(path)? {
            znode = znode.children.get(name)?;
        }
        Some(znode)
    }

    /// Changes a znode that exists, but not its children; `change` makes its data longer by `bytes_diff`. Gives the
    /// parent's ACL too.
    pub(crate) fn update<R>(
        &mut self,
        path: &str,
        bytes_diff: i64,
        change: impl FnOnce(&mut Znode) -> R,
    ) -> (R, SharedAcl) {
        let (parent_path, name) = split(path).expect("the caller has found the znode");
        let diff_above = if name.is_empty() { 0 } else { bytes_diff };
        let parent = walk(&mut self.root, parent_path, |above| {
            above.bytes_below = above.bytes_below.wrapping_add_signed(diff_above);
        });
        let parent_acl = parent.acl.clone();
        let znode = match name {
            // Only the root has no name; it is its own parent.
            "" => parent,
            _ => Arc::make_mut(parent.children.get_mut(name).expect("the caller has found the znode")),
        };
        self.totals.sub(path, znode);
        let bytes_before = znode.data_len() as i64;
        let result = change(znode);
        assert_eq!(znode.data_len() as i64, bytes_before + bytes_diff, "the caller knows both lengths");
        self.totals.add(path, znode);
        (result, parent_acl)
    }

    /// Puts a childless znode at `path`, where there is none, and changes the numbers of its parent, which exists.
    pub(crate) fn link(&mut self, path: &str, znode: Arc<Znode>, parent_change: impl FnOnce(&mut Meta)) {
        assert!(znode.children.is_empty(), "a znode comes without children");
        let (parent_path, name) = split(path).expect("the caller has checked the path");
        self.totals.add(path, &znode);
        if matches!(znode.meta.kind, Kind::Container | Kind::Ttl(_)) {
            self.reapable.insert(path.into(), ());
        }
        let bytes = znode.data_len() as u64;
        let parent = walk(&mut self.root, parent_path, |above| {
            above.descendants += 1;
            above.bytes_below += bytes;
        });
        self.totals.sub(parent_path, parent);
        parent_change(&mut parent.meta);
        self.totals.add(parent_path, parent);
        let old = parent.children.insert(name.into(), znode);
        assert!(old.is_none(), "a znode is created where there is none");
    }

    /// Takes out the childless znode at `path`, which exists and has `data_len` bytes of data, and changes the numbers
    /// of its parent.
    pub(crate) fn unlink(
        &mut self,
        path: &str,
        data_len: usize,
        parent_change: impl FnOnce(&mut Meta),
    ) -> Unlinked {
        let (parent_path, name) = split(path).expect("the caller has checked the path");
        let parent = walk(&mut self.root, parent_path, |above| {
            above.descendants -= 1;
            above.bytes_below -= data_len as u64;
        });
        let (parent_before, parent_acl) = (parent.meta, parent.acl.clone());
        self.totals.sub(parent_path, parent);
        parent_change(&mut parent.meta);
        self.totals.add(parent_path, parent);
        let znode = parent.children.remove(name).expect("the caller has found the znode");
        assert!(znode.children.is_empty(), "only childless znodes are deleted");
        assert_eq!(znode.data_len(), data_len, "the caller has found the znode");
        self.totals.sub(path, &znode);
        if matches!(znode.meta.kind, Kind::Container | Kind::Ttl(_)) {
            self.reapable.remove(path);
        }
        Unlinked { znode, parent_before, parent_acl }
    }
}

/// A znode that has been taken out, and what its parent was like.
pub(crate) struct Unlinked {
    pub znode: Arc<Znode>,
    pub parent_before: Meta,
    pub parent_acl: SharedAcl,
}

/// The znode at `path`, which exists, to be changed; `each` sees every znode on the way, this one too.
fn walk<'a>(root: &'a mut Arc<Znode>, path: &str, each: impl Fn(&mut Znode)) -> &'a mut Znode {
    let mut znode = Arc::make_mut(root);
    each(znode);
    for name in names(path).expect("the caller has found the znode") {
        znode = Arc::make_mut(znode.children.get_mut(name).expect("the caller has found the znode"));
        each(znode);
    }
    znode
}
