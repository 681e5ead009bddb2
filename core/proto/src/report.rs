//! Reports: JSON documents about locks, queues, sessions and their history, for people and tools. `GET
//! /v1/...` and the request `report` return the same document.
//!
//! Times are milliseconds since 1970 by the clock of the log; spans are milliseconds. A reader ignores
//! unknown fields: later versions may add some.

use serde::{Deserialize, Serialize};

use crate::error::Right;
use crate::ids::{FencingToken, SessionId, Zxid};
use crate::lock::Mode;
mod contention;

pub use crate::lock_event::{EndReason, Gap, GapReason, HistoryEvent, LockEvent, LockEventKind, PositionEnd};
pub use contention::{
    Contention, LockWaits, LostWaits, Slices, UnknownTime, WaitedBehind, WaitedBy, WaitingPair,
};

/// `/v1/locks`: the most contended locks first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locks {
    /// The newest change that the document includes.
    pub zxid: Zxid,
    /// Time of the report, by the clock of the log.
    pub time_ms: i64,
    /// Locks with a holder, a waiter or a lock-delay.
    pub locks: Vec<Lock>,
    /// True if the cluster has more locks than the document shows.
    pub more: bool,
}

/// One lock of a list. Absent values are left out, so that 10,000 locks fit into a client's frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Path of the lock's znode.
    #[serde(rename = "lock")]
    pub path: String,
    /// Number of holders of the lock.
    pub holders: u64,
    /// Number of waiters in the queue.
    pub waiters: u64,
    /// Label, else address, else session of the first holder, if requested and visible to the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Hold time of the first holder so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<i64>,
    /// Waiting time of the first waiter. `None`: the queue has no waiter, or the reader may not see the
    /// waiter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_wait_ms: Option<i64>,
    /// Number of permits, if the lock is a semaphore in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// End of the current lock-delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed_until_ms: Option<i64>,
}

/// `/v1/queue`: one lock's queue, in queue order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The newest change that the document includes.
    pub zxid: Zxid,
    /// Time of the report, by the clock of the log.
    pub time_ms: i64,
    /// Path of the lock's znode.
    pub lock: String,
    /// Number of permits, if the lock is a semaphore in use.
    pub limit: Option<u32>,
    /// End of the current lock-delay.
    pub delayed_until_ms: Option<i64>,
    /// Number of holders, including those not shown.
    pub holder_count: u64,
    /// Number of waiters, including those not shown.
    pub waiter_count: u64,
    /// Positions that hold the lock, in queue order.
    pub holders: Vec<Holder>,
    /// Positions that wait, in queue order.
    pub waiters: Vec<Waiter>,
    /// True if the queue has more positions than the document shows.
    pub more: bool,
}

/// A queue position. A reader without READ on its znode sees `position` and `path` only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Position in the queue; the first is 1.
    pub position: u64,
    /// Path of the queue znode.
    pub path: String,
    /// The owning session; `None` if hidden from the reader.
    #[serde(with = "text::option")]
    pub session: Option<SessionId>,
    /// The fencing token; `None` if hidden from the reader.
    #[serde(with = "text::option")]
    pub token: Option<FencingToken>,
    /// The client's label: untrusted text.
    pub label: Option<String>,
    /// Address from which the client entered the queue.
    pub address: Option<String>,
    /// Mode of the hold or of the request.
    pub mode: Option<ModeName>,
    /// Number of permits, for a semaphore.
    pub permits: Option<u32>,
    /// Owner for deadlock detection: `session`, a number, or `under TOKEN`.
    pub owner: Option<String>,
    /// True for an `acquire` request, false for the recipe of a plain ZooKeeper client.
    pub acquired: Option<bool>,
}

/// A holder of a lock. The fields are `None` if [`Place::session`] is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Queue position of the holder.
    #[serde(flatten)]
    pub place: Place,
    /// Time of the grant.
    pub since_ms: Option<i64>,
    /// Hold time so far.
    pub held_ms: Option<i64>,
    /// Waiting time before the grant.
    pub waited_ms: Option<i64>,
    /// Time at which the cluster revokes the lock: the end of a maximum hold or of a question's deadline.
    pub revoke_at_ms: Option<i64>,
    /// The newest question to the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<ShownQuestion>,
}

/// A question that asks a holder to release the lock. Both texts are untrusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownQuestion {
    /// Reason why the other client wants the lock.
    pub reason: String,
    /// Name of the asking client.
    pub by: String,
    /// Time since the question.
    pub asked_ms_ago: i64,
    /// Time left for the holder to release the lock; 0: the deadline has passed, and the cluster revokes the
    /// lock at [`Holder::revoke_at_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_in_ms: Option<i64>,
}

/// A waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Queue position of the waiter.
    #[serde(flatten)]
    pub place: Place,
    /// Time of the entry into the queue.
    pub since_ms: Option<i64>,
    /// Waiting time so far.
    pub waited_ms: Option<i64>,
    /// The predecessor: the waiter's turn comes when this position ends.
    pub waits_for: Option<String>,
}

/// `/v1/sessions`: the open sessions, ordered by id. A client sees its own session; superusers see all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sessions {
    /// The newest change that the document includes.
    pub zxid: Zxid,
    /// Number of open sessions, including those not shown.
    pub session_count: u64,
    /// Open sessions that the reader may see.
    pub sessions: Vec<Session>,
    /// True if there are more sessions than the document shows.
    pub more: bool,
}

