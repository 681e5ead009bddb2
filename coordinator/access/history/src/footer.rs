//! Footer of a segment: a summary, and the checksums of the files closed by sled.
//!
//! Segments without a valid footer are never opened with sled.

use std::collections::BTreeSet;

use rowlock_env::disk::Dir;
use rowlock_proto::{SessionId, Zxid};
use rowlock_state::{Layout, codec};
use serde::{Deserialize, Serialize};

use super::block::Head;
use super::query::Filter;
use super::record::{HistoryError, Key, Subject};

/// Name of the footer in a segment's folder.
pub(super) const FOOTER_FILE: &str = "FOOTER";
/// sled's folder for long values. Always empty, because blocks are short.
const BLOBS: &str = "blobs";
/// Version of a segment's format, including its blocks.
const VERSION: u8 = 5;
/// Fingerprint of the format, stored behind the version. The test below has the samples.
const LAYOUT: Layout = Layout(0xd2ce_0710);
const FOOTER_MAX_BYTES: usize = 1 << 20;
/// Bound of the locks and sessions in a footer.
const NAMES_MAX: usize = 16_384;
pub(super) const BLOCKS_MAX: usize = 8_192;
/// A head has two keys of 23 bytes at most, a name 5 bytes.
const _: () = assert!(BLOCKS_MAX * 51 + NAMES_MAX * 5 < FOOTER_MAX_BYTES / 2);
/// Bytes per read or write of a file.
const PIECE_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Footer {
    /// Sequence number of the segment, ascending.
    pub number: u64,
    /// The segment copied into the beginning of this segment; to be removed.
    pub replaces: Option<u64>,
    pub is_lost: bool,
    /// Heads of the blocks, at least one.
    pub blocks: Vec<Head>,
    pub payload_bytes: u64,
    /// Zxid up to which all events are in this segment or an earlier segment.
    pub covered: Zxid,
    pub names: Names,
    /// All files except the footer.
    pub files: Vec<ClosedFile>,
}

/// Locks and sessions of a segment: a query for a lock or session skips the other segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Names {
    /// Checksums of the names. `None` means any name, because of too many names or a gap.
    all: Option<BTreeSet<u32>>,
    /// Lock and session of the latest record.
    #[serde(skip)]
    last: (Vec<u8>, SessionId),
}

impl Default for Names {
    fn default() -> Self {
        Names { all: Some(BTreeSet::new()), last: Default::default() }
    }
}

impl Names {
    pub fn add(&mut self, subject: &Subject<'_>) {
        let Some(names) = &mut self.all else { return };
        match *subject {
            // Most events have the lock and session of the preceding event.
            Subject::Lock { lock, session } if (lock, session) == (&*self.last.0, self.last.1) => {}
            Subject::Lock { lock, session } if names.len() < NAMES_MAX => {
                names.extend([of_lock(lock), of_session(session)]);
                self.last.0.clear();
                self.last.0.extend_from_slice(lock);
                self.last.1 = session;
            }
            _ => self.all = None,
        }
    }

    /// Returns true if the segment may have matching records.
    pub fn may_hold(&self, filter: &Filter) -> bool {
        let has = |name| self.all.as_ref().is_none_or(|names| names.contains(&name));
        filter.lock.as_ref().is_none_or(|lock| has(of_lock(lock.as_bytes())))
            && filter.session.is_none_or(|session| has(of_session(session)))
    }
}

fn of_lock(path: &[u8]) -> u32 {
    crc32fast::hash(path)
}

