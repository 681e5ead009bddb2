//! Recovery of the log's folder at start: finds the segments, checks the chain and replays the records.
//!
//! Recovery changes nothing on disk; the writer overwrites a torn tail. `verify` uses recovery as well.
//!
//! Scan of a segment's records in order, with a verdict on the end: clean, torn or damaged. Pure.
//!
//! A power loss may leave any part of an unflushed write on disk; recovery cuts the unreadable part, because
//! the log never acknowledged the write. Recovery never cuts a flushed record: see `record`.

use rowlock_env::decides;
use rowlock_env::disk::{Dir, File};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_proto::NodeId;

use super::record::{self, BODY_MAX_BYTES, Chain, FRAME_ALIGN, Frame, Record, SegmentKey};
use super::segment::{
    FIRST_RECORD_AT, FORMAT_VERSION, FileKind, HeaderError, SegmentHeader, SegmentSeq, file_kind,
};
use crate::error::StorageError;
use crate::identity::Identity;
use crate::memlog::MemLog;

/// Longest accepted segment, in bytes: a single record may need its own segment. Bounds the memory for a file
/// with a corrupt length.
const SEGMENT_MAX_BYTES: u64 = 2 * BODY_MAX_BYTES as u64;

#[derive(Clone, Copy, Debug)]
pub struct SegmentInfo {
    pub seq: SegmentSeq,
    pub len: u64,
    /// Highest index of the segment's entries.
    pub max_index: Option<u64>,
    pub key: SegmentKey,
    /// Offset behind the last record.
    pub end: u64,
    /// Offset known to be flushed, according to the last record.
    pub flushed: u64,
    /// Link for the next record.
    pub chain: Chain,
}

#[derive(Debug, Default)]
pub struct Recovered {
    pub log: MemLog,
    /// All segments, oldest first.
    pub segments: Vec<SegmentInfo>,
    /// Files for reuse as segments.
    pub spares: Vec<String>,
    /// Unfinished files, for removal.
    pub leftovers: Vec<String>,
    pub records: u64,
    /// True if the leftovers of an unfinished write follow the last segment's records.
    pub torn: bool,
}

pub fn recover(dir: &Dir, identity: &Identity) -> Result<Recovered, StorageError> {
    let mut recovered = Recovered::default();
    let mut seqs = Vec::new();
    for name in dir.list().map_err(StorageError::io("listing", dir.path()))? {
        match file_kind(&name) {
            FileKind::Segment(seq) => seqs.push(seq),
            FileKind::Spare => recovered.spares.push(name),
            FileKind::Other if name.ends_with(".tmp") => recovered.leftovers.push(name),
            FileKind::Other => {}
        }
    }
    let mut bytes = Vec::new();
    for (i, seq) in seqs.iter().enumerate() {
        let before = i.checked_sub(1).map(|before| seqs[before]);
        if let Some(before) = before.filter(|before| decides!("segment-is-missing", before.next() != *seq)) {
            let why = format!("segment {} is missing", before.next().file_name());
            return Err(StorageError::Incomplete { path: dir.path().to_owned(), why });
        }
        let is_last = i + 1 == seqs.len();
        let info = read_segment(dir, identity, *seq, is_last, &mut bytes, &mut recovered)?;
        recovered.segments.push(info);
    }
    let follow = |two: &[SegmentInfo]| two[0].seq.next() == two[1].seq;
    assert!(recovered.segments.windows(2).all(follow), "a missing segment was not noticed");
    assert_eq!(recovered.segments.len(), seqs.len(), "every segment was read");
    match recovered.log.missing_from() {
        None => Ok(recovered),
        Some(index) => {
            let why = format!("the entries from index {index} on are missing");
            Err(StorageError::Incomplete { path: dir.path().to_owned(), why })
        }
    }
}

