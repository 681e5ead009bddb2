//! Folder of the snapshots: finds the newest usable snapshot at start and keeps the newest snapshot
//! afterwards.
//!
//! A growing snapshot file: bytes arrive in order, from another node or from the local state machine.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rowlock_env::disk::{Dir, File};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::{decides, rng, worker};

use super::file::{SnapshotFile, SnapshotHeader};
use crate::entry::{LogId, SnapshotMeta};
use crate::error::StorageError;
use crate::identity::Identity;
use crate::limits::{SNAPSHOT_PIECE_BYTES, SNAPSHOT_PIECE_PAUSE};

const SUFFIX: &str = ".snapshot";
const DAMAGED_SUFFIX: &str = ".damaged";
const TEMPORARY_SUFFIX: &str = ".tmp";

/// Snapshots of this node. Clones share the store.
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    inner: Arc<StoreState>,
}

#[derive(Debug)]
struct StoreState {
    dir: Dir,
    identity: Identity,
    current: Mutex<Option<SnapshotFile>>,
    /// Older snapshots from the start, the newest last: fallbacks until the newest state has been decoded.
    older: Mutex<Vec<SnapshotFile>>,
    /// Purge position of the log at start.
    purged: Option<LogId>,
    /// Random prefix of temporary files: a stopped node in the same process cannot write or remove the next
    /// node's temporary files.
    start: u64,
    temporaries: AtomicU64,
    /// Set under the lock of `current`: a snapshot under construction then keeps its temporary name.
    is_closed: AtomicBool,
}

impl SnapshotStore {
    /// Finds the newest usable snapshot, which must reach `purged`, the log's beginning. Returns the store
    /// and the names of damaged files; damaged files are renamed and otherwise unchanged.
    pub(crate) fn open(
        dir: Dir,
        identity: Identity,
        purged: Option<LogId>,
    ) -> Result<(SnapshotStore, Vec<String>), StorageError> {
        let found = survey(&dir, &identity)?;
        found.check(&dir, purged)?;
        let path = dir.path().to_owned();
        tidy(&dir, &found).map_err(StorageError::io("tidying", &path))?;
        let damaged = found.damaged.into_iter().map(|(name, _)| name).collect();
        let inner = StoreState {
            dir,
            identity,
            current: Mutex::new(found.usable),
            older: Mutex::new(found.older),
            purged,
            start: rng::u64(),
            temporaries: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        };
        Ok((SnapshotStore { inner: Arc::new(inner) }, damaged))
    }

