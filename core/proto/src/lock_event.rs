//! Events of locks: the one form in which apply publishes events, a node's history stores them, and clients
//! receive them.
//!
//! Apply lends the texts (`LockEvent<&str>`), and everything behind apply owns them. In JSON an event is one
//! flat object; the history has its own encoding of the same type.

use serde::{Deserialize, Serialize};

use crate::ids::{FencingToken, SessionId, Zxid};
use crate::lock::Mode;
use crate::report::{mode_fields, text};

/// A change of one queue position of a lock. Clients of any protocol cause lock events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockEvent<T = String> {
    /// Kind of the change, and its fields.
    #[serde(flatten)]
    pub kind: LockEventKind<T>,
    /// Path of the lock's znode.
    pub lock: T,
    /// Path of the queue znode.
    pub path: T,
    /// Fencing token of the position.
    #[serde(with = "text")]
    pub token: FencingToken,
    /// The session that owns or owned the position.
    #[serde(with = "text")]
    pub session: SessionId,
    /// The client's label, the beginning of the queue znode's data: untrusted text. Empty for a question.
    pub label: T,
    /// Address from which the client was connected. `None`: unknown.
    pub address: Option<T>,
    /// Mode of the hold or of the request; for a conversion the new mode.
    #[serde(flatten, with = "mode_fields")]
    pub mode: Mode,
    /// True if an acquire made the position, and its session receives notices
    /// ([`Notice`](crate::lock::Notice)); false for the recipe of a plain ZooKeeper client.
    pub acquired: bool,
}

/// Kinds of lock events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum LockEventKind<T = String> {
    /// A client entered the queue.
    Requested {
        /// Number of holders and waiters before the client.
        ahead: u32,
    },
    /// The cluster granted the lock to a client.
    Granted {
        /// Waiting time before the grant, in milliseconds.
        waited_ms: i64,
    },
    /// A holder changed between exclusive and shared.
    Converted,
    /// Another client asked a holder to release the lock.
    Asked {
        /// Asking client and reason: untrusted text.
        question: T,
    },
    /// A client stopped waiting.
    Abandoned(PositionEnd<T>),
    /// A holder released the lock.
    Released(PositionEnd<T>),
    /// A holder lost the lock.
    Lost(PositionEnd<T>),
}

/// The end of a queue position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionEnd<T = String> {
    /// Cause of the end.
    pub reason: EndReason,
    /// Waiting time in the queue, in milliseconds.
    pub waited_ms: i64,
    /// Hold time in milliseconds. `None`: the position never held the lock.
    pub held_ms: Option<i64>,
    /// Name of the client that removed the position ([`EndReason::Deleted`], [`EndReason::Forced`]), as the
    /// server knows the client.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub by: Option<T>,
}

/// Reason why a queue position ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// The session released the lock or left the queue.
    Released,
    /// The client closed the session.
    SessionClosed,
    /// The session expired: no keepalive arrived within its timeout.
    SessionExpired,
    /// Another session deleted the queue znode.
    Deleted,
    /// An operator or client forced the release.
    Forced,
    /// The hold exceeded its `max_hold_ms` or the deadline of a question.
    Revoked,
    /// A superuser ended the session.
    SessionEnded,
}

impl EndReason {
    /// Returns the name in JSON and in logs.
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Released => "released",
            EndReason::SessionClosed => "session-closed",
            EndReason::SessionExpired => "session-expired",
            EndReason::Deleted => "deleted",
            EndReason::Forced => "forced",
            EndReason::Revoked => "revoked",
            EndReason::SessionEnded => "session-ended",
        }
    }
}

impl<T> LockEventKind<T> {
    /// Makes the kind of an end: abandoned without a hold, otherwise released or lost.
    pub fn ended(end: PositionEnd<T>) -> Self {
        match (end.held_ms, end.reason) {
            (None, _) => LockEventKind::Abandoned(end),
            (Some(_), EndReason::Released | EndReason::SessionClosed) => LockEventKind::Released(end),
            (Some(_), _) => LockEventKind::Lost(end),
        }
    }

