//! A segment of the history as a sled database: blocks of entries.
//!
//! A separate record would cost sled 6 to 10 µs and 350 bytes, so sled stores blocks. sled rewrites a leaf of
//! a tree with every tenth change and splits a leaf of more than 16 keys, which multiplies the written bytes
//! by five; so each block is a separate tree, written once. Measured: docs/decisions/history-in-sled.md.
//!
//! Only this file uses sled. sled opens files and starts threads by itself, without `env`, so a simulated
//! node uses a file per block instead.
//!
//! Invariant: sled opens only a new database, or files with the checksums of a cleanly closed database
//! (`footer.rs`). sled panics on most damaged files, and the panic ends the node:
//! docs/decisions/history-in-sled.md.

use std::path::Path;
use std::thread;
use std::time::Duration;

use rowlock_env::disk::Dir;
use rowlock_env::world;

use super::block::BLOCK_MAX_BYTES;
use super::error::HistoryError;

/// sled's page cache for a segment, in bytes.
const CACHE_BYTES: u64 = 2 << 20;
/// sled's file of pages, locked while open.
const SLED_FILE: &str = "db";
/// Key of the block in its tree.
const BLOCK: &str = "block";
/// Bound of sled's inline values: a quarter of sled's segment, without a header. sled writes longer values to
/// separate files.
const SLED_VALUE_MAX_BYTES: usize = (512 << 10) / 4 - 1_024;
const _: () = assert!(lz4_flex::block::get_maximum_output_size(BLOCK_MAX_BYTES) < SLED_VALUE_MAX_BYTES);
/// Attempts to lock a closed database, until sled's own threads have released the files.
const CLOSE_TRIES: u32 = 2_000;
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

pub(super) enum Table {
    Sled(sled::Db),
    Simulated(Dir),
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
    /// Opens the database in `folder`, or makes an empty database.
    pub fn open(folder: &Path) -> Result<Table, HistoryError> {
        if world::is_simulated() {
            return Ok(Table::Simulated(Dir::open(folder)?));
        }
        let config = sled::Config::new()
            .path(folder)
            .mode(sled::Mode::LowSpace)
            .cache_capacity(CACHE_BYTES)
            // Flushes only on closing: an unclosed database is never read again.
            .flush_every_ms(None);
        Ok(Table::Sled(config.open()?))
    }

    /// Stores a block under `number`, and replaces an earlier block with the same number.
    pub fn append(&self, number: usize, block: &[u8]) -> Result<(), HistoryError> {
        let tree = tree(number);
        match self {
            Table::Sled(db) => drop(db.open_tree(tree)?.insert(BLOCK, block)?),
            Table::Simulated(folder) => {
                if folder.exists(&tree) {
                    folder.remove(&tree)?;
                }
                folder.create_new(&tree)?.write_all_at(block, 0)?;
            }
        }
        Ok(())
    }

    pub fn get(&self, number: usize) -> Result<sled::IVec, HistoryError> {
        let tree = tree(number);
        let found = match self {
            Table::Sled(db) => db.open_tree(tree)?.get(BLOCK)?,
            Table::Simulated(folder) if folder.exists(&tree) => Some(folder.read(&tree)?.into()),
            Table::Simulated(_) => None,
        };
        found.ok_or_else(|| HistoryError::Damaged("a block is missing".to_owned()))
    }

    /// Flushes the database, and waits until sled has released the files in `folder`, the folder of the
    /// database.
    pub fn close(self, folder: &Dir) -> Result<(), HistoryError> {
        let Table::Sled(db) = self else { return Ok(()) };
        db.flush()?;
        drop(db);
        for _ in 0..CLOSE_TRIES {
            // sled's threads hold the file and its lock until the last thread has finished.
            if folder.lock(SLED_FILE).is_ok() {
                return Ok(());
            }
            thread::park_timeout(CLOSE_PAUSE);
        }
        Err(HistoryError::Sled("it does not release its files".to_owned()))
    }
}

fn tree(number: usize) -> String {
    format!("{number:08}")
}
