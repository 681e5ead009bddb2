//! Record of a lock event. The disk format is bincode (`block.rs`): a change of a type needs another version
//! of the footer (`footer.rs`).
//!
//! Invariant: key and record depend on the log entry alone, so a replay of an entry gives the same record.

use std::borrow::Cow;

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::outcome::{LockEvent, LockEventKind};
use serde::{Deserialize, Serialize, Serializer};

use super::readers::Readers;

/// Position of an event: the order of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Leader's clock in milliseconds since 1970. Never decreases from a zxid to the next.
    pub time_ms: i64,
    pub zxid: Zxid,
    /// Number of the event within its command; the maximum for the installation of a snapshot.
    pub ordinal: u32,
}

impl Key {
    pub const MIN: Key = Key { time_ms: i64::MIN, zxid: Zxid(i64::MIN), ordinal: 0 };
    pub const MAX: Key = Key { time_ms: i64::MAX, zxid: Zxid(i64::MAX), ordinal: u32::MAX };

    /// Returns the least key at a time.
    pub fn at(time_ms: i64) -> Key {
        Key { time_ms, ..Key::MIN }
    }

    pub fn successor(self) -> Key {
        match self.ordinal.checked_add(1) {
            Some(ordinal) => Key { ordinal, ..self },
            None => Key { zxid: Zxid(self.zxid.0.saturating_add(1)), ordinal: 0, ..self },
        }
    }

    pub(super) fn predecessor(self) -> Key {
        match self.ordinal.checked_sub(1) {
            Some(ordinal) => Key { ordinal, ..self },
            None => Key { zxid: Zxid(self.zxid.0.saturating_sub(1)), ordinal: u32::MAX, ..self },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry<'a> {
    /// Event of a queue position.
    #[serde(borrow)]
    Lock(Record<'a>),
    Gap(Gap),
}

/// Subject of an entry. An encoded entry begins with its encoded subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Subject<'a> {
    Lock { lock: &'a [u8], session: SessionId },
    Gap(Gap),
}

/// Event of a queue position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record<'a> {
    /// Path of the lock's znode.
    #[serde(borrow)]
    pub lock: Cow<'a, str>,
    pub session: SessionId,
    /// Name of the queue znode.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    pub token: FencingToken,
    /// Address of the client; empty if unknown.
    #[serde(borrow)]
    pub address: Cow<'a, str>,
    /// Beginning of the queue znode's data.
    #[serde(borrow, serialize_with = "as_bytes")]
    pub label: Cow<'a, [u8]>,
    /// Requested or held mode.
    pub mode: Mode,
    pub is_acquired: bool,
    pub readers: Readers,
    /// Name of the revoking client; empty without a revocation.
    #[serde(borrow)]
    pub by: Cow<'a, str>,
    pub kind: LockEventKind,
}

/// Possible loss of records after `from` and up to the gap's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Zxid up to which the history is complete.
    pub from: Zxid,
    /// Number of missing records, if known.
    pub missing: Option<u64>,
    pub why: GapReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GapReason {
    /// Events arrived faster than the thread could write.
    TooFast,
    /// The node installed a snapshot of the state instead of applying the log entries.
    Snapshot,
    /// Files of the history were damaged or unwritable.
    Lost,
    /// The disk was nearly full, and the node's log takes priority.
    NoSpace,
}

/// Serializes the bytes as a single slice; serde would serialize each byte.
fn as_bytes<S: Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
    out.serialize_bytes(bytes)
}

impl<'a> Record<'a> {
    pub fn of(event: &LockEvent<'a>) -> Record<'a> {
        let name = event.path.rsplit('/').next().unwrap_or_default();
        Record {
            lock: Cow::Borrowed(event.lock),
            name: Cow::Borrowed(name),
            token: event.token,
            session: event.session,
            address: Cow::Borrowed(event.address),
            label: Cow::Borrowed(event.label),
            mode: event.mode,
            is_acquired: event.is_acquired,
            readers: Readers::of(event),
            by: Cow::Borrowed(event.by),
            kind: event.kind,
        }
    }

    pub fn into_owned(self) -> Record<'static> {
        Record {
            lock: Cow::Owned(self.lock.into_owned()),
            name: Cow::Owned(self.name.into_owned()),
            address: Cow::Owned(self.address.into_owned()),
            label: Cow::Owned(self.label.into_owned()),
            by: Cow::Owned(self.by.into_owned()),
            ..self
        }
    }

    /// Returns the path of the queue znode.
    pub fn path(&self) -> String {
        if self.lock == "/" { format!("/{}", self.name) } else { format!("{}/{}", self.lock, self.name) }
    }
}

/// A gap and its key, the position of the last missing record.
pub(super) type Missing = (Key, Gap);

/// Merges two gaps: from the earlier beginning to the later end.
pub(super) fn merge(earlier: Option<Missing>, (last, later): Missing) -> Missing {
    let Some((key, earlier)) = earlier else { return (last, later) };
    let missing = earlier.missing.zip(later.missing).map(|(earlier, later)| earlier + later);
    (key.max(last), Gap { from: earlier.from.min(later.from), missing, why: later.why })
}

impl Subject<'_> {
    /// Returns the gap left by an unrecorded entry.
    pub(super) fn missed(self, key: Key, why: GapReason) -> Missing {
        match self {
            Subject::Lock { .. } => (key, Gap { from: Zxid(key.zxid.0 - 1), missing: Some(1), why }),
            Subject::Gap(gap) => (key, Gap { why, ..gap }),
        }
    }
}

impl Entry<'_> {
    pub(super) fn into_owned(self) -> Entry<'static> {
        match self {
            Entry::Lock(record) => Entry::Lock(record.into_owned()),
            Entry::Gap(gap) => Entry::Gap(gap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merged_gap_spans_both_and_sums_known_counts() {
        let key = |zxid| Key { time_ms: zxid, zxid: Zxid(zxid), ordinal: 0 };
        let gap = |from, missing| Gap { from: Zxid(from), missing, why: GapReason::TooFast };
        let first = merge(None, (key(12), gap(9, Some(3))));
        assert_eq!(first, (key(12), gap(9, Some(3))));
        let both = merge(Some(first), (key(20), gap(15, Some(2))));
        assert_eq!(both, (key(20), gap(9, Some(5))));
        assert_eq!(merge(Some(both), (key(25), gap(20, None))), (key(25), gap(9, None)));
        let lost = Gap { why: GapReason::Lost, ..gap(3, Some(1)) };
        assert_eq!(merge(Some(both), (key(4), lost)), (key(20), Gap { missing: Some(6), ..lost }));
    }
}
