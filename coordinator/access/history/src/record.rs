//! Entries of the history. The disk format is bincode (`block.rs`): a change of [`Stored`] needs another
//! version of the footer (`footer.rs`).
//!
//! Invariant: key and entry depend on the log entry alone, so a replay of an entry gives the same entry.
//!
//! Readers of a record: the identities with READ on the queue position at the time of the event. The readers
//! stay fixed after the lock is gone or has other permissions.
//!
//! Errors of the history's files. Outside `history` an error appears as a warning and a gap.

use std::borrow::Cow;
use std::io;

use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::Mode;
use rowlock_proto::lock_event::{
    EndReason, Gap, GapReason, HistoryEvent, LockEvent, LockEventKind, PositionEnd,
};
use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::acl;
use rowlock_state::outcome::EventContext;
use serde::{Deserialize, Serialize};

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

/// An event and its readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<T = String> {
    pub event: HistoryEvent<T>,
    pub readers: Readers,
}

impl<T> From<Gap> for Entry<T> {
    fn from(gap: Gap) -> Entry<T> {
        Entry { event: HistoryEvent::Gap(gap), readers: Readers::Anyone }
    }
}

/// Subject of an entry. An encoded entry begins with its encoded subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject<'a> {
    Lock { lock: &'a [u8], session: SessionId },
    Gap(Gap),
}

/// The encoded form of an entry.
#[derive(Serialize, Deserialize)]
pub(super) enum Stored<'a> {
    /// Lock, session, name of the queue znode, and the rest.
    Lock(&'a str, SessionId, &'a str, #[serde(borrow)] StoredEvent<'a>),
    Gap(StoredGap),
}

/// The front of [`Stored`].
#[derive(Deserialize)]
pub(super) enum StoredSubject<'a> {
    Lock(&'a [u8], SessionId),
    Gap(StoredGap),
}

type StoredGap = (GapReason, Zxid, Option<u64>);
/// Token, address, label, mode, whether acquired, readers, and the kind as a number with its number, its text
/// and its end.
type StoredEvent<'a> = (
    FencingToken,
    Option<&'a str>,
    &'a str,
    Mode,
    bool,
    Cow<'a, Readers>,
    (u8, i64, Option<&'a str>, Option<(EndReason, Option<i64>)>),
);

impl<'a> Stored<'a> {
    pub fn of(entry: &'a Entry<&'a str>) -> Stored<'a> {
        let event = match &entry.event {
            HistoryEvent::Lock(event) => event,
            HistoryEvent::Gap(gap) => return Stored::Gap((gap.reason, gap.from_zxid, gap.missing)),
            _ => unreachable!("this version makes no other events"),
        };
        let ended =
            |kind, end: &PositionEnd<&'a str>| (kind, end.waited_ms, end.by, Some((end.reason, end.held_ms)));
        let kind = match &event.kind {
            LockEventKind::Requested { ahead } => (0, i64::from(*ahead), None, None),
            LockEventKind::Granted { waited_ms } => (1, *waited_ms, None, None),
            LockEventKind::Converted => (2, 0, None, None),
            LockEventKind::Asked { question } => (3, 0, Some(*question), None),
            LockEventKind::Abandoned(end) | LockEventKind::Released(end) | LockEventKind::Lost(end) => {
                ended(4, end)
            }
        };
        let readers = Cow::Borrowed(&entry.readers);
        let LockEvent { lock, session, path, token, address, label, mode, acquired, .. } = *event;
        let parent_bytes = if lock == "/" { 1 } else { lock.len() + 1 };
        let name = path.get(parent_bytes..).unwrap_or_default();
        Stored::Lock(lock, session, name, (token, address, label, mode, acquired, readers, kind))
    }

    pub fn entry(self) -> Result<Entry, HistoryError> {
        let (lock, session, name, rest) = match self {
            Stored::Lock(lock, session, name, rest) => (lock, session, name, rest),
            Stored::Gap(gap) => return Ok(gap_of(gap).into()),
        };
        let (token, address, label, mode, acquired, readers, (kind, number, text, end)) = rest;
        let damaged = || HistoryError::Damaged(format!("a block has an event of kind {kind}"));
        let text = text.map(str::to_owned);
        let kind = match (kind, end) {
            (0, _) => LockEventKind::Requested { ahead: u32::try_from(number).map_err(|_| damaged())? },
            (1, _) => LockEventKind::Granted { waited_ms: number },
            (2, _) => LockEventKind::Converted,
            (3, _) => LockEventKind::Asked { question: text.unwrap_or_default() },
            (4, Some((reason, held_ms))) => {
                LockEventKind::ended(PositionEnd { reason, waited_ms: number, held_ms, by: text })
            }
            _ => return Err(damaged()),
        };
        let path = if lock == "/" { format!("/{name}") } else { format!("{lock}/{name}") };
        let (lock, label, address) = (lock.to_owned(), label.to_owned(), address.map(str::to_owned));
        let event = LockEvent { kind, lock, path, token, session, label, address, mode, acquired };
        Ok(Entry { event: HistoryEvent::Lock(event), readers: readers.into_owned() })
    }
}

