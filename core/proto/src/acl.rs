//! Access control lists as the protocol carries them: permission bits for an identity.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

/// Who: a scheme (`world`, `digest`, `ip`, `auth`, `sasl`, `x509`) and a name inside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id {
    /// The way of identification.
    pub scheme: String,
    /// The name that the scheme checks.
    pub id: String,
}

/// Permissions of an identity for one znode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Acl {
    /// Permissions granted: bits of [`perms`].
    pub perms: i32,
    /// Whom the bits are for.
    pub id: Id,
}

/// Bits of an entry's permissions, as ZooKeeper numbers them.
pub mod perms {
    /// Allows getData, getChildren, exists, and receiving events.
    pub const READ: i32 = 1;
    /// Allows setData on the znode.
    pub const WRITE: i32 = 2;
    /// Allows the creation of children.
    pub const CREATE: i32 = 4;
    /// Allows the deletion of children.
    pub const DELETE: i32 = 8;
    /// Allows setACL, and getACL with digests.
    pub const ADMIN: i32 = 16;
    /// All five permissions together.
    pub const ALL: i32 = 31;
}

impl Id {
    /// The entry `world:anyone` with all permissions.
    pub fn anyone() -> Self {
        Id { scheme: "world".to_owned(), id: "anyone".to_owned() }
    }
}

static OPEN: LazyLock<Arc<[Acl]>> = LazyLock::new(|| Acl::open().into());

impl Acl {
    /// The list of an open znode: everything for everyone.
    pub fn open() -> Vec<Acl> {
        vec![Acl { perms: perms::ALL, id: Id::anyone() }]
    }

    /// Whether a list is that one.
    pub fn is_open(list: &[Acl]) -> bool {
        matches!(list, [Acl { perms: perms::ALL, id }] if id.scheme == "world" && id.id == "anyone")
    }

    /// [`Acl::open`], always one list: it is what most znodes of queues have.
    pub fn shared_open() -> Arc<[Acl]> {
        OPEN.clone()
    }

    /// Borrows the entries of the open ACL.
    pub fn open_entries() -> &'static [Acl] {
        &OPEN
    }
}
