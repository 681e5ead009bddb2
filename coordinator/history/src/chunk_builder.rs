//! The chunk that is being written: apply puts each event into it.
//!
//! In the flow: the queue (`queue.rs`) has one of these on each of its sides; what is in it becomes a chunk
//! (`chunk.rs` has the form) when it is full, when the thread takes it, and where a snapshot replaced the
//! state.
//!
//! Must never do: allocate for an event. What it has grown to is used again for the next chunk.

use std::ops::Range;

use rowlock_proto::SessionId;
use rowlock_proto::lock::Mode;
use rowlock_state::outcome::{LockEvent, LockEventKind};

use super::chunk::{CHUNK_MAX_BYTES, HEAD_BYTES, Span, tag};
use super::name::Cut;
use super::readers;
use super::record::{Key, LOCK_MAX_BYTES};
use super::varint::{MAX_BYTES, Numbers};

/// Longest texts of an event, all together. Beyond: it is not recorded.
const TEXTS_MAX_BYTES: usize = 28_000;
/// What an event needs beside its texts, in four rows of numbers.
const NUMBERS_MAX_BYTES: usize = 4 * Numbers::ROOM;
const _: () = assert!(HEAD_BYTES + TEXTS_MAX_BYTES + NUMBERS_MAX_BYTES <= CHUNK_MAX_BYTES);
/// The longest row: clock, zxid, place and two numbers, behind a tag.
const _: () = assert!(5 * MAX_BYTES < Numbers::ROOM);
/// Guesses of which party an event is about, two bytes each; a wrong one costs a definition that was not
/// needed.
const GUESSES: usize = 1 << GUESS_BITS;
const GUESS_BITS: u32 = 11;
/// An odd number whose bits look like chance (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is in the builder.
    Done,
    /// The builder has to become a chunk before.
    Full,
    /// No chunk takes it.
    TooLong,
}

#[derive(Debug, Default)]
pub(super) struct ChunkBuilder {
    definitions: Vec<u8>,
    events: Vec<u8>,
    /// Of the latest places of parties.
    paths: Vec<u8>,
    /// As they are defined.
    parties: Vec<Party>,
    /// How many are defined.
    places: u32,
    /// Token of the place that was defined last.
    token: i64,
    /// Numbers of parties, by what [`guess`] gives.
    guesses: Vec<u16>,
    count: u32,
    first: Key,
    last: Key,
    /// Of the event before, if it belongs to the same log entry.
    place: Option<u32>,
    /// What belongs to log entries that are over.
    whole: Part,
    /// Key of the first event behind that.
    behind: Key,
    /// Of the event that is being put; empty if everybody may read it.
    readers: Vec<u8>,
}

/// The beginning of a builder.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    definitions: usize,
    events: usize,
    count: u32,
    last: Key,
}

/// Who wants what, and how it is called: what stays the same from one event to the next.
#[derive(Debug)]
struct Party {
    session: SessionId,
    mode: Mode,
    is_acquired: bool,
    /// Where its texts are in the definitions.
    at: usize,
    lock: usize,
    address: usize,
    label: usize,
    /// Length of the list of its readers.
    readers: usize,
    is_public: bool,
    place: Option<Place>,
}

/// A znode in the queue of a lock.
#[derive(Debug)]
struct Place {
    number: u32,
    token: i64,
    /// Where its path is among the paths.
    at: usize,
    len: usize,
    /// Where the text of its name (`name.rs`) is among the paths.
    text: Range<usize>,
}

impl ChunkBuilder {
    /// Bytes of the chunk that it would be.
    pub fn bytes(&self) -> usize {
        self.definitions.len() + self.events.len()
    }

    /// Nothing in it belongs to a log entry that goes on.
    pub fn is_whole(&self) -> bool {
        self.whole.count == self.count
    }

    /// The log entry is over.
    pub fn entry_is_over(&mut self) {
        self.whole = self.part();
        self.place = None;
    }

    fn part(&self) -> Part {
        let (definitions, events) = (self.definitions.len(), self.events.len());
        Part { definitions, events, count: self.count, last: self.last }
    }

    /// Adds an event, which comes behind all others.
    pub fn put(&mut self, key: Key, event: &LockEvent<'_>) -> Put {
        let guess = guess(event);
        match readers::is_public(event) {
            true => self.readers.clear(),
            false => readers::write(event, &mut self.readers),
        }
        // What is known already takes no text, and is not too long.
        let known = self.known(guess, event);
        let name = if known.is_some() { "" } else { name_of(event) };
        let texts = match known {
            Some(_) => 0,
            None => {
                event.lock.len() + name.len() + event.address.len() + event.label.len() + self.readers.len()
            }
        };
        if texts > TEXTS_MAX_BYTES || event.lock.len() > LOCK_MAX_BYTES || name.len() > LOCK_MAX_BYTES {
            return Put::TooLong;
        }
        if self.count == 0 {
            (self.first, self.last) = (key, key);
        } else if HEAD_BYTES + self.bytes() + texts + NUMBERS_MAX_BYTES > CHUNK_MAX_BYTES
            || !self.is_next(key)
        {
            return Put::Full;
        }
        if self.is_whole() {
            self.behind = key;
        }
        let place = known.unwrap_or_else(|| self.define(guess, event, name));
        self.event(key, place, event.kind);
        self.count += 1;
        self.last = key;
        self.place = Some(place);
        Put::Done
    }

