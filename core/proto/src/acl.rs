//! Access control: lists of permission bits for an identity on the wire, and rights on locks.

use std::fmt;
use std::str::FromStr;
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

/// A right on a lock. Rules grant rights by the path of a lock and the identity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Allows a queue position in any mode, and the znodes that the lock needs.
    Take,
    /// Allows questions to the holders without a deadline.
    Ask,
    /// Allows every way of ending another session's hold: forced releases, deadlines, deletions.
    Force,
    /// Allows reads of the lock and of its queue: znodes, watches, reports, history, events.
    See,
}

impl Right {
    /// All rights, in the order used in messages.
    pub const ALL: [Right; 4] = [Right::Take, Right::Ask, Right::Force, Right::See];

    /// Returns the name used in rules and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Right::Take => "take",
            Right::Ask => "ask",
            Right::Force => "force",
            Right::See => "see",
        }
    }

    /// Returns an error text that names the missing right and the operator's next step.
    pub fn missing_on(self, lock: &str) -> String {
        format!("the right \"{self}\" on {lock} is missing; an operator can grant it with `rowlock acl set`")
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Right {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Right::ALL.into_iter().find(|right| right.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not a right: use take, ask, force, or see"))
    }
}
