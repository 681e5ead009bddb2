//! Reading: what is asked of the history, and how a page of it is filled, newest first.
//!
//! Invariant: a page looks at a bounded number of entries, whatever is asked.

use std::iter::Peekable;

use rowlock_proto::{SessionId, Zxid};

use super::block::Wanted;
use super::chunk::{Chunk, chunks};
use super::error::HistoryError;
use super::footer::Footer;
use super::record::{Entry, Gap, GapReason, Key};
use super::segment::Reader;
use super::table::Range;

/// Records of the blocks that one page looks into. Beyond: it ends, and the next one goes on.
const EXAMINED_MAX: usize = 1_000_000;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Only of this lock (path of its znode).
    pub lock: Option<String>,
    /// Only of this session.
    pub session: Option<SessionId>,
    /// Nothing older, milliseconds since 1970.
    pub since_ms: i64,
    /// Only what was before; [`Key::MAX`] for the newest.
    pub before: Key,
    /// The most records to return.
    pub limit: usize,
}

/// A part of the history, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries: what was asked for, and all gaps of that time.
    pub entries: Vec<(Key, Entry<'static>)>,
    /// There may be more before this key.
    pub more_before: Option<Key>,
    /// All that was recorded from here on is kept, of whatever lock. `None`: that is not known.
    pub kept_from: Option<Key>,
}

/// Whether a page wants what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Stop,
}

/// A page while it is filled.
pub(super) struct Reading<'a> {
    filter: &'a Filter,
    /// The same, as blocks can be asked for it.
    pub wanted: Wanted<'a>,
    pub page: Page,
    examined: usize,
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> Reading<'a> {
    /// Makes an empty one. `is_over`: the caller has gone.
    pub fn new(filter: &'a Filter, is_over: &'a dyn Fn() -> bool) -> Self {
        Reading { filter, wanted: Wanted::by(filter), page: Page::default(), examined: 0, is_over }
    }

    /// Adds what a segment has.
    pub fn read(&mut self, segment: &Reader<'_>, range: Range) -> Result<Then, HistoryError> {
        let mut gaps = segment.gaps(range).peekable();
        for (number, head) in segment.blocks(self.wanted, range) {
            if self.is_enough() {
                // From just behind what has not been looked at.
                let next = gaps.peek().map_or(head.last, |(key, _)| head.last.max(*key));
                return Ok(self.stop_at(next));
            }
            self.examined += head.count;
            let block = segment.block(number, head)?;
            let chunks = chunks(&block).collect::<Result<Vec<_>, _>>()?;
            for chunk in chunks.iter().rev() {
                if self.read_chunk(chunk, &mut gaps, range)? == Then::Stop {
                    return Ok(Then::Stop);
                }
            }
        }
        for (key, gap) in gaps {
            if self.add(*key, Entry::Gap(*gap)) == Then::Stop {
                return Ok(Then::Stop);
            }
        }
        Ok(Then::GoOn)
    }

    /// Adds what a chunk has, and the gaps that come behind it.
    fn read_chunk<'b>(
        &mut self,
        chunk: &Chunk<'_>,
        gaps: &mut Peekable<impl Iterator<Item = &'b (Key, Gap)>>,
        range: Range,
    ) -> Result<Then, HistoryError> {
        let found = chunk.read(&self.wanted, range)?;
        for moment in found.moments.iter().rev() {
            while let Some((key, gap)) = gaps.next_if(|(key, _)| *key > moment.key) {
                if self.add(*key, Entry::Gap(*gap)) == Then::Stop {
                    return Ok(Then::Stop);
                }
            }
            if self.is_full() {
                return Ok(self.stop_at(moment.key));
            }
            self.add(moment.key, found.entry(moment)?);
        }
        Ok(Then::GoOn)
    }

    /// The page is full, or has looked at much, or the caller has gone.
    fn is_enough(&self) -> bool {
        self.is_full() || self.examined >= EXAMINED_MAX || (self.is_over)()
    }

    fn is_full(&self) -> bool {
        self.page.entries.len() >= self.filter.limit
    }

    fn add(&mut self, key: Key, entry: Entry<'static>) -> Then {
        if self.is_full() {
            return self.stop_at(key);
        }
        self.page.entries.push((key, entry));
        Then::GoOn
    }

    fn stop_at(&mut self, key: Key) -> Then {
        self.page.more_before = Some(key.successor());
        Then::Stop
    }

    /// Adds that a segment is lost.
    pub fn lost(&mut self, footer: &Footer, range: Range) -> Then {
        let key = Key { ordinal: u32::MAX, ..footer.last };
        if !range.holds(&key) {
            return Then::GoOn;
        }
        let from = Zxid(footer.first.zxid.0 - 1);
        self.add(key, Entry::Gap(Gap { from, missing: Some(footer.entries), why: GapReason::Lost }))
    }
}
