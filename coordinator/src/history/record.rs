//! What the history keeps about one moment of one lock, and its form on disk.
//!
//! A record's key says when it was and gives the order; its value says what. Keys are fixed at 20 bytes and sort as the
//! moments do. The value begins with the version of its form.
//!
//! Invariant: key and value depend on the log entry alone, so applying an entry again gives the same bytes.

use std::borrow::Cow;

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::outcome::{LockEvent, LockEventKind, Why};
use serde::{Deserialize, Serialize};

use super::error::HistoryError;
use crate::codec;

/// The form of values that is written.
const VERSION: u8 = 1;
/// Longest value that is believed. Labels are short; paths are bounded by [`LOCK_MAX_BYTES`] and the size of a name.
const VALUE_MAX_BYTES: usize = 64 << 10;
/// Longest path of a lock and longest name of a queue znode that are recorded. Beyond: the event is dropped and counted.
pub const LOCK_MAX_BYTES: usize = 4 << 10;

/// When something was: the order of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The leader's clock, milliseconds since 1970. Never goes back from one zxid to the next.
    pub time_ms: i64,
    /// Of the command.
    pub zxid: Zxid,
    /// Counts the events of one command; the largest for a gap, which comes behind them.
    pub ordinal: u32,
}

impl Key {
    /// Bytes of an encoded key.
    pub const LEN: usize = 20;
    /// Before every other.
    pub const MIN: Key = Key { time_ms: i64::MIN, zxid: Zxid(i64::MIN), ordinal: 0 };
    /// Behind every other.
    pub const MAX: Key = Key { time_ms: i64::MAX, zxid: Zxid(i64::MAX), ordinal: u32::MAX };

    /// The first of all that can be at this time.
    pub fn at(time_ms: i64) -> Key {
        Key { time_ms, ..Key::MIN }
    }

    /// The first that can come behind this one.
    pub fn successor(self) -> Key {
        match self.ordinal.checked_add(1) {
            Some(ordinal) => Key { ordinal, ..self },
            None => Key { zxid: Zxid(self.zxid.0.saturating_add(1)), ordinal: 0, ..self },
        }
    }

    /// Bytes that sort as keys do.
    pub fn encode(&self) -> [u8; Key::LEN] {
        let mut out = [0; Key::LEN];
        out[..8].copy_from_slice(&sortable(self.time_ms));
        out[8..16].copy_from_slice(&sortable(self.zxid.0));
        out[16..].copy_from_slice(&self.ordinal.to_be_bytes());
        out
    }

    /// The key of [`Key::encode`]'s bytes.
    pub fn decode(bytes: &[u8]) -> Result<Key, HistoryError> {
        let damaged = || HistoryError::Damaged(format!("a key has {} bytes", bytes.len()));
        let bytes: &[u8; Key::LEN] = bytes.try_into().map_err(|_| damaged())?;
        let number = |at: usize| {
            let mut part = [0; 8];
            part.copy_from_slice(&bytes[at..at + 8]);
            i64::from_be_bytes(part) ^ i64::MIN
        };
        let ordinal = u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
        Ok(Key { time_ms: number(0), zxid: Zxid(number(8)), ordinal })
    }
}

/// With the sign turned over, big-endian bytes sort as the numbers do.
fn sortable(number: i64) -> [u8; 8] {
    (number ^ i64::MIN).to_be_bytes()
}

/// One entry of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry<'a> {
    /// Something happened to a place in a lock's queue.
    Lock(Record<'a>),
    /// Something may be missing here.
    Gap(Gap),
}

/// What happened to a place in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record<'a> {
    /// Path of the lock's znode.
    pub lock: Cow<'a, str>,
    /// Name of the queue znode.
    pub name: Cow<'a, str>,
    /// Its czxid.
    pub token: FencingToken,
    /// Whose it is.
    pub session: SessionId,
    /// Its client's address; empty if unknown.
    pub address: Cow<'a, str>,
    /// The beginning of the queue znode's data.
    pub label: Cow<'a, [u8]>,
    /// What is wanted, or held.
    pub mode: Mode,
    /// Made by acquire.
    pub is_acquired: bool,
    /// What happened.
    pub what: What,
}

/// See [`Record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// It came into the queue.
    Requested {
        /// How many were before it.
        ahead: u32,
    },
    /// It got the lock.
    Granted {
        /// Since the request, milliseconds.
        waited_ms: i64,
    },
    /// It went on holding in another mode.
    Converted,
    /// It left.
    Gone {
        /// How long it held the lock, milliseconds; `None`: it never did.
        held_ms: Option<i64>,
        /// How long it waited, milliseconds.
        waited_ms: i64,
        /// Why.
        why: Why,
    },
}

/// Records may be missing behind `from` and up to the gap's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Up to here everything is there.
    pub from: Zxid,
    /// How many are missing, if that is known.
    pub missing: Option<u64>,
    /// Why.
    pub why: GapReason,
}

/// See [`Gap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GapReason {
    /// They came faster than they could be written.
    TooFast,
    /// The node took over a snapshot of the state instead of applying what led to it.
    Snapshot,
    /// Files of the history were damaged or could not be written.
    Lost,
    /// The disk was nearly full, and the node's log comes first.
    NoSpace,
}

