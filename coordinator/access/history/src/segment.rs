//! The open segment under writing, and copies of closed segments for reading.
//!
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

use std::borrow::Cow;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rowlock_env::disk::Dir;
use rowlock_env::world;
use rowlock_proto::Zxid;

use super::block::{BLOCK_MAX_BYTES, Block, Encoded, Head, decompress};
use super::footer::{BLOCKS_MAX, Footer, Names};
use super::query::Range;
use super::record::{HistoryError, Key};

/// File with the number of the segment during its opening with sled. A leftover file at start means that the
/// node went down while opening the segment.
const OPENING: &str = "OPENING";

/// The segment under writing.
///
/// Invariant: the folder has no footer, so a start never reopens the leftovers of a crash. The log restores
/// the lost entries, or the store declares a gap. So the last block may stay in memory until full.
pub(super) struct OpenSegment {
    folder: Dir,
    table: Table,
    /// Summary of the blocks in the table.
    footer: Footer,
    tail: Block,
}

impl OpenSegment {
    /// Makes an empty segment in an empty folder.
    pub fn new(folder: Dir) -> Result<OpenSegment, HistoryError> {
        let (table, footer) = (Table::open(folder.path())?, Footer::default());
        Ok(OpenSegment { folder, table, footer, tail: Block::default() })
    }

    /// Continues a closed segment in a copy, in an empty folder.
    pub fn resume(history: &Dir, origin: Footer, folder: Dir) -> Result<OpenSegment, HistoryError> {
        let table = open_copy(history, &origin, &folder)?;
        let mut footer = Footer { replaces: Some(origin.number), ..origin };
        // The last block may be short.
        let head = footer.blocks.pop();
        let last = table.get(footer.blocks.len())?;
        footer.payload_bytes -= last.len() as u64;
        let tail = Block { head, bytes: decompress(&last)? };
        Ok(OpenSegment { folder, table, footer, tail })
    }

    /// Appends an entry with a key above all earlier keys.
    pub fn append(&mut self, item: &Encoded<'_>) -> Result<(), HistoryError> {
        if !self.tail.has_room(item.bytes.len()) {
            self.store_tail()?;
        }
        self.tail.add(item);
        self.footer.names.add(&item.subject);
        Ok(())
    }

    fn store_tail(&mut self) -> Result<(), HistoryError> {
        let Some(head) = self.tail.head.take() else { return Ok(()) };
        let block = self.tail.compressed();
        self.table.append(self.footer.blocks.len(), &block)?;
        self.tail.bytes.clear();
        self.footer.payload_bytes += block.len() as u64;
        self.footer.blocks.push(head);
        Ok(())
    }

    /// Returns true if the blocks have `payload_bytes` in total, with the last block uncompressed.
    pub fn is_full(&self, payload_bytes: u64) -> bool {
        self.footer.payload_bytes + self.tail.bytes.len() as u64 >= payload_bytes
            || self.footer.blocks.len() >= BLOCKS_MAX
    }

    pub fn first(&self) -> Option<Key> {
        self.footer.blocks.first().or(self.tail.head.as_ref()).map(|head| head.first)
    }

    pub fn names(&self) -> &Names {
        &self.footer.names
    }

    /// Closes the segment and writes the footer into its folder.
    pub fn close(mut self, number: u64, covered: Zxid) -> Result<Footer, HistoryError> {
        self.store_tail()?;
        self.table.close(&self.folder)?;
        let mut footer = Footer { number, covered, ..self.footer };
        footer.write(&self.folder)?;
        Ok(footer)
    }

    pub fn reader(&self) -> Reader<'_> {
        Reader { table: &self.table, heads: &self.footer.blocks, tail: Some(&self.tail) }
    }
}

/// A copy of a closed segment, opened for reading.
pub(super) struct View {
    pub number: u64,
    folder: Dir,
    table: Table,
    heads: Vec<Head>,
}

impl View {
    /// Copies the segment into an empty folder, verifies the files, and opens the copy.
    pub fn open(history: &Dir, footer: &Footer, folder: Dir) -> Result<View, HistoryError> {
        let table = open_copy(history, footer, &folder)?;
        Ok(View { number: footer.number, folder, table, heads: footer.blocks.clone() })
    }

    pub fn reader(&self) -> Reader<'_> {
        Reader { table: &self.table, heads: &self.heads, tail: None }
    }

    pub fn close(self) -> Result<(), HistoryError> {
        self.table.close(&self.folder)?;
        Ok(self.folder.remove_all()?)
    }
}

fn open_copy(history: &Dir, footer: &Footer, folder: &Dir) -> Result<Table, HistoryError> {
    let from = Dir::open(&history.path().join(folder_name(footer.number)))?;
    footer.copy_verified(&from, folder)?;
    // Not flushed: the file matters after the death of the process, not after a loss of power.
    let marker = history.create_new(OPENING)?;
    marker.write_all_at(footer.number.to_string().as_bytes(), 0)?;
    let table = Table::open(folder.path());
    history.remove(OPENING)?;
    table
}

/// Returns the segment whose opening has ended the node, if any, and removes the file.
pub(super) fn take_opening(history: &Dir) -> Option<u64> {
    let text = history.read(OPENING).ok()?;
    if let Err(error) = history.remove(OPENING) {
        tracing::warn!(%error, "cannot remove a mark in the history's folder");
    }
    std::str::from_utf8(&text).ok()?.parse().ok()
}

pub(super) fn folder_name(number: u64) -> String {
    format!("segment-{number:010}")
}

/// Parses the number in a folder's name.
pub(super) fn number_of(folder: &str) -> Option<u64> {
    folder.strip_prefix("segment-")?.parse().ok()
}

pub(super) struct Reader<'a> {
    table: &'a Table,
    /// Summary of the blocks in the table.
    heads: &'a [Head],
    tail: Option<&'a Block>,
}

impl<'a> Reader<'a> {
    /// Returns the blocks in `range` with their numbers, newest first.
    pub fn blocks(&self, range: Range) -> impl Iterator<Item = (usize, &'a Head)> + use<'a> {
        let tail = self.tail.and_then(|tail| tail.head.as_ref()).map(|head| (self.heads.len(), head));
        let all = tail.into_iter().chain(self.heads.iter().enumerate().rev());
        all.filter(move |(_, head)| range.meets(head.first, head.last))
    }

    /// Returns the entries of a block found by [`Reader::blocks`].
    pub fn block(&self, number: usize) -> Result<Cow<'a, [u8]>, HistoryError> {
        match self.tail.filter(|_| number == self.heads.len()) {
            Some(tail) => Ok(Cow::Borrowed(&tail.bytes)),
            None => Ok(Cow::Owned(decompress(&self.table.get(number)?)?)),
        }
    }
}

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