    /// Returns the end of the position; `None` if the position continues.
    pub fn end(&self) -> Option<&PositionEnd<T>> {
        match self {
            LockEventKind::Abandoned(end) | LockEventKind::Released(end) | LockEventKind::Lost(end) => {
                Some(end)
            }
            LockEventKind::Requested { .. }
            | LockEventKind::Granted { .. }
            | LockEventKind::Converted
            | LockEventKind::Asked { .. } => None,
        }
    }

    /// Returns the value of `event` in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            LockEventKind::Requested { .. } => "requested",
            LockEventKind::Granted { .. } => "granted",
            LockEventKind::Converted => "converted",
            LockEventKind::Asked { .. } => "asked",
            LockEventKind::Abandoned(_) => "abandoned",
            LockEventKind::Released(_) => "released",
            LockEventKind::Lost(_) => "lost",
        }
    }

    /// Applies `text` to each text of the event.
    pub fn map<'a, U>(&'a self, text: impl Fn(&'a T) -> U) -> LockEventKind<U> {
        let end = |end: &'a PositionEnd<T>| PositionEnd {
            reason: end.reason,
            waited_ms: end.waited_ms,
            held_ms: end.held_ms,
            by: end.by.as_ref().map(&text),
        };
        match self {
            LockEventKind::Requested { ahead } => LockEventKind::Requested { ahead: *ahead },
            LockEventKind::Granted { waited_ms } => LockEventKind::Granted { waited_ms: *waited_ms },
            LockEventKind::Converted => LockEventKind::Converted,
            LockEventKind::Asked { question } => LockEventKind::Asked { question: text(question) },
            LockEventKind::Abandoned(it) => LockEventKind::Abandoned(end(it)),
            LockEventKind::Released(it) => LockEventKind::Released(end(it)),
            LockEventKind::Lost(it) => LockEventKind::Lost(end(it)),
        }
    }
}

impl<T> LockEvent<T> {
    /// Converts the texts: `event.map(|text| text.to_string())` owns them.
    pub fn map<'a, U>(&'a self, text: impl Fn(&'a T) -> U) -> LockEvent<U> {
        LockEvent {
            kind: self.kind.map(&text),
            lock: text(&self.lock),
            path: text(&self.path),
            token: self.token,
            session: self.session,
            label: text(&self.label),
            address: self.address.as_ref().map(&text),
            mode: self.mode,
            acquired: self.acquired,
        }
    }
}

/// Events between `from_zxid` and the gap's own zxid that a node has no record of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename = "gap")]
pub struct Gap {
    /// Cause of the gap.
    pub reason: GapReason,
    /// The history is complete up to this change.
    pub from_zxid: Zxid,
    /// Number of missing records, if known.
    pub missing: Option<u64>,
}

/// Cause of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GapReason {
    /// Events arrived faster than the node could write.
    TooFast,
    /// The node installed a snapshot of the state instead of applying the log entries.
    Snapshot,
    /// Files of the history were damaged or unwritable.
    Lost,
    /// The disk was nearly full, and the node's log takes priority.
    NoSpace,
    /// The client of a stream received events slower than they arrived.
    TooSlow,
    /// The node keeps no history.
    NoHistory,
    /// The history did not answer in time.
    NotNow,
    /// The stream's past has more events than a node sends.
    TooMany,
    /// The history begins later.
    Trimmed,
    /// A cause of a later version.
    #[serde(other)]
    Other,
}

/// An event of a lock's history, or a gap in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum HistoryEvent<T = String> {
    /// A change of a queue position.
    Lock(LockEvent<T>),
    /// Events that the history does not have.
    Gap(Gap),
    /// An event of a later version.
    Other {},
}

