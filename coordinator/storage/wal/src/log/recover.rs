//! Recovery of the log's folder at start: finds the segments, checks the chain and replays the records.
//!
//! Recovery changes nothing on disk; the writer overwrites a torn tail. `verify` uses recovery as well.

use rowlock_env::decides;
use rowlock_env::disk::{Dir, File};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_proto::NodeId;

use super::frame::{BODY_MAX_BYTES, Chain, SegmentKey};
use super::record::Record;
use super::scan::{Ending, Scan, scan};
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
pub(super) fn read_whole(file: &File, bytes: &mut Vec<u8>) -> std::io::Result<usize> {
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
