//! An open snapshot file, shared by its readers. Any reader may read any offset.
//!
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

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::disk::{Dir, File};
use rowlock_env::{decides, worker};
use rowlock_state::version::{OtherRelease, Versions};
use rowlock_state::{Layout, Machine, SNAPSHOT_VERSION, SnapshotError, codec};

use crate::entry::SnapshotMeta;
use crate::error::StorageError;
use crate::identity::{FOLDER, Identity, OtherBuild};
use crate::limits::{SNAPSHOT_CUT_BYTES, SNAPSHOT_CUT_PAUSE, SNAPSHOT_PIECE_PAUSE};

/// Bytes per read of a whole file.
const CHUNK_BYTES: usize = 256 << 10;

/// A complete, verified snapshot. Clones share the file; an open file stays readable after the removal of its
/// name.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    inner: Arc<OpenSnapshot>,
}

#[derive(Debug)]
struct OpenSnapshot {
    file: File,
    header: SnapshotHeader,
    header_len: u64,
    dir: Dir,
    name: Mutex<FileName>,
    /// State decoded in advance by [`SnapshotFile::load_state`].
    state: Mutex<Option<Machine>>,
}

/// Name of the file. A temporary file is removed with its last handle.
#[derive(Debug)]
enum FileName {
    Temporary(String),
    Kept(String),
}

impl SnapshotFile {
    /// Opens `name` in `dir` and verifies all bytes. A temporary file is removed with its last handle.
    pub(super) fn verify(
        dir: &Dir,
        name: &str,
        file: File,
        temporary: bool,
        identity: &Identity,
    ) -> Result<SnapshotFile, StorageError> {
        let path = dir.path().join(name);
        let bad = |why: String| StorageError::BadSnapshot { path: path.clone(), why };
        let io = |error| StorageError::Io { action: "reading", path: path.clone(), source: error };

        let len = file.len().map_err(io)?;
        let mut fixed = [0; FIXED_BYTES];
        if len < fixed.len() as u64 {
            return Err(bad(format!("it has only {len} bytes")));
        }
        file.read_exact_at(&mut fixed, 0).map_err(io)?;
        let unread = |error: FormatError| match error {
            FormatError::OtherBuild => StorageError::OtherBuild { path: path.clone(), by: OtherBuild(None) },
            FormatError::Version(found) => {
                StorageError::FormatVersion { path: path.clone(), found, expected: FORMAT_VERSION }
            }
            error => bad(error.to_string()),
        };
        let lengths = SnapshotHeader::lengths(&fixed).map_err(unread)?;
        if decides!("snapshot-length-differs", lengths.file != len) {
            return Err(bad(format!("it has {len} bytes instead of {}", lengths.file)));
        }
        let mut bytes = vec![0; lengths.header];
        file.read_exact_at(&mut bytes, 0).map_err(io)?;
        let header = SnapshotHeader::decode(&bytes).map_err(unread)?;
        if decides!("snapshot-is-foreign", header.cluster_hash != identity.cluster_hash()) {
            return Err(bad(format!("it is of another cluster than \"{}\"", identity.cluster)));
        }
        let name =
            if temporary { FileName::Temporary(name.to_owned()) } else { FileName::Kept(name.to_owned()) };
        let inner = OpenSnapshot {
            file,
            header,
            header_len: lengths.header as u64,
            dir: dir.clone(),
            name: Mutex::new(name),
            state: Mutex::new(None),
        };
        let snapshot = SnapshotFile { inner: Arc::new(inner) };
        if decides!("snapshot-is-damaged", snapshot.body_crc().map_err(io)? != snapshot.inner.header.body_crc)
        {
            return Err(bad("the checksum of its content does not match".to_owned()));
        }
        Ok(snapshot)
    }

    pub fn meta(&self) -> &SnapshotMeta {
        &self.inner.header.meta
    }

    /// Returns the bytes of the whole file, as sent in a transfer.
    pub fn len(&self) -> u64 {
        self.inner.header_len + self.inner.header.body_len
    }

    /// Returns false: a snapshot has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Reads at most `max` bytes from `offset`: fewer at the end, none behind the end. Blocks on the disk.
    pub fn read_at(&self, offset: u64, max: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut chunk = vec![0; max.min(left)];
        self.inner.file.read_exact_at(&mut chunk, offset)?;
        Ok(chunk)
    }

