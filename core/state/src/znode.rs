//! One znode: data, ACL, bookkeeping and children.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::{SessionId, Stat, Version, Zxid};
use serde::{Deserialize, Serialize};

use crate::acl_table::SharedAcl;
use crate::arena::Number;
use crate::digest::Hasher;
use crate::shared_map::SharedMap;

/// Children of a znode: their numbers in the tree, by name.
pub(crate) type Children = SharedMap<ZnodeName, Number>;

/// Name of a znode among its siblings. For an ephemeral znode, a slice of the path that its session shares.
#[derive(Clone, Debug)]
pub(crate) struct ZnodeName {
    text: Arc<str>,
    begin: u32,
}

impl ZnodeName {
    /// Returns the name of an ephemeral znode: its path from `begin` on.
    pub(crate) fn within(path: &Arc<str>, begin: usize) -> Self {
        ZnodeName { text: path.clone(), begin: begin as u32 }
    }
}

impl From<&str> for ZnodeName {
    fn from(name: &str) -> Self {
        ZnodeName { text: name.into(), begin: 0 }
    }
}

impl std::ops::Deref for ZnodeName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text[self.begin as usize..]
    }
}

/// Texts have the order of their bytes: comparisons need no character boundaries.
impl Borrow<[u8]> for ZnodeName {
    #[inline]
    fn borrow(&self) -> &[u8] {
        &self.text.as_bytes()[self.begin as usize..]
    }
}

impl Ord for ZnodeName {
    fn cmp(&self, other: &Self) -> Ordering {
        Borrow::<[u8]>::borrow(self).cmp(other.borrow())
    }
}

impl PartialOrd for ZnodeName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ZnodeName {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ZnodeName {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Persistent,
    /// Lives as long as the session; never has children.
    Ephemeral(SessionId),
    /// Lives until its last child is gone.
    Container,
    /// Lives until childless, with unchanged data, for this many milliseconds.
    Ttl(i64),
}

/// The numbers of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub czxid: Zxid,
    /// Zxid of the last change of the data.
    pub mzxid: Zxid,
    /// Zxid of the last create or delete of a child, or of the creation.
    pub pzxid: Zxid,
    pub ctime_ms: i64,
    pub mtime_ms: i64,
    /// Changes of the data.
    pub version: Version,
    /// Changes of the ACL.
    pub aversion: Version,
    /// Successful creates of children, never reset: the next sequence number.
    pub creates: i32,
    pub kind: Kind,
}

impl Meta {
    /// Returns the numbers of a znode that `zxid` creates.
    pub(crate) fn new(zxid: Zxid, time_ms: i64, kind: Kind) -> Self {
        Meta {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime_ms: time_ms,
            mtime_ms: time_ms,
            version: Version(0),
            aversion: Version(0),
            creates: 0,
            kind,
        }
    }

    /// Returns whether the znode ever had children.
    pub(crate) fn has_had_children(&self) -> bool {
        // The number of creates wraps around eventually.
        self.creates != 0 || self.pzxid != self.czxid
    }
}

/// A znode. Refers to its children by their numbers in the tree.
///
/// Invariant: changes go only through [`crate::tree::Tree`], which maintains digest and counters.
#[derive(Clone, Debug)]
pub(crate) struct Znode {
    pub meta: Meta,
    /// Null differs from empty.
    data: Option<Bytes>,
    /// Hash of `data`: creation of a child does not hash a megabyte again.
    data_hash: u64,
    pub acl: SharedAcl,
    /// Number of the parent in the tree; the root is its own parent.
    pub parent: Number,
    pub children: Children,
    /// Znodes below, at any depth.
    pub descendants: u64,
    /// Bytes of data below, at any depth.
    pub bytes_below: u64,
    /// Hasher of the path, which never changes; of no path until the tree counts the znode.
    path_hasher: Hasher,
    /// Result of [`Znode::hash`] when the tree counted the znode: removal from a sum needs no new hash.
    counted_hash: u64,
}

/// Hasher's initial state for all znodes.
const NO_PATH: Hasher = Hasher::new(1);

impl Znode {
    pub(crate) fn new(meta: Meta, data: Option<Bytes>, acl: SharedAcl) -> Self {
        assert!(!acl.entries().is_empty(), "a znode has an ACL");
        let data_hash = hash_data(data.as_deref());
        let children = Children::default();
        let (parent, path_hasher) = (Number::FIRST, NO_PATH);
        let (descendants, bytes_below, counted_hash) = (0, 0, 0);
        #[rustfmt::skip]
        let znode = Znode {
            meta, data, data_hash, acl, parent, children, descendants, bytes_below, path_hasher, counted_hash
        };
        znode
    }

