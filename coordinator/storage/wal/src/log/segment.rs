//! Name and header of a segment file. Pure.
//!
//! A segment is a file of fixed size, reserved before use. The first block holds the header, records follow.
//! The header is on disk before the file gets its name, so a named segment without a valid header is damaged.

use std::ops::Range;

use rowlock_env::decides;
use rowlock_state::Layout;
use rowlock_state::version::this_build;

use super::record::{Chain, SegmentKey};
use crate::identity::{FOLDER, OtherBuild, of_entries, reads_entries};

/// Offset of the first record: the header has its own block and is written once.
pub const FIRST_RECORD_AT: u64 = 4096;
/// Bytes of the header in use.
pub const HEADER_BYTES: usize = 128;
/// Fingerprint of the folder's formats.
const LAYOUT: Range<usize> = 52..56;
/// Fingerprint of the entries.
const ENTRIES: Range<usize> = 64..68;
/// Name of the build, padded with zeros.
const BUILD: Range<usize> = 68..HEADER_BYTES;
/// Version of segment and record bytes: a change of either format needs a new version.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"RWLKWAL\0";
const SUFFIX: &str = ".wal";
const SPARE_PREFIX: &str = "spare-";

// The header ends before the first record, and the first record is aligned.
const _: () = assert!(HEADER_BYTES as u64 <= FIRST_RECORD_AT);
const _: () = assert!(FIRST_RECORD_AT.is_multiple_of(super::record::FRAME_ALIGN as u64));

/// Sequence number of a segment, never reused within a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentSeq(pub u64);

impl SegmentSeq {
    pub const FIRST: SegmentSeq = SegmentSeq(1);

    pub fn next(self) -> SegmentSeq {
        SegmentSeq(self.0 + 1)
    }

    /// Returns the name of the segment's file. Names sort like their numbers.
    pub fn file_name(self) -> String {
        let name = format!("{:016x}{SUFFIX}", self.0);
        debug_assert_eq!(file_kind(&name), FileKind::Segment(self), "a segment is known by its name");
        name
    }

    /// Returns the name of the file as a spare.
    pub fn spare_name(self) -> String {
        let name = format!("{SPARE_PREFIX}{:016x}", self.0);
        debug_assert_eq!(file_kind(&name), FileKind::Spare, "a spare is known by its name");
        name
    }
}

/// Kind of a file in the log's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Segment(SegmentSeq),
    Spare,
    Other,
}

pub fn file_kind(name: &str) -> FileKind {
    if name.starts_with(SPARE_PREFIX) {
        return FileKind::Spare;
    }
    let number = name.strip_suffix(SUFFIX).filter(|hex| hex.len() == 16);
    match number.and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
        Some(seq) => FileKind::Segment(SegmentSeq(seq)),
        None => FileKind::Other,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub seq: SegmentSeq,
    pub node: u64,
    /// Hash of the cluster's name (the name is in the `identity` file).
    pub cluster_hash: u64,
    /// Random, against equal chains; the low half salts the records.
    pub nonce: u64,
    /// Last link of the preceding segment, 0 for the first segment.
    pub previous_chain: Chain,
    /// End of the preceding segment's records, 0 for the first segment.
    pub previous_end: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("it does not begin like a log segment")]
    NotASegment,
    #[error("it has format version {0}, this version of Rowlock reads {FORMAT_VERSION}")]
    Version(u32),
    #[error("the checksum of its header does not match")]
    Checksum,
    #[error("it was written by another build{}", by.0.as_ref().map_or(String::new(), |build| format!(", {}", build.escape_debug())))]
    OtherBuild { by: OtherBuild },
}

impl SegmentHeader {
    pub fn key(&self) -> SegmentKey {
        SegmentKey { segment: self.seq.0 as u32, salt: self.nonce as u32 }
    }

    /// Returns the header's bytes and the link for the first record.
    pub fn encode(&self) -> ([u8; HEADER_BYTES], Chain) {
        let mut out = [0; HEADER_BYTES];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.seq.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.node.to_le_bytes());
        out[32..40].copy_from_slice(&self.cluster_hash.to_le_bytes());
        out[40..48].copy_from_slice(&self.nonce.to_le_bytes());
        out[48..52].copy_from_slice(&self.previous_chain.0.to_le_bytes());
        out[56..64].copy_from_slice(&self.previous_end.to_le_bytes());
        out[LAYOUT].copy_from_slice(&FOLDER.0.to_le_bytes());
        out[ENTRIES].copy_from_slice(&of_entries().0.to_le_bytes());
        for (at, byte) in out[BUILD].iter_mut().zip(this_build().bytes()) {
            *at = byte;
        }
        let crc = crc32fast::hash(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(
            Self::decode(&out),
            Ok((*self, Chain(crc))),
            "a header is read back as it was written"
        );
        (out, Chain(crc))
    }

