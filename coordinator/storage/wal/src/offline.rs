//! Reads a data folder for an inspector, whether its node runs or not: the owner, and the snapshots. The log
//! has [`dump`].
//!
//! Takes no lock and changes nothing. A file of a running node may vanish between the list and the read: the
//! caller tries again.
//!
//! Dump of a log for an operator, damaged or not: each record with its offset, and each unreadable range.
//!
//! The dump changes nothing, takes no lock and fails only on an unlistable folder. Memory holds a single
//! segment at a time. A node must never use the dump: `recover` decides on starting.

use std::io;
use std::path::Path;

use rowlock_env::disk::Dir;
use rowlock_proto::ClusterId;

use super::error::StorageError;
use super::identity::{self, Identity};
use super::identity::{SNAPSHOT_DIR, WAL_DIR};
use super::log::record::{self, FRAME_ALIGN, Record, SegmentKey};
use super::log::recover::read_whole;
use super::log::segment::{FIRST_RECORD_AT, FileKind, SegmentHeader, SegmentSeq, file_kind};
use super::snapshot::{SnapshotFile, SnapshotStore};

/// Returns the owner of a data folder, and the cluster's id if the node knows the id.
///
/// # Errors
/// The folder has no readable identity, or one of another build.
pub fn owner(path: &Path) -> Result<(Identity, Option<ClusterId>), StorageError> {
    let dir = Dir::open(path).map_err(StorageError::io("opening", path))?;
    let (identity, claim) = identity::read(&dir)?;
    Ok((identity, claim.cluster))
}

/// Returns the snapshots of a data folder, oldest first. Verifies checksums and decodes no state. Blocks on
/// the disk.
///
/// # Errors
/// A file cannot be read, is damaged, or another build wrote the file.
pub fn snapshots(path: &Path, identity: &Identity) -> Result<Vec<SnapshotFile>, StorageError> {
    let path = path.join(SNAPSHOT_DIR);
    let dir = Dir::open(&path).map_err(StorageError::io("opening", &path))?;
    SnapshotStore::survey(&dir, identity)
}

