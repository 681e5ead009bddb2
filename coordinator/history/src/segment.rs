//! The segment that is being written, and copies of closed ones that are being read.

use std::borrow::Cow;

use rowlock_env::disk::Dir;
use rowlock_proto::Zxid;

use super::block::{BLOCK_MAX_BYTES, Head, Wanted};
use super::bloom_filter::{BloomFilter, SEGMENT_BYTES};
use super::chunk::Chunk;
use super::error::HistoryError;
use super::footer::{Content, Footer};
use super::record::{Gap, Key};
use super::table::{BlockNumber, Range, Table};

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
    parts: Parts,
    /// The block that is being filled.
    tail: Option<(Head, Vec<u8>)>,
    bloom: BloomFilter,
    /// The closed segment that this one began as a copy of.
    pub origin: Option<Footer>,
    first: Option<Key>,
    last: Key,
    entries: u64,
    payload_bytes: u64,
    /// Something was put into it since it was made.
    pub is_changed: bool,
}

/// The part of a table that is kept in memory.
#[derive(Default)]
struct Parts {
    heads: Vec<Head>,
    gaps: Vec<(Key, Gap)>,
}

impl Parts {
    fn of(table: &Table) -> Result<Parts, HistoryError> {
        Ok(Parts { heads: table.heads()?, gaps: table.gaps()? })
    }
}

impl OpenSegment {
    /// An empty one in an empty folder.
    pub fn new(folder: Dir) -> Result<OpenSegment, HistoryError> {
        let table = Table::open(folder.path())?;
        Ok(OpenSegment {
            folder,
            table,
            parts: Parts::default(),
            tail: None,
            bloom: BloomFilter::new(SEGMENT_BYTES),
            origin: None,
            first: None,
            last: Key::MIN,
            entries: 0,
            payload_bytes: 0,
            is_changed: false,
        })
    }

    /// Goes on with an unfinished segment: a copy of it in an empty folder.
    pub fn resume(history: &Dir, footer: Footer, folder: Dir) -> Result<OpenSegment, HistoryError> {
        let table = open_copy(history, &footer, &folder)?;
        let mut parts = Parts::of(&table)?;
        let tail = match parts.heads.pop() {
            Some(head) => {
                let block = table.block(BlockNumber(parts.heads.len()), head.first)?;
                Some((head, block))
            }
            None => None,
        };
        Ok(OpenSegment {
            folder,
            table,
            parts,
            tail,
            bloom: footer.bloom.clone(),
            first: (footer.entries > 0).then_some(footer.first),
            last: footer.last,
            entries: footer.entries,
            payload_bytes: footer.payload_bytes,
            origin: Some(footer),
            is_changed: false,
        })
    }

    /// Stores a chunk, behind all others.
    pub fn put(&mut self, chunk: &Chunk<'_>) -> Result<(), HistoryError> {
        let is_full = |(_, block): &mut (Head, Vec<u8>)| block.len() + chunk.bytes.len() > BLOCK_MAX_BYTES;
        let mut empty = Vec::new();
        if let Some((head, mut block)) = self.tail.take_if(is_full) {
            self.store(head, &block)?;
            block.clear();
            empty = block;
        }
        let bloom = Some(&mut self.bloom);
        match &mut self.tail {
            Some((head, block)) => {
                head.add(chunk, bloom)?;
                block.extend_from_slice(chunk.bytes);
            }
            None => {
                let head = Head::of(chunk, bloom)?;
                empty.extend_from_slice(chunk.bytes);
                self.tail = Some((head, empty));
            }
        }
        self.count(chunk.span.first, chunk.span.count, 0);
        self.count(chunk.span.last, 0, chunk.bytes.len());
        Ok(())
    }

    fn store(&mut self, head: Head, block: &[u8]) -> Result<(), HistoryError> {
        self.table.put_block(BlockNumber(self.parts.heads.len()), head.first, block)?;
        self.parts.heads.push(head);
        Ok(())
    }