    /// Decodes a file's first bytes. Returns the header and the link for the first record.
    pub fn decode(bytes: &[u8]) -> Result<(SegmentHeader, Chain), HeaderError> {
        let mut copy = [0; HEADER_BYTES];
        copy.copy_from_slice(bytes.get(..HEADER_BYTES).ok_or(HeaderError::NotASegment)?);
        if copy[0..8] != MAGIC {
            return Err(HeaderError::NotASegment);
        }
        let crc = u32_at(&copy, 12);
        copy[12..16].fill(0);
        if decides!("segment-header-is-damaged", crc32fast::hash(&copy) != crc) {
            return Err(HeaderError::Checksum);
        }
        match u32_at(&copy, 8) {
            FORMAT_VERSION => {}
            other => return Err(HeaderError::Version(other)),
        }
        let (folder, entries) = (Layout(u32_at(&copy, LAYOUT.start)), Layout(u32_at(&copy, ENTRIES.start)));
        if folder != FOLDER || !reads_entries(entries) {
            let build = String::from_utf8_lossy(&copy[BUILD]).trim_end_matches('\0').to_owned();
            return Err(HeaderError::OtherBuild { by: OtherBuild(Some(build).filter(|it| !it.is_empty())) });
        }
        let header = SegmentHeader {
            seq: SegmentSeq(u64_at(&copy, 16)),
            node: u64_at(&copy, 24),
            cluster_hash: u64_at(&copy, 32),
            nonce: u64_at(&copy, 40),
            previous_chain: Chain(u32_at(&copy, 48)),
            previous_end: u64_at(&copy, 56),
        };
        Ok((header, Chain(crc)))
    }
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader {
        seq: SegmentSeq(0x0102_0304_0506),
        node: 3,
        cluster_hash: 0x1122_3344_5566_7788,
        nonce: 9,
        previous_chain: Chain(0xdead_beef),
        previous_end: 8192,
    };

    #[test]
    fn names_give_the_kind_of_a_file_and_sort_like_numbers() {
        assert_eq!(file_kind(&SegmentSeq(10).file_name()), FileKind::Segment(SegmentSeq(10)));
        assert!(SegmentSeq(9).file_name() < SegmentSeq(10).file_name());
        assert_eq!(file_kind(&SegmentSeq(10).spare_name()), FileKind::Spare);
        assert_eq!(file_kind("notes.txt"), FileKind::Other);
        assert_eq!(file_kind("1.wal"), FileKind::Other);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        let (bytes, _) = HEADER.encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    /// Makes a header with `new` at offset `at` and a valid checksum.
    fn with(at: usize, new: &[u8]) -> [u8; HEADER_BYTES] {
        let (mut bytes, _) = HEADER.encode();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes[12..16].fill(0);
        let crc = crc32fast::hash(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn another_format_version_and_another_build_are_named() {
        assert_eq!(SegmentHeader::decode(&with(8, &[2])), Err(HeaderError::Version(2)));
        let unnamed = Err(HeaderError::OtherBuild { by: OtherBuild(None) });
        assert_eq!(SegmentHeader::decode(&with(LAYOUT.start, &[0; HEADER_BYTES - 56 + 4])), unnamed);
        for place in [LAYOUT, ENTRIES] {
            let by = OtherBuild(Some(this_build()));
            assert_eq!(
                SegmentHeader::decode(&with(place.start, &[1, 2, 3, 4])),
                Err(HeaderError::OtherBuild { by })
            );
        }
    }

    /// Excludes the build and its fingerprints.
    pub(crate) const GOLDEN: &str = concat!(
        "52574c4b57414c00010000000000000006050403020100000300000000000000887766554433221109000000000000",
        "00efbeadde000000000020000000000000"
    );

    #[test]
    fn the_bytes_on_disk_are_these() {
        let (mut bytes, chain) = HEADER.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok((HEADER, chain)));
        assert!(bytes[BUILD].starts_with(this_build().as_bytes()));
        for range in [12..16, LAYOUT, ENTRIES, BUILD] {
            bytes[range].fill(0);
        }
        let hex: String = bytes[..64].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        assert_eq!(bytes[64..], [0; 64]);
    }
}
