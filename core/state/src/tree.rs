//! The tree of znodes, with all totals over the znodes.
//!
//! Knows nothing of permissions, versions or sessions: `ops` decides, and the tree executes and maintains the
//! digest, the counters and the index of reapable znodes. A clone shares all structure.

use rowlock_proto::Zxid;

use crate::acl_table::{Acls, SharedAcl};
use crate::arena::{Arena, Number};
use crate::shared_map::{SharedMap, Slot};
use crate::steps;
use crate::znode::{Kind, Meta, Znode, ZnodeName};

const ROOT: Number = Number::FIRST;

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    nodes: Arena<Znode>,
    totals: Totals,
    /// Paths of containers and TTL znodes.
    reapable: SharedMap<Box<str>, ()>,
    acls: Acls,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Sum of the znodes' hashes.
    pub digest: u64,
    /// Znodes, including the root.
    pub znodes: u64,
    pub ephemerals: u64,
    /// Bytes of paths and data.
    pub bytes: u64,
}

impl Totals {
    /// Adds a new or changed znode to the totals.
    pub(crate) fn add(&mut self, path: &str, znode: &mut Znode) {
        let hash = znode.count_hash(path);
        self.add_hashed(path, znode, hash);
    }

    /// Adds a znode with this hash to the totals.
    pub(crate) fn add_hashed(&mut self, path: &str, znode: &Znode, hash: u64) {
        self.digest = self.digest.wrapping_add(hash);
        self.znodes += 1;
        self.ephemerals += u64::from(matches!(znode.meta.kind, Kind::Ephemeral(_)));
        self.bytes += (path.len() + znode.data_len()) as u64;
    }

    fn sub(&mut self, path: &str, znode: &Znode) {
        debug_assert!(znode.is_counted(path), "{path} was changed past the tree");
        let bytes = (path.len() + znode.data_len()) as u64;
        assert!(self.znodes > 0 && self.bytes >= bytes, "{path} goes and was not counted");
        self.digest = self.digest.wrapping_sub(znode.counted_hash());
        self.znodes -= 1;
        self.ephemerals -= u64::from(matches!(znode.meta.kind, Kind::Ephemeral(_)));
        self.bytes -= bytes;
    }

    /// Updates the digest after a change of a znode's numbers only.
    fn renew(&mut self, path: &str, znode: &mut Znode) {
        self.digest = self.digest.wrapping_sub(znode.counted_hash()).wrapping_add(znode.count_hash(path));
    }
}

/// A path and the index of its last name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path<'a> {
    pub full: &'a str,
    name_at: usize,
}

impl<'a> Path<'a> {
    /// Returns `None` for a text without a slash.
    pub(crate) fn new(full: &'a str) -> Option<Self> {
        Some(Path { full, name_at: last_slash(full)? + 1 })
    }

    /// Returns a path whose last name begins at `name_at`.
    pub(crate) fn cut(full: &'a str, name_at: usize) -> Self {
        assert_eq!(full.as_bytes()[name_at - 1], b'/', "a name begins behind a slash");
        debug_assert!(!full[name_at..].contains('/'), "the last name of {full} begins behind byte {name_at}");
        Path { full, name_at }
    }

    /// Returns the path of the parent; `/` for `/a`.
    pub(crate) fn parent(self) -> &'a str {
        if self.name_at == 1 { "/" } else { &self.full[..self.name_at - 1] }
    }

    pub(crate) fn name(self) -> &'a str {
        &self.full[self.name_at..]
    }

    pub(crate) fn name_at(self) -> usize {
        self.name_at
    }
}

/// Splits `path` into parent and name; the parent of `/a` is `/`. `None` without a slash.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let path = Path::new(path)?;
    Some((path.parent(), path.name()))
}

/// Finds the last slash, several times as fast as `str::rfind` for the short names of paths.
fn last_slash(path: &str) -> Option<usize> {
    let (head, words) = path.as_bytes().as_rchunks::<8>();
    for (at, word) in words.iter().enumerate().rev() {
        if let Some(slash) = slashes(*word).checked_ilog2() {
            let slash = head.len() + at * 8 + slash as usize / 8;
            debug_assert_eq!(Some(slash), path.rfind('/'), "the last slash of {path}");
            return Some(slash);
        }
    }
    head.iter().rposition(|byte| *byte == b'/')
}

/// Finds the first slash, faster than `str::find`.
pub(crate) fn first_slash(path: &str) -> Option<usize> {
    let slash = first_slash_by_words(path);
    debug_assert_eq!(slash, path.find('/'), "the first slash of {path}");
    slash
}

fn first_slash_by_words(path: &str) -> Option<usize> {
    let (words, tail) = path.as_bytes().as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let slashes = slashes(*word);
        if slashes != 0 {
            return Some(at * 8 + slashes.trailing_zeros() as usize / 8);
        }
    }
    tail.iter().position(|byte| *byte == b'/').map(|at| words.len() * 8 + at)
}

