//! Reports: what people and tools ask about locks, queues, sessions and their history. A node makes them, as
//! one JSON document each; `GET /v1/...` and the request `report` give the same document.
//!
//! Times are milliseconds since 1970 by the clock of the log, spans are milliseconds. A reader ignores
//! fields that it does not know: later versions may add some.

use serde::{Deserialize, Serialize};

use crate::ids::{FencingToken, SessionId, Zxid};
use crate::lock::Mode;
use crate::right::Right;

/// `/v1/locks`: the most contended locks first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locks {
    /// The state that is shown is the one after this change.
    pub zxid: Zxid,
    /// When it was looked at.
    pub time_ms: i64,
    /// A lock is here while it is held or waited for, or while its lock-delay lasts.
    pub locks: Vec<Lock>,
    /// There are more than are shown.
    pub more: bool,
}

/// A lock among others. What it has none of is left out, so that 10,000 locks fit into a client's frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Path of the lock's znode.
    #[serde(rename = "lock")]
    pub path: String,
    /// How many hold it.
    pub holders: u64,
    /// Number of places that wait.
    pub waiters: u64,
    /// Label, else address, else session of the first holder, where asked for and if it may be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// For how long that one has held it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<i64>,
    /// For how long the first of those who wait does. `None`: none waits, or it may not be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_wait_ms: Option<i64>,
    /// How many permits it has, if it is a semaphore that is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// When its lock-delay is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed_until_ms: Option<i64>,
}

/// `/v1/queue`: one lock's queue, in its order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The state that is shown is the one after this change.
    pub zxid: Zxid,
    /// When it was looked at.
    pub time_ms: i64,
    /// Path of the lock's znode.
    pub lock: String,
    /// How many permits it has, if it is a semaphore that is in use.
    pub limit: Option<u32>,
    /// When its lock-delay is over.
    pub delayed_until_ms: Option<i64>,
    /// How many hold it, also of those who are not shown.
    pub holder_count: u64,
    /// How many wait, also of those who are not shown.
    pub waiter_count: u64,
    /// Places that hold the lock, in queue order.
    pub holders: Vec<Holder>,
    /// Places that wait, in queue order.
    pub waiters: Vec<Waiter>,
    /// There are more than are shown.
    pub more: bool,
}

/// A place in a queue. A reader who may not READ its znode sees `position` and `path` only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The first is 1.
    pub position: u64,
    /// Path of the queue znode.
    pub path: String,
    /// The owning session; `None` if hidden from the reader.
    #[serde(with = "hex::option")]
    pub session: Option<SessionId>,
    /// The fencing token; `None` if hidden from the reader.
    pub token: Option<FencingToken>,
    /// The client's label: untrusted text.
    pub label: Option<String>,
    /// Where the client was connected from when it asked.
    pub address: Option<String>,
    /// In which mode it is held, or wanted.
    pub mode: Option<ModeName>,
    /// How many permits of a semaphore.
    pub permits: Option<u32>,
    /// Owner for deadlock detection: `session`, a number, or `under TOKEN`.
    pub owner: Option<String>,
    /// Taken by one request (`acquire`), and not by the recipe of a plain ZooKeeper client.
    pub acquired: Option<bool>,
}

/// A holder of a lock. The fields are `None` where [`Place::session`] is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The place in the queue.
    #[serde(flatten)]
    pub place: Place,
    /// Since when it holds.
    pub since_ms: Option<i64>,
    /// For how long it has held.
    pub held_ms: Option<i64>,
    /// How long it waited before.
    pub waited_ms: Option<i64>,
    /// When the cluster takes the lock away, if a maximum hold was asked for, or the holder was asked to give
    /// the lock back within a time.
    pub revoke_at_ms: Option<i64>,
    /// The newest question to the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<ShownQuestion>,
}

/// A question to a holder, whether it gives the lock back. Both texts are untrusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownQuestion {
    /// Why the lock is wanted.
    pub reason: String,
    /// Who asks for the lock.
    pub by: String,
    /// How long ago it was asked.
    pub asked_ms_ago: i64,
    /// In what time the holder has to give the lock back; 0: that is over, and the cluster takes it away at
    /// [`Holder::revoke_at_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_in_ms: Option<i64>,
}