fn of_session(session: SessionId) -> u32 {
    crc32fast::hash(&session.0.to_le_bytes())
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClosedFile {
    pub name: String,
    pub len: u64,
    pub crc: u32,
}

impl Footer {
    /// Makes the footer of a segment with an unreadable footer: the range between the neighbors. Returns
    /// `None` for an empty range, and for the oldest or newest segment.
    pub fn lost(number: u64, others: &[Footer]) -> Option<Footer> {
        let next = others.partition_point(|other| other.number < number);
        let (before, behind) = (others.get(next.checked_sub(1)?)?, others.get(next)?);
        let first = Key { zxid: Zxid(before.covered.0 + 1), ordinal: 0, ..before.last() };
        let last = Key { zxid: Zxid(behind.first().zxid.0 - 1), ordinal: u32::MAX, ..behind.first() };
        let head = Head { first, last, entries: 0 };
        let lost =
            Footer { number, is_lost: true, covered: last.zxid, blocks: vec![head], ..Footer::default() };
        (first < last).then_some(lost)
    }

    /// Returns the segment's bytes on the disk.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    /// Returns true if the segment may have matching records or is lost.
    pub fn may_hold(&self, filter: &Filter) -> bool {
        self.is_lost || self.names.may_hold(filter)
    }

    pub fn first(&self) -> Key {
        self.blocks.first().expect("Invariant: a segment has blocks").first
    }

    pub fn last(&self) -> Key {
        self.blocks.last().expect("Invariant: a segment has blocks").last
    }

    /// Returns the number of entries, possibly including a gap; `None` if unknown.
    pub fn entries(&self) -> Option<u64> {
        self.names.all.as_ref()?;
        Some(self.blocks.iter().map(|block| u64::from(block.entries)).sum()).filter(|entries| *entries > 0)
    }

    pub fn read(folder: &Dir) -> Result<Footer, HistoryError> {
        let bytes = folder.read(FOOTER_FILE)?;
        let damaged = |why: &str| HistoryError::Damaged(format!("its footer {why}"));
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(|| damaged("is cut off"))?;
        if crc32fast::hash(body).to_le_bytes() != *crc {
            return Err(damaged("has a wrong checksum"));
        }
        let (version, body) = body.split_first().ok_or_else(|| damaged("is empty"))?;
        let (layout, body) = body.split_first_chunk().ok_or_else(|| damaged("is cut off"))?;
        if (*version, Layout(u32::from_le_bytes(*layout))) != (VERSION, LAYOUT) {
            return Err(HistoryError::OtherBuild);
        }
        let footer: Footer =
            codec::decode(body, FOOTER_MAX_BYTES).map_err(|error| damaged(&error.to_string()))?;
        if footer.blocks.is_empty() {
            return Err(damaged("names no blocks"));
        }
        Ok(footer)
    }

    /// Makes the folder's files durable, then writes the footer.
    pub fn write(&mut self, folder: &Dir) -> Result<(), HistoryError> {
        self.files = Vec::new();
        for name in folder.list()? {
            if name == BLOBS {
                if !folder.sub(BLOBS)?.list()?.is_empty() {
                    return Err(HistoryError::Damaged(
                        "sled keeps values apart that are too long".to_owned(),
                    ));
                }
                continue;
            }
            if name == FOOTER_FILE {
                continue;
            }
            folder.open_file(&name)?.sync_all()?;
            let mut crc = crc32fast::Hasher::new();
            let len = read_through(folder, &name, |chunk, _| {
                crc.update(chunk);
                Ok(())
            })?;
            self.files.push(ClosedFile { name, len, crc: crc.finalize() });
        }
        folder.write_atomic(FOOTER_FILE, &self.encode(LAYOUT))?;
        Ok(())
    }

    fn encode(&self, layout: Layout) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&layout.0.to_le_bytes());
        codec::encode_into(self, &mut bytes);
        let crc = crc32fast::hash(&bytes).to_le_bytes();
        bytes.extend_from_slice(&crc);
        bytes
    }

    /// Copies the footer's files from `from` to the empty folder `to`. Fails if a file differs from the
    /// closed file. The copy has no footer, because opening the copy changes its files.
    pub fn copy_verified(&self, from: &Dir, to: &Dir) -> Result<(), HistoryError> {
        for file in &self.files {
            let copy = to.create_new(&file.name)?;
            let mut crc = crc32fast::Hasher::new();
            let len = read_through(from, &file.name, |chunk, at| {
                crc.update(chunk);
                Ok(copy.write_all_at(chunk, at)?)
            })?;
            if len != file.len || crc.finalize() != file.crc {
                let why =
                    format!("its file {} is not as it was written ({len} of {} bytes)", file.name, file.len);
                return Err(HistoryError::Damaged(why));
            }
        }
        Ok(())
    }
}

fn read_through(
    folder: &Dir,
    name: &str,
    mut each: impl FnMut(&[u8], u64) -> Result<(), HistoryError>,
) -> Result<u64, HistoryError> {
    let file = folder.open_to_read(name)?;
    let mut chunk = vec![0; PIECE_BYTES];
    let mut at = 0;
    loop {
        let n = file.read_at(&mut chunk, at)?;
        if n == 0 {
            return Ok(at);
        }
        each(&chunk[..n], at)?;
        at += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_that_of_the_samples() {
        let entries = crate::block::tests::samples();
        let key = Key { time_ms: 7, zxid: Zxid(9), ordinal: 1 };
        let footer = Footer {
            number: 3,
            replaces: Some(2),
            is_lost: true,
            blocks: vec![Head { first: key, last: Key { ordinal: 300, ..key }, entries: 2 }],
            payload_bytes: 300,
            covered: Zxid(9),
            names: Names { all: Some([1, 2].into()), last: Default::default() },
            files: vec![ClosedFile { name: "db".to_owned(), len: 300, crc: 7 }],
        };
        let samples = Layout::of_samples(entries.into_iter().chain([footer.encode(Layout(0))]));
        assert_eq!(LAYOUT, samples, "LAYOUT is to be {samples}");
    }

    #[test]
    fn every_session_of_a_lock_is_named() {
        let (mut names, before) = (Names::default(), Key::MAX);
        for session in [1, 2] {
            names.add(&Subject::Lock { lock: b"/locks/a", session: SessionId(session) });
        }
        let of =
            |session| Filter { lock: None, session: Some(SessionId(session)), since_ms: 0, before, limit: 1 };
        assert_eq!([1, 2, 3].map(|session| names.may_hold(&of(session))), [true, true, false]);
    }
}
