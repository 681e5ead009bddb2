//! Records of the log: Raft's durable decisions, in their order. Pure.
//!
//! Bytes of a record in a segment: a header with the chain to the preceding record, and the body. Pure.
//!
//! ```text
//!  0  crc      u32  CRC-32 of everything behind it, up to the end of the body, begun with the segment's salt
//!  4  len      u32  bytes of the body
//!  8  previous u32  `crc` of the record before (of the segment's header, for the first): the chain
//! 12  segment  u32  low half of the segment's sequence number: a recycled segment's old records never match
//! 16  flushed  u32  offset up to which this segment was known to be on disk when this record was written
//! 20  kind     u8
//! 21  zero     3 bytes
//! 24  body, then zeroes up to a multiple of 8
//! ```
//!
//! Little endian. `flushed` distinguishes a torn write from damage: a record below the `flushed` offset of
//! any later intact record had reached the disk, so an unreadable record there is a loss by the disk.

use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_state::codec::{self, CodecError};
use serde::{Deserialize, Serialize};

use crate::entry::{Entry, LogId, Vote};

/// A record. The file stores the kind as a number: never renumber; a new kind needs a new format version.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A log entry at the next index.
    Entry(Entry),
    Vote(Vote),
    Committed(LogId),
    /// A snapshot covers the entries up to this position, inclusive.
    Purge(LogId),
    /// Another leader's entries replace the entries behind this position (all, for `None`).
    Truncate(Option<LogId>),
    /// Summary of the earlier segments at the start of a segment: lets the earlier segments be recycled.
    Checkpoint(Checkpoint),
    /// Carries no state. At a start the number is random and breaks the chain to any record behind a cut
    /// tail; behind the last flush of an idle log the mark's `flushed` offset proves the flush.
    Mark(u64),
}

/// State of the log without the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    /// Last entry covered by a snapshot.
    pub purged: Option<LogId>,
    /// Last entry, or the purged position in an empty log.
    pub last: Option<LogId>,
}

impl Checkpoint {
    pub fn update(&mut self, record: &Record) {
        match record {
            Record::Entry(entry) => self.last = Some(entry.log_id),
            Record::Vote(vote) => self.vote = Some(*vote),
            Record::Committed(log_id) => self.committed = Some(*log_id),
            Record::Truncate(after) => {
                let keep = after.map_or(0, |log_id| log_id.index + 1);
                if self.last.is_some_and(|last| decides!("truncation-cuts-last", last.index >= keep)) {
                    // Purged entries are committed and never truncated; the end stays at or behind the purge
                    // position.
                    self.last = self.purged.filter(|purged| purged.index >= keep).or(*after);
                    let end = self.last.map_or(0, |last| last.index + 1);
                    let purged = self.purged.map_or(0, |purged| purged.index + 1);
                    assert!(end <= keep.max(purged), "a truncated log ends where it was cut");
                }
            }
            Record::Purge(upto) => {
                if self.purged.is_none_or(|purged| decides!("purge-advances", purged.index < upto.index)) {
                    self.purged = Some(*upto);
                }
                // An installed snapshot reaches beyond the log.
                if self.last.is_none_or(|last| decides!("purge-covers-log", last.index <= upto.index)) {
                    self.last = Some(*upto);
                }
                assert!(self.purged.is_some_and(|purged| purged.index >= upto.index), "it is purged so far");
                assert!(
                    self.last.is_some_and(|last| last.index >= upto.index),
                    "a purge never moves the end back"
                );
            }
            Record::Checkpoint(_) | Record::Mark(_) => {}
        }
    }
}

/// Refusal of a record with a valid checksum: a bug, or another version's format.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("a record of unknown kind {0}")]
    Kind(u8),
    /// A body without the form of its kind.
    #[error("a record of kind {0} is {1}")]
    Body(u8, CodecError),
}

impl Record {
    /// Appends the body to `out` and returns the kind.
    pub fn encode_into(&self, out: &mut Vec<u8>) -> u8 {
        let start = out.len();
        let kind = match self {
            Record::Entry(entry) => (codec::encode_into(entry, out), 1).1,
            Record::Vote(vote) => (codec::encode_into(vote, out), 2).1,
            Record::Committed(log_id) => (codec::encode_into(log_id, out), 3).1,
            Record::Purge(log_id) => (codec::encode_into(log_id, out), 4).1,
            Record::Truncate(after) => (codec::encode_into(after, out), 5).1,
            Record::Checkpoint(checkpoint) => (codec::encode_into(checkpoint, out), 6).1,
            Record::Mark(nonce) => (codec::encode_into(nonce, out), 7).1,
        };
        // Entries may be large, and their checksum is verified anyway.
        debug_assert!(
            matches!(self, Record::Entry(_))
                || Record::decode(kind, &out[start..]).is_ok_and(|record| record == *self),
            "{self:?} is read back as another record"
        );
        kind
    }