/// A waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The place in the queue.
    #[serde(flatten)]
    pub place: Place,
    /// Since when it waits.
    pub since_ms: Option<i64>,
    /// For how long it has waited.
    pub waited_ms: Option<i64>,
    /// The place whose end it waits for.
    pub waits_for: Option<String>,
}

/// `/v1/sessions`: the open sessions, in order of their ids. Each sees itself; superusers see all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sessions {
    /// The state that is shown is the one after this change.
    pub zxid: Zxid,
    /// How many are open, also of those that are not shown.
    pub session_count: u64,
    /// Open sessions that the reader may see.
    pub sessions: Vec<Session>,
    /// There are more than are shown.
    pub more: bool,
}

/// An open session of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The id of the session.
    #[serde(with = "hex")]
    pub session: SessionId,
    /// Without a sign of life for so long, it expires.
    pub timeout_ms: u32,
    /// How often the session was attached to a connection.
    pub attachment: u64,
    /// From where it is connected to the node that was asked. `None`: it is connected to another, or to none.
    pub address: Option<String>,
    /// Number of its ephemeral znodes.
    pub ephemerals: u64,
    /// Locks that it holds.
    pub locks_held: u64,
    /// Locks that it waits for.
    pub locks_waiting: u64,
    /// Its ephemeral znodes by path, up to the limit of the query, in a report of one session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub znodes: Vec<SessionZnode>,
}

/// An ephemeral znode of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionZnode {
    /// Path of the ephemeral znode.
    pub path: String,
    /// The zxid that made it; of a place in a lock's queue, the fencing token.
    pub czxid: Zxid,
    /// `holds` or `waits`, if it is a place in a lock's queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// `/v1/history`: what happened to locks, the newest last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Events, the newest last.
    pub entries: Vec<HistoryEntry>,
    /// There is more before the first of these.
    pub more: bool,
    /// Ask for what comes before this to get it.
    pub before: Option<String>,
}

/// Something that happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Time of the log, milliseconds since 1970.
    pub time_ms: i64,
    /// The change that caused it.
    pub zxid: Zxid,
    /// The event and its fields.
    #[serde(flatten)]
    pub event: HistoryEvent,
}

/// An event of a lock's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HistoryEvent {
    /// A client got in line.
    Requested {
        /// How many places were before it.
        ahead: u32,
        /// The place that was taken.
        #[serde(flatten)]
        place: HistoryPlace,
    },
    /// A client got the lock.
    Granted {
        /// How long it waited.
        waited_ms: i64,
        /// The place that was granted.
        #[serde(flatten)]
        place: HistoryPlace,
    },
    /// A holder changed between exclusive and shared.
    Converted(HistoryPlace),
    /// A holder was asked to give the lock back.
    Asked {
        /// By whom and why: untrusted text.
        question: String,
        /// The place of the holder. Its label is empty.
        #[serde(flatten)]
        place: HistoryPlace,
    },
    /// A client stopped waiting.
    Abandoned(HistoryEnd),
    /// A holder gave the lock back.
    Released(HistoryEnd),
    /// A holder lost the lock.
    Lost(HistoryEnd),
    /// This node has no record of what happened in between.
    Gap {
        /// `too-fast`, `snapshot`, `lost`, `no-space`.
        reason: String,
        /// All up to this change is there.
        from_zxid: Zxid,
        /// How many records are missing, if that is known.
        missing: Option<u64>,
    },
    /// An event of a later version.
    #[serde(other)]
    Other,
}

/// A place in a queue, as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPlace {
    /// Path of the lock's znode.
    pub lock: String,
    /// Path of the queue znode.
    pub path: String,
    /// The place's fencing token.
    pub token: FencingToken,
    /// The session that owned the place.
    #[serde(with = "hex")]
    pub session: SessionId,
    /// The client's label: untrusted text.
    pub label: String,
    /// Where the client was connected from.
    pub address: Option<String>,
    /// How the lock was wanted or held.
    pub mode: ModeName,
    /// How many permits of a semaphore.
    pub permits: Option<u32>,
    /// Taken by one request (`acquire`), and not by the recipe of a plain ZooKeeper client.
    pub acquired: bool,
}

/// `/v1/access`: the rights of a client on a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockAccess {
    /// Path of the lock's znode.
    pub lock: String,
    /// The client's identities; of a digest only the user.
    pub who: Vec<String>,
    /// The rights that it has. ACLs of znodes may permit less.
    pub rights: Vec<Right>,
    /// The pattern of the rules that decided. `None`: no rule names the lock.
    pub rule: Option<String>,
    /// Only operators may force locks that no rule names.
    pub guarded: bool,
}

