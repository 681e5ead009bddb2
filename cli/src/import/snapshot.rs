//! Reader of Apache ZooKeeper's snapshot files (`snapshot.<zxid>`): a stream of znodes in the order of the
//! file, every znode before its descendants.
//!
//! Format of ZooKeeper 3.8: `ZKSN`, version 2, database id; sessions; the table of ACLs; znodes until the
//! path `/`; Adler-32 of everything before; then, in newer versions, parts unrelated to the tree. Must never
//! trust a length or a count: each is compared with the rest of the file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use rowlock_client::{Acl, Id};
use rowlock_env::disk::{Dir, File};
use simd_adler32::Adler32;

use super::record::{Lifetime, Record};

const MAGIC: i32 = i32::from_be_bytes(*b"ZKSN");
const FORMAT: i32 = 2;
/// Bytes read from the file at a time; a longer field is read whole.
const CHUNK_BYTES: usize = 256 << 10;
/// Index of the ACL of znodes created by ZooKeeper itself.
const OPEN_ACL_INDEX: i64 = -1;

/// Table of ACLs, shared by many znodes.
pub type Acls = BTreeMap<i64, Arc<Vec<Acl>>>;

/// Failure to read a file as a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("is not a ZooKeeper snapshot{0}")]
    NotASnapshot(&'static str),
    #[error("has snapshot format {0}, of which only 2 is known")]
    Format(i32),
    #[error("ends early, at byte {0}: it is damaged, or was still being written")]
    Truncated(u64),
    #[error("is damaged at byte {at}: {problem}")]
    Damaged { at: u64, problem: &'static str },
    #[error("is damaged: its checksum is {expected:#x}, its content has {found:#x}")]
    Checksum { expected: u32, found: u32 },
}

/// Tree on disk, readable any number of times.
#[derive(Debug)]
pub struct Snapshot {
    file: File,
    length: u64,
    acls: Acls,
    start: Position,
    /// True if a checksum follows the znodes.
    is_sealed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    at: u64,
    /// Adler-32 of the bytes before this position.
    checksum: u32,
}

impl Snapshot {
    pub fn open(path: &Path) -> Result<Snapshot, SnapshotError> {
        let (folder, name) = split(path)?;
        let file = Dir::open(folder)?.open_to_read(name)?;
        let length = file.len()?;
        let mut input = Input::new(&file, length, Position { at: 0, checksum: 1 });
        match input.int() {
            Ok(MAGIC) => {}
            Ok(first) => return Err(SnapshotError::NotASnapshot(hint(first))),
            Err(SnapshotError::Truncated(_)) => return Err(SnapshotError::NotASnapshot("")),
            Err(e) => return Err(e),
        }
        match input.int()? {
            FORMAT => {}
            other => return Err(SnapshotError::Format(other)),
        }
        let _database = input.long()?;
        for _ in 0..input.count(12)? {
            let (_session, _timeout_ms) = (input.long()?, input.int()?);
        }
        let mut acls = Acls::new();
        for _ in 0..input.count(12)? {
            let index = input.long()?;
            acls.insert(index, Arc::new(input.acl()?));
        }
        acls.insert(OPEN_ACL_INDEX, Arc::new(Acl::open()));
        let start = input.position();
        Ok(Snapshot { file, length, acls, start, is_sealed: true })
    }

    /// Opens a file of znodes only, written by `walk`, with its ACLs.
    pub(super) fn of_znodes(file: File, acls: Acls) -> Result<Snapshot, SnapshotError> {
        let length = file.len()?;
        let start = Position { at: 0, checksum: 1 };
        Ok(Snapshot { file, length, acls, start, is_sealed: false })
    }

    /// Iterates the znodes from the first one.
    pub fn records(&self) -> Records<'_> {
        let input = Input::new(&self.file, self.length, self.start);
        Records { acls: &self.acls, input, is_sealed: self.is_sealed, is_over: false }
    }
}

pub struct Records<'a> {
    acls: &'a Acls,
    input: Input<'a>,
    is_sealed: bool,
    is_over: bool,
}

