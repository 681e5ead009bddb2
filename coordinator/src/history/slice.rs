//! The slice that is being written, and copies of sealed ones that are being read.

use rowlock_env::disk::Dir;
use rowlock_proto::{SessionId, Zxid};

use super::error::HistoryError;
use super::index::Index;
use super::record::{Entry, Gap, Key};
use super::seal::{Content, Seal};
use super::sieve::Sieve;
use super::table::{Keys, Range, Table};

/// Says which slice sled is opening. Who finds it at a start knows that the node went down over it.
const OPENING: &str = "OPENING";

/// The slice that is being written.
///
/// Invariant: its folder has no seal, so whatever a crash leaves in it is not opened again. What was in it comes back
/// from the log, or is declared missing.
pub(super) struct OpenSlice {
    folder: Dir,
    table: Table,
    index: Index,
    /// The sealed slice that this one began as a copy of.
    pub origin: Option<Seal>,
    first: Option<Key>,
    last: Key,
    entries: u64,
    payload_bytes: u64,
    /// Something was put into it since it was made.
    pub is_changed: bool,
}

impl OpenSlice {
    /// An empty one in an empty folder.
    pub fn new(folder: Dir) -> Result<OpenSlice, HistoryError> {
        let table = Table::open(folder.path())?;
        Ok(OpenSlice {
            folder,
            table,
            index: Index::default(),
            origin: None,
            first: None,
            last: Key::MIN,
            entries: 0,
            payload_bytes: 0,
            is_changed: false,
        })
    }

    /// Goes on with an unfinished slice: a copy of it in an empty folder. `index`: if it is still known.
    pub fn resume(
        history: &Dir,
        seal: Seal,
        folder: Dir,
        index: Option<Index>,
    ) -> Result<OpenSlice, HistoryError> {
        let table = open_copy(history, &seal, &folder)?;
        let index = match index {
            Some(index) => index,
            None => {
                let mut index = Index::default();
                for item in table.entries() {
                    let (key, entry) = item?;
                    index.note_entry(&entry, key);
                }
                index
            }
        };
        Ok(OpenSlice {
            folder,
            table,
            index,
            first: (seal.entries > 0).then_some(seal.first),
            last: seal.last,
            entries: seal.entries,
            payload_bytes: seal.payload_bytes,
            origin: Some(seal),
            is_changed: false,
        })
    }

    /// Stores a lock's record, whose encoded entry is `value`.
    pub fn put(
        &mut self,
        key: Key,
        lock: &str,
        session: SessionId,
        value: &[u8],
    ) -> Result<(), HistoryError> {
        self.table.put(key, value)?;
        self.index.note(lock, session, key);
        self.count(key, value.len());
        Ok(())
    }

    /// Stores a gap.
    pub fn put_gap(&mut self, key: Key, gap: Gap) -> Result<(), HistoryError> {
        let mut value = Vec::new();
        Entry::Gap(gap).encode_into(&mut value);
        self.table.put(key, &value)?;
        self.index.note_gap(key);
        self.count(key, value.len());
        Ok(())
    }

    fn count(&mut self, key: Key, value_len: usize) {
        self.first = Some(self.first.map_or(key, |first| first.min(key)));
        self.last = self.last.max(key);
        self.entries += 1;
        self.payload_bytes += (Key::LEN + value_len) as u64;
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

    /// Closes it and seals its folder.
    pub fn seal(self, number: u64, content: Content, covered: Zxid) -> Result<(Seal, Index), HistoryError> {
        if content == Content::Complete {
            self.table.write_index(&self.index)?;
        }
        self.table.close(&self.folder)?;
        let mut seal = Seal {
            number,
            replaces: self.origin.map(|origin| origin.number),
            content,
            first: self.first.unwrap_or(self.last),
            last: self.last,
            entries: self.entries,
            payload_bytes: self.payload_bytes,
            covered,
            has_gaps: !self.index.gaps().is_empty(),
            sieve: Sieve::of(&self.index),
            files: Vec::new(),
        };
        seal.write(&self.folder)?;
        Ok((seal, self.index))
    }

    /// What a reader needs of it.
    pub fn reader(&self) -> Reader<'_> {
        Reader { table: &self.table, index: Where::Memory(&self.index) }
    }
}

