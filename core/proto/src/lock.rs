//! Records of Rowlock's own opcodes: one request per lock operation, where a ZooKeeper recipe needs several
//! (docs/protocol.md).
//!
//! A server announces these opcodes by the readable znode [`ANNOUNCEMENT`]. Apache's servers do not have the
//! znode, and close the connection of a client that sends an unknown opcode: check before sending.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::acl::Acl;
use crate::ids::{FencingToken, SessionId};

/// Path of the virtual znode whose data list the server's extensions: one `name version` per line.
pub const ANNOUNCEMENT: &str = "/zookeeper/rowlock";

/// Longest lock-delay, the same as Consul's: bounds how long a client keeps other clients from the lock.
pub const LOCK_DELAY_MAX_MS: u32 = 60_000;

/// Longest minimum hold: 31 days, for a job that runs once a month. A forced release ends it earlier.
pub const MIN_HOLD_MAX_MS: u32 = 31 * 24 * 60 * 60 * 1_000;

/// Maximum size of [`Ask::reason`], in bytes.
pub const ASK_REASON_MAX_BYTES: usize = 256;

/// Maximum size of [`Ask::by`], in bytes.
pub const ASK_BY_MAX_BYTES: usize = 128;

/// Range of [`Ask::within_ms`]: one second to one hour.
pub const ASK_WITHIN_MS: RangeInclusive<u32> = 1_000..=3_600_000;

/// Prefix of the data of a lock's znode that declares a limit of permits.
const LIMIT_PREFIX: &str = "permits=";

/// Returns the limit of permits that the data of a lock's znode declare: the data must be `permits=3`,
/// followed by nothing but whitespace. Servers and clients share this parser.
pub fn limit_in(data: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(data.strip_prefix(LIMIT_PREFIX.as_bytes())?).ok()?;
    text.trim_end().parse().ok().filter(|limit| *limit > 0)
}

/// Returns znode data that declare `limit` permits.
pub fn limit_data(limit: u32) -> Bytes {
    let data = Bytes::from(format!("{LIMIT_PREFIX}{limit}"));
    debug_assert_eq!(limit_in(&data).unwrap_or(0), limit, "the written limit parses to another number");
    data
}

/// Mode in which a client holds or requests a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// Excludes all other holders.
    Exclusive,
    /// Allows other holders in shared mode.
    Shared,
    /// Takes this number of the lock's permits; at least one.
    Permits(u32),
}

impl Mode {
    /// Returns the number of permits; `None` in other modes.
    pub fn permits(self) -> Option<u32> {
        if let Mode::Permits(permits) = self { Some(permits) } else { None }
    }
}

/// Identity of the lock's user in deadlock detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Owner {
    /// Takes no part in detection. Right for a session that many independent tasks share: there a waiting
    /// task does not keep another task from releasing.
    #[default]
    Unnamed,
    /// The session as a whole: the session does one thing at a time.
    Session,
    /// One of the client's own owners (a task, a thread, a job), which does one thing at a time. The client
    /// chooses the number; equal numbers in different sessions of one user are one owner. The user is the
    /// connection's first proven identity (digest, sasl, x509), otherwise the connection's address.
    Named(u64),
    /// [`Owner::Session`], plus: the client at a certain queue position waits for this session. Used by a
    /// program that takes a lock as part of work that another program does under its own lock. Both programs
    /// must connect from one address. Sessions under the same position are different owners and may wait for
    /// each other. The number identifies the position: see [`Owner::under`].
    Under(u64),
}

impl Owner {
    /// Returns the owner with this name: the same owner in every session of one user. The number is the
    /// FNV-1a hash of the name.
    pub const fn named(name: &str) -> Owner {
        Owner::Named(fnv(name))
    }

    /// Returns the owner that works under the queue znode `path`. Only the last name of the path counts: the
    /// name contains an id that is unique to the attempt, and the parent path differs between clients with
    /// different chroots.
    pub fn under(path: &str) -> Owner {
        Owner::Under(place_number(path))
    }
}

