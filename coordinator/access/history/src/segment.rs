//! The open segment under writing, and copies of closed segments for reading.

use std::borrow::Cow;

use rowlock_env::disk::Dir;
use rowlock_proto::Zxid;

use super::block::{Block, Encoded, Head, decompress};
use super::error::HistoryError;
use super::footer::{BLOCKS_MAX, Footer, Names};
use super::query::Range;
use super::record::Key;
use super::table::Table;

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
