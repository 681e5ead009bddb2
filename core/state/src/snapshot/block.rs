//! Framing of a snapshot: magic, format version, the cluster's version with its fingerprint
//! ([`crate::Layout`]), then blocks of `length, CRC, bytes`, each with whole records.

use std::io::{self, Read, Write};

use super::SnapshotError;
use super::record::Row;
use crate::codec::{BINCODE, from_bincode};
use crate::layout::Layout;

/// Format version behind the magic, since release 0.2.0. No checksum covers the version; two versions must
/// differ by two bits: the next ones are 1, 4 and 7.
pub(super) const VERSION: u16 = 2;

const MAGIC: [u8; 8] = *b"ROWLSNAP";
/// Size from which the writer writes a block. One record may make a block larger.
const BLOCK_BYTES: usize = 64 << 10;
/// Limit of a record's size; a greater length is damage.
const BLOCK_MAX_BYTES: usize = 128 << 20;

/// Collects records into blocks. Not generic, nor is the reader: otherwise each crate with a type of its own
/// would contain the code of all records.
pub(super) struct BlockWriter<'a> {
    out: &'a mut dyn Write,
    block: Vec<u8>,
}

impl<'a> BlockWriter<'a> {
    /// Begins the snapshot of a state in this version of the cluster.
    pub(super) fn new(out: &'a mut dyn Write, cluster_version: u16) -> io::Result<Self> {
        assert!(cluster_version > 0, "a state is of a version");
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&cluster_version.to_le_bytes())?;
        out.write_all(&Layout::of_version(cluster_version).unwrap_or_default().0.to_le_bytes())?;
        Ok(BlockWriter { out, block: Vec::with_capacity(BLOCK_BYTES * 2) })
    }

    pub(super) fn write(&mut self, record: &Row<'_>) -> io::Result<()> {
        bincode::serde::encode_into_std_write(record, &mut self.block, BINCODE).map_err(io::Error::other)?;
        if self.block.len() >= BLOCK_BYTES { self.write_block() } else { Ok(()) }
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.block.is_empty() { Ok(()) } else { self.write_block() }
    }

    fn write_block(&mut self) -> io::Result<()> {
        assert!(!self.block.is_empty(), "a block without records would be taken for damage");
        let length =
            u32::try_from(self.block.len()).ok().filter(|length| *length as usize <= BLOCK_MAX_BYTES);
        let length = length.ok_or_else(|| io::Error::other("a record is too large for a snapshot"))?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(&crc32fast::hash(&self.block).to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }
}

/// Reads records from blocks.
pub(super) struct BlockReader<'a> {
    input: &'a mut dyn Read,
    block: Vec<u8>,
    /// Number of decoded bytes of `block`.
    read: usize,
    /// The cluster's version from the header, which no checksum covers.
    pub(super) cluster_version: u16,
}

impl<'a> BlockReader<'a> {
    pub(super) fn new(input: &'a mut dyn Read) -> Result<Self, SnapshotError> {
        let magic: [u8; 8] = read_array(input)?;
        if magic != MAGIC {
            return Err(SnapshotError::NotASnapshot);
        }
        let version = u16::from_le_bytes(read_array(input)?);
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let cluster_version = u16::from_le_bytes(read_array(input)?);
        let found = Layout(u32::from_le_bytes(read_array(input)?));
        // The records of a later version name the release that reads the version.
        if Layout::of_version(cluster_version).is_some_and(|ours| ours != found) {
            return Err(SnapshotError::OtherBuild { version: cluster_version, found });
        }
        Ok(BlockReader { input, block: Vec::new(), read: 0, cluster_version })
    }

    pub(super) fn next(&mut self) -> Result<Row<'static>, SnapshotError> {
        if self.read == self.block.len() {
            self.read_block()?;
        }
        let (record, read) = from_bincode(&self.block[self.read..])
            .map_err(|error| SnapshotError::Damaged(format!("a record does not decode: {error}")))?;
        self.read += read;
        assert!(self.read <= self.block.len(), "a record ends in its block");
        Ok(record)
    }

    /// Returns whether the block ends here, as required behind the last record.
    pub(super) fn is_at_block_end(&self) -> bool {
        self.read == self.block.len()
    }

    fn read_block(&mut self) -> Result<(), SnapshotError> {
        let length = u32::from_le_bytes(read_array(self.input)?) as usize;
        let crc = u32::from_le_bytes(read_array(self.input)?);
        if length == 0 || length > BLOCK_MAX_BYTES {
            return Err(SnapshotError::Damaged(format!("a block claims {length} bytes")));
        }
        self.read = 0;
        self.block.clear();
        // `take` instead of a buffer of this length: memory is used only for existing bytes.
        (&mut *self.input).take(length as u64).read_to_end(&mut self.block)?;
        if self.block.len() < length {
            return Err(SnapshotError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        if crc32fast::hash(&self.block) != crc {
            return Err(SnapshotError::Damaged("the checksum of a block is wrong".to_owned()));
        }
        Ok(())
    }
}

fn read_array<const N: usize>(input: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}