    pub fn put_gap(&mut self, key: Key, gap: Gap) -> Result<(), HistoryError> {
        let mut value = Vec::new();
        gap.encode_into(&mut value);
        self.table.put_gap(key, &value)?;
        let gaps = &mut self.parts.gaps;
        match gaps.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => gaps[at].1 = gap,
            Err(at) => gaps.insert(at, (key, gap)),
        }
        self.count(key, 1, Key::LEN + value.len());
        Ok(())
    }

    fn count(&mut self, key: Key, entries: u32, len: usize) {
        self.first = Some(self.first.map_or(key, |first| first.min(key)));
        self.last = self.last.max(key);
        self.entries += u64::from(entries);
        self.payload_bytes += len as u64;
        self.is_changed = true;
    }

    /// Bytes of the keys and values in it.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// The oldest key in it.
    pub fn first(&self) -> Option<Key> {
        self.first
    }

    /// Closes it and footers its folder.
    pub fn footer(mut self, number: u64, content: Content, covered: Zxid) -> Result<Footer, HistoryError> {
        if let Some((head, block)) = self.tail.take() {
            self.store(head, &block)?;
        }
        self.table.close(&self.folder)?;
        let mut footer = Footer {
            number,
            replaces: self.origin.map(|origin| origin.number),
            content,
            first: self.first.unwrap_or(self.last),
            last: self.last,
            entries: self.entries,
            payload_bytes: self.payload_bytes,
            covered,
            has_gaps: !self.parts.gaps.is_empty(),
            bloom: self.bloom,
            files: Vec::new(),
        };
        footer.write(&self.folder)?;
        Ok(footer)
    }

    /// What a reader needs of it.
    pub fn reader(&self) -> Reader<'_> {
        Reader { table: &self.table, parts: &self.parts, tail: self.tail.as_ref() }
    }
}

/// A copy of a closed segment, open to be read.
pub(super) struct View {
    pub number: u64,
    folder: Dir,
    table: Table,
    parts: Parts,
}

impl View {
    /// Copies the segment into an empty folder, verifies it on the way, and opens the copy.
    pub fn open(history: &Dir, footer: &Footer, folder: Dir) -> Result<View, HistoryError> {
        let table = open_copy(history, footer, &folder)?;
        let parts = Parts::of(&table)?;
        Ok(View { number: footer.number, folder, table, parts })
    }

    /// What a reader needs of it.
    pub fn reader(&self) -> Reader<'_> {
        Reader { table: &self.table, parts: &self.parts, tail: None }
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

/// The folder of a closed segment.
pub(super) fn folder_name(number: u64) -> String {
    format!("slice-{number:010}")
}

/// The number of the segment in a folder of this name.
pub(super) fn number_of(folder: &str) -> Option<u64> {
    folder.strip_prefix("slice-")?.parse().ok()
}

/// A segment to be read.
pub(super) struct Reader<'a> {
    table: &'a Table,
    parts: &'a Parts,
    /// The block behind those in the table.
    tail: Option<&'a (Head, Vec<u8>)>,
}

impl<'a> Reader<'a> {
    /// The gaps in `range`, newest first.
    pub fn gaps(&self, range: Range) -> impl Iterator<Item = &'a (Key, Gap)> + use<'a> {
        self.parts.gaps.iter().rev().filter(move |(key, _)| range.holds(key))
    }

    /// The blocks in which there may be something wanted in `range`, newest first.
    pub fn blocks(
        &self,
        wanted: Wanted<'a>,
        range: Range,
    ) -> impl Iterator<Item = (BlockNumber, &'a Head)> + use<'a> {
        let heads = self.parts.heads.iter().chain(self.tail.map(|(head, _)| head));
        let numbered: Vec<_> = heads.enumerate().map(|(number, head)| (BlockNumber(number), head)).collect();
        numbered.into_iter().rev().filter(move |(_, head)| head.may_hold(&wanted, range))
    }

    /// A block that [`Reader::blocks`] gave.
    pub fn block(&self, number: BlockNumber, head: &Head) -> Result<Cow<'a, [u8]>, HistoryError> {
        match self.tail {
            Some((_, block)) if number.0 == self.parts.heads.len() => Ok(Cow::Borrowed(block)),
            _ => Ok(Cow::Owned(self.table.block(number, head.first)?)),
        }
    }
}