/// An open session of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The id of the session.
    #[serde(with = "text")]
    pub session: SessionId,
    /// Session timeout: the session expires after this time without a keepalive.
    pub timeout_ms: u32,
    /// Number of connections that the session was attached to.
    pub attachment: u64,
    /// Address of the session's connection to the reporting node. `None`: the session is connected to another
    /// node, or to none.
    pub address: Option<String>,
    /// Number of ephemeral znodes of the session.
    pub ephemerals: u64,
    /// Number of locks that the session holds.
    pub locks_held: u64,
    /// Number of locks that the session waits for.
    pub locks_waiting: u64,
    /// Ephemeral znodes by path, up to the limit of the query, in a report of one session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub znodes: Vec<SessionZnode>,
}

/// An ephemeral znode of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionZnode {
    /// Path of the ephemeral znode.
    pub path: String,
    /// Zxid of the creation; for a queue znode, the fencing token.
    pub czxid: Zxid,
    /// `holds` or `waits`, if the znode is in a lock's queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// `/v1/history`: events of locks, the newest last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Events, the newest last.
    pub entries: Vec<HistoryEntry>,
    /// True if the history has earlier events.
    pub more: bool,
    /// Value of the query's `before` that returns the earlier events.
    pub before: Option<String>,
}

/// One event of a lock, with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Time of the log, milliseconds since 1970.
    pub time_ms: i64,
    /// Change that caused the event.
    pub zxid: Zxid,
    /// The event and its fields.
    #[serde(flatten)]
    pub event: HistoryEvent,
}

/// `/v1/access`: the rights of a client on a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockAccess {
    /// Path of the lock's znode.
    pub lock: String,
    /// The client's identities; for digest only the user.
    pub who: Vec<String>,
    /// The client's rights. ACLs of znodes may permit less.
    pub rights: Vec<Right>,
    /// Pattern of the deciding rules. `None`: no rule matches the lock.
    pub rule: Option<String>,
    /// True if only operators may force locks that no rule matches.
    pub guarded: bool,
}

/// Mode of a hold, without the number of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeName {
    /// Excludes all other holders.
    Exclusive,
    /// Allows other holders in shared mode.
    Shared,
    /// A number of permits of a semaphore.
    Permits,
}

impl From<Mode> for ModeName {
    fn from(mode: Mode) -> ModeName {
        match mode {
            Mode::Exclusive => ModeName::Exclusive,
            Mode::Shared => ModeName::Shared,
            Mode::Permits(_) => ModeName::Permits,
        }
    }
}

/// A [`Mode`] in two fields of JSON: its name, and the number of permits.
pub(crate) mod mode_fields {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ModeName;
    use crate::lock::Mode;

    #[derive(Serialize, Deserialize)]
    struct Fields {
        mode: ModeName,
        permits: Option<u32>,
    }

    pub(crate) fn serialize<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
        Fields { mode: (*mode).into(), permits: mode.permits() }.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
        let Fields { mode, permits } = Fields::deserialize(from)?;
        Ok(match mode {
            ModeName::Exclusive => Mode::Exclusive,
            ModeName::Shared => Mode::Shared,
            ModeName::Permits => Mode::Permits(permits.unwrap_or(1)),
        })
    }
}

/// Percent-encodes a value for the query of a report.
pub fn in_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Tokens and session ids as text, as ZooKeeper's tools write ids: `0x100000000000001`. Programs that read
/// JSON numbers as floating point would change digits beyond 2^53.
pub(crate) mod text {
    use std::fmt::Display;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::ids::{FencingToken, SessionId};

    pub(crate) trait Number: Display + PartialEq + Sized {
        /// Reads the form of [`Display`]. The error names the kind of number.
        fn read(text: &str) -> Result<Self, String>;
    }

    impl Number for FencingToken {
        fn read(text: &str) -> Result<Self, String> {
            text.parse().map_err(|_| format!("{text} is no token"))
        }
    }

    impl Number for SessionId {
        fn read(text: &str) -> Result<Self, String> {
            let digits = text.strip_prefix("0x").unwrap_or(text);
            let id = u64::from_str_radix(digits, 16).map_err(|_| format!("{text} is no session"))?;
            Ok(SessionId(id.cast_signed()))
        }
    }

    pub(crate) fn serialize<N: Number, S: Serializer>(number: &N, to: S) -> Result<S::Ok, S::Error> {
        let reads_back = || N::read(&number.to_string()).is_ok_and(|read| read == *number);
        debug_assert!(reads_back(), "the written number parses to another one");
        to.collect_str(number)
    }

    pub(crate) fn deserialize<'de, N: Number, D: Deserializer<'de>>(from: D) -> Result<N, D::Error> {
        N::read(&String::deserialize(from)?).map_err(D::Error::custom)
    }

    pub(super) mod option {
        use super::{Deserialize, Deserializer, Error, Number, Serializer};

        pub(in super::super) fn serialize<S: Serializer>(
            number: &Option<impl Number>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match number {
                Some(number) => super::serialize(number, to),
                None => to.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, N: Number, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<N>, D::Error> {
            let text = Option::<String>::deserialize(from)?;
            text.map(|text| N::read(&text).map_err(D::Error::custom)).transpose()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn query_values_are_encoded() {
        assert_eq!(in_query("/locks/a b%2F&ä"), "/locks/a%20b%252F%26%C3%A4");
    }

    #[test]
    fn a_hidden_place_shows_only_position_and_path() {
        let waiter = json!({
            "position": 2, "path": "/locks/x/b", "session": null, "token": null, "label": null,
            "address": null, "mode": null, "permits": null, "owner": null, "acquired": null,
            "since_ms": null, "waited_ms": null, "waits_for": "/locks/x/a",
        });
        let read: Waiter = serde_json::from_value(waiter.clone()).unwrap();
        assert_eq!((read.place.position, read.place.session, read.since_ms), (2, None, None));
        assert_eq!(serde_json::to_value(&read).unwrap(), waiter);
    }
}
