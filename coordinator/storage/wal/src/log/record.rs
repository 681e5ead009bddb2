//! Records of the log: Raft's durable decisions, in their order. Pure.

use rowlock_env::decides;
use rowlock_state::codec::{self, CodecError};
use serde::{Deserialize, Serialize};

use super::frame::BODY_MAX_BYTES;
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
