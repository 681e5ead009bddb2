//! One slice of the history as a sled database: records by key, and where those of a lock and of a session are.
//!
//! The only file that knows sled. sled opens files and starts threads by itself, past `env`, so whoever uses this does
//! it on a worker thread of a real node, never in a simulation (clippy cannot see what a dependency does inside).
//!
//! Invariant: sled opens only what it has just created, or files whose checksums are those of a database that it has
//! closed in order (`seal.rs`). It panics on most damaged files, which ends the node: docs/decisions/history-in-sled.md.

use std::path::Path;
use std::thread;
use std::time::Duration;

use rowlock_env::disk::Dir;
use rowlock_proto::SessionId;

use super::error::HistoryError;
use super::index::Index;
use super::record::{Entry, Key};

/// sled's page cache for one slice.
const CACHE_BYTES: u64 = 2 << 20;
/// sled's file of pages, which it locks while it is open.
const SLED_FILE: &str = "db";
/// Keys that one entry of an index holds.
const CHUNK_KEYS: usize = 128;
/// Waits for sled's own threads to let go of a closed database: so often, so long.
const CLOSE_TRIES: u32 = 2_000;
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

/// Keys from `from` on and before `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub from: Key,
    pub before: Key,
}

impl Range {
    /// Whether the key lies in it.
    pub fn holds(&self, key: &Key) -> bool {
        (self.from..self.before).contains(key)
    }
}

/// Keys, newest first.
pub(super) type Keys<'a> = Box<dyn Iterator<Item = Result<Key, HistoryError>> + 'a>;

/// An open database.
pub(super) struct Table {
    db: sled::Db,
    records: sled::Tree,
}

impl From<sled::Error> for HistoryError {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(error) => HistoryError::Io(error),
            sled::Error::Corruption { .. } => HistoryError::Damaged(format!("sled: {error}")),
            other => HistoryError::Sled(other.to_string()),
        }
    }
}

impl Table {
    /// Opens the database in `folder`, or makes an empty one.
    pub fn open(folder: &Path) -> Result<Table, HistoryError> {
        let config = sled::Config::new()
            .path(folder)
            .mode(sled::Mode::LowSpace)
            .cache_capacity(CACHE_BYTES)
            // What is not sealed is never read again, so nothing is flushed before.
            .flush_every_ms(None);
        let db = config.open()?;
        let records = db.open_tree("records")?;
        Ok(Table { db, records })
    }

    /// Stores one entry; the same key again replaces it.
    pub fn put(&self, key: Key, value: &[u8]) -> Result<(), HistoryError> {
        self.records.insert(key.encode(), value)?;
        Ok(())
    }

    /// The entry of a key.
    pub fn get(&self, key: Key) -> Result<Option<Entry<'static>>, HistoryError> {
        self.records.get(key.encode())?.map(|value| Entry::decode(&value)).transpose()
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = Result<(Key, Entry<'static>), HistoryError>> {
        self.records.iter().map(|item| {
            let (key, value) = item?;
            Ok((Key::decode(&key)?, Entry::decode(&value)?))
        })
    }

    /// The keys of all entries in `range`.
    pub fn keys(&self, range: Range) -> Keys<'_> {
        let keys = self.records.range(range.from.encode()..range.before.encode()).keys().rev();
        Box::new(keys.map(|key| Key::decode(&key?)))
    }

    /// The keys of a lock's entries in `range`, from what [`Table::write_index`] wrote.
    pub fn keys_of_lock(&self, lock: &str, range: Range) -> Result<Keys<'_>, HistoryError> {
        keys_behind(&self.db.open_tree("locks")?, &lock_prefix(lock), range)
    }

    /// The keys of all gaps in `range`, likewise.
    pub fn keys_of_gaps(&self, range: Range) -> Result<Keys<'_>, HistoryError> {
        // No lock's path is empty.
        self.keys_of_lock("", range)
    }

    /// The keys of a session's entries in `range`, likewise.
    pub fn keys_of_session(&self, session: SessionId, range: Range) -> Result<Keys<'_>, HistoryError> {
        keys_behind(&self.db.open_tree("sessions")?, &session.0.to_be_bytes(), range)
    }

    /// Stores where the records are, in order. For a table that is complete.
    pub fn write_index(&self, index: &Index) -> Result<(), HistoryError> {
        let (locks, sessions) = (self.db.open_tree("locks")?, self.db.open_tree("sessions")?);
        for (lock, keys) in std::iter::once(("", index.gaps())).chain(index.locks()) {
            put_keys(&locks, lock_prefix(lock), keys)?;
        }
        for (session, keys) in index.sessions() {
            put_keys(&sessions, session.0.to_be_bytes().to_vec(), keys)?;
        }
        Ok(())
    }

    /// Writes everything out and waits until sled has let go of the files in `folder`, which are those that it opened.
    pub fn close(self, folder: &Dir) -> Result<(), HistoryError> {
        self.db.flush()?;
        drop(self.records);
        drop(self.db);
        for _ in 0..CLOSE_TRIES {
            // sled's threads hold the file, and with it this lock, until the last of them has done its work.
            if folder.lock(SLED_FILE).is_ok() {
                return Ok(());
            }
            thread::park_timeout(CLOSE_PAUSE);
        }
        Err(HistoryError::Sled("it does not let go of its files".to_owned()))
    }
}

fn lock_prefix(lock: &str) -> Vec<u8> {
    // No path holds a NUL, so no lock's prefix begins another's.
    let mut prefix = Vec::with_capacity(lock.len() + 1 + Key::LEN);
    prefix.extend_from_slice(lock.as_bytes());
    prefix.push(0);
    prefix
}

/// Many keys under the first of them: an entry costs sled more than what is in it.
fn put_keys(tree: &sled::Tree, mut prefix: Vec<u8>, keys: &[Key]) -> Result<(), HistoryError> {
    let len = prefix.len();
    for chunk in keys.chunks(CHUNK_KEYS) {
        prefix.truncate(len);
        prefix.extend_from_slice(&chunk[0].encode());
        tree.insert(&prefix, chunk.iter().flat_map(Key::encode).collect::<Vec<u8>>())?;
    }
    Ok(())
}

fn keys_behind(tree: &sled::Tree, prefix: &[u8], range: Range) -> Result<Keys<'static>, HistoryError> {
    let bound = |key: Key| [prefix, &key.encode()].concat();
    let chunks = tree.range(bound(Key::MIN)..bound(range.before)).values().rev();
    let keys =
        chunks.flat_map(|chunk| match chunk.map_err(HistoryError::from).and_then(|chunk| keys_in(&chunk)) {
            Ok(keys) => keys.into_iter().rev().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        });
    let is_later = move |key: &Result<Key, HistoryError>| key.as_ref().is_ok_and(|key| *key >= range.before);
    let is_recent =
        move |key: &Result<Key, HistoryError>| key.as_ref().map_or(true, |key| *key >= range.from);
    Ok(Box::new(keys.skip_while(is_later).take_while(is_recent)))
}

fn keys_in(chunk: &[u8]) -> Result<Vec<Key>, HistoryError> {
    chunk.chunks(Key::LEN).map(Key::decode).collect()
}
