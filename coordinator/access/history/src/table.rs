//! One segment of the history as a sled database: blocks of entries.
//!
//! A record of its own costs sled 6 to 10 µs and 350 bytes, so it gets blocks. It writes a leaf of a tree
//! again with every tenth change and splits it beyond 16 keys, which makes five bytes of one; so each block
//! is a tree of its own, a *tree*, which it writes once. Measured: docs/decisions/history-in-sled.md.
//!
//! The only file that knows sled. sled opens files and starts threads by itself, past `env`, so a simulated
//! node has a file per block in its place.
//!
//! Invariant: sled opens only what it has just created, or files whose checksums are those of a database that
//! it has closed in order (`footer.rs`). It panics on most damaged files, which ends the node:
//! docs/decisions/history-in-sled.md.

use std::path::Path;
use std::thread;
use std::time::Duration;

use rowlock_env::disk::Dir;
use rowlock_env::world;

use super::block::BLOCK_MAX_BYTES;
use super::error::HistoryError;

/// sled's page cache for one segment.
const CACHE_BYTES: u64 = 2 << 20;
/// sled's file of pages, which it locks while it is open.
const SLED_FILE: &str = "db";
/// Key of the block in its tree.
const BLOCK: &str = "block";
/// sled keeps what is longer in a file apart: a quarter of its segment, without a header.
const SLED_VALUE_MAX_BYTES: usize = (512 << 10) / 4 - 1_024;
const _: () = assert!(lz4_flex::block::get_maximum_output_size(BLOCK_MAX_BYTES) < SLED_VALUE_MAX_BYTES);
/// Waits for sled's own threads to let go of a closed database: so often, so long.
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
    /// Opens the database in `folder`, or makes an empty one.
    pub fn open(folder: &Path) -> Result<Table, HistoryError> {
        if world::is_simulated() {
            return Ok(Table::Simulated(Dir::open(folder)?));
        }
        let config = sled::Config::new()
            .path(folder)
            .mode(sled::Mode::LowSpace)
            .cache_capacity(CACHE_BYTES)
            // What is not closed is never read again, so nothing is flushed before.
            .flush_every_ms(None);
        Ok(Table::Sled(config.open()?))
    }

    /// Stores the block of this number; the same again replaces it.
    pub fn put(&self, number: usize, block: &[u8]) -> Result<(), HistoryError> {
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
        found.ok_or_else(|| HistoryError::Damaged("a block is not there".to_owned()))
    }

    /// Writes everything out and waits until sled has let go of the files in `folder`, which are those that
    /// it opened.
    pub fn close(self, folder: &Dir) -> Result<(), HistoryError> {
        let Table::Sled(db) = self else { return Ok(()) };
        db.flush()?;
        drop(db);
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

fn tree(number: usize) -> String {
    format!("{number:08}")
}
