//! Records of Rowlock's own opcodes: locks as one request instead of a recipe of several (docs/protocol.md).
//!
//! A server announces them by the readable znode [`ANNOUNCEMENT`]. Apache's servers do not have it, and close
//! the connection of a client that sends them an unknown opcode: check before you send.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::acl::Acl;
use crate::ids::{FencingToken, SessionId};

/// Path of the virtual znode whose data say what the server understands: one `name version` per line.
pub const ANNOUNCEMENT: &str = "/zookeeper/rowlock";

/// Longest lock-delay (Consul's bound, too): a client may keep others from the lock for
/// no longer.
pub const LOCK_DELAY_MAX_MS: u32 = 60_000;

/// Longest minimum hold: 31 days, for a job that runs once a month. A forced release ends it earlier.
pub const MIN_HOLD_MAX_MS: u32 = 31 * 24 * 60 * 60 * 1_000;

/// Bytes of the reason of an [`Ask`].
pub const ASK_REASON_MAX_BYTES: usize = 256;

/// Most bytes of [`Ask::by`].
pub const ASK_BY_MAX_BYTES: usize = 128;

/// How long an [`Ask`] may give the holders, in milliseconds: an hour at most.
pub const ASK_WITHIN_MS: RangeInclusive<u32> = 1_000..=3_600_000;

/// What the data of a lock's znode begin with if it has a limit of permits.
const LIMIT_PREFIX: &str = "permits=";

/// The limit of permits that the data of a lock's znode name: they are `permits=3`, with blanks behind it at
/// most. The one reading of servers and clients.
pub fn limit_in(data: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(data.strip_prefix(LIMIT_PREFIX.as_bytes())?).ok()?;
    text.trim_end().parse().ok().filter(|limit| *limit > 0)
}

/// The data that name a limit.
pub fn limit_data(limit: u32) -> Bytes {
    let data = Bytes::from(format!("{LIMIT_PREFIX}{limit}"));
    debug_assert_eq!(limit_in(&data).unwrap_or(0), limit, "a limit is read as it is written");
    data
}

/// The mode of a place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// Excludes all other holders.
    Exclusive,
    /// Others may hold it in this mode too.
    Shared,
    /// Takes this number of the lock's permits; at least one.
    Permits(u32),
}

/// For whom a lock is asked, in the eyes of deadlock detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Owner {
    /// Takes no part in detection. Right for a session that many independent tasks
    /// share, where one task's waiting does not keep another from releasing.
    #[default]
    Unnamed,
    /// For the session as a whole: it does one thing at a time.
    Session,
    /// For this one of the client's own owners (a task, a thread, a job), which does one thing at a time. The
    /// number is the client's choice; owners of different sessions of one user that use one number are one
    /// owner. The user is what the connection has proven first (digest, sasl, x509); without that, the
    /// address that it comes from.
    Named(u64),
    /// As [`Owner::Session`], and the client that made a certain place waits for this session: a program
    /// that takes a lock in the work that another one does under its lock. Both have to come from one
    /// address. Sessions that work under the same place are different owners and may wait for each other.
    /// The number stands for the place: see [`Owner::under`].
    Under(u64),
}

impl Owner {
    /// The owner of this name: the same one in whatever session of the same user. (The number is the FNV-1a
    /// hash of the name.)
    pub const fn named(name: &str) -> Owner {
        Owner::Named(fnv(name))
    }

    /// The owner that works under the place of this queue znode. Only its name counts, which holds an id that
    /// no other attempt has, and not its path: what is below a chroot has another path for others.
    pub fn under(path: &str) -> Owner {
        Owner::Under(place_number(path))
    }
}

/// The number of a place, by the name of its queue znode, for [`Owner::Under`].
pub fn place_number(path: &str) -> u64 {
    fnv(path.rsplit('/').next().unwrap_or_default())
}

const fn fnv(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// A list that mostly has one element, and then needs no allocation.
pub type Few<T> = SmallVec<[T; 1]>;

/// acquire: a place in a lock's queue, in one command. The lock's znode is made (a container, as the ones
/// above it) if it is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// Path of the lock's znode. A decoded one is a slice of the bytes that it came in, and keeps them.
    pub lock: ByteString,
    /// Name of the queue znode before the server's number. Holds an id that no other attempt has: a repeated
    /// acquire finds its place by it.
    pub prefix: ByteString,
    /// Data of the queue znode: who this is, for people who look at the queue.
    pub data: Option<Bytes>,
    /// ACL of the queue znode: mostly the same list in all of them.
    pub acl: Option<Arc<[Acl]>>,
    /// How the lock is to be held.
    pub mode: Mode,
    /// With [`Mode::Permits`]: how many permits the lock has. The first request decides; another
    /// number gets [`PlaceState::LimitIs`]. 0 accepts any limit.
    pub limit: u32,
    /// Stay in the queue if the lock is not free. Otherwise nothing is left behind.
    pub wait: bool,
    /// For whom the lock is requested, for deadlock detection.
    pub owner: Owner,
    /// Revoked after being held so long, in milliseconds; 0: never.
    pub max_hold_ms: u32,
    /// How long the lock stays free after its holder's session expired, in milliseconds. At most
    /// [`LOCK_DELAY_MAX_MS`].
    pub lock_delay_ms: u32,
    /// No other place is granted the lock until this time after the grant is over, in milliseconds, however
    /// the hold ends, except by a forced release. At most [`MIN_HOLD_MAX_MS`].
    pub min_hold_ms: u32,
    /// The minimum hold counts only if the client gives the lock back itself: lost in any other way, the lock
    /// is free at once.
    pub min_hold_lapses: bool,
}