impl Records<'_> {
    /// Returns the next znode; `None` after the last znode and a valid checksum.
    pub fn next(&mut self) -> Result<Option<Record>, SnapshotError> {
        if self.is_over {
            return Ok(None);
        }
        let path = self.input.string()?;
        if path == "/" {
            self.is_over = true;
            if self.is_sealed {
                self.check_seal()?;
            }
            return Ok(None);
        }
        let data = self.input.buffer()?;
        let index = self.input.long()?;
        let acl = self.acls.get(&index).ok_or_else(|| self.input.damaged("an unknown ACL"))?.clone();
        let changed = [self.input.long()?, self.input.long()?];
        for _stamp in ["ctime", "mtime"] {
            self.input.long()?;
        }
        let version = self.input.int()?;
        let creates = self.input.int()?;
        let _aversion = self.input.int()?;
        let kind = Lifetime::from_owner(self.input.long()?);
        let pzxid = self.input.long()?;
        let zxid = changed.into_iter().fold(pzxid, i64::max);
        // The root has an empty name in the file.
        let path = if path.is_empty() { "/".to_owned() } else { path };
        Ok(Some(Record { path, data, acl, kind, version, creates, zxid }))
    }

    fn check_seal(&mut self) -> Result<(), SnapshotError> {
        let found = self.input.adler.finish();
        let expected = self.input.long()?;
        match u32::try_from(expected) {
            Ok(expected) if expected == found => Ok(()),
            Ok(expected) => Err(SnapshotError::Checksum { expected, found }),
            Err(_) => Err(self.input.damaged("this is no checksum")),
        }
    }
}

/// Splits a path into folder and file name.
pub fn split(path: &Path) -> Result<(&Path, &str), SnapshotError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or(SnapshotError::NotASnapshot(": this is not the name of a file"))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((folder, name))
}

fn hint(first: i32) -> &'static str {
    match first.to_be_bytes() {
        [0x1f, 0x8b, ..] => ": it is compressed, use gunzip first",
        [0x82, b'S', b'N', b'A'] => ": it is compressed with snappy, decompress it first",
        [b'Z', b'K', b'L', b'G'] => " but a transaction log; use a file named snapshot.<zxid>",
        _ => "",
    }
}

/// Reader of fields, with the checksum of the bytes read.
struct Input<'a> {
    file: &'a File,
    length: u64,
    /// File position at the end of the buffer.
    read_to: u64,
    buffer: BytesMut,
    adler: Adler32,
}

impl<'a> Input<'a> {
    fn new(file: &'a File, length: u64, position: Position) -> Self {
        Input {
            file,
            length,
            read_to: position.at,
            buffer: BytesMut::new(),
            adler: Adler32::from_checksum(position.checksum),
        }
    }

    fn position(&self) -> Position {
        Position { at: self.at(), checksum: self.adler.finish() }
    }

    fn at(&self) -> u64 {
        self.read_to - self.buffer.len() as u64
    }

    fn left(&self) -> u64 {
        self.length.saturating_sub(self.at())
    }

    fn damaged(&self, problem: &'static str) -> SnapshotError {
        SnapshotError::Damaged { at: self.at(), problem }
    }

    fn take(&mut self, count: usize) -> Result<Bytes, SnapshotError> {
        if self.left() < count as u64 {
            return Err(SnapshotError::Truncated(self.length));
        }
        if self.buffer.len() < count {
            let missing = (count - self.buffer.len()).max(CHUNK_BYTES) as u64;
            let missing = usize::try_from(missing.min(self.length - self.read_to)).unwrap_or(usize::MAX);
            let filled = self.buffer.len();
            self.buffer.resize(filled + missing, 0);
            self.file.read_exact_at(&mut self.buffer[filled..], self.read_to)?;
            self.read_to += missing as u64;
        }
        let taken = self.buffer.split_to(count).freeze();
        self.adler.write(&taken);
        Ok(taken)
    }

    fn int(&mut self) -> Result<i32, SnapshotError> {
        Ok(self.take(4)?.get_i32())
    }

    fn long(&mut self) -> Result<i64, SnapshotError> {
        Ok(self.take(8)?.get_i64())
    }

    /// Reads a count of elements with at least `element_bytes` each.
    fn count(&mut self, element_bytes: u64) -> Result<usize, SnapshotError> {
        let count = self.int()?;
        match usize::try_from(count) {
            Ok(count) if count as u64 <= self.left() / element_bytes => Ok(count),
            Ok(_) => Err(SnapshotError::Truncated(self.length)),
            Err(_) if count == -1 => Ok(0),
            Err(_) => Err(self.damaged("a negative count")),
        }
    }

    fn buffer(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        match self.int()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| self.damaged("a negative length"))?;
                self.take(length).map(Some)
            }
        }
    }

    fn string(&mut self) -> Result<String, SnapshotError> {
        let bytes = self.buffer()?.ok_or_else(|| self.damaged("a null string"))?;
        String::from_utf8(bytes.into()).map_err(|_| self.damaged("a string that is not UTF-8"))
    }

    fn acl(&mut self) -> Result<Vec<Acl>, SnapshotError> {
        let mut acl = Vec::new();
        for _ in 0..self.count(12)? {
            let perms = self.int()?;
            let id = Id { scheme: self.string()?, id: self.string()? };
            acl.push(Acl { perms, id });
        }
        Ok(acl)
    }
}

