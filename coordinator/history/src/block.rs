//! Blocks: what sled stores, each some sheets one behind the other.
//!
//! In the flow: the thread copies sheets into the block that is being filled (`slice.rs`); a reader looks at
//! the heads of blocks, which are in memory, and reads those in which there may be what it wants.
//!
//! Invariant: the keys of a block ascend, and so do the blocks of a slice.

use rowlock_proto::SessionId;

use super::error::HistoryError;
use super::page::Filter;
use super::record::Key;
use super::sheet::{Sheet, Span};
use super::sieve::{self, Name, Sieve};
use super::table::Range;

/// Longest block, and so longest sheet.
///
/// Invariant: it is less than what sled keeps in a file apart (a quarter of a segment of 512 KiB).
pub(super) const BLOCK_MAX_BYTES: usize = 112_000;

/// What is known of a block without reading it.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// Key of its first event.
    pub first: Key,
    /// Key of its last event.
    pub last: Key,
    /// How many events.
    pub count: usize,
    sieve: Sieve,
}

impl Head {
    /// Of a block that begins with `sheet`, whose names are in `whole`, too.
    pub fn of(sheet: &Sheet<'_>, whole: Option<&mut Sieve>) -> Result<Head, HistoryError> {
        let Span { first, last, count: _ } = sheet.span;
        let mut head = Head { first, last, count: 0, sieve: Sieve::new(sieve::BLOCK_BYTES) };
        head.add(sheet, whole)?;
        Ok(head)
    }

    /// Takes note of its next sheet, and of its names in `whole`, too.
    pub fn add(&mut self, sheet: &Sheet<'_>, mut whole: Option<&mut Sieve>) -> Result<(), HistoryError> {
        for party in sheet.parties() {
            let (session, lock) = party?;
            for name in [Name::of_lock(lock), Name::of_session(session)] {
                self.sieve.add(name);
                if let Some(whole) = &mut whole {
                    whole.add(name);
                }
            }
        }
        self.last = sheet.span.last;
        self.count = self.count.saturating_add(sheet.span.count as usize);
        Ok(())
    }

    /// Whether there may be a record in `range` that is wanted.
    pub fn may_hold(&self, wanted: &Wanted<'_>, range: Range) -> bool {
        self.last >= range.from && self.first < range.before && wanted.may_be_in(&self.sieve)
    }
}

/// What a question is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    lock: Option<(&'a [u8], Name)>,
    session: Option<SessionId>,
}

impl<'a> Wanted<'a> {
    /// By a filter.
    pub fn by(filter: &'a Filter) -> Wanted<'a> {
        let lock = filter.lock.as_deref().map(str::as_bytes);
        Wanted { lock: lock.map(|lock| (lock, Name::of_lock(lock))), session: filter.session }
    }

    /// Whether what this session does to this lock is wanted.
    pub fn is(&self, session: SessionId, lock: &[u8]) -> bool {
        self.lock.is_none_or(|(wanted, _)| wanted == lock)
            && self.session.is_none_or(|wanted| wanted == session)
    }

    /// Whether there may be something wanted where this was made.
    pub fn may_be_in(&self, sieve: &Sieve) -> bool {
        self.lock.is_none_or(|(_, name)| sieve.may_hold(name))
            && self.session.is_none_or(|session| sieve.may_hold(Name::of_session(session)))
    }
}