    /// Whether a chunk can say that `key` comes next: there is no word for an event that is missing within a
    /// command.
    fn is_next(&self, key: Key) -> bool {
        match key.zxid == self.last.zxid {
            true => Some(key.ordinal) == self.last.ordinal.checked_add(1) && key.time_ms == self.last.time_ms,
            false => key.ordinal == 0,
        }
    }

    /// The number of the event's place, if it is the latest of its party. An address is that of the command
    /// which made the place, so it has not changed; what is known of the place otherwise, may have.
    fn known(&self, guess: usize, event: &LockEvent<'_>) -> Option<u32> {
        let party = self.parties.get(usize::from(*self.guesses.get(guess)?))?;
        let place = party.place.as_ref()?;
        let is_it = place.token == event.token.0
            && party.is_alike(event)
            && self.paths[place.at..place.at + place.len] == *event.path.as_bytes()
            && party.lock == event.lock.len()
            && (party.label == 0 || self.definitions[party.label()] == *event.label)
            && party.is_for(event, &self.readers, &self.definitions);
        is_it.then_some(place.number)
    }

    /// Defines the event's place, and before it its party if that is new.
    fn define(&mut self, guess: usize, event: &LockEvent<'_>, name: &str) -> u32 {
        let party = self.party(guess, event);
        self.place(party, event, name.as_bytes())
    }

    /// The number of the event's party.
    fn party(&mut self, guess: usize, event: &LockEvent<'_>) -> u16 {
        match self.guesses.get(guess) {
            None => self.guesses.resize(GUESSES, 0),
            Some(number) => {
                let party = self.parties.get(usize::from(*number));
                if party.is_some_and(|party| party.is_of(event, &self.readers, &self.definitions)) {
                    return *number;
                }
            }
        }
        let number = u16::try_from(self.parties.len()).expect("Invariant: a chunk has room for few parties");
        self.guesses[guess] = number;
        let mut numbers = Numbers::new();
        numbers.byte(tag::PARTY);
        let (mode, permits) = tag::of_mode(event.mode);
        let is_public = readers::is_public(event);
        let readers = match (is_public, self.readers.is_empty()) {
            (true, _) => tag::PUBLIC,
            (false, false) => tag::READERS,
            (false, true) => 0,
        };
        numbers.byte(mode | readers | if event.is_acquired { tag::ACQUIRED } else { 0 });
        numbers.unsigned(permits.into());
        numbers.signed(event.session.0);
        let (lock, address, label) = (event.lock.len(), event.address.len(), event.label.len());
        for len in [lock, address, label] {
            numbers.length(len);
        }
        numbers.append_to(&mut self.definitions);
        let LockEvent { session, mode, is_acquired, .. } = *event;
        let at = self.definitions.len();
        let readers = self.readers.len();
        let party =
            Party { session, mode, is_acquired, at, lock, address, label, readers, is_public, place: None };
        self.parties.push(party);
        self.definitions.extend_from_slice(event.lock.as_bytes());
        self.definitions.extend_from_slice(event.address.as_bytes());
        self.definitions.extend_from_slice(event.label);
        if readers != 0 {
            let mut numbers = Numbers::new();
            numbers.length(readers);
            numbers.append_to(&mut self.definitions);
            self.definitions.extend_from_slice(&self.readers);
        }
        number
    }

    /// The number of the event's place, which is new.
    fn place(&mut self, number: u16, event: &LockEvent<'_>, name: &[u8]) -> u32 {
        let party = &mut self.parties[usize::from(number)];
        let cut = Cut::of(name);
        let text = &name[cut.text()];
        let is_same_text = party.place.as_ref().is_some_and(|place| self.paths[place.text.clone()] == *text);
        let mut numbers = Numbers::new();
        numbers.unsigned(u64::from(tag::PARTY) + 1 + u64::from(number));
        numbers.signed(event.token.0.wrapping_sub(self.token));
        cut.write(&mut numbers, is_same_text);
        numbers.append_to(&mut self.definitions);
        if !is_same_text {
            self.definitions.extend_from_slice(text);
        }
        let (path, len) = (event.path.as_bytes(), event.path.len());
        let at = match &party.place {
            Some(place) if place.len == len => {
                self.paths[place.at..place.at + len].copy_from_slice(path);
                place.at
            }
            _ => {
                self.paths.extend_from_slice(path);
                self.paths.len() - len
            }
        };
        let (place, token, begin) = (self.places, event.token.0, at + len - name.len());
        let text = begin + cut.text().start..begin + cut.text().end;
        party.place = Some(Place { number: place, token, at, len, text });
        self.token = token;
        self.places += 1;
        place
    }