/// Returns a word with the highest bit set in every byte that is a slash.
fn slashes(word: [u8; 8]) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // A slash becomes 0: the only byte without a highest bit both before the addition and after.
    let word = u64::from_le_bytes(word) ^ 0x2f2f_2f2f_2f2f_2f2f;
    !(((word & LOW) + LOW) | word | LOW)
}

/// Returns the names from the root down; `None` if `path` does not start with a slash.
fn names(path: &str) -> Option<impl Iterator<Item = &str>> {
    let below = path.strip_prefix('/')?;
    // The path "/" has no names, but a split of "" returns one.
    Some(cut((!below.is_empty()).then_some(below)))
}

/// Iterates over the names of a path without its first slash; no names for `None`.
fn cut(mut path: Option<&str>) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let rest = path?;
        let slash = first_slash(rest);
        path = slash.map(|slash| &rest[slash + 1..]);
        Some(slash.map_or(rest, |slash| &rest[..slash]))
    })
}

impl Tree {
    /// Returns a tree with a root only.
    pub(crate) fn new(mut root: Znode) -> Self {
        let (mut totals, mut acls) = (Totals::default(), Acls::default());
        acls.add(&mut root.acl);
        totals.add("/", &mut root);
        let mut nodes = Arena::default();
        nodes.insert(root);
        Tree::assembled(nodes, totals, SharedMap::default(), acls)
    }

    /// Returns a tree of these znodes, the root first, with the totals of the znodes.
    pub(crate) fn assembled(
        nodes: Arena<Znode>,
        totals: Totals,
        reapable: SharedMap<Box<str>, ()>,
        acls: Acls,
    ) -> Self {
        assert_eq!(totals.znodes, nodes.len() as u64, "each znode is there once");
        assert_eq!(totals.znodes, 1 + nodes.at(ROOT).descendants, "the znodes are counted in two ways");
        assert!(reapable.len() as u64 <= totals.znodes, "more znodes are indexed than there are");
        Tree { nodes, totals, reapable, acls }
    }

    pub(crate) fn root(&self) -> &Znode {
        self.nodes.at(ROOT)
    }

    /// Returns the znode with this number: a znode of the tree, or an unlinked znode not yet forgotten.
    #[inline]
    pub(crate) fn node(&self, id: Number) -> &Znode {
        self.nodes.at(id)
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the ACLs of all znodes.
    pub(crate) fn acls(&self) -> &Acls {
        &self.acls
    }

    /// Replaces the ACL of the znode `id` at `path`; `change` updates its numbers.
    pub(crate) fn set_acl<R>(
        &mut self,
        (path, id): (&str, Number),
        mut acl: SharedAcl,
        change: impl FnOnce(&mut Znode) -> R,
    ) -> R {
        self.acls.add(&mut acl);
        let ((old, result), _) = self.update(path, id, 0, |znode| {
            let old = std::mem::replace(&mut znode.acl, acl);
            (old, change(znode))
        });
        self.acls.sub(&old);
        result
    }

    /// Returns the paths of containers and TTL znodes, in order.
    pub(crate) fn reapable(&self) -> &SharedMap<Box<str>, ()> {
        &self.reapable
    }

    /// Returns the znode at `path`, also for a malformed `path`.
    pub(crate) fn get(&self, path: &str) -> Option<&Znode> {
        self.find(path).map(|id| self.node(id))
    }

    pub(crate) fn find(&self, path: &str) -> Option<Number> {
        let mut id = ROOT;
        for name in names(path)? {
            id = self.child(id, name)?;
        }
        Some(id)
    }

    pub(crate) fn child(&self, parent: Number, name: &str) -> Option<Number> {
        self.node(parent).children.get(name.as_bytes()).copied()
    }

    /// Iterates over a znode's children by name.
    pub(crate) fn children<'a>(&'a self, parent: &'a Znode) -> impl Iterator<Item = (&'a str, &'a Znode)> {
        parent.children.iter().map(|(name, id)| (&**name, self.node(*id)))
    }

    /// Returns the znode at `path`, or its nearest existing ancestor.
    pub(crate) fn nearest(&self, path: &str) -> &Znode {
        self.node(self.find_deepest(path).0)
    }

    /// Finds the deepest existing znode on the way to `path`. Returns its number and the length of its path
    /// (0: the root).
    pub(crate) fn find_deepest(&self, path: &str) -> (Number, usize) {
        let (mut id, mut end) = (ROOT, 0);
        for name in names(path).into_iter().flatten() {
            let Some(child) = self.child(id, name) else { break };
            id = child;
            end += 1 + name.len();
        }
        (id, end)
    }

