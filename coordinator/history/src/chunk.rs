//! Chunks: records of many events that follow each other, each said in the few bytes in which it differs from
//! what was said before. A chunk can be read by itself.
//!
//! In the flow: apply writes them (`chunk_builder.rs`), the thread puts them one behind the other into
//! blocks (`segment.rs`), as they are; a reader looks at the heads, then at who is in a chunk, then at
//! what happened.
//!
//! ```text
//! length of the whole             4 bytes, little endian
//! length of the definitions       4 bytes, little endian
//! how many events                 4 bytes, little endian
//! key of the first event         20 bytes, as Key::encode gives them
//! key of the last event          20 bytes
//! definitions
//!   of a party:  0, mode, whether acquire made it and who may read it, permits, session, lengths of lock,
//!                address and label; these; the length of the list of readers and the list (`readers.rs`),
//!                where there is one
//!   of a place:  1 + number of its party, token less that of the place before, name (`name.rs`)
//! events
//!   tag: what happened, whether command and place are those of the event before, why it is gone
//!   unless the command is the same: clock and zxid, less those of the event before
//!   unless the place is the same:   its number
//!   what happened: how many are ahead; or how long it waited; or how long it waited and held
//! ```
//!
//! Parties and places are numbered as they are defined, from 0. Numbers are those of `varint.rs`. Of the
//! first event the head has the key, and what it says of clock and zxid counts for nothing.
//!
//! Invariant: the keys of a chunk ascend. What is read may be damaged all the same: nothing here panics over
//! it.

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::outcome::LockEventKind;

use super::block::{BLOCK_MAX_BYTES, Wanted};
use super::error::HistoryError;
use super::name::Name;
use super::readers::Readers;
use super::record::{Entry, Key, Record};
use super::table::Range;
use super::varint::Reader;

/// Longest chunk: a block takes one.
pub(super) const CHUNK_MAX_BYTES: usize = BLOCK_MAX_BYTES;
const NUMBERS: usize = 12;
const FIRST_AT: usize = NUMBERS;
const LAST_AT: usize = FIRST_AT + Key::LEN;
/// Bytes before the definitions.
pub(super) const HEAD_BYTES: usize = LAST_AT + Key::LEN;

/// Numbers and bits that definitions and events begin with.
pub(super) mod tag {
    use rowlock_proto::lock::Mode;
    use rowlock_state::outcome::{LockEventKind, Why};

    /// The definition of a party.
    pub const PARTY: u8 = 0;
    const MODE: u8 = 0b11;
    pub const ACQUIRED: u8 = 1 << 2;
    /// Everybody may read it.
    pub const PUBLIC: u8 = 1 << 3;
    /// Those may read it whom a list names. Without this bit and the one before, the readers are unknown: it
    /// is from before these bits, or the list was too long.
    pub const READERS: u8 = 1 << 4;

    pub const REQUESTED: u8 = 0;
    pub const GRANTED: u8 = 1;
    pub const CONVERTED: u8 = 2;
    pub const GONE: u8 = 3;
    pub const KIND: u8 = 0b11;
    /// The event is of the command of the event before.
    pub const SAME_COMMAND: u8 = 1 << 2;
    /// The event is about the place of the event before.
    pub const SAME_PLACE: u8 = 1 << 3;
    /// It has held the lock, and is gone.
    pub const HELD: u8 = 1 << 4;
    const WHY_AT: u32 = 5;
    /// With [`CONVERTED`]: the mode is as it was, and the label of its party is a question.
    pub const ASKED: u8 = 1 << WHY_AT;

    /// The number of a mode, and its permits.
    pub fn of_mode(mode: Mode) -> (u8, u32) {
        match mode {
            Mode::Exclusive => (0, 0),
            Mode::Shared => (1, 0),
            Mode::Permits(permits) => (2, permits),
        }
    }

    /// The mode of [`of_mode`]'s numbers.
    pub fn mode(bits: u8, permits: u32) -> Option<Mode> {
        match bits & MODE {
            0 => Some(Mode::Exclusive),
            1 => Some(Mode::Shared),
            2 => Some(Mode::Permits(permits)),
            _ => None,
        }
    }

    /// The tag of what happened.
    pub fn of_kind(kind: LockEventKind) -> u8 {
        match kind {
            LockEventKind::Requested { .. } => REQUESTED,
            LockEventKind::Granted { .. } => GRANTED,
            LockEventKind::Converted => CONVERTED,
            LockEventKind::Asked => CONVERTED | ASKED,
            LockEventKind::Gone { held_ms, waited_ms: _, why } => {
                let why: u8 = match why {
                    Why::Released => 0,
                    Why::SessionClosed => 1,
                    Why::SessionExpired => 2,
                    Why::Deleted => 3,
                    Why::Forced => 4,
                    Why::Revoked => 5,
                    Why::SessionEnded => 6,
                };
                GONE | if held_ms.is_some() { HELD } else { 0 } | why << WHY_AT
            }
        }
    }

