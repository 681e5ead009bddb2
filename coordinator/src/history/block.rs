//! Blocks: what sled stores, each many records one behind the other.
//!
//! In the flow: apply puts each event as a [`Frame`] into the queue's buffer; the thread copies frames into the block
//! that is being filled (`slice.rs`), as they are; a reader looks at the heads of frames and decodes what it wants.
//!
//! ```text
//! length of the value    2 bytes, little endian
//! name of the lock       4 bytes, little endian: its CRC-32
//! session                8 bytes, little endian
//! key                   20 bytes, as Key::encode gives them
//! value                    as Entry::encode_into gives it
//! ```
//!
//! Invariant: the keys of a block ascend, and so do the blocks of a slice.

use rowlock_proto::SessionId;

use super::error::HistoryError;
use super::page::Filter;
use super::record::{Entry, Key, Record};
use super::sieve::{self, Name, Sieve};
use super::table::Range;

/// Longest block, and so longest frame.
///
/// Invariant: four of these, which sled may write as one, are less than what it keeps in a file apart (a quarter of a
/// segment of 512 KiB).
pub(super) const BLOCK_MAX_BYTES: usize = 28_000;
const NAME_AT: usize = 2;
const SESSION_AT: usize = NAME_AT + 4;
const KEY_AT: usize = SESSION_AT + 8;
const VALUE_AT: usize = KEY_AT + Key::LEN;

/// A record as it is in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub key: Key,
    /// Of the lock.
    pub lock: Name,
    pub session: SessionId,
    /// Everything.
    pub bytes: &'a [u8],
}

impl Frame<'_> {
    /// The record.
    pub fn entry(&self) -> Result<Entry<'static>, HistoryError> {
        Entry::decode(&self.bytes[VALUE_AT..])
    }
}

/// Appends a record's frame to `out`. False: it is too long, and `out` is as it was.
pub(super) fn push_frame(out: &mut Vec<u8>, key: Key, record: Record<'_>) -> bool {
    let at = out.len();
    out.extend_from_slice(&[0; NAME_AT]);
    out.extend_from_slice(&Name::of_lock(&record.lock).0.to_le_bytes());
    out.extend_from_slice(&record.session.0.to_le_bytes());
    out.extend_from_slice(&key.encode());
    Entry::Lock(record).encode_into(out);
    let len = out.len() - at - VALUE_AT;
    match u16::try_from(len) {
        Ok(short) if VALUE_AT + len <= BLOCK_MAX_BYTES => {
            out[at..at + NAME_AT].copy_from_slice(&short.to_le_bytes());
            true
        }
        _ => {
            out.truncate(at);
            false
        }
    }
}

/// The frames in a block or a buffer, in order.
pub(super) struct Frames<'a>(&'a [u8]);

/// Reads `bytes`.
pub(super) fn frames(bytes: &[u8]) -> Frames<'_> {
    Frames(bytes)
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let frame = first_frame(self.0);
        // What is behind a damaged one means nothing.
        self.0 = frame.as_ref().map_or(&[], |frame| &self.0[frame.bytes.len()..]);
        Some(frame)
    }
}

fn first_frame(bytes: &[u8]) -> Result<Frame<'_>, HistoryError> {
    let cut = || HistoryError::Damaged("a block is cut off within a record".to_owned());
    let (head, _) = bytes.split_first_chunk::<VALUE_AT>().ok_or_else(cut)?;
    let len = VALUE_AT + usize::from(u16::from_le_bytes([head[0], head[1]]));
    let (mut name, mut session) = ([0; 4], [0; 8]);
    name.copy_from_slice(&head[NAME_AT..SESSION_AT]);
    session.copy_from_slice(&head[SESSION_AT..KEY_AT]);
    Ok(Frame {
        key: Key::decode(&head[KEY_AT..])?,
        lock: Name(u32::from_le_bytes(name)),
        session: SessionId(i64::from_le_bytes(session)),
        bytes: bytes.get(..len).ok_or_else(cut)?,
    })
}

/// What is known of a block without reading it.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// Key of its first record.
    pub first: Key,
    /// Key of its last record.
    pub last: Key,
    /// How many records.
    pub count: usize,
    sieve: Sieve,
    /// Whom its last record is about.
    newest: Option<(Name, SessionId)>,
}