impl<T> HistoryEvent<T> {
    /// Returns the value of `event` in JSON; empty for an event of a later version.
    pub fn name(&self) -> &'static str {
        match self {
            HistoryEvent::Lock(event) => event.kind.name(),
            HistoryEvent::Gap(_) => "gap",
            HistoryEvent::Other {} => "",
        }
    }

    /// Returns the event of a queue position.
    pub fn lock(&self) -> Option<&LockEvent<T>> {
        if let HistoryEvent::Lock(event) = self { Some(event) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::report::HistoryEntry;

    fn event(kind: LockEventKind) -> LockEvent {
        LockEvent {
            kind,
            lock: "/locks/x".to_owned(),
            path: "/locks/x/lock-1".to_owned(),
            token: FencingToken(7),
            session: SessionId(-2),
            label: "w".to_owned(),
            address: None,
            mode: Mode::Permits(3),
            acquired: true,
        }
    }

    fn end(reason: EndReason, held_ms: Option<i64>) -> PositionEnd {
        PositionEnd { reason, waited_ms: 1, held_ms, by: Some("x509:CN=a".to_owned()) }
    }

    const REASONS: [EndReason; 7] = [
        EndReason::Released,
        EndReason::SessionClosed,
        EndReason::SessionExpired,
        EndReason::Deleted,
        EndReason::Forced,
        EndReason::Revoked,
        EndReason::SessionEnded,
    ];

    #[test]
    fn history_is_flat_json_and_round_trips() {
        let kinds = [
            LockEventKind::Requested { ahead: 4 },
            LockEventKind::Granted { waited_ms: 5 },
            LockEventKind::Converted,
            LockEventKind::Asked { question: "ip:10.0.0.1: hotfix".to_owned() },
            LockEventKind::ended(end(EndReason::Forced, None)),
            LockEventKind::ended(end(EndReason::Forced, Some(2))),
            LockEventKind::ended(end(EndReason::Released, Some(2))),
        ];
        let gap = Gap { reason: GapReason::Lost, from_zxid: Zxid(1), missing: None };
        let events = kinds.map(|kind| HistoryEvent::Lock(event(kind)));
        for event in events.into_iter().chain([HistoryEvent::Gap(gap)]) {
            let entry = HistoryEntry { time_ms: 1, zxid: Zxid(2), event };
            let value = serde_json::to_value(&entry).unwrap();
            assert_eq!(value["event"], entry.event.name());
            assert_eq!(serde_json::from_value::<HistoryEntry>(value).unwrap(), entry);
        }
        let event = HistoryEvent::Lock(event(LockEventKind::Converted));
        let entry = HistoryEntry { time_ms: 1, zxid: Zxid(2), event };
        let flat = json!({
            "time_ms": 1, "zxid": 2, "event": "converted", "lock": "/locks/x", "path": "/locks/x/lock-1",
            "token": "7", "session": "0xfffffffffffffffe", "label": "w", "address": null, "mode": "permits",
            "permits": 3, "acquired": true,
        });
        assert_eq!(serde_json::to_value(&entry).unwrap(), flat);
    }

    #[test]
    fn an_end_without_a_hold_is_abandoned_and_only_the_owner_releases() {
        for reason in REASONS {
            let held = LockEventKind::ended(end(reason, Some(2))).name();
            let is_released = matches!(reason, EndReason::Released | EndReason::SessionClosed);
            assert_eq!(held, if is_released { "released" } else { "lost" }, "{reason:?}");
            assert_eq!(LockEventKind::ended(end(reason, None)).name(), "abandoned");
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
        }
    }

    #[test]
    fn events_and_fields_of_later_versions_are_ignored() {
        let read = |value: Value| serde_json::from_value::<HistoryEntry>(value).unwrap().event;
        let promoted =
            json!({ "time_ms": 1, "zxid": 2, "event": "promoted", "lock": "/locks/x", "new": [1] });
        assert_eq!(read(promoted), HistoryEvent::Other {});
        let gap = json!({
            "time_ms": 1, "zxid": 2, "event": "gap", "reason": "aliens", "from_zxid": 1, "missing": null,
        });
        let expected = Gap { reason: GapReason::Other, from_zxid: Zxid(1), missing: None };
        assert_eq!(read(gap), HistoryEvent::Gap(expected), "a gap stays a gap");
        let mut value = serde_json::to_value(event(LockEventKind::Granted { waited_ms: 5 })).unwrap();
        value["new"] = json!([1]);
        assert_eq!(serde_json::from_value::<LockEvent>(value).unwrap().kind.name(), "granted");
    }
}
