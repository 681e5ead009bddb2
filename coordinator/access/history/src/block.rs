//! Blocks: the values in sled, each a compressed sequence of entries.
//!
//! In the flow: apply encodes each entry once (`queue.rs`), as length, key and bincode; the thread copies the
//! entry into the current block (`segment.rs`) and compresses a full block. Reading decodes only the
//! beginning of an entry, except for the entries of a page. Entries repeat each other's paths, addresses and
//! sessions, and shrink to a fifth.
//!
//! Invariant: the keys of a block ascend, and so do the blocks of a segment.

use rowlock_proto::Zxid;
use rowlock_state::codec;
use serde::{Deserialize, Serialize};

use super::record::{Entry, HistoryError, Key, Stored, StoredSubject, Subject};

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

impl Encoded<'_> {
    pub fn entry(&self) -> Result<Entry, HistoryError> {
        decode::<Stored<'_>>(&self.bytes[LEN_BYTES + KEY_BYTES..])?.entry()
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
pub(super) fn encode(key: Key, entry: &Entry<&str>, out: &mut Vec<u8>) -> bool {
    let begin = out.len();
    out.extend_from_slice(&[0; LEN_BYTES]);
    out.extend_from_slice(&key.time_ms.to_le_bytes());
    out.extend_from_slice(&key.zxid.0.to_le_bytes());
    out.extend_from_slice(&key.ordinal.to_le_bytes());
    codec::encode_into(&Stored::of(entry), out);
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
    Ok(Encoded { key, subject: decode::<StoredSubject<'_>>(body)?.subject(), bytes })
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
    use proptest::prelude::*;
    use rowlock_proto::acl::Id;
    use rowlock_proto::lock::Mode;
    use rowlock_proto::lock_event::{
        EndReason, Gap, GapReason, HistoryEvent, LockEvent, LockEventKind, PositionEnd,
    };
    use rowlock_proto::{FencingToken, SessionId};
    use rowlock_world::samples::missing;

    use super::*;
    use crate::record::Readers;

    const EVENT: LockEvent<&str> = LockEvent {
        kind: LockEventKind::Converted,
        lock: "/l",
        path: "/l/n",
        token: FencingToken(9),
        session: SessionId(3),
        label: "xy",
        address: Some("a"),
        mode: Mode::Exclusive,
        acquired: true,
    };

    fn of(kind: LockEventKind<&str>) -> Entry<&str> {
        Entry { event: HistoryEvent::Lock(LockEvent { kind, ..EVENT }), readers: Readers::Anyone }
    }

    fn end(reason: EndReason, held_ms: Option<i64>, by: Option<&str>) -> LockEventKind<&str> {
        LockEventKind::ended(PositionEnd { reason, waited_ms: -1, held_ms, by })
    }

    fn private() -> Entry<&'static str> {
        let readers = Readers::These(vec![], vec![Id { scheme: "s".to_owned(), id: "i".to_owned() }]);
        let event = LockEvent { mode: Mode::Permits(2), address: None, acquired: false, ..EVENT };
        Entry { event: HistoryEvent::Lock(event), readers }
    }

    fn gap(reason: GapReason) -> Entry<&'static str> {
        Gap { reason, from_zxid: Zxid(9), missing: Some(4) }.into()
    }

    fn block(given: &[(Key, Entry<&str>)]) -> Block {
        let (mut bytes, mut block) = (Vec::new(), Block::default());
        for (key, entry) in given {
            assert!(encode(*key, entry, &mut bytes));
        }
        entries(&bytes).for_each(|item| block.add(&item.unwrap()));
        block
    }

    fn read(bytes: &[u8]) -> Result<Vec<(Key, Entry)>, HistoryError> {
        let bytes = decompress(bytes)?;
        entries(&bytes).map(|item| item.and_then(|item| Ok((item.key, item.entry()?)))).collect()
    }

    #[test]
    fn bytes_of_entries_are_those_of_version_5() {
        const KEY: &str = "07000000000000000900000000000000";
        const FRONT: &str = "00022f6c06016e12010161027879000100";
        let expired = end(EndReason::SessionExpired, Some(2), None);
        let forced = end(EndReason::Forced, None, Some("b"));
        for (ordinal, entry, expected) in [
            (0, of(LockEventKind::Requested { ahead: 300 }), "FRONT00fb58020000"),
            (1, of(LockEventKind::Granted { waited_ms: 0 }), "FRONT01000000"),
            (2, of(expired), "FRONT04010001020104"),
            (3, of(forced), "FRONT0401010162010400"),
            (4, of(LockEventKind::Asked { question: "q" }), "FRONT030001017100"),
            (5, private(), "00022f6c06016e12000278790202000100010173016902000000"),
            (6, gap(GapReason::NoSpace), "0103120104"),
        ] {
            let expected = expected.replace("FRONT", FRONT);
            let len = 22 + expected.len() / 2;
            let found = hex(&block(&[(Key { time_ms: 7, zxid: Zxid(9), ordinal }, entry)]).bytes);
            assert_eq!(found, format!("{len:02x}00{KEY}{ordinal:02x}000000{expected}"));
        }
    }

    /// Returns the bytes of an entry of each kind.
    pub(crate) fn samples() -> Vec<Vec<u8>> {
        use EndReason::{Deleted, Forced, Released, Revoked, SessionClosed, SessionEnded, SessionExpired};
        let ends = [Released, SessionClosed, SessionExpired, Deleted, Forced, Revoked, SessionEnded];
        let reasons = [
            GapReason::TooFast,
            GapReason::Snapshot,
            GapReason::Lost,
            GapReason::NoSpace,
            GapReason::TooSlow,
            GapReason::NoHistory,
            GapReason::NotNow,
            GapReason::TooMany,
            GapReason::Trimmed,
            GapReason::Other,
        ];
        assert_eq!(missing(&ends), [] as [&str; 0]);
        assert_eq!(missing(&reasons), [] as [&str; 0]);
        let kinds = [
            LockEventKind::Requested { ahead: 300 },
            LockEventKind::Granted { waited_ms: 0 },
            LockEventKind::Converted,
            LockEventKind::Asked { question: "q" },
            end(Forced, None, Some("b")),
        ];
        let ends = ends.map(|reason| end(reason, Some(2), None));
        let records = kinds.into_iter().chain(ends).map(of).chain([private()]);
        let key = Key { time_ms: 7, zxid: Zxid(9), ordinal: 1 };
        records.chain(reasons.map(gap)).map(|entry| block(&[(key, entry)]).bytes).collect()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_too_long_entry_is_not_appended() {
        let (mut bytes, label) = (vec![1], "x".repeat(ENTRY_MAX_BYTES));
        let event = HistoryEvent::Lock(LockEvent { label: label.as_str(), ..EVENT });
        assert!(!encode(Key::MIN, &Entry { event, readers: Readers::Anyone }, &mut bytes));
        assert_eq!(bytes, [1]);
    }

    fn some() -> impl Strategy<Value = Vec<(Key, Entry)>> {
        let text = || "[a-z]{0,30}";
        let held = (any::<Option<i64>>(), any::<i64>(), proptest::option::of(text()));
        let kind = prop_oneof![
            any::<u32>().prop_map(|ahead| LockEventKind::Requested { ahead }),
            any::<i64>().prop_map(|waited_ms| LockEventKind::Granted { waited_ms }),
            Just(LockEventKind::Converted),
            text().prop_map(|question| LockEventKind::Asked { question }),
            held.prop_map(|(held_ms, waited_ms, by)| {
                LockEventKind::ended(PositionEnd { reason: EndReason::Forced, waited_ms, held_ms, by })
            }),
        ];
        let record = (any::<i64>(), any::<i64>(), text(), any::<String>(), kind).prop_map(
            |(token, session, name, label, kind)| {
                let (token, session) = (FencingToken(token), SessionId(session));
                let event = EVENT.map(|text| text.to_string());
                let path = format!("/l/{name}");
                let event = LockEvent { token, session, path, label, kind, ..event };
                Entry { event: HistoryEvent::Lock(event), readers: Readers::Anyone }
            },
        );
        let gap = (any::<i64>(), any::<Option<u64>>()).prop_map(|(from, missing)| {
            Entry::from(Gap { from_zxid: Zxid(from), missing, reason: GapReason::TooFast })
        });
        let entry = prop_oneof![9 => record, 1 => gap];
        proptest::collection::vec((any::<(i64, i64, u32)>(), entry), 1..60).prop_map(|given| {
            let key = |(time_ms, zxid, ordinal)| Key { time_ms, zxid: Zxid(zxid), ordinal };
            given.into_iter().map(|(numbers, entry)| (key(numbers), entry)).collect()
        })
    }

    fn borrowed(entry: &Entry) -> Entry<&str> {
        let event = match &entry.event {
            HistoryEvent::Lock(event) => HistoryEvent::Lock(event.map(String::as_str)),
            HistoryEvent::Gap(gap) => HistoryEvent::Gap(*gap),
            other => panic!("{other:?}"),
        };
        Entry { event, readers: entry.readers.clone() }
    }

    proptest! {
        #[test]
        fn blocks_round_trip_and_damage_is_read_or_refused(
            given in some(),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let entries: Vec<_> = given.iter().map(|(key, entry)| (*key, borrowed(entry))).collect();
            let mut bytes = block(&entries).compressed();
            prop_assert_eq!(&read(&bytes).unwrap(), &given);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = read(&bytes);
            bytes.truncate(at);
            prop_assert!(read(&bytes).map_or(true, |found| found.len() < given.len()));
        }
    }
}