#[cfg(test)]
mod tests {
    use rowlock_world::spoilt::Spoiler;

    use super::*;
    use crate::import::plan::{Pass, Plan};
    use crate::import::target::Target;

    /// Written by Apache ZooKeeper 3.8.0.
    const GOLDEN: &[u8] = include_bytes!("../../../tests/testdata/zookeeper-3.8.0.snapshot");

    fn file(content: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = Dir::open(folder.path()).unwrap().create_new("snapshot.1").unwrap();
        file.write_all_at(content, 0).unwrap();
        let path = folder.path().join("snapshot.1");
        (folder, path)
    }

    fn read(content: &[u8]) -> Result<Vec<Record>, SnapshotError> {
        let (_folder, path) = file(content);
        let snapshot = Snapshot::open(&path)?;
        let mut records = snapshot.records();
        let mut all = Vec::new();
        while let Some(record) = records.next()? {
            all.push(record);
        }
        Ok(all)
    }

    #[test]
    fn a_file_of_zookeeper_gives_its_znodes_parents_first() {
        let all = read(GOLDEN).unwrap();
        assert_eq!(all.len(), 47);
        let kinds = |kind: fn(&Lifetime) -> bool| all.iter().filter(|record| kind(&record.kind)).count();
        assert_eq!(kinds(|kind| *kind == Lifetime::Container), 2);
        assert_eq!(kinds(|kind| *kind == Lifetime::Ephemeral), 2);
        assert_eq!(kinds(|kind| matches!(kind, Lifetime::Ttl(_))), 3);
        let by_path = |path: &str| all.iter().find(|record| record.path == path).unwrap();
        assert_eq!((by_path("/app").version, by_path("/queue").creates), (3, 12));
        assert_eq!((&by_path("/app/null").data, &by_path("/app/empty").data), (&None, &Some(Bytes::new())));
        assert_eq!(by_path("/lease").kind, Lifetime::Ttl(std::time::Duration::from_secs(86_400)));
        assert_eq!(*by_path("/deep").acl, Acl::open());
        for (at, record) in all.iter().enumerate().skip(1) {
            let parent = rowlock_proto::path::parent(&record.path).unwrap();
            assert!(all[..at].iter().any(|before| before.path == parent), "{}", record.path);
        }
    }

    #[test]
    fn every_damage_is_detected() {
        // Nothing after the first checksum is read.
        let sealed = GOLDEN.len() - 46;
        for at in (0..sealed).step_by(11) {
            let mut bytes = GOLDEN.to_vec();
            bytes[at] ^= 0x10;
            assert!(read(&bytes).is_err(), "byte {at}");
            assert!(read(&GOLDEN[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn other_file_types_are_named_in_the_error() {
        for (content, text) in [
            (
                &b"\x1f\x8b\x08\x00....."[..],
                "is not a ZooKeeper snapshot: it is compressed, use gunzip first",
            ),
            (
                b"ZKLG\0\0\0\x02",
                "is not a ZooKeeper snapshot but a transaction log; use a file named snapshot.<zxid>",
            ),
            (b"", "is not a ZooKeeper snapshot"),
            (b"ZKSN\0\0\0\x09", "has snapshot format 9, of which only 2 is known"),
        ] {
            assert_eq!(read(content).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn a_damaged_file_is_refused_or_planned_even_if_resealed() {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::open(folder.path()).unwrap();
        let target = Target { under: "/".to_owned(), versions_max: Some(10) };
        let planned = |bytes: &[u8]| {
            dir.create_new("snapshot.1").unwrap().write_all_at(bytes, 0).unwrap();
            let snapshot = Snapshot::open(&folder.path().join("snapshot.1"));
            dir.remove("snapshot.1").unwrap();
            let (snapshot, mut plan) = (snapshot?, Plan::new(Pass::Before, 0));
            let mut records = snapshot.records();
            while let Some(record) = records.next()? {
                plan.add(&record, None, &target);
            }
            plan.finish(&target);
            Ok::<Plan, SnapshotError>(plan)
        };
        let (mut spoiler, mut read, mut refused) = (Spoiler::new(6), 0, 0);
        for _ in 0..2_000 {
            let mut bytes = spoiler.spoil(GOLDEN);
            let mut outcome = planned(&bytes);
            if let Err(SnapshotError::Checksum { expected, found }) = outcome {
                let [old, new] = [expected, found].map(|sum| i64::from(sum).to_be_bytes());
                let at = bytes.windows(8).rposition(|window| window == old).unwrap();
                bytes[at..at + 8].copy_from_slice(&new);
                outcome = planned(&bytes);
            }
            match outcome {
                Ok(plan) => read += usize::from(plan.znodes > 0),
                Err(_) => refused += 1,
            }
        }
        assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
    }
}