impl Acquire {
    /// Waits for an exclusive lock, for anybody to see, without data or limits in time. What is wanted
    /// otherwise is said by struct update: `Acquire { wait: false, ..Acquire::exclusive(lock, prefix) }`.
    pub fn exclusive(lock: impl Into<ByteString>, prefix: impl Into<ByteString>) -> Self {
        Acquire {
            lock: lock.into(),
            prefix: prefix.into(),
            data: None,
            acl: Some(Acl::shared_open()),
            mode: Mode::Exclusive,
            limit: 0,
            wait: true,
            owner: Owner::Unnamed,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            min_hold_ms: 0,
            min_hold_lapses: false,
        }
    }

    /// Whether its times are within their bounds.
    pub fn has_good_times(&self) -> bool {
        self.lock_delay_ms <= LOCK_DELAY_MAX_MS && self.min_hold_ms <= MIN_HOLD_MAX_MS
    }
}

/// ask: tells the holders of a lock that it is wanted, and why. The queue stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Path of the lock's znode.
    pub lock: String,
    /// For people. Up to [`ASK_REASON_MAX_BYTES`].
    pub reason: String,
    /// Who asks. In a request: what the client says of itself; the node puts in front of it as whom the
    /// client has proven to be. Up to [`ASK_BY_MAX_BYTES`].
    pub by: String,
    /// The holders have so long to give the lock back, in milliseconds of [`ASK_WITHIN_MS`], and lose it
    /// afterwards. This needs the right to force a release. 0: it is only a notice.
    pub within_ms: u32,
}

impl Ask {
    /// Whether its texts and its time are within their bounds.
    pub fn is_good(&self) -> bool {
        (1..=ASK_REASON_MAX_BYTES).contains(&self.reason.len())
            && self.by.len() <= ASK_BY_MAX_BYTES
            && (self.within_ms == 0 || ASK_WITHIN_MS.contains(&self.within_ms))
    }
}

/// The newest question to the holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionNotice {
    /// Why the lock is wanted.
    pub reason: String,
    /// Who asks: as whom its node knows the client, and behind it what the client says of itself.
    pub by: String,
    /// When: the leader's clock, milliseconds since 1970. A later question to the same holder has a later
    /// time.
    pub asked_ms: i64,
    /// The holder has so long to give the lock back, in milliseconds from the notice on; `None`: it is only a
    /// notice.
    pub left_ms: Option<u32>,
}

/// A holder or waiter as named by a client: exactly this znode with exactly this token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Path of the queue znode. The state, an answer and all that is kept of it share one text.
    pub path: Arc<str>,
    /// The fencing token: the znode's czxid.
    pub token: FencingToken,
}

/// An attempt as its maker knows it, whatever has become of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Path of the lock's znode.
    pub lock: String,
    /// The prefix that the acquire had in [`Acquire::prefix`].
    pub prefix: String,
}

/// A place in a queue, as shown to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// Path of the queue znode.
    pub path: Arc<str>,
    /// The session that owns the place; 0 if hidden from the reader.
    pub session: SessionId,
    /// The place's fencing token; 0 if hidden from the reader.
    pub token: FencingToken,
    /// The beginning of its znode's data.
    pub label: Bytes,
    /// When it was granted the lock, or entered the queue if it has not been: the leader's clock,
    /// milliseconds since 1970.
    pub since_ms: i64,
}

/// The state of a place in a queue, as an answer tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlaceState {
    /// It holds the lock.
    Held(Claim),
    /// It is in the queue; the grant will be pushed ([`Notice`]).
    Waiting {
        /// The queue znode and its token.
        claim: Claim,
        /// How many are before it.
        ahead: u32,
        /// The first holder; `None` during a lock-delay.
        holder: Option<Party>,
    },
    /// It did not want to wait, and left nothing behind.
    Busy {
        /// How many are before it.
        ahead: u32,
        /// The first holder, as in [`PlaceState::Waiting`].
        holder: Option<Party>,
    },
    /// Waiting would close a circle of owners that wait for each other: nothing was left behind. Each waits
    /// for the next; the last waits for the one who asked.
    Deadlock(Vec<Party>),
    /// The lock has another number of permits (or fewer than were asked for): nothing was left behind.
    LimitIs(u32),
    /// Not in the queue (any more).
    Absent,
}

/// What the server tells a session about its places, unasked: a frame with [`crate::Xid::NOTICE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The place that the notice is about.
    pub claim: Claim,
    /// The event of the place.
    pub event: NoticeEvent,
}

/// What a [`Notice`] reports about a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoticeEvent {
    /// The lock is held now.
    Granted,
    /// The place is lost: another client deleted its znode.
    Deleted,
    /// The place is lost: a release was forced.
    Forced,
    /// The place is lost: it was held for longer than its `max_hold_ms`, or than a question allowed.
    Revoked,
    /// It holds the lock, and another client asks for it.
    Asked(QuestionNotice),
}

/// Options of a client's connection and session, sent on each new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// When the client's socket closes, expire the session after this time unless it comes back,
    /// instead of after the whole timeout; 0: the whole timeout.
    pub disconnect_grace_ms: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_from_all_of_the_data() {
        for (data, limit) in [
            ("permits=3", Some(3)),
            ("permits=3\n", Some(3)),
            ("permits=0", None),
            ("permits= 3", None),
            ("a note\npermits=3", None),
            ("permits=3\na note", None),
            ("permits=many", None),
            ("", None),
        ] {
            assert_eq!(limit_in(data.as_bytes()), limit, "{data:?}");
        }
        assert_eq!(limit_in(&limit_data(7)), Some(7));
    }
}
