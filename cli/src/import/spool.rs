//! Tree of a live cluster in an unnamed file: three passes read the tree, and a large tree should not stay in
//! memory. The file holds znodes in the format of ZooKeeper's snapshots.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use rowlock_client::Acl;
use rowlock_env::disk::{Dir, File};
use rowlock_env::rng;
use rustix::fs::{Mode, chmod};

use super::record::Record;
use super::snapshot::{Acls, Snapshot, SnapshotError};

const CHUNK_BYTES: usize = 256 << 10;

/// Writer of znodes, parents first.
pub struct Spool {
    file: File,
    written: u64,
    buffer: BytesMut,
    indexes: BTreeMap<Arc<Vec<Acl>>, i64>,
}

impl Spool {
    /// Creates an empty spool. Only this process can open the file, which disappears with the process.
    pub fn new() -> std::io::Result<Spool> {
        let folder: PathBuf = std::env::temp_dir().join(format!("rowlock-import-{:016x}", rng::u64()));
        let folder = Dir::create(&folder)?;
        chmod(folder.path(), Mode::RWXU)?;
        let file = folder.create_new("znodes")?;
        folder.remove_all()?;
        Ok(Spool { file, written: 0, buffer: BytesMut::new(), indexes: BTreeMap::new() })
    }

    pub fn add(&mut self, record: &Record) -> std::io::Result<()> {
        let next = self.indexes.len() as i64;
        let index = *self.indexes.entry(record.acl.clone()).or_insert(next);
        self.write_path(if record.path == "/" { "" } else { &record.path });
        match &record.data {
            None => self.buffer.put_i32(-1),
            Some(data) => {
                self.write_length(data.len());
                self.buffer.put_slice(data);
            }
        }
        self.buffer.put_i64(index);
        self.buffer.put_i64(record.zxid);
        self.buffer.put_bytes(0, 3 * 8);
        self.buffer.put_i32(record.version);
        self.buffer.put_i32(record.creates);
        self.buffer.put_i32(0);
        self.buffer.put_i64(record.kind.to_owner());
        self.buffer.put_i64(0);
        if self.buffer.len() >= CHUNK_BYTES { self.flush() } else { Ok(()) }
    }

    pub fn finish(mut self) -> Result<Snapshot, SnapshotError> {
        self.write_path("/");
        self.flush()?;
        let acls: Acls = self.indexes.into_iter().map(|(acl, index)| (index, acl)).collect();
        Snapshot::of_znodes(self.file, acls)
    }

    fn write_path(&mut self, path: &str) {
        self.write_length(path.len());
        self.buffer.put_slice(path.as_bytes());
    }

    fn write_length(&mut self, length: usize) {
        self.buffer.put_i32(i32::try_from(length).expect("the length came in a frame far below 2 GiB"));
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.write_all_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::record::Lifetime;
    use super::*;

    #[test]
    fn znodes_come_back_as_they_went_in() {
        let open = Arc::new(Acl::open());
        let record = |path: &str, data: Option<&'static [u8]>, kind| Record {
            path: path.to_owned(),
            data: data.map(Into::into),
            acl: open.clone(),
            kind,
            version: 3,
            creates: 7,
            zxid: 11,
        };
        let all = [
            record("/", None, Lifetime::Persistent),
            record("/a", Some(b""), Lifetime::Container),
            record("/a/b", Some(&[7; 300_000]), Lifetime::Ttl(Duration::from_millis(5))),
            record("/c", Some(b"x"), Lifetime::Ephemeral),
        ];
        let mut spool = Spool::new().unwrap();
        for record in &all {
            spool.add(record).unwrap();
        }
        let snapshot = spool.finish().unwrap();
        for _pass in 0..2 {
            let mut records = snapshot.records();
            for record in &all {
                assert_eq!(records.next().unwrap().as_ref(), Some(record));
            }
            assert!(records.next().unwrap().is_none());
        }
    }
}
