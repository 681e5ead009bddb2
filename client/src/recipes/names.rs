//! Names: of a lock's znode, from the application's name; and of a queue znode.
//!
//! **Lock names.** One znode per lock below the lock base, so that locks never queue behind each other. Its
//! name is the application's, percent-encoded: ASCII letters, digits, `-`, `_` and `.` stand for themselves,
//! every other byte of the UTF-8 form becomes `%XX`, and the names `.` and `..`, which paths forbid, become
//! `%2E` and `%2E%2E`. Different names never meet: `orders/42` is `/locks/orders%2F42`, and `1` and `10` are
//! two znodes.
//!
//! **Queue names** are Curator's: `_c_<random id>-lock-` and the server's ten digits; kazoo's by option. So
//! Curator, kazoo and this client queue together on one lock. The name also says to whoever lists the queue
//! in which mode its owner contends.

use std::fmt;
use std::str::FromStr;

use rowlock_env::rng;
use rowlock_proto::lock::Mode;

use crate::builder::QueueNames;
use crate::error::NameError;
use crate::limits::LOCK_NAME_BYTES;

/// The name of a lock, a counter, an election: not empty, at most 512 bytes, otherwise any text. Handles take
/// plain text too, and refuse a wrong name when they are used
/// ([`Error::InvalidName`](crate::Error::InvalidName)); make a `LockName` of what somebody typed, to refuse
/// it where it comes in.
///
/// ```
/// # use rowlock_client::{LockName, NameError};
/// let name = LockName::new("orders/42")?;
/// assert_eq!(LockName::new(""), Err(NameError::Empty));
/// // let guard = client.mutex(&name).lock().await?;
/// # assert_eq!(name.as_str(), "orders/42");
/// # Ok::<(), NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(String);

impl LockName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`NameError::Empty`], [`NameError::TooLong`].
    pub fn new(name: impl Into<String>) -> Result<LockName, NameError> {
        let name = name.into();
        check(&name).map(|()| LockName(name))
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for LockName {
    type Err = NameError;
    fn from_str(name: &str) -> Result<LockName, NameError> {
        LockName::new(name)
    }
}

pub(crate) fn check(name: &str) -> Result<(), NameError> {
    match name.len() {
        0 => Err(NameError::Empty),
        bytes if bytes > LOCK_NAME_BYTES => Err(NameError::TooLong { bytes, max: LOCK_NAME_BYTES }),
        _ => Ok(()),
    }
}

/// The component of a path that stands for a lock's name.
pub(crate) use rowlock_proto::path::escape;

/// 128 random bits in the form of a UUID. One per attempt: a znode that carries it can only be that
/// attempt's.
pub(crate) fn random_id() -> String {
    let mut bytes = [0; 16];
    rng::fill(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut id = String::with_capacity(36);
    for (at, byte) in bytes.into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            id.push('-');
        }
        for digit in [byte >> 4, byte & 0x0f] {
            id.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    id
}

/// As what somebody contends for a lock; decides the name of its queue znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// For a mutex.
    Lock,
    /// As a reader of a read-write lock.
    Read,
    /// As its writer.
    Write,
    /// For so many permits of a semaphore.
    Permits(u32),
}

impl Kind {
    pub(crate) fn mode(self) -> Mode {
        match self {
            Kind::Lock | Kind::Write => Mode::Exclusive,
            Kind::Read => Mode::Shared,
            Kind::Permits(count) => Mode::Permits(count),
        }
    }
}

/// The name of a queue znode before the server appends its number.
pub(crate) fn queue_prefix(names: QueueNames, kind: Kind, id: &str) -> String {
    match (names, kind) {
        (QueueNames::Curator, Kind::Lock) => ["_c_", id, "-lock-"].concat(),
        (QueueNames::Curator, Kind::Read) => format!("_c_{id}-__READ__"),
        (QueueNames::Curator, Kind::Write) => format!("_c_{id}-__WRIT__"),
        (QueueNames::Kazoo, Kind::Lock | Kind::Write) => format!("{}__lock__", id.replace('-', "")),
        (QueueNames::Kazoo, Kind::Read) => format!("{}__rlock__", id.replace('-', "")),
        (_, Kind::Permits(1)) => format!("_c_{id}-permit-"),
        // Everybody who lists the queue sees how many permits are taken.
        (_, Kind::Permits(count)) => format!("_c_{id}-{count}-permit-"),
    }
}

/// The mode in which the owner of a queue znode contends, whatever client it uses.
pub(crate) fn mode_of(name: &str) -> Mode {
    if name.contains("__READ__") || name.contains("__rlock__") {
        return Mode::Shared;
    }
    if name.contains("-lease-") {
        return Mode::Permits(1);
    }
    match name.split_once("-permit-") {
        None => Mode::Exclusive,
        // The last part of a random id has twelve letters, a count of permits at most ten digits.
        Some((before, _)) => match before.rsplit('-').next().unwrap_or_default() {
            count if count.len() <= 10 => Mode::Permits(count.parse().unwrap_or(1)),
            _ => Mode::Permits(1),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_with_slashes_unicode_dots_and_prefixes_do_not_collide() {
        let names =
            ["1", "10", "a/b", "a%2Fb", "a", "a/", "/a", "ü", "u", ".", "..", "...", "%2E", "a b", "a\u{0}b"];
        let escaped: BTreeSet<String> = names.iter().map(|name| escape(name)).collect();
        assert_eq!(escaped.len(), names.len());
        for one in &escaped {
            assert_eq!(rowlock_proto::path::validate(&format!("/locks/{one}")), Ok(()), "{one}");
        }
        assert_eq!(escape("orders/42"), "orders%2F42");
    }

    #[test]
    fn empty_and_endless_names_are_refused() {
        assert_eq!(LockName::new(""), Err(NameError::Empty));
        let (bytes, max) = (LOCK_NAME_BYTES + 1, LOCK_NAME_BYTES);
        assert_eq!(LockName::new("x".repeat(bytes)), Err(NameError::TooLong { bytes, max }));
        assert_eq!("x".repeat(max).parse::<LockName>().map(|name| name.as_str().len()), Ok(max));
    }

    #[test]
    fn a_queue_name_tells_the_mode_back_in_every_dialect() {
        let id = random_id();
        for names in [QueueNames::Curator, QueueNames::Kazoo] {
            for kind in [Kind::Lock, Kind::Read, Kind::Write, Kind::Permits(1), Kind::Permits(12)] {
                let prefix = queue_prefix(names, kind, &id);
                assert_eq!(mode_of(&format!("{prefix}0000000007")), kind.mode(), "{prefix}");
            }
        }
        assert_eq!(mode_of("_c_9f0e6d52-3a55-4d4c-9d2e-1b2c3d4e5f60-lease-0000000001"), Mode::Permits(1));
        assert_eq!(mode_of("_c_00000000-0000-0000-0000-000000000003-permit-0000000001"), Mode::Permits(1));
    }

    #[test]
    fn ids_are_uuids_and_differ() {
        let id = random_id();
        assert_eq!(id.len(), 36);
        assert_eq!(&id[14..15], "4");
        assert_ne!(id, random_id());
    }
}