    pub fn decode(kind: u8, body: &[u8]) -> Result<Record, RecordError> {
        let record = match kind {
            1 => codec::decode(body, BODY_MAX_BYTES).map(Record::Entry),
            2 => codec::decode(body, BODY_MAX_BYTES).map(Record::Vote),
            3 => codec::decode(body, BODY_MAX_BYTES).map(Record::Committed),
            4 => codec::decode(body, BODY_MAX_BYTES).map(Record::Purge),
            5 => codec::decode(body, BODY_MAX_BYTES).map(Record::Truncate),
            6 => codec::decode(body, BODY_MAX_BYTES).map(Record::Checkpoint),
            7 => codec::decode(body, BODY_MAX_BYTES).map(Record::Mark),
            other => return Err(RecordError::Kind(other)),
        };
        record.map_err(|error| RecordError::Body(kind, error))
    }
}

pub const FRAME_HEADER_BYTES: usize = 24;
/// Alignment of records, in bytes.
pub const FRAME_ALIGN: usize = 8;
/// Largest body. The proposer limits an entry far below this bound; recovery trusts no larger length.
pub const BODY_MAX_BYTES: usize = 256 << 20;

// Alignment of the next record, and a u32 for the length of a body.
const _: () = assert!(FRAME_HEADER_BYTES.is_multiple_of(FRAME_ALIGN));
const _: () = assert!(BODY_MAX_BYTES <= u32::MAX as usize);

/// Link of a record: its CRC, repeated in the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentKey {
    /// Low half of the segment's sequence number.
    pub segment: u32,
    /// Random value from the segment's header: a client cannot forge a record inside a znode.
    pub salt: u32,
}

/// Position of a new record in the segment.
#[derive(Clone, Copy, Debug)]
pub struct FrameContext {
    pub key: SegmentKey,
    /// Link of the preceding record.
    pub previous: Chain,
    /// Offset up to which the segment is on disk.
    pub flushed: u32,
}

/// A record with a verified CRC; the caller checks the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub chain: Chain,
    /// Link of the preceding record, according to the header.
    pub previous: Chain,
    pub flushed: u32,
    pub kind: u8,
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// Returns the record's size in the segment, in bytes.
    pub fn occupied(&self) -> usize {
        occupied(self.body.len())
    }
}

/// Returns the size in a segment of a record with a body of `len` bytes.
pub fn occupied(len: usize) -> usize {
    let room = (FRAME_HEADER_BYTES + len).next_multiple_of(FRAME_ALIGN);
    debug_assert!(room >= FRAME_HEADER_BYTES + len, "a record has room for its header and its body");
    room
}

/// Appends a record to `out` and returns its link for the next record.
pub fn write(out: &mut Vec<u8>, place: FrameContext, kind: u8, body: &[u8]) -> Chain {
    assert!(body.len() <= BODY_MAX_BYTES, "a record of {} bytes", body.len());
    let start = out.len();
    let len = u32::try_from(body.len()).expect("Invariant: BODY_MAX_BYTES fits");
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&place.previous.0.to_le_bytes());
    out.extend_from_slice(&place.key.segment.to_le_bytes());
    out.extend_from_slice(&place.flushed.to_le_bytes());
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(body);
    let crc = crc(&out[start + 4..], place.key.salt);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    out.resize(start + occupied(body.len()), 0);
    debug_assert_eq!(
        read(&out[start..], place.key).map(|frame| (frame.chain, frame.previous, frame.flushed, frame.body)),
        Some((Chain(crc), place.previous, place.flushed, body)),
        "a record is read back as it was written"
    );
    Chain(crc)
}

fn crc(bytes: &[u8], salt: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(bytes);
    hasher.finalize()
}

