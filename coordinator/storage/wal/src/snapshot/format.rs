//! Header of a snapshot file. Pure.
//!
//! ```text
//!  0  magic        8 bytes
//!  8  version      u32
//! 12  header crc   u32  of the first 64 bytes with this field zero, and of the meta
//! 16  cluster      u64  hash of the cluster's name
//! 24  node         u64  builder of the snapshot
//! 32  meta length  u32
//! 36  body crc     u32
//! 40  body length  u64
//! 48  layout       u32  fingerprint of the folder's formats
//! 52  zero         12 bytes
//! 64  meta: last log id and membership, then the body: the state machine's own encoding
//! ```

use rowlock_state::{Layout, codec};

use crate::entry::SnapshotMeta;
use crate::layout::FOLDER;

/// Bytes before the meta.
pub const FIXED_BYTES: usize = 64;
/// Version of header and meta; the body has its own version.
pub const FORMAT_VERSION: u32 = 1;
/// Largest meta (a membership), in bytes; bounds a reader's memory.
pub const META_MAX_BYTES: usize = 1 << 20;

const MAGIC: [u8; 8] = *b"RWLKSNP\0";

#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotHeader {
    /// Hash of the cluster's name.
    pub cluster_hash: u64,
    pub node: u64,
    pub meta: SnapshotMeta,
    pub body_len: u64,
    pub body_crc: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of fixed part and meta.
    pub header: usize,
    /// Bytes of the whole file.
    pub file: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("it does not begin like a snapshot")]
    NotASnapshot,
    #[error("it has format version {0}, this version of Rowlock reads {FORMAT_VERSION}")]
    Version(u32),
    #[error("it was written by another build")]
    OtherBuild,
    #[error("the checksum of its header does not match")]
    Checksum,
    #[error("its header is {0}")]
    Meta(String),
}

impl SnapshotHeader {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; FIXED_BYTES];
        codec::encode_into(&self.meta, &mut out);
        let meta_len = u32::try_from(out.len() - FIXED_BYTES).expect("Invariant: a membership is small");
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.cluster_hash.to_le_bytes());
        out[24..32].copy_from_slice(&self.node.to_le_bytes());
        out[32..36].copy_from_slice(&meta_len.to_le_bytes());
        out[36..40].copy_from_slice(&self.body_crc.to_le_bytes());
        out[40..48].copy_from_slice(&self.body_len.to_le_bytes());
        out[48..52].copy_from_slice(&FOLDER.0.to_le_bytes());
        let crc = crc32fast::hash(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        assert!(out.len() <= FIXED_BYTES + META_MAX_BYTES, "a reader takes no larger header");
        debug_assert_eq!(Self::decode(&out).as_ref(), Ok(self), "a header is read back as it was written");
        out
    }

    /// Returns the lengths in the fixed part. Checks magic, version and build, but no checksum.
    pub fn lengths(fixed: &[u8; FIXED_BYTES]) -> Result<Lengths, FormatError> {
        if fixed[0..8] != MAGIC {
            return Err(FormatError::NotASnapshot);
        }
        match u32_at(fixed, 8) {
            FORMAT_VERSION => {}
            other => return Err(FormatError::Version(other)),
        }
        if Layout(u32_at(fixed, 48)) != FOLDER {
            return Err(FormatError::OtherBuild);
        }
        let meta = u32_at(fixed, 32) as usize;
        if meta > META_MAX_BYTES {
            return Err(FormatError::Checksum);
        }
        let header = FIXED_BYTES + meta;
        let file = (header as u64).checked_add(u64_at(fixed, 40)).ok_or(FormatError::Checksum)?;
        Ok(Lengths { header, file })
    }

    /// Verifies and decodes fixed part and meta.
    pub fn decode(bytes: &[u8]) -> Result<SnapshotHeader, FormatError> {
        let mut fixed = [0; FIXED_BYTES];
        fixed.copy_from_slice(bytes.get(..FIXED_BYTES).ok_or(FormatError::NotASnapshot)?);
        if SnapshotHeader::lengths(&fixed)?.header != bytes.len() {
            return Err(FormatError::Checksum);
        }
        let crc = u32_at(&fixed, 12);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&fixed[..12]);
        hasher.update(&[0; 4]);
        hasher.update(&bytes[16..]);
        if hasher.finalize() != crc {
            return Err(FormatError::Checksum);
        }
        let meta = codec::decode(&bytes[FIXED_BYTES..], META_MAX_BYTES)
            .map_err(|error| FormatError::Meta(error.to_string()))?;
        Ok(SnapshotHeader {
            cluster_hash: u64_at(&fixed, 16),
            node: u64_at(&fixed, 24),
            meta,
            body_crc: u32_at(&fixed, 36),
            body_len: u64_at(&fixed, 40),
        })
    }
}

fn u32_at(bytes: &[u8; FIXED_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; FIXED_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::snapshot_meta;

    fn header() -> SnapshotHeader {
        SnapshotHeader {
            cluster_hash: 7,
            node: 2,
            meta: snapshot_meta(3, 40),
            body_len: 1000,
            body_crc: 0xabcd_ef01,
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        let bytes = header().encode();
        assert_eq!(SnapshotHeader::decode(&bytes), Ok(header()));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(SnapshotHeader::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_format_version_and_another_build_are_named() {
        let mut bytes = header().encode();
        bytes[8] = 9;
        assert_eq!(SnapshotHeader::decode(&bytes), Err(FormatError::Version(9)));
        let mut bytes = header().encode();
        bytes[48..52].fill(0);
        assert_eq!(SnapshotHeader::decode(&bytes), Err(FormatError::OtherBuild));
    }

    /// Excludes the checksum and the build's fingerprint.
    pub(crate) const GOLDEN: &str = concat!(
        "52574c4b534e500001000000000000000700000000000000020000000000000016000000",
        "01efcdabe80300000000000000000000000000000000000000000000",
        "0103012801030100010101010103613a3103623a3200"
    );

    #[test]
    fn the_bytes_on_disk_are_these() {
        let mut bytes = header().encode();
        bytes[12..16].fill(0);
        bytes[48..52].fill(0);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN);
    }
}
