//! Names of locks, and names of queue znodes.
//!
//! **Lock names** are paths below the lock base, by the rule of [`rowlock_proto::name`].
//!
//! **Queue names** are Curator's: `_c_<random id>-lock-` and the server's ten digits; kazoo's by option.
//! Curator, kazoo and this client thus share the queue of a lock. The name also shows the owner's mode to a
//! client that lists the queue.

use std::fmt;
use std::str::FromStr;

use rowlock_env::rng;
use rowlock_proto::lock::Mode;
use rowlock_proto::name;

use crate::error::NameError;
use crate::settings::QueueNames;

/// Name of a lock or an election: levels separated by slashes, at most 512 bytes in at most 32 levels.
/// Handles accept plain text too, and refuse an invalid name on use
/// ([`Error::InvalidName`](crate::Error::InvalidName)); make a `LockName` of user input for an immediate
/// refusal.
///
/// The name is the path of the lock's znode below the lock base: `ci/deploy` is `/locks/ci/deploy`. Within a
/// level ASCII letters, digits, `-`, `_`, `.` and `@` stand for themselves, other bytes are percent-encoded:
/// `a b` is `/locks/a%20b`. A level is not empty, not `.` or `..`, and does not end like a waiter's znode, in
/// ten digits or a dash and nine. The command line and HTTP follow the same rule.
///
/// ```
/// # use rowlock_client::{LockName, NameError, NameRule};
/// let name = LockName::new("orders/42")?;
/// assert_eq!(LockName::new("orders//42"), Err(NameError::Rule(NameRule::EmptyLevel)));
/// // let guard = client.mutex(&name).lock().await?;
/// # assert_eq!(name.as_str(), "orders/42");
/// # Ok::<(), NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(String);

impl LockName {
    /// Checks a name of a lock.
    ///
    /// # Errors
    /// [`NameError::Rule`].
    pub fn new(name: impl Into<String>) -> Result<LockName, NameError> {
        let name = name.into();
        Ok(name::check(&name).map(|()| LockName(name))?)
    }

    /// Name as passed to [`LockName::new`].
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

/// Returns 128 random bits in the form of a UUID. Every attempt has its own id: a znode with the id belongs
/// to the attempt.
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

/// Mode of a request for a lock, encoded in the name of the queue znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    /// Reader of a read-write lock.
    Read,
    Write,
    /// Number of requested permits of a semaphore.
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

/// Name of a queue znode without the server's number.
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

/// Mode of a queue znode's owner, for the names of every client.
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
    use super::*;
    use crate::recipes::queue::sequence;

    #[test]
    fn no_level_of_a_name_reads_as_a_place_in_the_queue_above_it() {
        let id = random_id();
        for (names, kind) in [(QueueNames::Curator, Kind::Lock), (QueueNames::Kazoo, Kind::Read)] {
            for number in ["0000000007", "-2147483648", "-000000001"] {
                let level = queue_prefix(names, kind, &id) + number;
                assert!(sequence(&level).is_some(), "{level}");
                assert!(LockName::new(&*level).is_err() && LockName::new(format!("a/{level}/b")).is_err());
            }
        }
        for level in ["x-12345678", "123456789", "x-1234567890y", "leases", "lock-12"] {
            assert_eq!((LockName::new(level).is_ok(), sequence(level)), (true, None), "{level}");
        }
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