/// A copy of a sealed slice, open to be read.
pub(super) struct View {
    /// Which slice.
    pub number: u64,
    folder: Dir,
    table: Table,
    content: Content,
}

impl View {
    /// Copies the slice into an empty folder, verifies it on the way, and opens the copy.
    pub fn open(history: &Dir, seal: &Seal, folder: Dir) -> Result<View, HistoryError> {
        let table = open_copy(history, seal, &folder)?;
        Ok(View { number: seal.number, folder, table, content: seal.content })
    }

    /// What a reader needs of it.
    pub fn reader(&self) -> Reader<'_> {
        let index = if self.content == Content::Complete { Where::Table } else { Where::Nowhere };
        Reader { table: &self.table, index }
    }

    /// Closes and removes the copy.
    pub fn close(self) -> Result<(), HistoryError> {
        self.table.close(&self.folder)?;
        Ok(self.folder.remove_all()?)
    }
}

fn open_copy(history: &Dir, seal: &Seal, folder: &Dir) -> Result<Table, HistoryError> {
    let from = Dir::open(&history.path().join(folder_name(seal.number)))?;
    seal.copy_verified(&from, folder)?;
    // Not made durable: it matters when this process dies, not when the machine does.
    let marker = history.create_new(OPENING)?;
    marker.write_all_at(seal.number.to_string().as_bytes(), 0)?;
    let table = Table::open(folder.path());
    history.remove(OPENING)?;
    table
}

/// The slice over which sled has taken the node down, if any: the answer is given once.
pub(super) fn take_opening(history: &Dir) -> Option<u64> {
    let text = history.read(OPENING).ok()?;
    if let Err(error) = history.remove(OPENING) {
        tracing::warn!(%error, "cannot remove a mark in the history's folder");
    }
    std::str::from_utf8(&text).ok()?.parse().ok()
}

/// The folder of a sealed slice.
pub(super) fn folder_name(number: u64) -> String {
    format!("slice-{number:010}")
}

/// The number of the slice in a folder of this name.
pub(super) fn number_of(folder: &str) -> Option<u64> {
    folder.strip_prefix("slice-")?.parse().ok()
}

/// A slice to be read.
pub(super) struct Reader<'a> {
    table: &'a Table,
    index: Where<'a>,
}

enum Where<'a> {
    Memory(&'a Index),
    Table,
    /// Everything has to be looked at.
    Nowhere,
}

impl<'a> Reader<'a> {
    /// Keys, newest first, among which are those of all entries that `lock` and `session` ask for, and of all gaps.
    pub fn keys(
        &self,
        lock: Option<&str>,
        session: Option<SessionId>,
        range: Range,
    ) -> Result<Keys<'a>, HistoryError> {
        let (found, gaps) = match (&self.index, lock, session) {
            (Where::Nowhere, _, _) | (_, None, None) => return Ok(self.table.keys(range)),
            (Where::Memory(index), Some(lock), _) => {
                (within(index.of_lock(lock), range), within(index.gaps(), range))
            }
            (Where::Memory(index), None, Some(session)) => {
                (within(index.of_session(session), range), within(index.gaps(), range))
            }
            (Where::Table, Some(lock), _) => {
                (self.table.keys_of_lock(lock, range)?, self.table.keys_of_gaps(range)?)
            }
            (Where::Table, None, Some(session)) => {
                (self.table.keys_of_session(session, range)?, self.table.keys_of_gaps(range)?)
            }
        };
        Ok(merged(found, gaps))
    }

    /// The entry of a key that [`Reader::keys`] gave.
    pub fn entry(&self, key: Key) -> Result<Entry<'static>, HistoryError> {
        self.table.get(key)?.ok_or_else(|| HistoryError::Damaged("an indexed record is not there".to_owned()))
    }
}

fn within(keys: &[Key], range: Range) -> Keys<'_> {
    Box::new(keys.iter().rev().filter(move |key| range.holds(key)).map(|key| Ok(*key)))
}

/// Two sequences, newest first, as one.
fn merged<'a>(a: Keys<'a>, b: Keys<'a>) -> Keys<'a> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    Box::new(std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(Ok(left)), Some(Ok(right))) if left < right => b.next(),
        (Some(Err(_)), _) | (Some(_), Some(Ok(_)) | None) => a.next(),
        _ => b.next(),
    }))
}
