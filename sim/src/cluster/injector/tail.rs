//! Corrupts the last entry or vote of a log at rest. The entry has been flushed, and the record after the
//! entry must prove this.

use std::path::Path;

use rowlock_world::disk::HostDisk;

/// Offset of the first record of a segment, and the layout of a record (`coordinator/storage/wal/src/log/`).
const FIRST_RECORD_AT: usize = 4096;
const HEADER_BYTES: usize = 24;
const ALIGN: usize = 8;
const ENTRY: u8 = 1;
const VOTE: u8 = 2;

struct Found {
    at: usize,
    len: usize,
    kind: u8,
}

/// Flips a bit in the last entry or vote. The node's process must be dead.
pub(super) fn rot(disk: &HostDisk) -> Option<String> {
    let is_segment = |path: &Path| path.extension().is_some_and(|extension| extension == "wal");
    let newest = disk.files().into_iter().map(|(path, _)| path).filter(|path| is_segment(path)).max()?;
    disk.rot_at(|path, bytes| if path == newest { place(bytes) } else { None })
}

/// Returns the middle of the last entry or vote.
fn place(bytes: &[u8]) -> Option<usize> {
    let records = records(bytes);
    let last = records.iter().rfind(|record| matches!(record.kind, ENTRY | VOTE))?;
    Some(last.at + HEADER_BYTES + last.len / 2)
}

/// Returns the records of a segment up to the first break in the chain of checksums.
fn records(bytes: &[u8]) -> Vec<Found> {
    let word = |at: usize| {
        let four = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    };
    let mut records = Vec::new();
    let (mut at, mut before) = (FIRST_RECORD_AT, word(12));
    while let (Some(crc), Some(len), Some(previous), Some(kind)) =
        (word(at), word(at + 4), word(at + 8), bytes.get(at + 20))
    {
        if Some(previous) != before {
            break;
        }
        let len = len as usize;
        records.push(Found { at, len, kind: *kind });
        (at, before) = (at + (HEADER_BYTES + len).next_multiple_of(ALIGN), Some(crc));
    }
    records
}
