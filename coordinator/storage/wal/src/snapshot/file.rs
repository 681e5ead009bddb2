//! An open snapshot file, shared by its readers. Any reader may read any offset.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::decides;
use rowlock_env::disk::{Dir, File};
use rowlock_env::worker;
use rowlock_state::version::{OtherRelease, Versions};
use rowlock_state::{Machine, SNAPSHOT_VERSION, SnapshotError};

use super::format::{FIXED_BYTES, FORMAT_VERSION, FormatError, SnapshotHeader};
use crate::entry::SnapshotMeta;
use crate::error::StorageError;
use crate::identity::Identity;
use crate::layout::OtherBuild;
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
