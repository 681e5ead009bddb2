//! One znode of the source, from a file or from a live cluster.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rowlock_client::Acl;

/// A znode, as much of it as can be carried over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Path in the source; its root is `/`.
    pub path: String,
    /// Null and empty are different.
    pub data: Option<Bytes>,
    /// Shared between the znodes that have the same one.
    pub acl: Arc<Vec<Acl>>,
    /// What ends its life.
    pub kind: Lifetime,
    /// Changes of its data.
    pub version: i32,
    /// Children created so far: the number of the next sequential one.
    pub creates: i32,
    /// The last change of it or of its list of children; fencing tokens of the source are no larger.
    pub zxid: i64,
}

/// What ends a znode's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    Persistent,
    /// The end of its session; such znodes are not imported.
    Ephemeral,
    /// The end of its last child.
    Container,
    /// This long without children and changes.
    Ttl(Duration),
}

impl Lifetime {
    /// From `ephemeralOwner` in ZooKeeper's files (not on the wire): a session, or one of two
    /// marks (`EphemeralType.java`). The two bytes after the second mark are 0; else it is a session of
    /// server 255.
    pub fn from_owner(owner: i64) -> Self {
        const TTL_MARK: u64 = 0xff_0000;
        const TTL_BITS: u64 = 0xff_ffff_ffff;
        match owner.cast_unsigned() {
            0 => Lifetime::Persistent,
            0x8000_0000_0000_0000 => Lifetime::Container,
            owner if owner >> 40 == TTL_MARK => Lifetime::Ttl(Duration::from_millis(owner & TTL_BITS)),
            _ => Lifetime::Ephemeral,
        }
    }

    /// The inverse, but for the session's number.
    pub fn to_owner(self) -> i64 {
        let owner: u64 = match self {
            Lifetime::Persistent => 0,
            Lifetime::Ephemeral => 1,
            Lifetime::Container => 0x8000_0000_0000_0000,
            Lifetime::Ttl(ttl) => {
                0xff00_0000_0000_0000 | u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX >> 24)
            }
        };
        owner.cast_signed()
    }
}

/// The number that ends the name of a sequential znode, if it could be one (`%010d`, up to 2^31 - 1:
/// ZooKeeper goes on below zero then, and such names are never given twice).
pub fn sequence_number(name: &str) -> Option<i64> {
    let digits = name.get(name.len().checked_sub(10)?..)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|number| *number <= i64::from(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_owners_tell_the_kind_and_back() {
        let ttl = Lifetime::Ttl(Duration::from_millis(0xff_ffff_ffff));
        for (owner, kind) in [
            (0, Lifetime::Persistent),
            (i64::MIN, Lifetime::Container),
            (0xff00_0000_0000_0007_u64.cast_signed(), Lifetime::Ttl(Duration::from_millis(7))),
            (0xff00_00ff_ffff_ffff_u64.cast_signed(), ttl),
        ] {
            assert_eq!((Lifetime::from_owner(owner), kind.to_owner()), (kind, owner));
        }
        for session in [0x0100_003a_3385_0000, 0xff00_013a_3385_0000] {
            assert_eq!(Lifetime::from_owner(u64::cast_signed(session)), Lifetime::Ephemeral);
        }
        assert_eq!(Lifetime::from_owner(Lifetime::Ephemeral.to_owner()), Lifetime::Ephemeral);
    }

    #[test]
    fn only_names_that_the_server_could_give_have_a_number() {
        for (name, number) in [
            ("job-0000000011", Some(11)),
            ("0000000000", Some(0)),
            ("x2147483647", Some(2_147_483_647)),
            ("x2147483648", None),
            ("job-000000011", None),
            ("jöb-000000011ä", None),
            ("", None),
        ] {
            assert_eq!(sequence_number(name), number, "{name}");
        }
    }
}
