//! Znode of the source, from a file or from a live cluster, and the znode that the target has at its path.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rowlock_client::{Acl, Stat};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Path in the source, with `/` as the root.
    pub path: String,
    /// Null differs from empty.
    pub data: Option<Bytes>,
    pub acl: Arc<Vec<Acl>>,
    pub kind: Lifetime,
    pub version: i32,
    /// Children created so far, which is the next sequence number.
    pub creates: i32,
    /// Zxid of the last change of the znode or of its list of children; no fencing token of the source is
    /// larger.
    pub zxid: i64,
}

/// Znode of a cluster.
#[derive(Clone, Debug)]
pub struct Found {
    pub stat: Stat,
    /// Data and ACL; `None` if the credential may not read both.
    pub content: Option<(Option<Bytes>, Vec<Acl>)>,
}

/// Returns the number of children created so far, which is the next sequence number. The wire has the number
/// of changes of the children: twice the creates, less the existing children (DataNode.copyStat).
pub fn creates(stat: &Stat) -> i64 {
    let changes = stat.cversion.0.wrapping_add(stat.num_children).cast_unsigned();
    i64::from(changes / 2)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    Taken,
    Ephemeral,
    System,
}

/// Decides if a record belongs to the import.
pub fn select(record: &Record) -> Selection {
    let below = record.path.strip_prefix("/zookeeper");
    if below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        Selection::System
    } else if record.kind == Lifetime::Ephemeral {
        Selection::Ephemeral
    } else {
        Selection::Taken
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    Persistent,
    /// End of its session; not imported.
    Ephemeral,
    /// End of its last child.
    Container,
    /// This time without children and changes.
    Ttl(Duration),
}

impl Lifetime {
    /// Decodes `ephemeralOwner` in ZooKeeper's files (not on the wire): a session, or a mark
    /// (`EphemeralType.java`). The two bytes after the TTL mark are 0; otherwise the value is a session of
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

    /// Encodes the kind as `ephemeralOwner`; every session becomes 1.
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

/// Returns the number at the end of a sequential znode's name, if the server can have chosen the name
/// (`%010d`, up to 2^31 - 1: ZooKeeper then goes on below zero and never repeats such names).
pub fn sequence_number(name: &str) -> Option<i64> {
    let digits = name.get(name.len().checked_sub(10)?..)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|number| *number <= i64::from(i32::MAX))
}

#[cfg(test)]
mod tests {
    use rowlock_client::Version;

    use super::*;

    #[test]
    fn owner_marks_encode_the_kind_both_ways() {
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
    fn creates_follow_from_the_changes_of_the_children_up_to_the_largest_number() {
        for (creates_so_far, children) in [(0, 0), (12, 3), (1 << 30, 0), (i32::MAX, 7)] {
            let cversion = Version(creates_so_far.wrapping_mul(2).wrapping_sub(children));
            let stat = Stat { cversion, num_children: children, ..Stat::default() };
            assert_eq!(creates(&stat), i64::from(creates_so_far));
        }
    }

    #[test]
    fn only_names_chosen_by_a_server_have_a_number() {
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
