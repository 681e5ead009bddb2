//! Queries of the history, and filling a page with entries, newest first.
//!
//! Invariant: a page examines a bounded number of entries, for any query.

use rowlock_env::decides;
use rowlock_proto::lock_event::{Gap, GapReason};
use rowlock_proto::{SessionId, Zxid};

use super::block::entries;
use super::footer::Footer;
use super::record::{Entry, HistoryError, Key, Subject};
use super::segment::Reader;

/// Bound of the entries in the blocks read for a page. Above the bound the page ends; the next page
/// continues.
const EXAMINED_MAX: usize = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Path of a lock's znode; `None` for all locks.
    pub lock: Option<String>,
    pub session: Option<SessionId>,
    /// Earliest time, in milliseconds since 1970.
    pub since_ms: i64,
    /// Exclusive upper bound; [`Key::MAX`] for the newest records.
    pub before: Key,
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

/// Keys from `from` up to, but excluding, `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub from: Key,
    pub before: Key,
}

impl Range {
    pub fn holds(&self, key: &Key) -> bool {
        (self.from..self.before).contains(key)
    }

    /// Returns true if the range overlaps the keys `first` to `last`.
    pub fn meets(&self, first: Key, last: Key) -> bool {
        last >= self.from && first < self.before
    }
}

/// A part of the history, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Matching entries, and all gaps in the time range.
    pub entries: Vec<(Key, Entry)>,
    pub more_before: Option<Key>,
    /// All events behind this zxid, of any lock, are kept or declared missing; earlier ones may be removed.
    pub complete_after: Zxid,
    /// Time from which on all events are kept or declared missing; `i64::MIN`: nothing was removed.
    pub complete_from_ms: i64,
}

/// Decision to continue a page or to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageStep {
    Continue,
    Stop,
}

pub(super) struct Reading<'a> {
    filter: &'a Filter,
    pub page: Page,
    examined: usize,
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> Reading<'a> {
    /// Makes an empty page. `is_over` returns true after the caller is gone.
    pub fn new(filter: &'a Filter, is_over: &'a dyn Fn() -> bool) -> Self {
        Reading { filter, page: Page::default(), examined: 0, is_over }
    }

    pub fn read(&mut self, segment: &Reader<'_>, range: Range) -> Result<PageStep, HistoryError> {
        for (number, head) in segment.blocks(range) {
            // Stops at a full page, at the bound of examined entries, or without a caller.
            if self.is_full() || self.examined >= EXAMINED_MAX || (self.is_over)() {
                return Ok(self.stop_at(head.last));
            }
            self.examined += head.entries as usize;
            let block = segment.block(number)?;
            let mut wanted = Vec::new();
            for item in entries(&block) {
                let item = item?;
                if decides!(
                    "history-item-is-wanted",
                    range.holds(&item.key) && self.filter.wants(&item.subject)
                ) {
                    wanted.push(item);
                }
            }
            for item in wanted.into_iter().rev() {
                if self.add(item.key, item.entry()?) == PageStep::Stop {
                    return Ok(PageStep::Stop);
                }
            }
        }
        Ok(PageStep::Continue)
    }

    fn is_full(&self) -> bool {
        self.page.entries.len() >= self.filter.limit
    }

    pub fn add(&mut self, key: Key, entry: Entry) -> PageStep {
        if self.is_full() {
            return self.stop_at(key);
        }
        self.page.entries.push((key, entry));
        PageStep::Continue
    }

    fn stop_at(&mut self, key: Key) -> PageStep {
        self.page.more_before = Some(key.successor());
        PageStep::Stop
    }

    /// Adds a gap for a lost segment with all events after `from`.
    pub fn lost(&mut self, footer: &Footer, from: Zxid, range: Range) -> PageStep {
        if !range.holds(&footer.last()) {
            return PageStep::Continue;
        }
        let gap = Gap { from_zxid: from, missing: footer.entries(), reason: GapReason::Lost };
        self.add(footer.last(), gap.into())
    }
}