/// The end of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEnd {
    /// `released`, `session-closed`, `session-expired`, `deleted`, `forced`, `revoked`.
    pub reason: String,
    /// How long it waited.
    pub waited_ms: i64,
    /// How long it held. `None`: it never did.
    pub held_ms: Option<i64>,
    /// The client that took it away (`deleted`, `forced`): its name at the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The place that the event is about.
    #[serde(flatten)]
    pub place: HistoryPlace,
}

/// How a lock is held, without the number of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeName {
    /// Excludes all other holders.
    Exclusive,
    /// Others may hold it in this mode too.
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

/// A value as it stands in the query of a question: percent-encoded.
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

/// Session ids as ZooKeeper's tools write them: `0x100000000000001`. Not a number: a program that reads JSON
/// numbers as floating point would change it.
mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::ids::SessionId;

    pub(super) fn serialize<S: Serializer>(id: &SessionId, to: S) -> Result<S::Ok, S::Error> {
        debug_assert!(
            read::<serde::de::value::Error>(&id.to_string()) == Ok(*id),
            "a session is read as it is written"
        );
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SessionId, D::Error> {
        read(&String::deserialize(from)?)
    }

    fn read<E: Error>(text: &str) -> Result<SessionId, E> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let id = u64::from_str_radix(digits, 16).map_err(|_| E::custom(format!("{text} is no session")))?;
        Ok(SessionId(id.cast_signed()))
    }

    /// Serde form of optional values.
    pub(super) mod option {
        use super::{Deserialize, Deserializer, Serializer, SessionId};

        pub(in super::super) fn serialize<S: Serializer>(
            id: &Option<SessionId>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match id {
                Some(id) => super::serialize(id, to),
                None => to.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<SessionId>, D::Error> {
            Option::<String>::deserialize(from)?.map(|text| super::read(&text)).transpose()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn place() -> HistoryPlace {
        HistoryPlace {
            lock: "/locks/x".to_owned(),
            path: "/locks/x/lock-1".to_owned(),
            token: FencingToken(7),
            session: SessionId(-2),
            label: "w".to_owned(),
            address: None,
            mode: ModeName::Permits,
            permits: Some(3),
            acquired: true,
        }
    }

    #[test]
    fn history_is_flat_json_and_is_read_back() {
        let end = HistoryEnd {
            reason: "forced".to_owned(),
            waited_ms: 1,
            held_ms: Some(2),
            by: Some("x509:CN=a".to_owned()),
            place: place(),
        };
        let events = [
            HistoryEvent::Requested { ahead: 4, place: place() },
            HistoryEvent::Granted { waited_ms: 5, place: place() },
            HistoryEvent::Converted(place()),
            HistoryEvent::Asked { question: "ip:10.0.0.1: hotfix".to_owned(), place: place() },
            HistoryEvent::Lost(end),
            HistoryEvent::Gap { reason: "lost".to_owned(), from_zxid: Zxid(1), missing: None },
        ];
        for event in events {
            let entry = HistoryEntry { time_ms: 1, zxid: Zxid(2), event };
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<HistoryEntry>(&text).unwrap(), entry);
        }
        let entry = HistoryEntry { time_ms: 1, zxid: Zxid(2), event: HistoryEvent::Converted(place()) };
        let flat = json!({
            "time_ms": 1, "zxid": 2, "event": "converted", "lock": "/locks/x", "path": "/locks/x/lock-1",
            "token": 7, "session": "0xfffffffffffffffe", "label": "w", "address": null, "mode": "permits",
            "permits": 3, "acquired": true,
        });
        assert_eq!(serde_json::to_value(&entry).unwrap(), flat);
    }

    #[test]
    fn query_values_are_encoded() {
        assert_eq!(in_query("/locks/a b%2F&ä"), "/locks/a%20b%252F%26%C3%A4");
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        let entry = json!({ "time_ms": 1, "zxid": 2, "event": "promoted", "lock": "/locks/x", "new": [1] });
        assert_eq!(serde_json::from_value::<HistoryEntry>(entry).unwrap().event, HistoryEvent::Other);
    }

    #[test]
    fn a_place_that_may_not_be_read_has_its_position_and_path() {
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