    /// Returns the newest snapshot with a decodable state, and the names of unusable files. Changes nothing;
    /// decodes the state.
    pub(crate) fn inspect(
        dir: &Dir,
        identity: &Identity,
        purged: Option<LogId>,
    ) -> Result<(Option<SnapshotFile>, Vec<String>), StorageError> {
        let mut found = survey(dir, identity)?;
        found.check(dir, purged)?;
        while let Some(snapshot) = &found.usable {
            match snapshot.state() {
                Ok(_) => break,
                Err(StorageError::BadSnapshot { why, .. }) => {
                    found.damaged.push((snapshot.name(), why));
                    found.usable = found.older.pop();
                    found.check(dir, purged)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((found.usable, found.damaged.into_iter().map(|(name, _)| name).collect()))
    }

    /// Returns all snapshots, oldest first, unless one is damaged. Changes nothing; decodes no state.
    pub(crate) fn survey(dir: &Dir, identity: &Identity) -> Result<Vec<SnapshotFile>, StorageError> {
        let found = survey(dir, identity)?;
        if let Some((name, why)) = found.damaged.into_iter().next() {
            return Err(StorageError::BadSnapshot { path: dir.path().join(name), why });
        }
        let all: Vec<_> = found.older.into_iter().chain(found.usable).collect();
        assert!(all.is_sorted_by_key(|snapshot| snapshot.meta().last_log_id), "the oldest snapshot is first");
        Ok(all)
    }

    pub fn current(&self) -> Option<SnapshotFile> {
        self.inner.current.lock().clone()
    }

    /// Writes a snapshot of the local state, and makes the file the newest snapshot if `check` succeeds.
    /// Blocks on the disk.
    pub fn write(
        &self,
        meta: SnapshotMeta,
        body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
        check: impl FnOnce(&SnapshotFile) -> Result<(), StorageError>,
    ) -> Result<SnapshotFile, StorageError> {
        let mut outgoing = Outgoing::new(self.begin_receive()?, meta);
        body(&mut outgoing).map_err(StorageError::io("writing a snapshot to", self.inner.dir.path()))?;
        let written = outgoing.finish()?;
        check(&written)?;
        self.keep(written)
    }

    /// Removes the older snapshots, once the caller has decoded the newest state. Blocks on the disk.
    pub fn remove_older(&self) {
        self.inner.older.lock().clear();
        let Some(newest) = self.current() else { return };
        if let Err(error) = remove_others(&self.inner.dir, &newest.name()) {
            warn_of_remains(&self.inner.dir, &error);
        }
    }

    /// Renames an undecodable newest snapshot and falls back to the next older snapshot, or to the log alone
    /// if the log reaches back far enough. Changes nothing without a fallback. Blocks on the disk.
    pub fn set_aside_newest(&self, why: &str) -> Result<(), StorageError> {
        let StoreState { dir, current, older, purged, .. } = &*self.inner;
        let (mut current, mut older) = (current.lock(), older.lock());
        let bad = current.as_ref().expect("the caller has read it").name();
        let next = older.last().cloned();
        let damaged = vec![(bad.clone(), why.to_owned())];
        Survey { usable: next, damaged, ..Survey::default() }.check(dir, *purged)?;
        dir.rename(&bad, &set_aside(&bad))
            .and_then(|()| dir.sync())
            .map_err(StorageError::io("renaming", &dir.path().join(&bad)))?;
        tracing::error!(
            name = bad,
            why,
            "an unreadable snapshot was renamed, and an older snapshot or the log replaces it: keep the file, report it, \
             then remove it"
        );
        *current = older.pop();
        Ok(())
    }

    /// Stops all changes of the folder, because the next node of this process may own the folder soon. Waits
    /// for a snapshot during its renaming; a later renaming fails.
    pub fn close(&self) {
        let _current = self.inner.current.lock();
        self.inner.is_closed.store(true, Ordering::Relaxed);
    }

    /// Creates a temporary file for another node's snapshot.
    pub fn begin_receive(&self) -> Result<Incoming, StorageError> {
        let number = self.inner.temporaries.fetch_add(1, Ordering::Relaxed);
        let name = format!("{:016x}-{number}{TEMPORARY_SUFFIX}", self.inner.start);
        Incoming::create(self.inner.dir.clone(), self.inner.identity.clone(), name)
    }

    /// Makes a snapshot the newest, durably, and removes the older snapshots; copies a file from another
    /// folder first. Ignores a snapshot older than the newest. Blocks on the disk.
    pub fn keep(&self, snapshot: SnapshotFile) -> Result<SnapshotFile, StorageError> {
        let dir = &self.inner.dir;
        let snapshot = if snapshot.is_in(dir.path()) { snapshot } else { self.copy(&snapshot)? };
        let mut current = self.inner.current.lock();
        if decides!("snapshot-store-is-closed", self.inner.is_closed.load(Ordering::Relaxed)) {
            let source = io::Error::other("the node has stopped");
            return Err(StorageError::Io { action: "keeping", path: snapshot.path(), source });
        }
        if let Some(newest) = &*current
            && decides!("snapshot-is-outdated", newest.meta().last_log_id > snapshot.meta().last_log_id)
        {
            return Ok(newest.clone());
        }
        let name = file_name(snapshot.meta().last_log_id);
        let path = dir.path().join(&name);
        if snapshot.name() != name {
            let mut renamed = dir.rename(&snapshot.name(), &name);
            if !mutant::is(Mutant::RenameWithoutDirSync) {
                renamed = renamed.and_then(|()| dir.sync());
            }
            renamed.map_err(StorageError::io("renaming", &path))?;
            snapshot.keep_as(name.clone());
        }
        let before = current.replace(snapshot.clone());
        let is_newer = |old: &SnapshotFile| old.meta().last_log_id <= snapshot.meta().last_log_id;
        assert!(before.as_ref().is_none_or(is_newer), "an older snapshot takes the place of a newer one");
        assert_eq!(snapshot.name(), name, "a snapshot is known by the name that it has");
        self.inner.older.lock().clear();
        let removed = remove_others(dir, &name);
        drop(current);
        // Runs without the lock, because tasks wait for the lock. The name is removed durably, so a crash
        // leaves no partial snapshot.
        let discarded = removed
            .and_then(|()| before.filter(|old| old.name() != name).map_or(Ok(()), SnapshotFile::discard));
        if let Err(error) = discarded {
            warn_of_remains(dir, &error);
        }
        Ok(snapshot)
    }

    fn copy(&self, snapshot: &SnapshotFile) -> Result<SnapshotFile, StorageError> {
        let path = snapshot.path();
        let mut incoming = self.begin_receive()?;
        while incoming.len() < snapshot.len() {
            let chunk =
                snapshot.read_at(incoming.len(), 1 << 20).map_err(StorageError::io("reading", &path))?;
            incoming.write(&chunk).map_err(StorageError::io("copying", &path))?;
        }
        assert_eq!(incoming.len(), snapshot.len(), "a copy is as long as its original");
        incoming.finish()
    }
}

fn file_name(last: Option<LogId>) -> String {
    match last {
        Some(LogId { leader_id, index }) => {
            format!("{index:016x}-{:x}-{:x}{SUFFIX}", leader_id.term, leader_id.node_id)
        }
        None => format!("empty{SUFFIX}"),
    }
}

/// Logs a failed removal: the newest snapshot is on disk, and leftovers only occupy space.
fn warn_of_remains(dir: &Dir, error: &io::Error) {
    let path = dir.path().display();
    tracing::warn!(%error, %path, "cannot remove an older snapshot; the next snapshot or start removes it");
}

/// Returns the new name of an unusable file.
fn set_aside(name: &str) -> String {
    Path::new(name).with_extension(&DAMAGED_SUFFIX[1..]).to_string_lossy().into_owned()
}

fn remove_others(dir: &Dir, name: &str) -> io::Result<()> {
    let others: Vec<String> = dir.list()?.into_iter().filter(|n| n.ends_with(SUFFIX) && n != name).collect();
    for other in &others {
        dir.remove(other)?;
    }
    if others.is_empty() { Ok(()) } else { dir.sync() }
}

#[derive(Default)]
struct Survey {
    usable: Option<SnapshotFile>,
    /// Usable, the newest last.
    older: Vec<SnapshotFile>,
    /// Names with their damage.
    damaged: Vec<(String, String)>,
    superfluous: Vec<String>,
}

impl Survey {
    /// Checks the usable snapshot against the log's beginning.
    fn check(&self, dir: &Dir, purged: Option<LogId>) -> Result<(), StorageError> {
        let reaches = |snapshot: &SnapshotFile| snapshot.meta().last_log_id.map(|log_id| log_id.index);
        let Some(purged) = purged.map(|log_id| log_id.index) else { return Ok(()) };
        if decides!("snapshot-reaches-log", self.usable.as_ref().and_then(reaches) >= Some(purged)) {
            return Ok(());
        }
        let usable = match &self.usable {
            Some(snapshot) => format!("{} is too old", snapshot.name()),
            None => "there is none".to_owned(),
        };
        let damaged: Vec<String> = self.damaged.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        let why = format!("the log begins behind index {purged}, {usable}; damaged: {damaged:?}");
        Err(StorageError::NoSnapshot { path: dir.path().to_owned(), why })
    }
}

fn survey(dir: &Dir, identity: &Identity) -> Result<Survey, StorageError> {
    let mut survey = Survey::default();
    for name in dir.list().map_err(StorageError::io("listing", dir.path()))? {
        if name.ends_with(TEMPORARY_SUFFIX) {
            survey.superfluous.push(name);
            continue;
        }
        if !name.ends_with(SUFFIX) {
            continue;
        }
        let file = dir.open_to_read(&name).map_err(StorageError::io("opening", &dir.path().join(&name)))?;
        match SnapshotFile::verify(dir, &name, file, false, identity) {
            Ok(snapshot) => survey.older.push(snapshot),
            Err(StorageError::BadSnapshot { why, .. }) => survey.damaged.push((name, why)),
            // Another build's snapshot, or a failing disk: neither renamed nor replaced by the log.
            Err(error) => return Err(error),
        }
    }
    survey.older.sort_by_key(|snapshot| snapshot.meta().last_log_id);
    survey.usable = survey.older.pop();
    let reach = |snapshot: &SnapshotFile| snapshot.meta().last_log_id;
    let newest = survey.usable.as_ref().map(reach);
    assert!(survey.older.iter().all(|older| Some(reach(older)) <= newest), "the newest snapshot is used");
    Ok(survey)
}

fn tidy(dir: &Dir, found: &Survey) -> io::Result<()> {
    for (name, _) in &found.damaged {
        dir.rename(name, &set_aside(name))?;
    }
    for name in &found.superfluous {
        dir.remove(name)?;
    }
    dir.sync()
}

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
struct Outgoing {
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
