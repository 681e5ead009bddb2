//! The segment that is being written, and copies of closed ones that are being read.

use std::borrow::Cow;

use rowlock_env::disk::Dir;
use rowlock_proto::Zxid;

use super::block::{Block, Encoded, Head, decompress};
use super::error::HistoryError;
use super::footer::{BLOCKS_MAX, Footer, Names};
use super::query::Range;
use super::record::Key;
use super::table::Table;

/// Says which segment sled is opening. Who finds it at a start knows that the node went down over it.
const OPENING: &str = "OPENING";

/// The segment that is being written.
///
/// Invariant: its folder has no footer, so whatever a crash leaves in it is not opened again. What was in it
/// comes back from the log, or is declared missing. So its last block may as well be in memory until it is
/// full.
pub(super) struct OpenSegment {
    folder: Dir,
    table: Table,
    /// Of the blocks that are in the table.
    footer: Footer,
    tail: Block,
}

impl OpenSegment {
    /// An empty one in an empty folder.
    pub fn new(folder: Dir) -> Result<OpenSegment, HistoryError> {
        let (table, footer) = (Table::open(folder.path())?, Footer::default());
        Ok(OpenSegment { folder, table, footer, tail: Block::default() })
    }

    /// Goes on with a closed segment: a copy of it in an empty folder.
    pub fn resume(history: &Dir, origin: Footer, folder: Dir) -> Result<OpenSegment, HistoryError> {
        let table = open_copy(history, &origin, &folder)?;
        let mut footer = Footer { replaces: Some(origin.number), ..origin };
        // The last block may be a short one.
        let head = footer.blocks.pop();
        let last = table.get(footer.blocks.len())?;
        footer.payload_bytes -= last.len() as u64;
        let tail = Block { head, bytes: decompress(&last)? };
        Ok(OpenSegment { folder, table, footer, tail })
    }

    /// Stores an entry, behind all others.
    pub fn put(&mut self, item: &Encoded<'_>) -> Result<(), HistoryError> {
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
        self.table.put(self.footer.blocks.len(), &block)?;
        self.tail.bytes.clear();
        self.footer.payload_bytes += block.len() as u64;
        self.footer.blocks.push(head);
        Ok(())
    }

    /// Whether its blocks have `payload_bytes` together, of which the last one is not compressed yet.
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

    /// Closes it and puts its footer into its folder.
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

/// A copy of a closed segment, open to be read.
pub(super) struct View {
    pub number: u64,
    folder: Dir,
    table: Table,
    heads: Vec<Head>,
}

impl View {
    /// Copies the segment into an empty folder, verifies it on the way, and opens the copy.
    pub fn open(history: &Dir, footer: &Footer, folder: Dir) -> Result<View, HistoryError> {
        let table = open_copy(history, footer, &folder)?;
        Ok(View { number: footer.number, folder, table, heads: footer.blocks.clone() })
    }

    pub fn reader(&self) -> Reader<'_> {
        Reader { table: &self.table, heads: &self.heads, tail: None }
    }

    /// Closes and removes the copy.
    pub fn close(self) -> Result<(), HistoryError> {
        self.table.close(&self.folder)?;
        Ok(self.folder.remove_all()?)
    }
}

fn open_copy(history: &Dir, footer: &Footer, folder: &Dir) -> Result<Table, HistoryError> {
    let from = Dir::open(&history.path().join(folder_name(footer.number)))?;
    footer.copy_verified(&from, folder)?;
    // Not made durable: it matters when this process dies, not when the machine does.
    let marker = history.create_new(OPENING)?;
    marker.write_all_at(footer.number.to_string().as_bytes(), 0)?;
    let table = Table::open(folder.path());
    history.remove(OPENING)?;
    table
}

/// The segment over which sled has taken the node down, if any: the answer is given once.
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

/// The number of the segment in a folder of this name.
pub(super) fn number_of(folder: &str) -> Option<u64> {
    folder.strip_prefix("segment-")?.parse().ok()
}

pub(super) struct Reader<'a> {
    table: &'a Table,
    /// Of the blocks in the table.
    heads: &'a [Head],
    tail: Option<&'a Block>,
}

impl<'a> Reader<'a> {
    /// The blocks in `range` and their numbers, newest first.
    pub fn blocks(&self, range: Range) -> impl Iterator<Item = (usize, &'a Head)> + use<'a> {
        let tail = self.tail.and_then(|tail| tail.head.as_ref()).map(|head| (self.heads.len(), head));
        let all = tail.into_iter().chain(self.heads.iter().enumerate().rev());
        all.filter(move |(_, head)| range.meets(head.first, head.last))
    }

    /// The entries of a block that [`Reader::blocks`] gave.
    pub fn block(&self, number: usize) -> Result<Cow<'a, [u8]>, HistoryError> {
        match self.tail.filter(|_| number == self.heads.len()) {
            Some(tail) => Ok(Cow::Borrowed(&tail.bytes)),
            None => Ok(Cow::Owned(decompress(&self.table.get(number)?)?)),
        }
    }
}