/// Returns the number of a queue znode for [`Owner::Under`]: the hash of the znode's name.
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

/// A list that mostly has one element, stored without an allocation.
pub type Few<T> = SmallVec<[T; 1]>;

record! {
    /// acquire: enters a lock's queue in one command. Creates the lock's missing znode as a container, and
    /// missing znodes above as persistent.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Acquire {
        /// Path of the lock's znode. A decoded path is a slice of the received frame and keeps the frame in
        /// memory.
        pub lock: ByteString,
        /// Name of the queue znode before the server's number. Contains an id that is unique to the attempt:
        /// a repeated acquire finds its queue znode by the prefix.
        pub prefix: ByteString,
        /// Data of the queue znode: a label for people who inspect the queue.
        pub data: Option<Bytes>,
        /// ACL of the queue znode: mostly the same list in all requests.
        pub acl: Option<Arc<[Acl]>>,
        /// Mode in which to hold the lock.
        pub mode: Mode,
        /// Number of permits of the lock, with [`Mode::Permits`]. The first request decides; another number
        /// gets [`QueuePosition::LimitIs`]. 0 accepts any limit.
        pub limit: u32,
        /// Wait in the queue if the lock is not free. Otherwise the request leaves nothing behind.
        pub wait: bool,
        /// Owner of the request, for deadlock detection: the same for all locks of one request.
        pub owner: Owner,
        /// Maximum hold in milliseconds: the cluster revokes the lock afterwards. 0: no maximum.
        pub max_hold_ms: u32,
        /// Time for which the lock stays free after its holder's session expired, in milliseconds. At most
        /// [`LOCK_DELAY_MAX_MS`].
        pub lock_delay_ms: u32,
        /// Minimum time from the grant to the next grant at another queue position, in milliseconds. Applies
        /// however the hold ends, except by a forced release. At most [`MIN_HOLD_MAX_MS`].
        pub min_hold_ms: u32,
        /// Apply the minimum hold only if the session ends the hold itself (release, abandon, or deletion of
        /// its znode): after any other loss the lock is free at once.
        pub min_hold_lapses: bool,
    }
}

impl Acquire {
    /// Returns a request that waits for an exclusive lock, with an open ACL, without data and without time
    /// limits. Set other fields by struct update: `Acquire { wait: false, ..Acquire::exclusive(lock, prefix)
    /// }`.
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

    /// Returns true if the lock-delay and the minimum hold are within their bounds.
    pub fn has_good_times(&self) -> bool {
        self.lock_delay_ms <= LOCK_DELAY_MAX_MS && self.min_hold_ms <= MIN_HOLD_MAX_MS
    }
}

record! {
    /// ask: notifies the holders of a lock that another client wants the lock, and why. Leaves the queue
    /// unchanged.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Ask {
        /// Path of the lock's znode.
        pub lock: String,
        /// Reason, for people. Up to [`ASK_REASON_MAX_BYTES`].
        pub reason: String,
        /// Name of the asking client. In a request the client chooses the text; the node puts the client's
        /// proven identity in front. Up to [`ASK_BY_MAX_BYTES`].
        pub by: String,
        /// Deadline for the holders in milliseconds, within [`ASK_WITHIN_MS`]: the cluster revokes the lock
        /// afterwards. A deadline needs the right to force a release. 0: no deadline, only a notice.
        pub within_ms: u32,
    }
}

impl Ask {
    /// Returns true if the texts and the deadline are within their bounds.
    pub fn is_good(&self) -> bool {
        (1..=ASK_REASON_MAX_BYTES).contains(&self.reason.len())
            && self.by.len() <= ASK_BY_MAX_BYTES
            && (self.within_ms == 0 || ASK_WITHIN_MS.contains(&self.within_ms))
    }
}