/// Item of a dump, in the order of the files.
#[derive(Debug)]
pub enum DumpItem<'a> {
    Segment {
        file: &'a str,
        bytes: u64,
        /// Node in the header, or the reason for an unreadable header; an unreadable header ends the
        /// segment's dump.
        node: Result<u64, String>,
    },
    Record {
        file: &'a str,
        offset: u64,
        /// Decoded record, or the error of decoding.
        record: Result<Record, String>,
    },
    /// Damage. Later items lie behind this offset.
    Damage { file: &'a str, offset: u64, what: String },
    /// Leftovers of an unfinished write behind the last record. The log never acknowledged these bytes.
    Torn { file: &'a str, offset: u64 },
}

/// Passes each item of the log in data folder `path` to `visit`. Blocks on the disk.
///
/// # Errors
/// The folder cannot be listed, or `visit` fails.
pub fn dump(path: &Path, mut visit: impl FnMut(DumpItem<'_>) -> io::Result<()>) -> io::Result<()> {
    let dir = Dir::open(&path.join(WAL_DIR))?;
    let mut seqs: Vec<SegmentSeq> = Vec::new();
    for name in dir.list()? {
        if let FileKind::Segment(seq) = file_kind(&name) {
            seqs.push(seq);
        }
    }
    seqs.sort_unstable_by_key(|seq| seq.0);
    let mut bytes = Vec::new();
    let mut before: Option<SegmentSeq> = None;
    for (at, seq) in seqs.iter().enumerate() {
        if let Some(missing) = before.map(SegmentSeq::next).filter(|next| next != seq) {
            let what = format!("segments are missing before {}", seq.file_name());
            visit(DumpItem::Damage { file: &missing.file_name(), offset: 0, what })?;
        }
        before = Some(*seq);
        let file = seq.file_name();
        let is_last = at + 1 == seqs.len();
        match dir.open_to_read(&file).and_then(|file| read_whole(&file, &mut bytes)) {
            Ok(len) => show(&file, &bytes[..len], is_last, &mut visit)?,
            Err(error) => {
                visit(DumpItem::Damage {
                    file: &file,
                    offset: 0,
                    what: format!("it cannot be read: {error}"),
                })?;
            }
        }
    }
    Ok(())
}

fn show(
    file: &str,
    bytes: &[u8],
    is_last: bool,
    visit: &mut impl FnMut(DumpItem<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let header = SegmentHeader::decode(bytes);
    let node = header.as_ref().map(|(header, _)| header.node).map_err(ToString::to_string);
    visit(DumpItem::Segment { file, bytes: bytes.len() as u64, node })?;
    let Ok((header, mut chain)) = header else { return Ok(()) };
    let key = header.key();
    let mut at = FIRST_RECORD_AT as usize;
    loop {
        while let Some(frame) = bytes.get(at..).and_then(|rest| record::read(rest, key)) {
            if frame.previous != chain {
                break;
            }
            let record = Record::decode(frame.kind, frame.body).map_err(|error| error.to_string());
            visit(DumpItem::Record { file, offset: at as u64, record })?;
            at += frame.occupied();
            assert!(at <= bytes.len(), "a record ends in its segment");
            chain = frame.chain;
        }
        match tail(bytes, at, key) {
            Tail::Nothing => return Ok(()),
            Tail::Remains if is_last => return visit(DumpItem::Torn { file, offset: at as u64 }),
            Tail::Remains => {
                let what = "the records end here, and those of the next segment do not".to_owned();
                return visit(DumpItem::Damage { file, offset: at as u64, what });
            }
            Tail::Flushed { next, previous } => {
                let what = format!("a flushed record cannot be read; the log continues at offset {next}");
                visit(DumpItem::Damage { file, offset: at as u64, what })?;
                assert!(next >= at, "the log continues behind the readable records");
                (at, chain) = (next, previous);
            }
        }
    }
}

enum Tail {
    Nothing,
    /// Leftovers of an unfinished write.
    Remains,
    /// A later record proves the bytes before `next` flushed.
    Flushed {
        next: usize,
        previous: record::Chain,
    },
}

fn tail(bytes: &[u8], end: usize, key: SegmentKey) -> Tail {
    let (mut remains, mut at) = (None, end);
    let mut flushed = false;
    while at + record::FRAME_HEADER_BYTES <= bytes.len() {
        if let Some(frame) = record::read(&bytes[at..], key) {
            remains.get_or_insert((at, frame.previous));
            flushed |= frame.flushed as usize > end;
        }
        at += FRAME_ALIGN;
    }
    match remains {
        None => match bytes.get(end..end + record::FRAME_HEADER_BYTES) {
            // A half-written record has no valid checksum.
            Some(header) if header[12..16] == key.segment.to_le_bytes() => Tail::Remains,
            _ => Tail::Nothing,
        },
        // Reading resumes at the records from the same batch as the unreadable record.
        Some((next, previous)) if flushed => Tail::Flushed { next, previous },
        Some(_) => Tail::Remains,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::{Chain, FrameContext};
    use rowlock_world::spoilt::Spoiler;

    /// Makes a segment of marks, each flushed before the next mark; returns the bytes and the marks' offsets.
    fn segment(marks: u64) -> (Vec<u8>, Vec<usize>) {
        let (seq, previous_chain) = (SegmentSeq(5), Chain(0));
        let header =
            SegmentHeader { seq, node: 1, cluster_hash: 2, nonce: 21, previous_chain, previous_end: 0 };
        let (begin, mut chain) = header.encode();
        let (mut bytes, mut offsets) = (begin.to_vec(), Vec::new());
        bytes.resize(FIRST_RECORD_AT as usize, 0);
        for mark in 0..marks {
            let mut body = Vec::new();
            let kind = Record::Mark(1 << 40 | mark).encode_into(&mut body);
            offsets.push(bytes.len());
            let flushed = u32::try_from(bytes.len()).unwrap();
            chain = record::write(
                &mut bytes,
                FrameContext { key: header.key(), previous: chain, flushed },
                kind,
                &body,
            );
        }
        bytes.resize(bytes.len() + 1_024, 0);
        (bytes, offsets)
    }

    /// Dumps a segment: returns the marks, the offsets of damage, and true for a torn end.
    fn shown(bytes: &[u8]) -> (Vec<u64>, Vec<u64>, bool) {
        let (mut marks, mut damage, mut torn) = (Vec::new(), Vec::new(), false);
        let seen = show("5.wal", bytes, true, &mut |seen| {
            match seen {
                DumpItem::Record { record: Ok(Record::Mark(mark)), .. } => marks.push(mark & 0xff),
                DumpItem::Record { offset, .. } | DumpItem::Damage { offset, .. } => damage.push(offset),
                DumpItem::Torn { .. } => torn = true,
                DumpItem::Segment { node, .. } => damage.extend(node.is_err().then_some(0)),
            }
            Ok(())
        });
        seen.unwrap();
        (marks, damage, torn)
    }

    #[test]
    fn damage_is_shown_with_its_offset_and_later_records_follow() {
        let (bytes, offsets) = segment(6);
        assert_eq!(shown(&bytes), ((0..6).collect(), Vec::new(), false));
        for (lost, offset) in offsets.iter().enumerate().take(5) {
            let mut damaged = bytes.clone();
            damaged[offset + record::FRAME_HEADER_BYTES] ^= 1;
            let left = (0..6).filter(|mark| *mark != lost as u64).collect();
            assert_eq!(shown(&damaged), (left, vec![*offset as u64], false));
        }
        let mut torn = bytes;
        torn[offsets[5] + record::FRAME_HEADER_BYTES] ^= 1;
        assert_eq!(shown(&torn), ((0..5).collect(), Vec::new(), true), "no record proves the flush");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes files behind env's back")]
    fn a_pipe_and_a_segment_without_end_are_damage() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join(WAL_DIR);
        std::fs::create_dir(&log).unwrap();
        let file = |seq| log.join(SegmentSeq(seq).file_name());
        std::fs::File::create(file(1)).unwrap().set_len(1 << 40).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(file(2)).status().unwrap();
        assert!(pipe.success());
        let mut found = Vec::new();
        let walked = dump(folder.path(), |seen| {
            match seen {
                DumpItem::Damage { what, .. } => found.push(what),
                other => panic!("{other:?}"),
            }
            Ok(())
        });
        walked.unwrap();
        assert_eq!(
            found,
            [
                "it cannot be read: a segment of 1099511627776 bytes is larger than any that a node writes",
                "it cannot be read: this is not a regular file"
            ]
        );
    }

    #[test]
    fn a_spoilt_segment_shows_only_written_records() {
        let (bytes, _) = segment(20);
        let (mut spoiler, mut less, mut more_than_begin) = (Spoiler::new(9), 0, 0);
        for _ in 0..2_000 {
            let (marks, damage, _) = shown(&spoiler.spoil(&bytes));
            assert!(marks.iter().all(|mark| *mark < 20), "{marks:?}");
            // A copied record behind damage is shown at its offset.
            assert!(marks.is_sorted() || !damage.is_empty(), "{marks:?}");
            less += usize::from(marks.len() < 20);
            more_than_begin += usize::from(!damage.is_empty() && marks.last() == Some(&19));
        }
        assert!(less > 500 && more_than_begin > 50, "{less} {more_than_begin}");
    }
}