impl Head {
    /// Of a block that will begin with `first`.
    pub fn new(first: Key) -> Head {
        Head { first, last: first, count: 0, sieve: Sieve::new(sieve::BLOCK_BYTES), newest: None }
    }

    /// Takes note of its next record.
    pub fn add(&mut self, frame: &Frame<'_>) {
        if !self.ends_like(frame) {
            self.sieve.add(frame.lock);
            self.sieve.add(Name::of_session(frame.session));
            self.newest = Some((frame.lock, frame.session));
        }
        self.last = frame.key;
        self.count += 1;
    }

    /// Whether its last record is of the same lock and the same session.
    pub fn ends_like(&self, frame: &Frame<'_>) -> bool {
        self.newest == Some((frame.lock, frame.session))
    }

    /// Whether there may be a record in `range` that is wanted.
    pub fn may_hold(&self, wanted: &Wanted, range: Range) -> bool {
        self.last >= range.from && self.first < range.before && wanted.may_be_in(&self.sieve)
    }
}

/// What a question is about, as far as frames and sieves show it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    lock: Option<Name>,
    session: Option<SessionId>,
}

impl Wanted {
    /// By a filter.
    pub fn by(filter: &Filter) -> Wanted {
        Wanted { lock: filter.lock.as_deref().map(Name::of_lock), session: filter.session }
    }

    /// Whether this may be wanted: another lock may have the same name.
    pub fn is(&self, frame: &Frame<'_>) -> bool {
        self.lock.is_none_or(|lock| lock == frame.lock)
            && self.session.is_none_or(|session| session == frame.session)
    }

    /// Whether there may be something wanted where this was made.
    pub fn may_be_in(&self, sieve: &Sieve) -> bool {
        self.lock.is_none_or(|lock| sieve.may_hold(lock))
            && self.session.is_none_or(|session| sieve.may_hold(Name::of_session(session)))
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::lock::Mode;
    use rowlock_proto::{FencingToken, Zxid};

    use super::*;
    use crate::history::record::What;

    fn record(label: &[u8]) -> Record<'_> {
        Record {
            lock: "/l".into(),
            name: "n".into(),
            token: FencingToken(1),
            session: SessionId(0x0102),
            address: "".into(),
            label: label.into(),
            mode: Mode::Exclusive,
            is_acquired: true,
            what: What::Converted,
        }
    }

    fn key(zxid: i64) -> Key {
        Key { time_ms: 7, zxid: Zxid(zxid), ordinal: 3 }
    }

    #[test]
    fn bytes_of_a_frame_are_those_of_version_2() {
        let mut bytes = Vec::new();
        assert!(push_frame(&mut bytes, key(9), record(b"")));
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = concat!(
            "1000",                                     // length of the value
            "e107c117",                                 // CRC-32 of /l
            "0201000000000000",                         // session
            "8000000000000007800000000000000900000003", // key
            "0100022f6c016e02fb04020000000102",         // value
        );
        assert_eq!(hex, expected);
    }

    #[test]
    fn what_was_put_in_comes_out_and_anything_cut_is_damaged() {
        let mut bytes = Vec::new();
        for zxid in 1..=3 {
            assert!(push_frame(&mut bytes, key(zxid), record(b"label")));
        }
        let read: Vec<Frame<'_>> = frames(&bytes).map(Result::unwrap).collect();
        assert_eq!(read.iter().map(|frame| frame.key).collect::<Vec<_>>(), [key(1), key(2), key(3)]);
        assert_eq!(read[1].entry().unwrap(), Entry::Lock(record(b"label")));
        let len = bytes.len() / 3;
        for cut in len + 1..2 * len {
            let read: Vec<_> = frames(&bytes[..cut]).collect();
            assert!(read.len() == 2 && read[1].is_err(), "{cut}");
        }
    }

    #[test]
    fn a_record_that_no_block_can_hold_is_refused_and_leaves_nothing() {
        let mut bytes = vec![1, 2, 3];
        assert!(!push_frame(&mut bytes, key(1), record(&[0; BLOCK_MAX_BYTES])));
        assert!(!push_frame(&mut bytes, key(1), record(&[0; 1 << 17])));
        assert_eq!(bytes, [1, 2, 3]);
    }
}
