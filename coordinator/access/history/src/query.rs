//! Reading: what is asked of the history, and how a page of it is filled, newest first.
//!
//! Invariant: a page looks at a bounded number of entries, whatever is asked.

use rowlock_proto::{SessionId, Zxid};

use super::block::entries;
use super::error::HistoryError;
use super::footer::Footer;
use super::record::{Entry, Gap, GapReason, Key, Subject};
use super::segment::Reader;

/// Entries of the blocks that one page looks into. Beyond: it ends, and the next one goes on.
const EXAMINED_MAX: usize = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Only of this lock (path of its znode).
    pub lock: Option<String>,
    pub session: Option<SessionId>,
    /// Nothing older, milliseconds since 1970.
    pub since_ms: i64,
    /// Only what was before; [`Key::MAX`] for the newest.
    pub before: Key,
    /// The most records to return.
    pub limit: usize,
}

impl Filter {
    fn wants(&self, subject: &Subject<'_>) -> bool {
        match subject {
            Subject::Gap(_) => true,
            Subject::Lock { lock, session } => {
                self.lock.as_ref().is_none_or(|wanted| wanted.as_bytes() == *lock)
                    && self.session.is_none_or(|wanted| wanted == *session)
            }
        }
    }
}

/// Keys from `from` on and before `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub from: Key,
    pub before: Key,
}

impl Range {
    pub fn holds(&self, key: &Key) -> bool {
        (self.from..self.before).contains(key)
    }

    /// Whether a part of it lies between these keys.
    pub fn meets(&self, first: Key, last: Key) -> bool {
        last >= self.from && first < self.before
    }
}

/// A part of the history, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries: what was asked for, and all gaps of that time.
    pub entries: Vec<(Key, Entry<'static>)>,
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
    pub page: Page,
    examined: usize,
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> Reading<'a> {
    /// Makes an empty one. `is_over`: the caller has gone.
    pub fn new(filter: &'a Filter, is_over: &'a dyn Fn() -> bool) -> Self {
        Reading { filter, page: Page::default(), examined: 0, is_over }
    }

    pub fn read(&mut self, segment: &Reader<'_>, range: Range) -> Result<Then, HistoryError> {
        for (number, head) in segment.blocks(range) {
            // The page is full, or has looked at much, or the caller has gone.
            if self.is_full() || self.examined >= EXAMINED_MAX || (self.is_over)() {
                return Ok(self.stop_at(head.last));
            }
            self.examined += head.entries as usize;
            let block = segment.block(number)?;
            let mut wanted = Vec::new();
            for item in entries(&block) {
                let item = item?;
                if range.holds(&item.key) && self.filter.wants(&item.subject) {
                    wanted.push(item);
                }
            }
            for item in wanted.into_iter().rev() {
                if self.add(item.key, item.entry()?) == Then::Stop {
                    return Ok(Then::Stop);
                }
            }
        }
        Ok(Then::GoOn)
    }

    fn is_full(&self) -> bool {
        self.page.entries.len() >= self.filter.limit
    }

    pub fn add(&mut self, key: Key, entry: Entry<'_>) -> Then {
        if self.is_full() {
            return self.stop_at(key);
        }
        self.page.entries.push((key, entry.into_owned()));
        Then::GoOn
    }

    fn stop_at(&mut self, key: Key) -> Then {
        self.page.more_before = Some(key.successor());
        Then::Stop
    }

    /// Adds that a segment is lost, which had everything behind `from`.
    pub fn lost(&mut self, footer: &Footer, from: Zxid, range: Range) -> Then {
        if !range.holds(&footer.last()) {
            return Then::GoOn;
        }
        let gap = Gap { from, missing: footer.entries(), why: GapReason::Lost };
        self.add(footer.last(), Entry::Gap(gap))
    }
}
