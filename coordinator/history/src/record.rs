//! What the history keeps about one moment of one lock, and the forms of keys and gaps on disk.
//!
//! A record's key says when it was and gives the order. Keys are fixed at 20 bytes and sort as the moments
//! do. Records are in chunks (`chunk.rs`). A gap is a value of its own, which begins with the version of its
//! form.
//!
//! Invariant: key and record depend on the log entry alone, so applying an entry again gives the same.

use std::borrow::Cow;

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::outcome::{LockEvent, LockEventKind};
use rowlock_types::codec;
use serde::{Deserialize, Serialize};

use super::error::HistoryError;
use super::readers::Readers;

/// The form of gaps.
const VERSION: u8 = 1;
/// Longest gap that is believed.
const GAP_MAX_BYTES: usize = 64;
/// Longest path of a lock and longest name of a queue znode that are recorded. Beyond: the event is dropped
/// and counted.
pub const LOCK_MAX_BYTES: usize = 4 << 10;

/// When something was: the order of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The leader's clock, milliseconds since 1970. Never goes back from one zxid to the next.
    pub time_ms: i64,
    pub zxid: Zxid,
    /// Counts the events of one command; the largest for a gap, which comes behind them.
    pub ordinal: u32,
}

impl Key {
    /// Bytes of an encoded key.
    pub const LEN: usize = 20;
    pub const MIN: Key = Key { time_ms: i64::MIN, zxid: Zxid(i64::MIN), ordinal: 0 };
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// Something happened to a place in a lock's queue.
    Lock(Record<'a>),
    /// Something may be missing here.
    Gap(Gap),
}

/// What happened to a place in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Path of the lock's znode.
    pub lock: Cow<'a, str>,
    /// Name of the queue znode.
    pub name: Cow<'a, str>,
    pub token: FencingToken,
    pub session: SessionId,
    /// Its client's address; empty if unknown.
    pub address: Cow<'a, str>,
    /// The beginning of the queue znode's data.
    pub label: Cow<'a, [u8]>,
    /// What is wanted, or held.
    pub mode: Mode,
    pub is_acquired: bool,
    /// Who could read it then.
    pub readers: Readers,
    pub kind: LockEventKind,
}

/// Records may be missing behind `from` and up to the gap's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Up to here everything is there.
    pub from: Zxid,
    /// How many are missing, if that is known.
    pub missing: Option<u64>,
    pub why: GapReason,
}

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

impl Record<'_> {
    pub fn of(event: &LockEvent<'_>) -> Record<'static> {
        let name = event.path.rsplit('/').next().unwrap_or_default();
        Record {
            lock: Cow::Owned(event.lock.to_owned()),
            name: Cow::Owned(name.to_owned()),
            token: event.token,
            session: event.session,
            address: Cow::Owned(event.address.to_owned()),
            label: Cow::Owned(event.label.to_owned()),
            mode: event.mode,
            is_acquired: event.is_acquired,
            readers: Readers::of(event),
            kind: event.kind,
        }
    }

    /// Path of the queue znode.
    pub fn path(&self) -> String {
        if self.lock == "/" { format!("/{}", self.name) } else { format!("{}/{}", self.lock, self.name) }
    }
}

impl Gap {
    /// Appends its bytes to `out`.
    pub(super) fn encode_into(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        codec::encode_into(self, out);
    }

    /// The gap of [`Gap::encode_into`]'s bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Gap, HistoryError> {
        match bytes.split_first() {
            Some((&VERSION, body)) => codec::decode(body, GAP_MAX_BYTES)
                .map_err(|error| HistoryError::Damaged(format!("a gap cannot be read: {error}"))),
            Some((version, _)) => {
                Err(HistoryError::Damaged(format!("a gap has version {version}, not {VERSION}")))
            }
            None => Err(HistoryError::Damaged("a gap is empty".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(gap: Gap) -> Vec<u8> {
        let mut out = Vec::new();
        gap.encode_into(&mut out);
        out
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn bytes_of_keys_and_gaps_are_those_of_version_1() {
        let key = Key { time_ms: 1_700_000_000_123, zxid: Zxid(0x1_0000_0002), ordinal: 3 };
        assert_eq!(hex(&key.encode()), "8000018bcfe5687b800000010000000200000003");
        assert_eq!(
            hex(&encoded(Gap { from: Zxid(9), missing: Some(4), why: GapReason::NoSpace })),
            "0112010403"
        );
        assert_eq!(hex(&encoded(Gap { from: Zxid(9), missing: None, why: GapReason::TooFast })), "01120000");
    }

    #[test]
    fn a_gap_that_was_encoded_is_decoded_and_anything_cut_is_damaged() {
        let gap = Gap { from: Zxid(i64::MAX), missing: Some(u64::MAX), why: GapReason::Lost };
        let bytes = encoded(gap);
        assert_eq!(Gap::decode(&bytes).unwrap(), gap);
        for cut in 0..bytes.len() {
            assert!(Gap::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(Gap::decode(&[2, 0]).unwrap_err().to_string().contains("version 2"));
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
}