    fn event(&mut self, key: Key, place: u32, kind: LockEventKind) {
        let (is_same_command, is_same_place) = (key.zxid == self.last.zxid, self.place == Some(place));
        let command = if is_same_command { tag::SAME_COMMAND } else { 0 };
        let of = if is_same_place { tag::SAME_PLACE } else { 0 };
        let mut numbers = Numbers::new();
        numbers.byte(command | of | tag::of_kind(kind));
        if !is_same_command {
            numbers.signed(key.time_ms.wrapping_sub(self.last.time_ms));
            numbers.signed(key.zxid.0.wrapping_sub(self.last.zxid.0));
        }
        if !is_same_place {
            numbers.unsigned(place.into());
        }
        match kind {
            LockEventKind::Requested { ahead } => numbers.unsigned(ahead.into()),
            LockEventKind::Granted { waited_ms } => numbers.signed(waited_ms),
            LockEventKind::Converted | LockEventKind::Asked => {}
            LockEventKind::Gone { held_ms, waited_ms, why: _ } => {
                numbers.signed(waited_ms);
                if let Some(held_ms) = held_ms {
                    numbers.signed(held_ms);
                }
            }
        }
        numbers.append_to(&mut self.events);
    }

    /// Makes a chunk behind `out` of what belongs to log entries that are over, and keeps the rest. Gives how
    /// many events that were.
    pub fn finish_whole(&mut self, out: &mut Vec<u8>) -> usize {
        let part = self.whole;
        self.write(part, out);
        if self.is_whole() {
            self.clear();
            return part.count as usize;
        }
        // The rest may refer to every definition. That a log entry is broken up is rare.
        self.events.drain(..part.events);
        self.count -= part.count;
        self.first = self.behind;
        self.whole = Part::default();
        part.count as usize
    }

    /// Makes a chunk behind `out` of everything.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.write(self.part(), out);
        self.clear();
    }

    fn write(&self, part: Part, out: &mut Vec<u8>) {
        if part.count == 0 {
            return;
        }
        let span = Span { first: self.first, last: part.last, count: part.count };
        span.write(&self.definitions[..part.definitions], &self.events[..part.events], out);
    }

    /// Makes it empty, but for its buffers. Guesses are only that: they may stay.
    fn clear(&mut self) {
        self.definitions.clear();
        self.events.clear();
        self.paths.clear();
        self.parties.clear();
        (self.places, self.token, self.count, self.place) = (0, 0, 0, None);
        self.whole = Part::default();
    }
}

impl Party {
    fn is_of(&self, event: &LockEvent<'_>, readers: &[u8], definitions: &[u8]) -> bool {
        let (address, label) = (self.at + self.lock, self.label());
        self.is_alike(event)
            && definitions[self.at..address] == *event.lock.as_bytes()
            && definitions[address..label.start] == *event.address.as_bytes()
            && definitions[label] == *event.label
            && self.is_for(event, readers, definitions)
    }

    /// Whether the same may read it.
    fn is_for(&self, event: &LockEvent<'_>, readers: &[u8], definitions: &[u8]) -> bool {
        // The length of the list before it is of one or two bytes.
        let end = self.label().end + usize::from(self.readers > 0) + usize::from(self.readers > 127);
        self.is_public == readers::is_public(event) && definitions[end..end + self.readers] == *readers
    }

    /// But for the texts.
    fn is_alike(&self, event: &LockEvent<'_>) -> bool {
        self.session == event.session
            && self.mode == event.mode
            && self.is_acquired == event.is_acquired
            && self.label == event.label.len()
    }

    /// Where its label is in the definitions.
    fn label(&self) -> Range<usize> {
        let at = self.at + self.lock + self.address;
        at..at + self.label
    }
}

/// The name of the event's znode, which is a child of its lock's.
fn name_of<'a>(event: &LockEvent<'a>) -> &'a str {
    let lock = if event.lock == "/" { 0 } else { event.lock.len() };
    match event.path.split_at_checked(lock).and_then(|(_, name)| name.strip_prefix('/')) {
        Some(name) => name,
        None => event.path.rfind('/').map_or(event.path, |at| &event.path[at + 1..]),
    }
}

/// Where the number of the event's party may be: by its session and the end of its lock's path.
fn guess(event: &LockEvent<'_>) -> usize {
    let end = event.lock.as_bytes().last_chunk::<8>().map_or(0, |end| u64::from_le_bytes(*end));
    let spread = (event.session.0.cast_unsigned() ^ end.rotate_left(32)).wrapping_mul(SPREAD);
    usize::try_from(spread >> (u64::BITS - GUESS_BITS)).expect("Invariant: few bits are left")
}
