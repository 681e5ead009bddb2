//! Blocks: the values in sled, each a compressed sequence of entries.
//!
//! In the flow: apply encodes each entry once (`queue.rs`), as length, key and bincode; the thread copies the
//! entry into the current block (`segment.rs`) and compresses a full block. Reading decodes only the
//! beginning of an entry, except for the entries of a page. Entries repeat each other's paths, addresses and
//! sessions, and shrink to a fifth.
//!
//! Invariant: the keys of a block ascend, and so do the blocks of a segment.

use rowlock_proto::Zxid;
use rowlock_types::codec;
use serde::{Deserialize, Serialize};

use super::error::HistoryError;
use super::record::{Entry, Key, Subject};

/// Bound of an uncompressed block.
///
/// Invariant: LZ4 turns a block into fewer bytes than sled's bound for separate files (a quarter of a segment
/// of 512 KiB).
pub(super) const BLOCK_MAX_BYTES: usize = 112_000;
/// Bound of an entry; longer entries are dropped and counted.
pub(super) const ENTRY_MAX_BYTES: usize = BLOCK_MAX_BYTES / 4;
/// Bytes of an entry's length field. The length includes the field.
const LEN_BYTES: usize = size_of::<u16>();
/// Bytes of an entry's key, behind the length.
const KEY_BYTES: usize = 8 + 8 + 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub first: Key,
    pub last: Key,
    pub entries: u32,
}

#[derive(Debug, Default)]
pub(super) struct Block {
    /// `None` for an empty block.
    pub head: Option<Head>,
    pub bytes: Vec<u8>,
}

/// An encoded entry, with its decoded key and subject.
#[derive(Debug)]
pub(super) struct Encoded<'a> {
    pub key: Key,
    pub subject: Subject<'a>,
    pub bytes: &'a [u8],
}

impl<'a> Encoded<'a> {
    pub fn entry(&self) -> Result<Entry<'a>, HistoryError> {
        decode(&self.bytes[LEN_BYTES + KEY_BYTES..])
    }
}

impl Block {
    pub fn has_room(&self, len: usize) -> bool {
        self.bytes.len() + len <= BLOCK_MAX_BYTES
    }

    /// Appends an entry with a key above all earlier keys.
    pub fn add(&mut self, item: &Encoded<'_>) {
        assert!(self.has_room(item.bytes.len()), "Invariant: blocks are bounded");
        let head = self.head.get_or_insert(Head { first: item.key, last: item.key, entries: 0 });
        head.last = item.key;
        head.entries += 1;
        self.bytes.extend_from_slice(item.bytes);
    }

    pub fn compressed(&self) -> Vec<u8> {
        lz4_flex::block::compress(&self.bytes)
    }
}

/// Decompresses the entries of a block made by [`Block::compressed`].
pub(super) fn decompress(bytes: &[u8]) -> Result<Vec<u8>, HistoryError> {
    lz4_flex::block::decompress(bytes, BLOCK_MAX_BYTES).map_err(|error| damaged(&error.to_string()))
}

/// Appends an entry to `out`. Returns false, and appends nothing, if the entry is too long.
pub(super) fn encode(key: Key, entry: &Entry<'_>, out: &mut Vec<u8>) -> bool {
    let begin = out.len();
    out.extend_from_slice(&[0; LEN_BYTES]);
    out.extend_from_slice(&key.time_ms.to_le_bytes());
    out.extend_from_slice(&key.zxid.0.to_le_bytes());
    out.extend_from_slice(&key.ordinal.to_le_bytes());
    codec::encode_into(entry, out);
    let len = u16::try_from(out.len() - begin).ok().filter(|len| usize::from(*len) <= ENTRY_MAX_BYTES);
    match len {
        Some(len) => out[begin..][..LEN_BYTES].copy_from_slice(&len.to_le_bytes()),
        None => out.truncate(begin),
    }
    len.is_some()
}

/// Iterates over encoded entries; ends behind the first damaged entry.
pub(super) fn entries(bytes: &[u8]) -> impl Iterator<Item = Result<Encoded<'_>, HistoryError>> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        let read = front(left);
        left = read.as_ref().map_or(&[], |item| &left[item.bytes.len()..]);
        Some(read)
    })
}

