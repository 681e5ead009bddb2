//! The footer of a segment: what is in it, and the checksums of its files, taken when sled had closed them.
//!
//! A segment without a footer that fits is never given to sled.

use rowlock_env::disk::Dir;
use rowlock_proto::Zxid;
use rowlock_types::codec;
use serde::{Deserialize, Serialize};

use super::block::Wanted;
use super::bloom_filter::BloomFilter;
use super::error::HistoryError;
use super::record::Key;

/// Name of the footer in a segment's folder.
pub(super) const FOOTER_FILE: &str = "SEAL";
/// Where sled would keep values that are longer than ours can be. Always empty.
const BLOBS: &str = "blobs";
/// Of the form of a segment, since release 0.2.0.
const VERSION: u8 = 1;
/// Longest footer that is believed.
const FOOTER_MAX_BYTES: usize = 64 << 10;
/// Files are read and copied in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// What a segment's folder holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Footer {
    /// Number of the segment; a later one has a larger.
    pub number: u64,
    /// The segment that this one begins with a copy of; it is to be removed.
    pub replaces: Option<u64>,
    pub content: Content,
    /// Key of its first entry.
    pub first: Key,
    /// Key of its last entry.
    pub last: Key,
    pub entries: u64,
    /// Bytes of their keys and values.
    pub payload_bytes: u64,
    /// Up to here everything is in this segment or one before it.
    pub covered: Zxid,
    /// Some of the entries are gaps, which every reader is shown.
    pub has_gaps: bool,
    /// What is surely not in it.
    pub bloom: BloomFilter,
    /// All files but the footer.
    pub files: Vec<SealedFile>,
}

/// In which state a segment was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Content {
    /// The newest segment, which is to be gone on with.
    Unfinished,
    /// A segment that has its size.
    Complete,
    /// Nothing any more: its files were damaged.
    Lost,
}

/// A file as it was when its segment was closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SealedFile {
    pub name: String,
    pub len: u64,
    pub crc: u32,
}

impl Footer {
    /// Bytes of the segment on the disk.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    /// Whether there may be something that is wanted.
    pub fn may_hold(&self, wanted: &Wanted<'_>) -> bool {
        self.has_gaps || self.content == Content::Lost || wanted.may_be_in(&self.bloom)
    }

    /// Reads the footer of a segment.
    pub fn read(folder: &Dir) -> Result<Footer, HistoryError> {
        let bytes = folder.read(FOOTER_FILE)?;
        let damaged = |why: &str| HistoryError::Damaged(format!("its footer {why}"));
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(|| damaged("is cut off"))?;
        if crc32fast::hash(body).to_le_bytes() != *crc {
            return Err(damaged("has a wrong checksum"));
        }
        let (version, body) = body.split_first().ok_or_else(|| damaged("is empty"))?;
        if *version != VERSION {
            return Err(damaged("is of another version"));
        }
        codec::decode(body, FOOTER_MAX_BYTES).map_err(|error| damaged(&error.to_string()))
    }

    /// Makes everything in the folder durable, and then puts the footer on it.
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
            self.files.push(SealedFile { name, len, crc: crc.finalize() });
        }
        let mut bytes = vec![VERSION];
        codec::encode_into(self, &mut bytes);
        let crc = crc32fast::hash(&bytes).to_le_bytes();
        bytes.extend_from_slice(&crc);
        folder.write_atomic(FOOTER_FILE, &bytes)?;
        Ok(())
    }

    /// Copies the files that the footer names from `from` to the empty folder `to`, and says so if one of
    /// them is not as it was when it was closed. The copy has no footer: it is there to be opened, which
    /// changes it.
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