/// Returns the record at the start of `bytes`, if intact and written for the segment with `key`.
pub fn read(bytes: &[u8], key: SegmentKey) -> Option<Frame<'_>> {
    let header = bytes.get(..FRAME_HEADER_BYTES)?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if decides!("frame-is-of-other-segment", word(12) != key.segment) {
        return None;
    }
    let len = word(4) as usize;
    if len > BODY_MAX_BYTES || header[21..24] != [0; 3] {
        return None;
    }
    let end = FRAME_HEADER_BYTES + len;
    let is_whole = |end| mutant::is(Mutant::ChecksumIgnored) || crc(&bytes[4..end], key.salt) == word(0);
    if decides!("frame-is-torn", bytes.len() < occupied(len) || !is_whole(end)) {
        return None;
    }
    Some(Frame {
        chain: Chain(word(0)),
        previous: Chain(word(8)),
        flushed: word(16),
        kind: header[20],
        body: &bytes[FRAME_HEADER_BYTES..end],
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use rowlock_world::spoilt::Spoiler;

    use super::*;
    use crate::testing::{entry, log_id, membership_entry, vote};

    fn hex(record: &Record) -> String {
        let mut body = Vec::new();
        let kind = record.encode_into(&mut body);
        assert_eq!(&Record::decode(kind, &body).expect("decodes"), record);
        let hex: String = body.iter().map(|b| format!("{b:02x}")).collect();
        format!("{kind} {hex}")
    }

    pub(crate) fn golden() -> [(Record, &'static str); 9] {
        let checkpoint = Checkpoint {
            vote: Some(vote(5, 2)),
            committed: Some(log_id(5, 9)),
            purged: None,
            last: Some(log_id(5, 300)),
        };
        [
            (Record::Entry(entry(5, 300, b"xyz")), "1 0501fb2c01010378797a"),
            (Record::Entry(membership_entry(5, 7)), "1 05010702010101010103613a3103623a32"),
            (Record::Vote(vote(5, 2)), "2 050201"),
            (Record::Committed(log_id(5, 9)), "3 050109"),
            (Record::Purge(log_id(5, 9)), "4 050109"),
            (Record::Truncate(None), "5 00"),
            (Record::Truncate(Some(log_id(5, 9))), "5 01050109"),
            (Record::Checkpoint(checkpoint), "6 010502010105010900010501fb2c01"),
            (Record::Mark(1 << 32), "7 fd0000000001000000"),
        ]
    }

    #[test]
    fn the_bytes_on_disk_are_these() {
        for (record, bytes) in golden() {
            assert_eq!(hex(&record), bytes, "{record:?}");
        }
    }

    #[test]
    fn an_unknown_kind_is_an_error() {
        assert!(matches!(Record::decode(99, b""), Err(RecordError::Kind(99))));
    }

    #[test]
    fn spoilt_records_are_refused_or_can_be_written_again() {
        let log_id = crate::testing::log_id(3, 8);
        let checkpoint = Checkpoint { purged: Some(log_id), last: Some(log_id), ..Checkpoint::default() };
        let all = [
            Record::Entry(crate::testing::entry(3, 8, b"payload")),
            Record::Entry(crate::testing::membership_entry(3, 8)),
            Record::Truncate(Some(log_id)),
            Record::Checkpoint(checkpoint),
        ];
        let (mut spoiler, mut read, mut refused) = (Spoiler::new(2), 0, 0);
        for record in all {
            let mut good = Vec::new();
            record.encode_into(&mut good);
            for round in 0..4_000_u32 {
                let Ok(record) = Record::decode((round % 9) as u8, &spoiler.spoil(&good)) else {
                    refused += 1;
                    continue;
                };
                let mut again = Vec::new();
                let kind = record.encode_into(&mut again);
                assert_eq!(Record::decode(kind, &again).unwrap(), record);
                read += 1;
            }
        }
        assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
    }

    const KEY: SegmentKey = SegmentKey { segment: 7, salt: 0x1357_9bdf };
    const PLACE: FrameContext = FrameContext { key: KEY, previous: Chain(0xaabb_ccdd), flushed: 4096 };

    #[test]
    fn a_written_record_is_read_back() {
        for len in [0, 1, 7, 8, 9, 1000] {
            let body = vec![0x5a; len];
            let mut out = vec![1, 2, 3];
            let chain = write(&mut out, PLACE, 3, &body);
            let frame = read(&out[3..], KEY).expect("is intact");
            assert_eq!(frame, Frame { chain, previous: PLACE.previous, flushed: 4096, kind: 3, body: &body });
            assert_eq!(out.len() - 3, frame.occupied());
            assert_eq!(frame.occupied() % FRAME_ALIGN, 0);
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_before_the_padding_makes_it_invalid() {
        let mut out = Vec::new();
        write(&mut out, PLACE, 3, b"some body");
        for bit in 0..(FRAME_HEADER_BYTES + 9) * 8 {
            let mut damaged = out.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&damaged, KEY), None, "bit {bit}");
        }
    }

    #[test]
    fn a_record_of_another_segment_is_not_one_of_this() {
        let mut out = Vec::new();
        write(&mut out, PLACE, 3, b"");
        assert_eq!(read(&out, SegmentKey { segment: 8, ..KEY }), None);
        assert_eq!(read(&out, SegmentKey { salt: 8, ..KEY }), None);
    }

    pub(crate) const GOLDEN: &str = "da3118e805000000ddccbbaa07000000001000000300000068656c6c6f000000";

    #[test]
    fn a_frame_has_these_bytes_on_disk() {
        let mut out = Vec::new();
        write(&mut out, PLACE, 3, b"hello");
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN);
    }
}