impl<'a> StoredSubject<'a> {
    pub fn subject(self) -> Subject<'a> {
        match self {
            StoredSubject::Lock(lock, session) => Subject::Lock { lock, session },
            StoredSubject::Gap(gap) => Subject::Gap(gap_of(gap)),
        }
    }
}

fn gap_of((reason, from_zxid, missing): StoredGap) -> Gap {
    Gap { reason, from_zxid, missing }
}

/// A gap and its key, the position of the last missing record.
pub(super) type Missing = (Key, Gap);

/// Merges two gaps: from the earlier beginning to the later end.
pub(super) fn merge(earlier: Option<Missing>, (last, later): Missing) -> Missing {
    let Some((key, earlier)) = earlier else { return (last, later) };
    let missing = earlier.missing.zip(later.missing).map(|(earlier, later)| earlier + later);
    let from_zxid = earlier.from_zxid.min(later.from_zxid);
    (key.max(last), Gap { from_zxid, missing, reason: later.reason })
}

impl Subject<'_> {
    /// Returns the gap left by an unrecorded entry.
    pub(super) fn missed(self, key: Key, reason: GapReason) -> Missing {
        match self {
            Subject::Lock { .. } => (key, Gap { from_zxid: Zxid(key.zxid.0 - 1), missing: Some(1), reason }),
            Subject::Gap(gap) => (key, Gap { reason, ..gap }),
        }
    }
}

/// Bound of the names' total bytes. Longer lists leave the record to superusers.
const MAX_BYTES: usize = 1 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readers {
    Anyone,
    /// Identities in both lists: of the lock, and of the queue position.
    These(Vec<Id>, Vec<Id>),
    /// Unknown readers: superusers only.
    #[default]
    Unknown,
}

impl Readers {
    /// Returns true if the readers include an identity in `who`.
    pub fn include(&self, who: &[Id]) -> bool {
        let is_among = |readers: &[Id]| {
            let list: Vec<Acl> =
                readers.iter().map(|id| Acl { perms: perms::READ, id: id.clone() }).collect();
            acl::may(&list, perms::READ, who)
        };
        match self {
            Readers::Anyone => true,
            Readers::These(lock, place) => is_among(lock) && is_among(place),
            Readers::Unknown => is_among(&[]),
        }
    }

    pub fn of(context: &EventContext<'_>) -> Readers {
        if is_open(context.lock_acl) && is_open(context.acl) {
            return Readers::Anyone;
        }
        let lists = [context.lock_acl, context.acl]
            .map(|list| list.iter().filter(|entry| entry.perms & perms::READ != 0).map(|entry| &entry.id));
        let bytes: usize = lists.iter().cloned().flatten().map(|id| id.scheme.len() + id.id.len()).sum();
        if bytes > MAX_BYTES {
            return Readers::Unknown;
        }
        let [lock, place] = lists.map(|list| list.cloned().collect());
        Readers::These(lock, place)
    }
}

fn is_open(list: &[Acl]) -> bool {
    list.iter()
        .any(|entry| entry.perms & perms::READ != 0 && entry.id.scheme == "world" && entry.id.id == "anyone")
}

#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The files differ from the written files.
    #[error("{0}")]
    Damaged(String),
    /// Another build or release wrote the files; the content may be intact.
    #[error("it was written by another build or release, which can read it")]
    OtherBuild,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("sled: {0}")]
    Sled(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merged_gap_spans_both_and_sums_known_counts() {
        let key = |zxid| Key { time_ms: zxid, zxid: Zxid(zxid), ordinal: 0 };
        let gap = |from, missing| Gap { from_zxid: Zxid(from), missing, reason: GapReason::TooFast };
        let first = merge(None, (key(12), gap(9, Some(3))));
        assert_eq!(first, (key(12), gap(9, Some(3))));
        let both = merge(Some(first), (key(20), gap(15, Some(2))));
        assert_eq!(both, (key(20), gap(9, Some(5))));
        assert_eq!(merge(Some(both), (key(25), gap(20, None))), (key(25), gap(9, None)));
        let lost = Gap { reason: GapReason::Lost, ..gap(3, Some(1)) };
        assert_eq!(merge(Some(both), (key(4), lost)), (key(20), Gap { missing: Some(6), ..lost }));
    }

    #[test]
    fn a_record_needs_read_on_both_the_lock_and_the_position() {
        let id = |name: &str| Id { scheme: "digest".to_owned(), id: name.to_owned() };
        let readers = Readers::These(vec![id("lock"), id("both")], vec![id("place"), id("both")]);
        let may_read = |name: &str| readers.include(&[id(name)]);
        assert_eq!(["lock", "place", "both"].map(may_read), [false, false, true]);
        assert!(!Readers::Unknown.include(&[id("both")]));
    }
}