    /// Changes the znode `id` at `path`, but not its children. `change` makes the data longer by
    /// `bytes_diff`, and receives the parent's ACL too. The root is its own parent.
    pub(crate) fn update<R>(
        &mut self,
        path: &str,
        id: Number,
        bytes_diff: i64,
        change: impl FnOnce(&mut Znode) -> R,
    ) -> (R, SharedAcl) {
        if bytes_diff != 0 && id != ROOT {
            let parent = self.node(id).parent;
            each_from(&mut self.nodes, parent, |above| {
                let bytes = above.bytes_below.checked_add_signed(bytes_diff);
                above.bytes_below = bytes.expect("what is below a znode has its bytes counted there");
            });
        }
        let parent_acl = self.node(self.node(id).parent).acl.clone();
        let znode = self.nodes.at_mut(id);
        self.totals.sub(path, znode);
        let bytes_before = znode.data_len() as i64;
        let (kind, children) = (znode.meta.kind, znode.children.len());
        let result = change(znode);
        assert_eq!(znode.data_len() as i64, bytes_before + bytes_diff, "the caller knows both lengths");
        debug_assert_eq!(znode.meta.kind, kind, "a znode stays of its kind");
        debug_assert_eq!(znode.children.len(), children, "a change of a znode spares its children");
        self.totals.add(path, znode);
        (result, parent_acl)
    }

    /// Adds a znode to be [linked](Tree::link) below this parent. Returns its number.
    pub(crate) fn add(&mut self, mut znode: Znode, parent: Number) -> Number {
        znode.parent = parent;
        self.nodes.insert(znode)
    }

    /// Links a childless znode, already added, at an unused `path` below its parent, and updates the parent's
    /// numbers.
    pub(crate) fn link(
        &mut self,
        path: Path<'_>,
        name: ZnodeName,
        (id, place): (Number, TreePosition),
        parent_change: impl FnOnce(&mut Meta),
    ) {
        assert!(!path.name().is_empty(), "a new znode has a name");
        debug_assert_eq!(&*name, path.name(), "a znode is called as its path ends");
        let znode = self.nodes.at_mut(id);
        assert!(znode.is_childless(), "a znode comes without children");
        assert!(znode.parent == place.parent, "a znode comes back below its parent");
        self.acls.add(&mut znode.acl);
        self.totals.add(path.full, znode);
        if matches!(znode.meta.kind, Kind::Container | Kind::Ttl(_)) {
            let old = self.reapable.insert(path.full.into(), ());
            assert!(old.is_none(), "{} comes and is indexed already", path.full);
        }
        let bytes = znode.data_len() as u64;
        let parent = each_from(&mut self.nodes, place.parent, |above| {
            above.descendants += 1;
            above.bytes_below += bytes;
        });
        assert!(!matches!(parent.meta.kind, Kind::Ephemeral(_)), "an ephemeral znode has no children");
        debug_assert!(parent.is_counted(path.parent()), "{} was changed past the tree", path.parent());
        parent_change(&mut parent.meta);
        self.totals.renew(path.parent(), parent);
        parent.children.insert_at(place.at, name, id);
        debug_assert!(parent.children.len() as u64 <= parent.descendants, "a child is not counted as below");
        assert!(self.totals.znodes == 1 + self.root().descendants, "the znodes are counted in two ways");
    }

    /// Unlinks the childless znode at `path` from its parent, and updates the parent's numbers. The znode
    /// keeps its number until [forgotten](Tree::forget).
    pub(crate) fn unlink(
        &mut self,
        path: Path<'_>,
        place: TreePosition,
        parent_change: impl FnOnce(&mut Meta),
    ) -> Unlinked {
        let id = *self.node(place.parent).children.at(place.at).1;
        let znode = self.nodes.at(id);
        assert!(znode.is_childless(), "only childless znodes are deleted");
        let bytes = znode.data_len() as u64;
        self.totals.sub(path.full, znode);
        self.acls.sub(&znode.acl);
        if matches!(znode.meta.kind, Kind::Container | Kind::Ttl(_)) {
            let known = self.reapable.remove(path.full);
            assert!(known.is_some(), "{} goes and was not indexed", path.full);
        }
        let parent = each_from(&mut self.nodes, place.parent, |above| {
            debug_assert!(
                above.descendants > 0 && above.bytes_below >= bytes,
                "what goes was counted above it"
            );
            above.descendants -= 1;
            above.bytes_below -= bytes;
        });
        debug_assert!(parent.is_counted(path.parent()), "{} was changed past the tree", path.parent());
        let (parent_before, parent_acl) = (ParentCounters::of(&parent.meta), parent.acl.clone());
        parent_change(&mut parent.meta);
        self.totals.renew(path.parent(), parent);
        let (name, _) = parent.children.take(place.at);
        assert!(*name == *path.name(), "a place is good as long as its siblings stay");
        debug_assert_eq!(parent.children.is_empty(), parent.descendants == 0, "descendants are children's");
        assert!(self.totals.znodes == 1 + self.root().descendants, "the znodes are counted in two ways");
        Unlinked { id, parent_before, parent_acl }
    }