fn read_segment(
    dir: &Dir,
    identity: &Identity,
    seq: SegmentSeq,
    is_last: bool,
    bytes: &mut Vec<u8>,
    recovered: &mut Recovered,
) -> Result<SegmentInfo, StorageError> {
    let name = seq.file_name();
    let path = dir.path().join(&name);
    let io = StorageError::io("reading", &path);
    dir.open_file(&name).and_then(|file| read_whole(&file, bytes)).map_err(io)?;
    let (header, first) = SegmentHeader::decode(bytes).map_err(|why| match why {
        HeaderError::OtherBuild { by } => StorageError::OtherBuild { path: path.clone(), by },
        HeaderError::Version(found) => {
            StorageError::FormatVersion { path: path.clone(), found, expected: FORMAT_VERSION }
        }
        why => StorageError::SegmentHeader { path: path.clone(), why },
    })?;
    if decides!(
        "segment-is-foreign",
        header.seq != seq || header.node != identity.node.0 || header.cluster_hash != identity.cluster_hash()
    ) {
        return Err(StorageError::ForeignSegment {
            path,
            seq: header.seq,
            node: NodeId(header.node),
            expected: identity.clone(),
        });
    }
    if let Some(before) = recovered.segments.last()
        && decides!(
            "segment-chain-breaks",
            (before.chain, before.end) != (header.previous_chain, header.previous_end)
        )
    {
        let path = dir.path().join(before.seq.file_name());
        let why = format!("the next segment continues the records behind offset {}", header.previous_end);
        return Err(StorageError::Damaged { path, offset: before.end, why });
    }

    let mut max_index = None;
    let mut flushed = FIRST_RECORD_AT;
    let found = scan(bytes, header.key(), first, |offset, frame| {
        let damaged = |why: String| StorageError::Damaged { path: path.clone(), offset, why };
        let record = Record::decode(frame.kind, frame.body).map_err(|error| damaged(error.to_string()))?;
        match &record {
            Record::Entry(entry) => max_index = max_index.max(Some(entry.log_id.index)),
            Record::Checkpoint(_) => {}
            _ if offset == FIRST_RECORD_AT => {
                return Err(damaged("it does not begin with a checkpoint".to_owned()));
            }
            _ => {}
        }
        recovered.records += 1;
        flushed = u64::from(frame.flushed);
        recovered.log.replay(record).map_err(|gap| damaged(gap.to_string()))
    })?;
    if decides!("torn-segment-is-last", is_last) {
        recovered.torn = check_tail(&path, &found)?;
    }
    let Scan { end, chain, .. } = found;
    assert!(end <= bytes.len() as u64, "records end in their segment");
    assert!(FIRST_RECORD_AT <= end, "records begin behind the header");
    Ok(SegmentInfo { seq, len: bytes.len() as u64, max_index, key: header.key(), end, flushed, chain })
}

/// Checks the end of the last segment. Returns true for a torn end.
fn check_tail(path: &std::path::Path, found: &Scan) -> Result<bool, StorageError> {
    match found.ending {
        Ending::Clean => Ok(false),
        Ending::Torn => {
            rare::taken(Rare::TornTail);
            Ok(true)
        }
        Ending::Damaged { .. } if mutant::is(Mutant::DamageIsTorn) => Ok(true),
        Ending::Damaged { intact_at } => {
            rare::taken(Rare::DamagedLog);
            let why = format!(
                "the record there had been flushed before the intact one at offset {intact_at} was written"
            );
            Err(StorageError::Damaged { path: path.to_owned(), offset: found.end, why })
        }
    }
}