    pub(crate) fn data(&self) -> Option<&Bytes> {
        self.data.as_ref()
    }

    /// Replaces the data. Returns the previous data.
    pub(crate) fn replace_data(&mut self, data: Option<Bytes>) -> Option<Bytes> {
        self.data_hash = hash_data(data.as_deref());
        std::mem::replace(&mut self.data, data)
    }

    pub(crate) fn data_hash_is_stale(&self) -> bool {
        self.data_hash != hash_data(self.data.as_deref())
    }

    pub(crate) fn data_len(&self) -> usize {
        self.data.as_ref().map_or(0, Bytes::len)
    }

    /// Returns the Stat that clients see.
    pub(crate) fn stat(&self) -> Stat {
        let meta = &self.meta;
        let children = saturating_i32(self.children.len() as u64);
        Stat {
            czxid: meta.czxid,
            mzxid: meta.mzxid,
            ctime_ms: meta.ctime_ms,
            mtime_ms: meta.mtime_ms,
            version: meta.version,
            // Creates plus deletes, like in ZooKeeper (DataNode.copyStat).
            cversion: Version(meta.creates.wrapping_mul(2).wrapping_sub(children)),
            aversion: meta.aversion,
            ephemeral_owner: match meta.kind {
                Kind::Ephemeral(session) => session,
                Kind::Persistent | Kind::Container | Kind::Ttl(_) => SessionId::NONE,
            },
            data_length: saturating_i32(self.data_len() as u64),
            num_children: children,
            pzxid: meta.pzxid,
        }
    }

    /// Returns whether the znode has no children.
    pub(crate) fn is_childless(&self) -> bool {
        let is_childless = self.children.is_empty();
        assert!(is_childless == (self.descendants == 0), "what is below a znode is below its children");
        debug_assert!(!is_childless || self.bytes_below == 0, "the bytes below a znode are its children's");
        is_childless
    }

    /// Returns whether the hash still equals the counted hash. Only for assertions.
    pub(crate) fn is_counted(&self, path: &str) -> bool {
        crate::steps::uncounted(|| self.counted_hash == self.hash(path))
    }

    /// Returns the contribution to the digest as last counted.
    pub(crate) fn counted_hash(&self) -> u64 {
        self.counted_hash
    }

    /// Computes the contribution to the digest anew, and counts it.
    pub(crate) fn count_hash(&mut self, path: &str) -> u64 {
        debug_assert!(
            crate::steps::uncounted(|| !self.data_hash_is_stale()),
            "{path} has data that were not hashed"
        );
        if self.path_hasher == NO_PATH {
            self.path_hasher = NO_PATH.bytes(path.as_bytes());
        }
        self.counted_hash = self.hash_with(self.path_hasher);
        self.counted_hash
    }

    /// Returns the contribution to the digest, without the children's contributions.
    pub(crate) fn hash(&self, path: &str) -> u64 {
        self.hash_with(NO_PATH.bytes(path.as_bytes()))
    }

    /// Returns the contribution to the digest, from the path's hasher.
    fn hash_with(&self, path: Hasher) -> u64 {
        let meta = &self.meta;
        let (kind, detail) = match meta.kind {
            Kind::Persistent => (0, 0),
            Kind::Ephemeral(session) => (1, session.0),
            Kind::Container => (2, 0),
            Kind::Ttl(ttl_ms) => (3, ttl_ms),
        };
        path.word(self.data_hash)
            .word(self.acl.hash())
            .int(meta.czxid.0)
            .int(meta.mzxid.0)
            .int(meta.pzxid.0)
            .int(meta.ctime_ms)
            .int(meta.mtime_ms)
            .int(i64::from(meta.version.0))
            .int(i64::from(meta.aversion.0))
            .int(i64::from(meta.creates))
            .word(kind)
            .int(detail)
            .finish()
    }
}

fn hash_data(data: Option<&[u8]>) -> u64 {
    data.map_or(0, |data| Hasher::new(3).bytes(data).finish())
}

/// Saturates a count for the protocol's 32-bit counters.
pub(crate) fn saturating_i32(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
