//! The tree of znodes with everything that is counted over it.
//!
//! Knows nothing of permissions, versions or sessions: `ops` decides, the tree carries out and keeps the
//! digest, the counters and the index of reapable znodes right. A clone shares all structure.

use std::borrow::Cow;

use rowlock_proto::Zxid;
use smallvec::SmallVec;

use crate::acl::{Acls, SharedAcl};
use crate::shared_map::{SharedMap, Slot};
use crate::steps;
use crate::znode::{Kind, Meta, SharedZnode, Znode};

/// All znodes.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: SharedZnode,
    totals: Totals,
    /// Paths of containers and TTL znodes.
    reapable: SharedMap<Box<str>, ()>,
    acls: Acls,
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
    pub(crate) fn add(&mut self, path: &str, znode: &mut Znode) {
        let hash = znode.count_hash(path);
        self.add_hashed(path, znode, hash);
    }

    /// The same for one whose hash is known.
    pub(crate) fn add_hashed(&mut self, path: &str, znode: &Znode, hash: u64) {
        self.digest = self.digest.wrapping_add(hash);
        self.znodes += 1;
        self.ephemerals += u64::from(matches!(znode.meta.kind, Kind::Ephemeral(_)));
        self.bytes += (path.len() + znode.data_len()) as u64;
    }

    /// A znode goes.
    fn sub(&mut self, path: &str, znode: &Znode) {
        debug_assert!(znode.is_counted(path), "{path} was changed past the tree");
        let bytes = (path.len() + znode.data_len()) as u64;
        assert!(self.znodes > 0 && self.bytes >= bytes, "{path} goes and was not counted");
        self.digest = self.digest.wrapping_sub(znode.counted_hash());
        self.znodes -= 1;
        self.ephemerals -= u64::from(matches!(znode.meta.kind, Kind::Ephemeral(_)));
        self.bytes -= bytes;
    }

    /// A znode's numbers have changed, and nothing else of it.
    fn renew(&mut self, path: &str, znode: &mut Znode) {
        self.digest = self.digest.wrapping_sub(znode.counted_hash()).wrapping_add(znode.count_hash(path));
    }
}

/// The way down to a znode: where each of its ancestors, and it, lies among its siblings. Good until a znode
/// comes or goes beside one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trail(SmallVec<[Slot; 4]>);

/// A path, and where its last name begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path<'a> {
    pub full: &'a str,
    name_at: usize,
}

impl<'a> Path<'a> {
    /// `None` without a slash.
    pub(crate) fn new(full: &'a str) -> Option<Self> {
        Some(Path { full, name_at: last_slash(full)? + 1 })
    }

    /// Of a child of `parent`.
    pub(crate) fn below(parent: &str, full: &'a str) -> Self {
        debug_assert!(full.starts_with(parent), "{full} is not below {parent}");
        Path::cut(full, if parent.len() == 1 { 1 } else { parent.len() + 1 })
    }

    /// Where it is known that the last name begins `at` there.
    pub(crate) fn cut(full: &'a str, name_at: usize) -> Self {
        assert_eq!(full.as_bytes()[name_at - 1], b'/', "a name begins behind a slash");
        debug_assert!(!full[name_at..].contains('/'), "the last name of {full} begins behind byte {name_at}");
        Path { full, name_at }
    }

    /// The path of the parent; that of `/a` is `/`.
    pub(crate) fn parent(self) -> &'a str {
        if self.name_at == 1 { "/" } else { &self.full[..self.name_at - 1] }
    }

    /// The last name.
    pub(crate) fn name(self) -> &'a str {
        &self.full[self.name_at..]
    }

    /// Where it begins.
    pub(crate) fn name_at(self) -> usize {
        self.name_at
    }
}

/// Parent and name of `path`; the parent of `/a` is `/`. `None` without a slash.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let path = Path::new(path)?;
    Some((path.parent(), path.name()))
}

/// As `str::rfind`, which costs several times as much for the short names of paths.
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

/// As `str::find`, which costs more too.
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

/// The highest bit of every byte that is a slash.
fn slashes(word: [u8; 8]) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // A slash becomes 0, which is what has neither its highest bit nor, after the addition, a carry into it.
    let word = u64::from_le_bytes(word) ^ 0x2f2f_2f2f_2f2f_2f2f;
    !(((word & LOW) + LOW) | word | LOW)
}

/// The names from the root down; `None` if `path` does not start at the root.
fn names(path: &str) -> Option<impl Iterator<Item = &str>> {
    let below = path.strip_prefix('/')?;
    // The path "/" has no names, where splitting "" would give one.
    Some(cut((!below.is_empty()).then_some(below)))
}

/// The names of a path without its first slash; none of nothing.
fn cut(mut path: Option<&str>) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let rest = path?;
        let slash = first_slash(rest);
        path = slash.map(|slash| &rest[slash + 1..]);
        Some(slash.map_or(rest, |slash| &rest[..slash]))
    })
}