/// Reads a whole segment into `bytes`, zero-filled to the size of a header block. Returns the file's length.
pub(crate) fn read_whole(file: &File, bytes: &mut Vec<u8>) -> std::io::Result<usize> {
    let len = file.len()?;
    if len > SEGMENT_MAX_BYTES {
        let why = format!("a segment of {len} bytes is larger than any that a node writes");
        return Err(std::io::Error::other(why));
    }
    let len = usize::try_from(len).expect("a 64-bit system");
    bytes.clear();
    bytes.resize(len.max(FIRST_RECORD_AT as usize), 0);
    file.read_exact_at(&mut bytes[..len], 0)?;
    Ok(len)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No bytes of this segment follow the last record.
    Clean,
    /// Leftovers of an unfinished write follow the last record.
    Torn,
    /// A flushed record is unreadable, according to the intact record at `intact_at`.
    Damaged {
        /// Offset of a record written after the flush of the unreadable record.
        intact_at: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Offset behind the last readable record.
    pub end: u64,
    /// Link for the next record.
    pub chain: Chain,
    pub ending: Ending,
}

/// Walks the chain in `bytes` (a whole segment) from the link `first`, and passes each record with its offset
/// to `visit`.
pub fn scan<E>(
    bytes: &[u8],
    key: SegmentKey,
    first: Chain,
    mut visit: impl FnMut(u64, Frame<'_>) -> Result<(), E>,
) -> Result<Scan, E> {
    let mut at = FIRST_RECORD_AT as usize;
    let mut chain = first;
    while let Some(frame) = bytes.get(at..).and_then(|rest| record::read(rest, key)) {
        if decides!("frame-chain-breaks", frame.previous != chain) {
            break;
        }
        visit(at as u64, frame)?;
        at += frame.occupied();
        assert!(at <= bytes.len() && at.is_multiple_of(FRAME_ALIGN), "a record ends in its segment, aligned");
        chain = frame.chain;
    }
    Ok(Scan { end: at as u64, chain, ending: ending(bytes, key, at) })
}

fn ending(bytes: &[u8], key: SegmentKey, end: usize) -> Ending {
    let mut remains = false;
    let mut at = end;
    while at + record::FRAME_HEADER_BYTES <= bytes.len() {
        if let Some(frame) = record::read(&bytes[at..], key) {
            if decides!("damage-was-flushed", frame.flushed as usize > end) {
                return Ending::Damaged { intact_at: at as u64 };
            }
            remains = true;
        }
        at += FRAME_ALIGN;
    }
    // A half-written record has no valid CRC: the segment's number at a header's position suffices for the
    // report.
    let header = bytes.get(end..end + record::FRAME_HEADER_BYTES);
    let begun = header.is_some_and(|h| h[12..16] == key.segment.to_le_bytes());
    if decides!("remains-are-torn", remains || begun) { Ending::Torn } else { Ending::Clean }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::FrameContext;
    use rowlock_world::spoilt::Spoiler;
    use std::convert::Infallible;

    const KEY: SegmentKey = SegmentKey { segment: 5, salt: 21 };
    const FIRST: Chain = Chain(77);
    const SIZE: usize = 16 << 10;

    /// Makes a segment of batches, each flushed before the next batch; returns the bytes and the records'
    /// offsets.
    fn segment(batches: &[&[&[u8]]]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = vec![0; FIRST_RECORD_AT as usize];
        let (mut chain, mut offsets) = (FIRST, Vec::new());
        for batch in batches {
            let flushed = bytes.len() as u32;
            for body in *batch {
                offsets.push(bytes.len());
                chain =
                    record::write(&mut bytes, FrameContext { key: KEY, previous: chain, flushed }, 1, body);
            }
        }
        bytes.resize(SIZE, 0);
        (bytes, offsets)
    }

    fn bodies(bytes: &[u8]) -> (Vec<Vec<u8>>, Scan) {
        let mut found = Vec::new();
        let scan = scan::<Infallible>(bytes, KEY, FIRST, |_, frame| {
            found.push(frame.body.to_vec());
            Ok(())
        });
        (found, scan.expect("infallible"))
    }

    #[test]
    fn an_intact_segment_ends_cleanly() {
        let (bytes, _) = segment(&[&[b"a", b"bb"], &[b"ccc"]]);
        let (found, scan) = bodies(&bytes);
        assert_eq!(found, [b"a".to_vec(), b"bb".to_vec(), b"ccc".to_vec()]);
        assert_eq!(scan.ending, Ending::Clean);
    }

    #[test]
    fn a_torn_tail_is_cut_at_every_byte_of_the_last_record() {
        let (bytes, offsets) = segment(&[&[b"a"], &[b"a longer last record"]]);
        let last = offsets[1];
        for cut in last..last + record::FRAME_HEADER_BYTES + 20 {
            let mut torn = bytes.clone();
            torn[cut..].fill(0);
            let (found, scan) = bodies(&torn);
            assert_eq!(found, [b"a".to_vec()], "cut at {cut}");
            assert_eq!(scan.end as usize, last);
            assert!(matches!(scan.ending, Ending::Clean | Ending::Torn));
        }
    }

    #[test]
    fn a_hole_in_the_unflushed_batch_before_intact_records_is_torn() {
        let (mut bytes, offsets) = segment(&[&[b"a"], &[b"b", b"c", b"d"]]);
        bytes[offsets[2]..offsets[3]].fill(0);
        let (found, scan) = bodies(&bytes);
        assert_eq!(found, [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(scan.ending, Ending::Torn);
    }

    #[test]
    fn a_flipped_bit_in_a_flushed_record_is_damage() {
        let (bytes, offsets) = segment(&[&[b"a", b"b"], &[b"c"], &[b"d"]]);
        for at in offsets[0]..offsets[2] + record::FRAME_HEADER_BYTES + 1 {
            let mut damaged = bytes.clone();
            if (at - FIRST_RECORD_AT as usize) % 32 > record::FRAME_HEADER_BYTES {
                continue; // padding
            }
            damaged[at] ^= 0x10;
            let intact_at = if at < offsets[2] { offsets[2] } else { offsets[3] };
            let (_, scan) = bodies(&damaged);
            assert_eq!(scan.ending, Ending::Damaged { intact_at: intact_at as u64 }, "byte {at}");
        }
    }

    #[test]
    fn a_zeroed_block_in_the_middle_is_damage() {
        let (mut bytes, offsets) = segment(&[&[b"a"], &[b"b"], &[b"c"]]);
        bytes[offsets[1]..offsets[2]].fill(0);
        assert_eq!(bodies(&bytes).1.ending, Ending::Damaged { intact_at: offsets[2] as u64 });
    }

    #[test]
    fn records_of_a_recycled_segments_former_life_are_ignored() {
        let (old, _) = segment(&[&[b"old 1"], &[b"old 2"], &[b"old 3"]]);
        // Recycles the file under another number: a new record first, then old records at aligned offsets.
        let (key, first) = (SegmentKey { segment: 6, salt: 22 }, Chain(99));
        let mut new = Vec::new();
        let place = FrameContext { key, previous: first, flushed: FIRST_RECORD_AT as u32 };
        record::write(&mut new, place, 1, b"new 1");
        let mut bytes = old;
        bytes[FIRST_RECORD_AT as usize..][..new.len()].copy_from_slice(&new);
        let mut found = Vec::new();
        let scan = scan::<Infallible>(&bytes, key, first, |_, frame| {
            found.push(frame.body.to_vec());
            Ok(())
        });
        assert_eq!(found, [b"new 1".to_vec()]);
        assert_eq!(scan.expect("infallible").ending, Ending::Clean);
    }

    #[test]
    fn a_cut_record_behind_the_new_end_is_not_read_again() {
        // First life: a batch of b and c, with b torn and c intact. Second life: another record over b.
        let (bytes, offsets) = segment(&[&[b"a"], &[b"b", b"c"]]);
        let cut = offsets[1];
        let chain = record::read(&bytes[offsets[0]..], KEY).expect("intact").chain;
        let mut new = Vec::new();
        let place = FrameContext { key: KEY, previous: chain, flushed: cut as u32 };
        record::write(&mut new, place, 1, b"x");
        let mut again = bytes;
        again[cut..cut + new.len()].copy_from_slice(&new);
        let (found, scan) = bodies(&again);
        assert_eq!(found, [b"a".to_vec(), b"x".to_vec()]);
        assert_eq!(scan.ending, Ending::Torn);
    }

    #[test]
    fn a_spoilt_segment_yields_a_prefix_of_the_written_records() {
        let (good, _) = segment(&[&[b"a", b"bb"], &[b"ccc", b"dddd"], &[b"eeeee"]]);
        let (written, _) = bodies(&good);
        let used = good.iter().rposition(|byte| *byte != 0).unwrap();
        let (mut spoiler, mut less) = (Spoiler::new(1), 0);
        for _ in 0..2_000 {
            let mut bytes = spoiler.spoil(&good[FIRST_RECORD_AT as usize..=used]);
            bytes.splice(0..0, good[..FIRST_RECORD_AT as usize].iter().copied());
            let (found, scan) = bodies(&bytes);
            assert!(written.starts_with(&found), "{found:?}");
            assert!(scan.end <= bytes.len() as u64 + record::FRAME_HEADER_BYTES as u64);
            less += usize::from(found.len() < written.len());
        }
        assert!(less > 1_000, "{less}");
    }
}