    /// Frees the number of an unlinked znode.
    pub(crate) fn forget(&mut self, id: Number) {
        self.nodes.remove(id);
        debug_assert!(self.nodes.len() as u64 >= self.totals.znodes, "a znode of the tree is forgotten");
    }

    /// Checks that all numbers are numbers of linked znodes, for [`crate::Machine::check`].
    pub(crate) fn check(&self) -> Result<(), String> {
        self.nodes.check()?;
        if self.nodes.len() as u64 == self.totals.znodes {
            Ok(())
        } else {
            Err("a znode that is gone was not forgotten".to_owned())
        }
    }
}

/// Position of a znode in the tree: the parent, and the slot among the siblings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreePosition {
    pub parent: Number,
    /// Valid until a sibling is created or deleted.
    pub at: Slot,
}

/// Numbers of the parent before the creation or deletion of a child.
#[derive(Clone, Copy)]
pub(crate) struct ParentCounters {
    pzxid: Zxid,
    creates: i32,
}

impl ParentCounters {
    pub(crate) fn of(parent: &Meta) -> Self {
        ParentCounters { pzxid: parent.pzxid, creates: parent.creates }
    }

    /// Reverts the change of the parent's numbers.
    pub(crate) fn restore(self, parent: &mut Meta) {
        (parent.pzxid, parent.creates) = (self.pzxid, self.creates);
    }
}

/// An unlinked znode, and the parent's previous numbers.
pub(crate) struct Unlinked {
    pub id: Number,
    pub parent_before: ParentCounters,
    pub parent_acl: SharedAcl,
}

/// Changes a znode and all its ancestors. Returns the znode.
fn each_from(nodes: &mut Arena<Znode>, id: Number, each: impl Fn(&mut Znode)) -> &mut Znode {
    let (mut at, mut above) = (id, nodes.at(id).parent);
    while at != ROOT {
        steps::take(1);
        let znode = nodes.at_mut(above);
        each(znode);
        (at, above) = (above, znode.parent);
    }
    steps::take(1);
    let znode = nodes.at_mut(id);
    each(znode);
    znode
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_its_znode_and_to_the_deepest_one_above_it() {
        let open = SharedAcl::new(rowlock_proto::acl::Acl::open());
        let znode = || Znode::new(Meta::new(Zxid(1), 0, Kind::Persistent), None, open.clone());
        let mut tree = Tree::new(znode());
        let known = ["/", "/a", "/b", "/ab", "/a/b", "/a/b/a", "/ab/a", "/b/b"];
        for path in &known[1..] {
            let path = Path::new(path).unwrap();
            let parent = tree.find(path.parent()).unwrap();
            let at = tree.node(parent).children.find(path.name().as_bytes()).unwrap_err();
            let id = tree.add(znode(), parent);
            tree.link(path, path.name().into(), (id, TreePosition { parent, at }), |_| ());
        }
        let pieces = ["", "/", "a", "b", "/a", "/b", "ab", "//"];
        for at in 0..pieces.len().pow(4) {
            let path: String = [1, 8, 64, 512].map(|step| pieces[at / step % pieces.len()]).concat();
            let expected = tree.get(&path).map(std::ptr::from_ref);
            assert_eq!(expected.is_some(), known.contains(&path.as_str()), "{path:?}");
            let (deepest, end) = tree.find_deepest(&path);
            assert_eq!(
                tree.get(if end == 0 { "/" } else { &path[..end] }).map(std::ptr::from_ref),
                Some(std::ptr::from_ref(tree.node(deepest)))
            );
        }
    }

    #[test]
    fn paths_are_cut_at_every_slash_and_nowhere_else() {
        let pieces = ["", "/", "a", ".", "/.", "0", "\u{80}", "_c_0123-lock-0000000007", "locks", "//"];
        for at in 0..pieces.len().pow(3) {
            let [a, b, c] = [1, 10, 100].map(|step| pieces[at / step % pieces.len()]);
            let path = format!("{a}{b}{c}{c}{a}");
            let parent_and_name = path.rsplit_once('/').map(|(parent, name)| match parent {
                "" => ("/", name),
                parent => (parent, name),
            });
            assert_eq!(split(&path), parent_and_name, "{path}");
            let expected = path.strip_prefix('/').map(|below| match below {
                "" => Vec::new(),
                below => below.split('/').collect::<Vec<_>>(),
            });
            assert_eq!(names(&path).map(Iterator::collect), expected, "{path}");
        }
    }
}
