//! Access control lists on the wire: permission bits for an identity.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use crate::wire::NullIsEmpty;

record! {
    /// An identity: a scheme (`world`, `digest`, `ip`, `auth`, `sasl`, `x509`) and a name in this scheme.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    pub struct Id {
        /// Scheme of the identification.
        pub scheme: String,
        /// Name that the scheme checks.
        pub id: String as NullIsEmpty,
    }
}

record! {
    /// Permissions of an identity for one znode.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    pub struct Acl {
        /// Granted permissions: bits of [`perms`].
        pub perms: i32,
        /// Identity that has the permissions.
        pub id: Id,
    }
}

/// Bits of [`Acl::perms`], with ZooKeeper's values.
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
    /// Returns the identity `world:anyone`.
    pub fn anyone() -> Self {
        Id { scheme: "world".to_owned(), id: "anyone".to_owned() }
    }
}

static OPEN: LazyLock<Arc<[Acl]>> = LazyLock::new(|| Acl::open().into());

impl Acl {
    /// Returns the open ACL: all permissions for all clients.
    pub fn open() -> Vec<Acl> {
        vec![Acl { perms: perms::ALL, id: Id::anyone() }]
    }

    /// Returns true if a list is the open ACL.
    pub fn is_open(list: &[Acl]) -> bool {
        matches!(list, [Acl { perms: perms::ALL, id }] if id.scheme == "world" && id.id == "anyone")
    }

    /// Returns [`Acl::open`] as one shared allocation: most queue znodes have this list.
    pub fn shared_open() -> Arc<[Acl]> {
        OPEN.clone()
    }

    /// Borrows the entries of the open ACL.
    pub fn open_entries() -> &'static [Acl] {
        &OPEN
    }
}
