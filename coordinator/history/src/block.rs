//! Blocks: what sled stores, each some chunks one behind the other.
//!
//! In the flow: the thread copies chunks into the block that is being filled (`segment.rs`); a reader
//! looks at the heads of blocks, which are in memory, and reads those in which there may be what it wants.
//!
//! Invariant: the keys of a block ascend, and so do the blocks of a segment.

use rowlock_proto::SessionId;

use super::bloom_filter::{self, BloomFilter, Name};
use super::chunk::{Chunk, Span};
use super::error::HistoryError;
use super::query::Filter;
use super::record::Key;
use super::table::Range;

/// Longest block, and so longest chunk.
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
    pub count: usize,
    bloom: BloomFilter,
}

impl Head {
    /// Of a block that begins with `chunk`, whose names are in `whole`, too.
    pub fn of(chunk: &Chunk<'_>, whole: Option<&mut BloomFilter>) -> Result<Head, HistoryError> {
        let Span { first, last, count: _ } = chunk.span;
        let mut head = Head { first, last, count: 0, bloom: BloomFilter::new(bloom_filter::BLOCK_BYTES) };
        head.add(chunk, whole)?;
        Ok(head)
    }

    /// Takes note of its next chunk, and of its names in `whole`, too.
    pub fn add(
        &mut self,
        chunk: &Chunk<'_>,
        mut whole: Option<&mut BloomFilter>,
    ) -> Result<(), HistoryError> {
        for party in chunk.parties() {
            let (session, lock) = party?;
            for name in [Name::of_lock(lock), Name::of_session(session)] {
                self.bloom.add(name);
                if let Some(whole) = &mut whole {
                    whole.add(name);
                }
            }
        }
        self.last = chunk.span.last;
        self.count = self.count.saturating_add(chunk.span.count as usize);
        Ok(())
    }

    /// Whether there may be a record in `range` that is wanted.
    pub fn may_hold(&self, wanted: &Wanted<'_>, range: Range) -> bool {
        self.last >= range.from && self.first < range.before && wanted.may_be_in(&self.bloom)
    }
}

/// What a question is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    lock: Option<(&'a [u8], Name)>,
    session: Option<SessionId>,
}

impl<'a> Wanted<'a> {
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
    pub fn may_be_in(&self, bloom: &BloomFilter) -> bool {
        self.lock.is_none_or(|(_, name)| bloom.may_hold(name))
            && self.session.is_none_or(|session| bloom.may_hold(Name::of_session(session)))
    }
}
