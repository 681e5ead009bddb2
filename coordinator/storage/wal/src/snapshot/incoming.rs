//! A growing snapshot file: bytes arrive in order, from another node or from the local state machine.

use std::io::{self, Write};
use std::path::PathBuf;

use rowlock_env::disk::{Dir, File};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::worker;

use super::file::SnapshotFile;
use super::format::SnapshotHeader;
use crate::entry::SnapshotMeta;
use crate::error::StorageError;
use crate::identity::Identity;
use crate::limits::{SNAPSHOT_PIECE_BYTES, SNAPSHOT_PIECE_PAUSE};

/// Receiver of a snapshot file's bytes. A drop before [`Incoming::finish`] removes the file.
#[derive(Debug)]
pub struct Incoming {
    dir: Dir,
    identity: Identity,
    name: String,
    file: Option<File>,
    len: u64,
}

impl Incoming {
    pub(super) fn create(dir: Dir, identity: Identity, name: String) -> Result<Incoming, StorageError> {
        let file = dir.create_new(&name).map_err(StorageError::io("creating", &dir.path().join(&name)))?;
        Ok(Incoming { dir, identity, name, file: Some(file), len: 0 })
    }

    /// Returns the received bytes: the offset of the next chunk.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a chunk. Blocks on the disk.
    pub fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.file().write_all_at(chunk, self.len)?;
        // Spreads the disk writes: a single large write at the end would delay the log's next flush.
        self.file().begin_writing_out(self.len, chunk.len() as u64);
        self.len += chunk.len() as u64;
        Ok(())
    }

    /// Flushes and verifies the complete file. The result is still temporary:
    /// [`SnapshotStore::keep`](super::SnapshotStore::keep) gives the final name. Blocks on the disk.
    pub fn finish(mut self) -> Result<SnapshotFile, StorageError> {
        if !mutant::is(Mutant::SnapshotNotFlushed) {
            self.file().sync_all().map_err(StorageError::io("flushing", &self.path()))?;
        }
        let file = self.file.take().expect("Invariant: taken only here");
        SnapshotFile::verify(&self.dir, &self.name, file, true, &self.identity).inspect_err(|_| self.remove())
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("Invariant: taken only by finish, which takes self")
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }

    fn remove(&self) {
        let _ = self.dir.remove(&self.name); // the next start removes what is left over
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.file.is_some() {
            self.remove();
        }
    }
}

/// Writer of a snapshot: the body first, behind a gap for the header, then the header. Pauses between pieces:
/// the node serves requests meanwhile.
pub(super) struct Outgoing {
    incoming: Incoming,
    header: SnapshotHeader,
    header_len: u64,
    crc: crc32fast::Hasher,
    buffer: Vec<u8>,
}

impl Outgoing {
    pub(super) fn new(incoming: Incoming, meta: SnapshotMeta) -> Outgoing {
        let (cluster_hash, node) = (incoming.identity.cluster_hash(), incoming.identity.node.0);
        let header = SnapshotHeader { cluster_hash, node, meta, body_len: 0, body_crc: 0 };
        let header_len = header.encode().len() as u64;
        let mut outgoing =
            Outgoing { incoming, header, header_len, crc: crc32fast::Hasher::new(), buffer: Vec::new() };
        outgoing.incoming.len = header_len;
        outgoing
    }

    pub(super) fn finish(mut self) -> Result<SnapshotFile, StorageError> {
        let path = self.incoming.path();
        self.flush().map_err(StorageError::io("writing", &path))?;
        assert!(self.incoming.len >= self.header_len, "the body is behind the header");
        self.header.body_len = self.incoming.len - self.header_len;
        self.header.body_crc = self.crc.finalize();
        let header = self.header.encode();
        assert_eq!(header.len() as u64, self.header_len, "lengths and checksums have fixed places");
        self.incoming.file().write_all_at(&header, 0).map_err(StorageError::io("writing", &path))?;
        self.incoming.finish()
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.crc.update(bytes);
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= SNAPSHOT_PIECE_BYTES {
            self.flush()?;
            worker::pause(SNAPSHOT_PIECE_PAUSE);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.incoming.write(&self.buffer)?;
        self.buffer.clear();
        assert!(self.incoming.len >= self.header_len, "the body is behind the header");
        Ok(())
    }
}