impl Tree {
    /// A root without children.
    pub(crate) fn new(mut root: Znode) -> Self {
        let (mut totals, mut acls) = (Totals::default(), Acls::default());
        acls.add(&mut root.acl);
        totals.add("/", &mut root);
        Tree::assembled(root, totals, SharedMap::default(), acls)
    }

    /// A root with everything below it, and what has been counted over it.
    pub(crate) fn assembled(
        root: Znode,
        totals: Totals,
        reapable: SharedMap<Box<str>, ()>,
        acls: Acls,
    ) -> Self {
        assert_eq!(totals.znodes, 1 + root.descendants, "the znodes are counted in two ways");
        assert!(reapable.len() as u64 <= totals.znodes, "more znodes are indexed than there are");
        Tree { root: SharedZnode::new(root), totals, reapable, acls }
    }

    pub(crate) fn root(&self) -> &Znode {
        &self.root
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The lists of all znodes.
    pub(crate) fn acls(&self) -> &Acls {
        &self.acls
    }

    /// Gives the znode at `path`, the end of `trail`, another list; `change` sees to the rest of it.
    pub(crate) fn set_acl<R>(
        &mut self,
        (path, trail): (&str, &Trail),
        mut acl: SharedAcl,
        change: impl FnOnce(&mut Znode) -> R,
    ) -> R {
        self.acls.add(&mut acl);
        let ((old, result), _) = self.update(path, trail, 0, |znode| {
            let old = std::mem::replace(&mut znode.acl, acl);
            (old, change(znode))
        });
        self.acls.sub(&old);
        result
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

    /// The znode at `path`, or the nearest one above it that is there.
    pub(crate) fn nearest(&self, path: &str) -> &Znode {
        let mut znode = &*self.root;
        for name in names(path).into_iter().flatten() {
            let Some(child) = znode.children.get(name) else { break };
            znode = child;
        }
        znode
    }

    /// The znode at `path`, with the way there.
    pub(crate) fn find(&self, path: &str) -> Option<(Trail, &Znode)> {
        let mut znode = &*self.root;
        let mut trail = Trail::default();
        for name in names(path)? {
            let place = znode.children.find(name).ok()?;
            trail.0.push(place);
            znode = znode.children.at(place).1;
        }
        Some((trail, znode))
    }

    /// The way to the deepest znode on the way to `path`, and how much of `path` leads there (0: the root).
    pub(crate) fn find_deepest(&self, path: &str) -> (Trail, usize) {
        let (mut znode, mut trail, mut end) = (&*self.root, Trail::default(), 0);
        for name in names(path).into_iter().flatten() {
            let Ok(place) = znode.children.find(name) else { break };
            trail.0.push(place);
            znode = znode.children.at(place).1;
            end += 1 + name.len();
        }
        debug_assert!(
            std::ptr::eq(steps::uncounted(|| self.at(&trail)), znode),
            "the way to {path} leads elsewhere"
        );
        (trail, end)
    }

    /// Goes on with a trail that is still good to a child of the znode at its end, where there is one.
    pub(crate) fn descend(&self, trail: &mut Trail, name: &str) {
        trail.0.push(self.at(trail).children.find(name).expect("the caller knows the child"));
    }

    /// The same, which is sooner found if the way is `guess`.
    pub(crate) fn find_near<'a>(
        &self,
        path: &str,
        guess: Option<&'a Trail>,
    ) -> Option<(Cow<'a, Trail>, &Znode)> {
        if let Some(guess) = guess
            && let Some(znode) = self.at_end(guess, path)
        {
            debug_assert!(
                steps::uncounted(|| self.get(path)).is_some_and(|known| std::ptr::eq(known, znode)),
                "a guess leads to another znode than {path}"
            );
            return Some((Cow::Borrowed(guess), znode));
        }
        let (trail, znode) = self.find(path)?;
        Some((Cow::Owned(trail), znode))
    }

    /// The znode at the end of a trail that may lead anywhere by now, if it leads to `path`. Not for the
    /// root.
    fn at_end(&self, trail: &Trail, path: &str) -> Option<&Znode> {
        let (mut znode, mut rest) = (&*self.root, path.as_bytes());
        for place in &trail.0 {
            let (name, child) = znode.children.get_at(*place)?;
            let (slash, below) = rest.split_first()?;
            let (known, below) = below.split_at_checked(name.len())?;
            if *slash != b'/' || known != name.as_bytes() {
                return None;
            }
            (znode, rest) = (child, below);
        }
        (rest.is_empty() && !trail.0.is_empty()).then_some(znode)
    }

    /// The znode at the end of a trail that is still good.
    pub(crate) fn at(&self, trail: &Trail) -> &Znode {
        steps::take(trail.0.len());
        trail.0.iter().fold(&*self.root, |znode, place| znode.children.at(*place).1)
    }

    /// Changes the znode at `path`, the end of `trail`, but not its children; `change` makes its data longer
    /// by `bytes_diff`. Gives the parent's ACL too.
    pub(crate) fn update<R>(
        &mut self,
        path: &str,
        trail: &Trail,
        bytes_diff: i64,
        change: impl FnOnce(&mut Znode) -> R,
    ) -> (R, SharedAcl) {
        let (last, above) = match trail.0.split_last() {
            Some((last, above)) => (Some(*last), above),
            None => (None, &[][..]),
        };
        let diff_above = if last.is_some() { bytes_diff } else { 0 };
        let parent = walk(&mut self.root, above, |above| {
            let bytes = above.bytes_below.checked_add_signed(diff_above);
            above.bytes_below = bytes.expect("what is below a znode has its bytes counted there");
        });
        let parent_acl = parent.acl.clone();
        let znode = match last {
            Some(place) => SharedZnode::make_mut(parent.children.at_mut(place)),
            // The root is its own parent.
            None => parent,
        };
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

    /// Puts a childless znode at `path`, where there is none, into its place below its parent, and changes
    /// the numbers of the parent. Gives the znode.
    pub(crate) fn link(
        &mut self,
        path: Path<'_>,
        (parent, place): (&Trail, Slot),
        mut znode: Znode,
        parent_change: impl FnOnce(&mut Meta),
    ) -> SharedZnode {
        assert!(znode.is_childless(), "a znode comes without children");
        assert!(!path.name().is_empty(), "a new znode has a name");
        self.acls.add(&mut znode.acl);
        self.totals.add(path.full, &mut znode);
        if matches!(znode.meta.kind, Kind::Container | Kind::Ttl(_)) {
            let old = self.reapable.insert(path.full.into(), ());
            assert!(old.is_none(), "{} comes and is indexed already", path.full);
        }
        let bytes = znode.data_len() as u64;
        let parent = walk(&mut self.root, &parent.0, |above| {
            above.descendants += 1;
            above.bytes_below += bytes;
        });
        assert!(!matches!(parent.meta.kind, Kind::Ephemeral(_)), "an ephemeral znode has no children");
        debug_assert!(parent.is_counted(path.parent()), "{} was changed past the tree", path.parent());
        parent_change(&mut parent.meta);
        self.totals.renew(path.parent(), parent);
        let znode = SharedZnode::new(znode);
        parent.children.put(place, path.name().into(), znode.clone());
        debug_assert!(parent.children.len() as u64 <= parent.descendants, "a child is not counted as below");
        assert!(self.totals.znodes == 1 + self.root.descendants, "the znodes are counted in two ways");
        znode
    }

    /// Takes the childless znode at `path` out of its place below its parent, and changes the numbers of the
    /// parent.
    pub(crate) fn unlink(
        &mut self,
        path: Path<'_>,
        (trail, place): (&Trail, Slot),
        parent_change: impl FnOnce(&mut Meta),
    ) -> Unlinked {
        let bytes = self.at(trail).children.at(place).1.data_len() as u64;
        let parent = walk(&mut self.root, &trail.0, |above| {
            debug_assert!(
                above.descendants > 0 && above.bytes_below >= bytes,
                "what goes was counted above it"
            );
            above.descendants -= 1;
            above.bytes_below -= bytes;
        });
        debug_assert!(parent.is_counted(path.parent()), "{} was changed past the tree", path.parent());
        let (parent_before, parent_acl) = (Before::of(&parent.meta), parent.acl.clone());
        parent_change(&mut parent.meta);
        self.totals.renew(path.parent(), parent);
        let (name, znode) = parent.children.take(place);
        assert_eq!(*name, *path.name(), "a place is good as long as its siblings stay");
        assert!(znode.is_childless(), "only childless znodes are deleted");
        debug_assert_eq!(parent.children.is_empty(), parent.descendants == 0, "descendants are children's");
        self.totals.sub(path.full, &znode);
        assert!(self.totals.znodes == 1 + self.root.descendants, "the znodes are counted in two ways");
        self.acls.sub(&znode.acl);
        if matches!(znode.meta.kind, Kind::Container | Kind::Ttl(_)) {
            let known = self.reapable.remove(path.full);
            assert!(known.is_some(), "{} goes and was not indexed", path.full);
        }
        Unlinked { znode, parent_before, parent_acl }
    }
}

/// What a create or a delete of a child changes in the numbers of its parent.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    pzxid: Zxid,
    creates: i32,
}

impl Before {
    pub(crate) fn of(parent: &Meta) -> Self {
        Before { pzxid: parent.pzxid, creates: parent.creates }
    }

    /// Takes the change back.
    pub(crate) fn restore(self, parent: &mut Meta) {
        (parent.pzxid, parent.creates) = (self.pzxid, self.creates);
    }
}

/// A znode that has been taken out, and what its parent was like.
pub(crate) struct Unlinked {
    pub znode: SharedZnode,
    pub parent_before: Before,
    pub parent_acl: SharedAcl,
}

/// The znode at the end of a trail, to be changed; `each` sees every znode on the way, this one too.
fn walk<'a>(root: &'a mut SharedZnode, trail: &[Slot], each: impl Fn(&mut Znode)) -> &'a mut Znode {
    steps::take(trail.len());
    let mut znode = SharedZnode::make_mut(root);
    each(znode);
    for place in trail {
        znode = SharedZnode::make_mut(znode.children.at_mut(*place));
        each(znode);
    }
    znode
}

#[cfg(test)]
mod tests;