fn front(bytes: &[u8]) -> Result<Encoded<'_>, HistoryError> {
    let (bytes, key, body) = split(bytes).ok_or_else(|| damaged("an entry is cut off"))?;
    Ok(Encoded { key, subject: decode(body)?, bytes })
}

/// Splits off the first entry: its bytes, its key, and its body.
fn split(bytes: &[u8]) -> Option<(&[u8], Key, &[u8])> {
    let bytes = bytes.get(..u16::from_le_bytes(*bytes.first_chunk()?).into())?;
    let (time_ms, rest) = bytes.get(LEN_BYTES..)?.split_first_chunk()?;
    let (zxid, rest) = rest.split_first_chunk()?;
    let (ordinal, body) = rest.split_first_chunk()?;
    let (time_ms, zxid) = (i64::from_le_bytes(*time_ms), Zxid(i64::from_le_bytes(*zxid)));
    Some((bytes, Key { time_ms, zxid, ordinal: u32::from_le_bytes(*ordinal) }, body))
}

fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, HistoryError> {
    codec::borrow_front(body).map(|(read, _)| read).map_err(|error| damaged(&error.to_string()))
}

fn damaged(why: &str) -> HistoryError {
    HistoryError::Damaged(format!("a block cannot be read: {why}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;
    use rowlock_proto::acl::Id;
    use rowlock_proto::lock::Mode;
    use rowlock_proto::{FencingToken, SessionId};
    use rowlock_state::outcome::{LockEventKind, Why};
    use rowlock_world::samples::missing;

    use super::*;
    use crate::readers::Readers;
    use crate::record::{Gap, GapReason, Record};

    fn record(kind: LockEventKind) -> Record<'static> {
        Record {
            lock: "/l".into(),
            name: "n".into(),
            token: FencingToken(9),
            session: SessionId(3),
            address: "a".into(),
            label: b"xy".into(),
            mode: Mode::Exclusive,
            is_acquired: true,
            readers: Readers::Anyone,
            by: "".into(),
            kind,
        }
    }

    fn block(given: &[(Key, Entry<'static>)]) -> Block {
        let (mut bytes, mut block) = (Vec::new(), Block::default());
        for (key, entry) in given {
            assert!(encode(*key, entry, &mut bytes));
        }
        entries(&bytes).for_each(|item| block.add(&item.unwrap()));
        block
    }

    fn read(bytes: &[u8]) -> Result<Vec<(Key, Entry<'static>)>, HistoryError> {
        let bytes = decompress(bytes)?;
        let owned = |item: Encoded<'_>| Ok((item.key, item.entry()?.into_owned()));
        entries(&bytes).map(|item| item.and_then(owned)).collect()
    }

    #[test]
    fn bytes_of_entries_are_those_of_version_4() {
        const KEY: &str = "07000000000000000900000000000000";
        let key = |ordinal| Key { time_ms: 7, zxid: Zxid(9), ordinal };
        let readers = Readers::These(vec![], vec![Id { scheme: "s".to_owned(), id: "i".to_owned() }]);
        let private = Record { mode: Mode::Permits(2), readers, ..record(LockEventKind::Converted) };
        let gone = record(LockEventKind::Gone { held_ms: Some(2), waited_ms: -1, why: Why::SessionExpired });
        let gap = Gap { from: Zxid(9), missing: Some(4), why: GapReason::NoSpace };
        for (ordinal, entry, expected) in [
            (0, Entry::Lock(record(LockEventKind::Requested { ahead: 300 })), "00fb2c01"),
            (1, Entry::Lock(record(LockEventKind::Granted { waited_ms: 0 })), "0100"),
            (2, Entry::Lock(gone), "0301040102"),
        ] {
            let len = 39 + expected.len() / 2;
            let expected = format!("00022f6c06016e12016102787900010000{expected}");
            let found = hex(&block(&[(key(ordinal), entry)]).bytes);
            assert_eq!(found, format!("{len:02x}00{KEY}{ordinal:02x}000000{expected}"));
        }
        let private = block(&[(key(3), Entry::Lock(private))]).bytes;
        let expected = "00022f6c06016e120161027879020201010001017301690002";
        assert_eq!(hex(&private), format!("2f00{KEY}03000000{expected}"));
        let gap = block(&[(key(4), Entry::Gap(gap))]).bytes;
        assert_eq!(hex(&gap), format!("1b00{KEY}040000000112010403"));
    }

    /// Returns the bytes of an entry of each kind.
    pub(crate) fn samples() -> Vec<Vec<u8>> {
        let gone = LockEventKind::Gone { held_ms: Some(2), waited_ms: -1, why: Why::SessionExpired };
        let kinds = [
            LockEventKind::Requested { ahead: 300 },
            LockEventKind::Granted { waited_ms: 0 },
            LockEventKind::Converted,
            gone,
            LockEventKind::Asked,
        ];
        let reasons = [GapReason::TooFast, GapReason::Snapshot, GapReason::Lost, GapReason::NoSpace];
        let readers = Readers::These(vec![], vec![Id { scheme: "s".to_owned(), id: "i".to_owned() }]);
        assert_eq!(missing(&kinds), [] as [&str; 0]);
        assert_eq!(missing(&reasons), [] as [&str; 0]);
        let private = Record { mode: Mode::Permits(2), readers, ..record(LockEventKind::Converted) };
        let records = kinds.map(record).into_iter().chain([private]).map(Entry::Lock);
        let gaps = reasons.map(|why| Entry::Gap(Gap { from: Zxid(9), missing: Some(4), why }));
        let key = Key { time_ms: 7, zxid: Zxid(9), ordinal: 1 };
        records.chain(gaps).map(|entry| block(&[(key, entry)]).bytes).collect()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_too_long_entry_is_not_appended() {
        let mut bytes = vec![1];
        let label = Cow::Owned(vec![0; ENTRY_MAX_BYTES]);
        let long = Entry::Lock(Record { label, ..record(LockEventKind::Converted) });
        assert!(!encode(Key::MIN, &long, &mut bytes));
        assert_eq!(bytes, [1]);
    }

    fn some() -> impl Strategy<Value = Vec<(Key, Entry<'static>)>> {
        let kind = prop_oneof![
            any::<u32>().prop_map(|ahead| LockEventKind::Requested { ahead }),
            any::<i64>().prop_map(|waited_ms| LockEventKind::Granted { waited_ms }),
            Just(LockEventKind::Converted),
            (any::<Option<i64>>(), any::<i64>()).prop_map(|(held_ms, waited_ms)| LockEventKind::Gone {
                held_ms,
                waited_ms,
                why: Why::Forced
            }),
        ];
        let record = (any::<i64>(), any::<i64>(), "[a-z/]{0,30}", any::<Vec<u8>>(), kind).prop_map(
            |(token, session, text, label, kind)| {
                let (token, session) = (FencingToken(token), SessionId(session));
                let (name, label) = (Cow::Owned(text), Cow::Owned(label));
                Entry::Lock(Record { token, session, name, label, ..record(kind) })
            },
        );
        let gap = (any::<i64>(), any::<Option<u64>>()).prop_map(|(from, missing)| {
            Entry::Gap(Gap { from: Zxid(from), missing, why: GapReason::TooFast })
        });
        let entry = prop_oneof![9 => record, 1 => gap];
        proptest::collection::vec((any::<(i64, i64, u32)>(), entry), 1..60).prop_map(|given| {
            let key = |(time_ms, zxid, ordinal)| Key { time_ms, zxid: Zxid(zxid), ordinal };
            given.into_iter().map(|(numbers, entry)| (key(numbers), entry)).collect()
        })
    }

    proptest! {
        #[test]
        fn blocks_round_trip_and_damage_is_read_or_refused(
            given in some(),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let mut bytes = block(&given).compressed();
            prop_assert_eq!(&read(&bytes).unwrap(), &given);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = read(&bytes);
            bytes.truncate(at);
            prop_assert!(read(&bytes).map_or(true, |found| found.len() < given.len()));
        }
    }
}
