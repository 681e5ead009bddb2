//! What the log is made of: everything that must survive, in the order in which it was decided. Pure.

use rowlock_types::codec::{self, CodecError};
use serde::{Deserialize, Serialize};

use super::frame::BODY_MAX_BYTES;
use crate::entry::{Entry, LogId, Vote};

/// One record. Kinds are numbered in the file: never renumber, a new kind is a new format version.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A log entry, one index above the last.
    Entry(Entry),
    Vote(Vote),
    /// How far the log is known to be committed.
    Committed(LogId),
    /// Entries up to this one, inclusive, are covered by a snapshot.
    Purge(LogId),
    /// Entries behind this one (all, if none) were replaced by another leader's.
    Truncate(Option<LogId>),
    /// At the start of a segment: what the segments before it amount to, so that they can be recycled.
    Checkpoint(Checkpoint),
    /// Says nothing of its own. At a start its number is random, so that nothing behind a cut tail follows
    /// the chain any more; behind the last flush of a log that rests it is there to say what had been
    /// flushed.
    Mark(u64),
}

/// The log without its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    /// Covered by a snapshot.
    pub purged: Option<LogId>,
    /// Last entry (the purged one if there is none behind it).
    pub last: Option<LogId>,
}

impl Checkpoint {
    pub fn note(&mut self, record: &Record) {
        match record {
            Record::Entry(entry) => self.last = Some(entry.log_id),
            Record::Vote(vote) => self.vote = Some(*vote),
            Record::Committed(log_id) => self.committed = Some(*log_id),
            Record::Truncate(after) => {
                let keep = after.map_or(0, |log_id| log_id.index + 1);
                if self.last.is_some_and(|last| last.index >= keep) {
                    // What is purged is committed and never truncated; the end stays at or behind it.
                    self.last = self.purged.filter(|purged| purged.index >= keep).or(*after);
                    let end = self.last.map_or(0, |last| last.index + 1);
                    let purged = self.purged.map_or(0, |purged| purged.index + 1);
                    assert!(end <= keep.max(purged), "a truncated log ends where it was cut");
                }
            }
            Record::Purge(upto) => {
                if self.purged.is_none_or(|purged| purged.index < upto.index) {
                    self.purged = Some(*upto);
                }
                // A snapshot was installed that reaches beyond the log.
                if self.last.is_none_or(|last| last.index <= upto.index) {
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

/// Why a record with a matching checksum makes no sense: a bug, or the format of another version.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not a kind that this version knows.
    #[error("a record of unknown kind {0}")]
    Kind(u8),
    /// Not what its kind says.
    #[error("a record of kind {0} is {1}")]
    Body(u8, CodecError),
}

impl Record {
    /// Appends the body to `out` and gives the kind.
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
        // An entry's bytes may be many, and are compared with what they were by the checksum.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{entry, log_id, membership_entry, vote};
    use rowlock_world::spoilt::Spoiler;

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
}
