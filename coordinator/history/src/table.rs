//! One segment of the history as a sled database: blocks of records, and gaps.
//!
//! A record of its own costs sled 6 to 10 µs and 350 bytes, so it gets blocks. It writes a leaf of a tree
//! again with every tenth change and splits it beyond 16 keys, which makes five bytes of one; so each block
//! is a tree of its own, a *tree*, which it writes once. Measured: docs/decisions/history-in-sled.md.
//!
//! The only file that knows sled. sled opens files and starts threads by itself, past `env`, so a caller runs
//! this on a worker thread of a real node, never in a simulation (clippy cannot see what a dependency
//! does inside).
//!
//! Invariant: sled opens only what it has just created, or files whose checksums are those of a database that
//! it has closed in order (`footer.rs`). It panics on most damaged files, which ends the node:
//! docs/decisions/history-in-sled.md.

use std::path::Path;
use std::thread;
use std::time::Duration;

use rowlock_env::disk::Dir;

use super::block::{BLOCK_MAX_BYTES, Head};
use super::chunk::{Chunks, chunks};
use super::error::HistoryError;
use super::record::{Gap, Key};

/// sled's page cache for one segment.
const CACHE_BYTES: u64 = 2 << 20;
/// sled's file of pages, which it locks while it is open.
const SLED_FILE: &str = "db";
/// The tree of a block, behind it the block's number.
const TREE: &str = "shelf-";
const GAPS: &str = "gaps";
/// sled keeps what is longer in a file apart: a quarter of its segment, without a header.
const SLED_VALUE_MAX_BYTES: usize = (512 << 10) / 4 - 1_024;
const _: () = assert!(BLOCK_MAX_BYTES < SLED_VALUE_MAX_BYTES);
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

/// Which block of a segment, counted from its oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockNumber(pub usize);

impl BlockNumber {
    fn tree(self) -> String {
        format!("{TREE}{:08}", self.0)
    }
}

pub(super) struct Table {
    db: sled::Db,
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
            // What is not closed is never read again, so nothing is flushed before.
            .flush_every_ms(None);
        Ok(Table { db: config.open()? })
    }

    /// Stores a block of chunks; the same again replaces it.
    pub fn put_block(&self, number: BlockNumber, first: Key, bytes: &[u8]) -> Result<(), HistoryError> {
        assert!(bytes.len() <= BLOCK_MAX_BYTES, "Invariant: blocks are bounded");
        self.db.open_tree(number.tree())?.insert(first.encode(), bytes)?;
        Ok(())
    }

    /// A block that [`Table::heads`] knows.
    pub fn block(&self, number: BlockNumber, first: Key) -> Result<Vec<u8>, HistoryError> {
        let found = self.db.open_tree(number.tree())?.get(first.encode())?;
        let block = found.ok_or_else(|| HistoryError::Damaged("a block is not there".to_owned()))?;
        Ok(block.to_vec())
    }

    /// Looks through all blocks, oldest first.
    pub fn heads(&self) -> Result<Vec<Head>, HistoryError> {
        let names = self.db.tree_names();
        let mut trees: Vec<_> = names.into_iter().filter(|name| name.starts_with(TREE.as_bytes())).collect();
        trees.sort();
        let mut heads = Vec::new();
        for tree in trees {
            if *tree != *BlockNumber(heads.len()).tree().as_bytes() {
                return Err(HistoryError::Damaged("a block is missing before others".to_owned()));
            }
            for block in self.db.open_tree(tree)?.iter() {
                let (_, bytes) = block?;
                heads.push(head_of(chunks(&bytes))?);
            }
        }
        Ok(heads)
    }

    /// Stores a gap; the same key again replaces it.
    pub fn put_gap(&self, key: Key, value: &[u8]) -> Result<(), HistoryError> {
        self.db.open_tree(GAPS)?.insert(key.encode(), value)?;
        Ok(())
    }

    /// All gaps, oldest first.
    pub fn gaps(&self) -> Result<Vec<(Key, Gap)>, HistoryError> {
        let read = |item: Result<(sled::IVec, sled::IVec), sled::Error>| {
            let (key, value) = item?;
            Ok((Key::decode(&key)?, Gap::decode(&value)?))
        };
        self.db.open_tree(GAPS)?.iter().map(read).collect()
    }

    /// Writes everything out and waits until sled has let go of the files in `folder`, which are those that
    /// it opened.
    pub fn close(self, folder: &Dir) -> Result<(), HistoryError> {
        self.db.flush()?;
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

fn head_of(mut chunks: Chunks<'_>) -> Result<Head, HistoryError> {
    let empty = || HistoryError::Damaged("a block is empty".to_owned());
    let first = chunks.next().ok_or_else(empty)??;
    let mut head = Head::of(&first, None)?;
    for chunk in chunks {
        head.add(&chunk?, None)?;
    }
    Ok(head)
}