    /// Why it is gone.
    pub fn why(tag: u8) -> Option<Why> {
        match tag >> WHY_AT {
            0 => Some(Why::Released),
            1 => Some(Why::SessionClosed),
            2 => Some(Why::SessionExpired),
            3 => Some(Why::Deleted),
            4 => Some(Why::Forced),
            5 => Some(Why::Revoked),
            6 => Some(Why::SessionEnded),
            _ => None,
        }
    }
}

/// From where to where a chunk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Key of its first event.
    pub first: Key,
    /// Key of its last event.
    pub last: Key,
    pub count: u32,
}

impl Span {
    /// Writes a chunk behind `out`.
    pub fn write(&self, definitions: &[u8], events: &[u8], out: &mut Vec<u8>) {
        let len = HEAD_BYTES + definitions.len() + events.len();
        assert!(len <= CHUNK_MAX_BYTES, "Invariant: chunks are bounded");
        for number in [len, definitions.len()] {
            let short = u32::try_from(number).expect("Invariant: chunks are short");
            out.extend_from_slice(&short.to_le_bytes());
        }
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.first.encode());
        out.extend_from_slice(&self.last.encode());
        out.extend_from_slice(definitions);
        out.extend_from_slice(events);
    }
}

/// The encoded form of a chunk in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk<'a> {
    pub span: Span,
    definitions: &'a [u8],
    events: &'a [u8],
    pub bytes: &'a [u8],
}

/// The chunks in a block or a buffer, in order.
pub(super) fn chunks(bytes: &[u8]) -> Chunks<'_> {
    Chunks(bytes)
}

pub(super) struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let chunk = first_chunk(self.0);
        // What is behind a damaged one means nothing.
        self.0 = chunk.as_ref().map_or(&[], |chunk| &self.0[chunk.bytes.len()..]);
        Some(chunk.ok_or_else(|| damaged("is cut off")))
    }
}

fn first_chunk(bytes: &[u8]) -> Option<Chunk<'_>> {
    let head = bytes.get(..HEAD_BYTES)?;
    let mut numbers = head[..NUMBERS].chunks_exact(4).map(|number| {
        let number = number.try_into().expect("Invariant: chunks are of four bytes");
        u32::from_le_bytes(number)
    });
    let (len, definitions, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let bytes = bytes.get(..usize::try_from(len).ok()?)?;
    let (definitions, events) =
        bytes.get(HEAD_BYTES..)?.split_at_checked(usize::try_from(definitions).ok()?)?;
    let key = |at: usize| Key::decode(&head[at..at + Key::LEN]).ok();
    let span = Span { first: key(FIRST_AT)?, last: key(LAST_AT)?, count };
    Some(Chunk { span, definitions, events, bytes })
}

fn damaged(what: &str) -> HistoryError {
    HistoryError::Damaged(format!("a part of a block {what}"))
}

enum Definition<'a> {
    Party(Party<'a>),
    Place(Place<'a>),
}

/// Who wants what, and how it is called.
struct Party<'a> {
    mode: Mode,
    is_acquired: bool,
    session: SessionId,
    lock: &'a [u8],
    address: &'a [u8],
    label: &'a [u8],
    readers: Readers,
}

/// A znode in the queue of a lock.
struct Place<'a> {
    party: usize,
    token: i64,
    name: Name<'a>,
}

impl<'a> Chunk<'a> {
    fn definitions(&self) -> impl Iterator<Item = Result<Definition<'a>, HistoryError>> + use<'a> {
        let (mut reader, mut before) = (Reader(self.definitions), Before::default());
        std::iter::from_fn(move || {
            if reader.0.is_empty() {
                return None;
            }
            let definition = definition(&mut reader, &mut before);
            if definition.is_none() {
                reader.0 = &[];
            }
            Some(definition.ok_or_else(|| damaged("has a definition that is none")))
        })
    }