record! {
    /// The newest question to the holder of a lock.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct QuestionNotice {
        /// Reason why the other client wants the lock.
        pub reason: String,
        /// Name of the asking client: the identity that the client's node knows, followed by the client's own
        /// text.
        pub by: String,
        /// Time of the question by the leader's clock, milliseconds since 1970. A later question to the same
        /// holder has a later time.
        pub asked_ms: i64,
        /// Time left to release the lock, in milliseconds from the receipt of the notice; `None`: no
        /// deadline.
        pub left_ms: Option<u32>,
    }
}

record! {
    /// A queue position as a client names it: exactly this znode with exactly this token.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Claim {
        /// Path of the queue znode. The state, replies and caches share one allocation.
        pub path: Arc<str>,
        /// The fencing token: the znode's czxid.
        pub token: FencingToken,
    }
}

record! {
    /// An acquire attempt, known to its client even if the reply was lost.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Attempt {
        /// Path of the lock's znode.
        pub lock: String,
        /// [`Acquire::prefix`] of the attempt's request.
        pub prefix: String,
    }
}

record! {
    /// A queue position as other clients see it.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Party {
        /// Path of the queue znode.
        pub path: Arc<str>,
        /// The session that owns the position; 0 if hidden from the reader.
        pub session: SessionId,
        /// Fencing token of the position; 0 if hidden from the reader.
        pub token: FencingToken,
        /// The beginning of the queue znode's data.
        pub label: Bytes,
        /// Time of the grant, or of the entry into the queue if the position waits: the leader's clock,
        /// milliseconds since 1970.
        pub since_ms: i64,
    }
}

record! {
    /// State of a queue position: the reply for each requested lock.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum QueuePosition {
        /// The client holds the lock.
        Held(claim: Claim) = 0,
        /// The client waits in the queue; the server pushes the grant as a [`Notice`].
        Waiting {
            /// The queue znode and its token.
            claim: Claim,
            /// Number of positions before this one.
            ahead: u32,
            /// The first holder; `None` during a lock-delay.
            holder: Option<Party>,
        } = 1,
        /// The lock is not free and the client did not want to wait; nothing was left behind.
        Busy {
            /// Number of positions before the request.
            ahead: u32,
            /// The first holder, as in [`QueuePosition::Waiting`].
            holder: Option<Party>,
        } = 2,
        /// Waiting would close a cycle of owners that wait for each other: nothing was left behind. Each
        /// party waits for the next; the last waits for the requesting client.
        Deadlock(circle: Vec<Party>) = 3,
        /// The lock has another number of permits, or fewer than requested: nothing was left behind.
        LimitIs(limit: u32) = 4,
        /// The client is not in the queue, or no longer.
        Absent = 5,
    }
}

impl QueuePosition {
    /// Returns the queue znode and its token; `None` without a position in the queue.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. } => Some(claim),
            QueuePosition::Busy { .. }
            | QueuePosition::Deadlock(_)
            | QueuePosition::LimitIs(_)
            | QueuePosition::Absent => None,
        }
    }
}

record! {
    /// An event at a queue position, pushed to the owning session in a frame with [`crate::Xid::NOTICE`].
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Notice {
        /// The queue position of the event.
        pub claim: Claim,
        /// The event at this position.
        pub event: NoticeEvent,
    }
}

record! {
    /// Kinds of events at a queue position.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum NoticeEvent {
        /// The client holds the lock now.
        Granted = 0,
        /// The position is lost: another client deleted its znode.
        Deleted = 1,
        /// The position is lost: an operator or client forced a release.
        Forced = 2,
        /// The position is lost: the hold exceeded its `max_hold_ms` or the deadline of a question.
        Revoked = 3,
        /// The client holds the lock, and another client wants the lock.
        Asked(question: QuestionNotice) = 4,
    }
}

record! {
    /// Options of a client's connection and session, sent on each new connection.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SessionOptions {
        /// Time after which the session expires if the client's socket closes and the client does not return;
        /// 0: the whole session timeout.
        pub disconnect_grace_ms: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_must_fill_the_whole_data() {
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
