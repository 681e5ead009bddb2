//! Snapshots on the disk, as sources and sinks of transfers.

use std::io;

use rowlock_wal::{Incoming, SnapshotFile, SnapshotStore};

use super::rpc::{IncomingSnapshot, SnapshotSink};
use super::snapshot_transfer::SnapshotSource;

impl SnapshotSource for SnapshotFile {
    fn total_bytes(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        SnapshotFile::read_exact_at(self, buf, offset)
    }
}

impl SnapshotSink for SnapshotStore {
    type Data = SnapshotFile;
    type Incoming = Incoming;

    fn begin(&self) -> io::Result<Incoming> {
        Ok(self.begin_receive()?)
    }
}

impl IncomingSnapshot for Incoming {
    type Data = SnapshotFile;

    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        Incoming::write(self, data)
    }

    /// Also decodes the state: openraft stops the node when an installed snapshot cannot be decoded.
    fn finish(self) -> io::Result<SnapshotFile> {
        let snapshot = Incoming::finish(self)?;
        snapshot.load_state()?;
        Ok(snapshot)
    }
}