    /// Fills `buf` from `offset` on. Blocks on the disk.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.file.read_exact_at(buf, offset)
    }

    /// Decodes the state, or takes the state decoded in advance. Blocks on the disk.
    pub fn state(&self) -> Result<Machine, StorageError> {
        match self.inner.state.lock().take() {
            Some(state) => Ok(state),
            None => self.read_state(Duration::ZERO),
        }
    }

    /// Decodes the state and keeps it for the first call of [`SnapshotFile::state`]. Blocks on the disk.
    pub fn load_state(&self) -> Result<(), StorageError> {
        let state = self.read_state(Duration::ZERO)?;
        *self.inner.state.lock() = Some(state);
        Ok(())
    }

    /// Decodes the state, with pauses, and compares its digest. Blocks on the disk.
    pub fn check_state(&self, digest: u64) -> Result<(), StorageError> {
        if self.read_state(SNAPSHOT_PIECE_PAUSE)?.digest() == digest {
            return Ok(());
        }
        Err(StorageError::BadSnapshot { path: self.path(), why: "it holds another state".to_owned() })
    }

    fn read_state(&self, pause: Duration) -> Result<Machine, StorageError> {
        Machine::decode(&mut Body { pause, ..self.open_body() }).map_err(|error| match error {
            SnapshotError::Io(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                StorageError::Io { action: "reading", path: self.path(), source }
            }
            SnapshotError::Newer(cluster) => {
                StorageError::OtherRelease(OtherRelease { cluster, ours: Versions::of_this_release() })
            }
            SnapshotError::OtherBuild { .. } => {
                StorageError::OtherBuild { path: self.path(), by: OtherBuild(None) }
            }
            SnapshotError::Version(found) => StorageError::FormatVersion {
                path: self.path(),
                found: found.into(),
                expected: SNAPSHOT_VERSION.into(),
            },
            error => StorageError::BadSnapshot { path: self.path(), why: error.to_string() },
        })
    }

    /// Returns a reader of the state machine's encoding. Blocks on the disk.
    pub fn body(&self) -> impl Read + use<> {
        self.open_body()
    }

    fn open_body(&self) -> Body {
        let (snapshot, at) = (self.clone(), self.inner.header_len);
        Body { snapshot, at, chunk: Vec::new(), used: 0, pause: Duration::ZERO }
    }

    pub fn path(&self) -> PathBuf {
        self.inner.dir.path().join(self.name())
    }

    /// Returns true if the file lies in `dir`.
    pub(super) fn is_in(&self, dir: &Path) -> bool {
        self.inner.dir.path() == dir
    }

    pub(super) fn name(&self) -> String {
        match &*self.inner.name.lock() {
            FileName::Temporary(name) | FileName::Kept(name) => name.clone(),
        }
    }

    pub(super) fn keep_as(&self, name: String) {
        *self.inner.name.lock() = FileName::Kept(name);
    }

    /// Frees the disk space in small steps, after the removal of the name. Does nothing while other handles
    /// exist: the file system then frees the space with the last handle. Blocks on the disk.
    pub(super) fn discard(self) -> io::Result<()> {
        let Some(inner) = Arc::into_inner(self.inner) else { return Ok(()) };
        let mut len = inner.file.len()?;
        while len > SNAPSHOT_CUT_BYTES {
            len -= SNAPSHOT_CUT_BYTES;
            inner.file.set_len(len)?;
            worker::pause(SNAPSHOT_CUT_PAUSE);
        }
        Ok(())
    }

    fn body_crc(&self) -> io::Result<u32> {
        let mut hasher = crc32fast::Hasher::new();
        let mut at = self.inner.header_len;
        while at < self.len() {
            let chunk = self.read_at(at, CHUNK_BYTES)?;
            assert!(!chunk.is_empty(), "a read before the end gives bytes");
            hasher.update(&chunk);
            at += chunk.len() as u64;
        }
        assert_eq!(at, self.len(), "the checksum is of the whole body");
        Ok(hasher.finalize())
    }
}

impl Drop for OpenSnapshot {
    fn drop(&mut self) {
        if let FileName::Temporary(name) = self.name.get_mut() {
            let _ = self.dir.remove(name); // the next start removes what is left over
        }
    }
}

struct Body {
    snapshot: SnapshotFile,
    at: u64,
    chunk: Vec<u8>,
    used: usize,
    /// Pause after each chunk, which leaves processor and disk to other work.
    pause: Duration,
}

impl Read for Body {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.used == self.chunk.len() {
            self.chunk = self.snapshot.read_at(self.at, CHUNK_BYTES)?;
            self.used = 0;
            self.at += self.chunk.len() as u64;
            if !self.pause.is_zero() {
                worker::pause(self.pause);
            }
        }
        assert!(self.used <= self.chunk.len(), "no more is used than was read");
        let count = buf.len().min(self.chunk.len() - self.used);
        buf[..count].copy_from_slice(&self.chunk[self.used..self.used + count]);
        self.used += count;
        Ok(count)
    }
}

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