impl<'a> Record<'a> {
    /// What an event says; `None` if its paths are longer than what is recorded.
    pub fn of(event: &LockEvent<'a>) -> Option<Record<'a>> {
        let name = event.path.rsplit('/').next().unwrap_or_default();
        if event.lock.len() > LOCK_MAX_BYTES || name.len() > LOCK_MAX_BYTES {
            return None;
        }
        Some(Record {
            lock: event.lock.into(),
            name: name.into(),
            token: event.token,
            session: event.session,
            address: event.address.into(),
            label: event.label.into(),
            mode: event.mode,
            is_acquired: event.is_acquired,
            what: match event.kind {
                LockEventKind::Requested { ahead } => What::Requested { ahead },
                LockEventKind::Granted { waited_ms } => What::Granted { waited_ms },
                LockEventKind::Converted => What::Converted,
                LockEventKind::Gone { held_ms, waited_ms, why } => What::Gone { held_ms, waited_ms, why },
            },
        })
    }

    /// Path of the queue znode.
    pub fn path(&self) -> String {
        if self.lock == "/" { format!("/{}", self.name) } else { format!("{}/{}", self.lock, self.name) }
    }
}

impl Entry<'_> {
    /// Appends the value's bytes to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        codec::encode_into(self, out);
    }

    /// The entry of [`Entry::encode_into`]'s bytes.
    pub fn decode(bytes: &[u8]) -> Result<Entry<'static>, HistoryError> {
        match bytes.split_first() {
            Some((&VERSION, body)) => codec::decode(body, VALUE_MAX_BYTES)
                .map_err(|error| HistoryError::Damaged(format!("a record cannot be read: {error}"))),
            Some((version, _)) => {
                Err(HistoryError::Damaged(format!("a record has version {version}, not {VERSION}")))
            }
            None => Err(HistoryError::Damaged("a record is empty".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(what: What) -> Entry<'static> {
        Entry::Lock(Record {
            lock: "/locks/a".into(),
            name: "_c_1-lock-0000000007".into(),
            token: FencingToken(300),
            session: SessionId(0x0100_0000_0000_0005),
            address: "10.0.0.1:5000".into(),
            label: Cow::Borrowed(b"job-7"),
            mode: Mode::Permits(2),
            is_acquired: true,
            what,
        })
    }

    fn encoded(entry: &Entry<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        entry.encode_into(&mut out);
        out
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn bytes_of_keys_and_values_are_those_of_version_1() {
        let key = Key { time_ms: 1_700_000_000_123, zxid: Zxid(0x1_0000_0002), ordinal: 3 };
        assert_eq!(hex(&key.encode()), "8000018bcfe5687b800000010000000200000003");
        let gone = What::Gone { held_ms: Some(1_500), waited_ms: 20, why: Why::SessionExpired };
        let prefix = concat!(
            "01", // version
            "00", // Entry::Lock
            "08",
            "2f6c6f636b732f61", // lock
            "14",
            "5f635f312d6c6f636b2d30303030303030303037", // name
            "fb5802",                                   // token, zigzag
            "fd0a00000000000002",                       // session, zigzag
            "0d",
            "31302e302e302e313a35303030", // address
            "05",
            "6a6f622d37", // label
            "02",
            "02", // Permits(2)
            "01", // acquired
        );
        assert_eq!(hex(&encoded(&sample(gone))), format!("{prefix}0301fbb80b2802"));
        assert_eq!(hex(&encoded(&sample(What::Requested { ahead: 300 }))), format!("{prefix}00fb2c01"));
        assert_eq!(hex(&encoded(&sample(What::Granted { waited_ms: 5 }))), format!("{prefix}010a"));
        assert_eq!(hex(&encoded(&sample(What::Converted))), format!("{prefix}02"));
        let gap = Gap { from: Zxid(9), missing: Some(4), why: GapReason::NoSpace };
        assert_eq!(hex(&encoded(&Entry::Gap(gap))), "010112010403");
    }

    #[test]
    fn what_was_encoded_is_decoded_and_anything_cut_is_damaged() {
        let entry = sample(What::Granted { waited_ms: 77 });
        let bytes = encoded(&entry);
        assert_eq!(Entry::decode(&bytes).unwrap(), entry);
        for cut in 0..bytes.len() {
            assert!(Entry::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(Entry::decode(&[2, 0]).unwrap_err().to_string().contains("version 2"));
    }

    #[test]
    fn keys_sort_as_their_bytes_do() {
        let key = |time_ms, zxid, ordinal| Key { time_ms, zxid: Zxid(zxid), ordinal };
        let ordered = [
            Key::MIN,
            key(-1, 5, 5),
            Key::at(0),
            key(0, 0, 1),
            key(0, 1, 0),
            key(255, 0, 0),
            key(256, -1, 0),
            key(256, 1 << 40, u32::MAX),
            Key::MAX,
        ];
        for pair in ordered.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
            assert!(pair[0].encode() < pair[1].encode(), "{pair:?}");
        }
        for key in ordered {
            assert_eq!(Key::decode(&key.encode()).unwrap(), key);
        }
        assert!(Key::decode(&[0; 19]).is_err());
    }

    #[test]
    fn an_event_with_an_endless_path_is_not_recorded() {
        let lock = format!("/{}", "a".repeat(LOCK_MAX_BYTES));
        let event = LockEvent {
            zxid: Zxid(1),
            time_ms: 1,
            lock: &lock,
            path: "/x/n",
            token: FencingToken(1),
            session: SessionId(1),
            address: "",
            label: b"",
            mode: Mode::Exclusive,
            is_acquired: false,
            kind: LockEventKind::Converted,
        };
        assert!(Record::of(&event).is_none());
        let event = LockEvent { lock: "/", path: "/n", ..event };
        assert_eq!(Record::of(&event).unwrap().path(), "/n");
    }
}