    /// Session and lock of each of its parties.
    pub fn parties(&self) -> impl Iterator<Item = Result<(SessionId, &'a [u8]), HistoryError>> + use<'a> {
        self.definitions().filter_map(|definition| match definition {
            Ok(Definition::Party(party)) => Some(Ok((party.session, party.lock))),
            Ok(Definition::Place(_)) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// What of it is wanted in `range`.
    pub fn read(&self, wanted: &Wanted<'_>, range: Range) -> Result<Found<'a>, HistoryError> {
        let mut found = Found { parties: Vec::new(), places: Vec::new(), moments: Vec::new() };
        if self.span.last < range.from || self.span.first >= range.before {
            return Ok(found);
        }
        let mut is_wanted = Vec::new();
        for definition in self.definitions() {
            match definition? {
                Definition::Party(party) => {
                    is_wanted.push(wanted.is(party.session, party.lock));
                    found.parties.push(party);
                }
                Definition::Place(place) => found.places.push(place),
            }
        }
        if !is_wanted.contains(&true) {
            return Ok(found);
        }
        let (mut reader, mut key, mut place) = (Reader(self.events), self.span.first, None);
        for number in 0..self.span.count {
            let event = moment(&mut reader, (number > 0).then_some(key), self.span.first, place);
            let moment = event.ok_or_else(|| damaged("has an event that is none"))?;
            (key, place) = (moment.key, Some(moment.place));
            let party = found.places.get(moment.place).and_then(|place| is_wanted.get(place.party));
            let is_wanted = party.ok_or_else(|| damaged("is about somebody who is not there"))?;
            if *is_wanted && range.holds(&key) {
                found.moments.push(moment);
            }
        }
        Ok(found)
    }
}

/// What definitions refer to.
#[derive(Default)]
struct Before<'a> {
    /// Of the place before.
    token: i64,
    /// Of the names of the latest places of parties.
    texts: Vec<&'a [u8]>,
}

fn definition<'a>(reader: &mut Reader<'a>, before: &mut Before<'a>) -> Option<Definition<'a>> {
    if let Some(party) = reader.length()?.checked_sub(usize::from(tag::PARTY) + 1) {
        before.token = before.token.wrapping_add(reader.signed()?);
        let text = before.texts.get_mut(party)?;
        let name = Name::read(reader, text)?;
        *text = name.text;
        return Some(Definition::Place(Place { party, token: before.token, name }));
    }
    before.texts.push(&[]);
    let bits = reader.byte()?;
    let mode = tag::mode(bits, u32::try_from(reader.unsigned()?).ok()?)?;
    let session = SessionId(reader.signed()?);
    let (lock, address, label) = (reader.length()?, reader.length()?, reader.length()?);
    let (lock, address, label) = (reader.bytes(lock)?, reader.bytes(address)?, reader.bytes(label)?);
    let readers = match (bits & tag::PUBLIC != 0, bits & tag::READERS != 0) {
        (true, _) => Readers::Anyone,
        (false, true) => {
            let len = reader.length()?;
            Readers::read(reader.bytes(len)?)?
        }
        (false, false) => Readers::Unknown,
    };
    let is_acquired = bits & tag::ACQUIRED != 0;
    Some(Definition::Party(Party { mode, is_acquired, session, lock, address, label, readers }))
}

/// `before`: key of the event before, unless this is the first.
fn moment(reader: &mut Reader<'_>, before: Option<Key>, first: Key, place: Option<usize>) -> Option<Moment> {
    let tag = reader.byte()?;
    let mut key = before.unwrap_or(first);
    if tag & tag::SAME_COMMAND == 0 {
        let (time_ms, zxid) = (reader.signed()?, reader.signed()?);
        if before.is_some() {
            let zxid = Zxid(key.zxid.0.wrapping_add(zxid));
            key = Key { time_ms: key.time_ms.wrapping_add(time_ms), zxid, ordinal: 0 };
        }
    } else if before.is_some() {
        key.ordinal = key.ordinal.checked_add(1)?;
    }
    let place = if tag & tag::SAME_PLACE == 0 { reader.length()? } else { place? };
    let kind = match tag & tag::KIND {
        tag::REQUESTED => LockEventKind::Requested { ahead: u32::try_from(reader.unsigned()?).ok()? },
        tag::GRANTED => LockEventKind::Granted { waited_ms: reader.signed()? },
        tag::CONVERTED if tag & tag::ASKED != 0 => LockEventKind::Asked,
        tag::CONVERTED => LockEventKind::Converted,
        _ => {
            let waited_ms = reader.signed()?;
            let held_ms = if tag & tag::HELD == 0 { None } else { Some(reader.signed()?) };
            LockEventKind::Gone { held_ms, waited_ms, why: tag::why(tag)? }
        }
    };
    Some(Moment { key, place, kind })
}

/// An event of a chunk.
pub(super) struct Moment {
    pub key: Key,
    place: usize,
    kind: LockEventKind,
}

/// What of a chunk is wanted.
pub(super) struct Found<'a> {
    parties: Vec<Party<'a>>,
    places: Vec<Place<'a>>,
    pub moments: Vec<Moment>,
}

impl Found<'_> {
    /// The record of one of its moments.
    pub fn entry(&self, moment: &Moment) -> Result<Entry<'static>, HistoryError> {
        let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned().into()),
            Err(_) => Err(damaged("has a name that is none")),
        };
        let place = self.places.get(moment.place);
        let party = place.and_then(|place| Some((place, self.parties.get(place.party)?)));
        let (place, party) = party.ok_or_else(|| damaged("is about somebody who is not there"))?;
        Ok(Entry::Lock(Record {
            lock: text(party.lock)?,
            name: text(&place.name.whole())?,
            token: FencingToken(place.token),
            session: party.session,
            address: text(party.address)?,
            label: party.label.to_owned().into(),
            mode: party.mode,
            is_acquired: party.is_acquired,
            readers: party.readers.clone(),
            kind: moment.kind,
        }))
    }
}

#[cfg(test)]
#[path = "tests/chunk.rs"]
mod tests;
