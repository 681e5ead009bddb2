//! Reading: what is asked of the history, and how a page of it is filled, newest first.
//!
//! Invariant: a page looks at a bounded number of entries, whatever is asked.

use rowlock_proto::{SessionId, Zxid};

use super::error::HistoryError;
use super::record::{Entry, Gap, GapReason, Key};
use super::seal::Seal;
use super::slice::Reader;
use super::table::Range;

/// Entries that one page looks at. Beyond: it ends, and the next one goes on.
const EXAMINED_MAX: usize = 100_000;
/// How often a page asks whether it is still wanted.
const ASK_EVERY: usize = 256;

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
    /// At most so many.
    pub limit: usize,
}

/// A part of the history, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries: what was asked for, and all gaps of that time.
    pub entries: Vec<(Key, Entry<'static>)>,
    /// There may be more before this key.
    pub more_before: Option<Key>,
}

/// Whether a page wants what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It does.
    GoOn,
    /// It is full.
    Stop,
}

/// A page while it is filled.
pub(super) struct Reading<'a> {
    filter: &'a Filter,
    /// So far.
    pub page: Page,
    examined: usize,
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> Reading<'a> {
    /// An empty one. `is_over`: nobody waits for it any more.
    pub fn new(filter: &'a Filter, is_over: &'a dyn Fn() -> bool) -> Self {
        Reading { filter, page: Page::default(), examined: 0, is_over }
    }

    /// Adds what a slice has.
    pub fn read(&mut self, slice: &Reader<'_>, range: Range) -> Result<Then, HistoryError> {
        for key in slice.keys(self.filter.lock.as_deref(), self.filter.session, range)? {
            let key = key?;
            self.examined += 1;
            let tired = self.examined.is_multiple_of(ASK_EVERY) && (self.is_over)();
            if self.page.entries.len() >= self.filter.limit || self.examined > EXAMINED_MAX || tired {
                // From just behind this one, which has not been looked at.
                self.page.more_before = Some(key.successor());
                return Ok(Then::Stop);
            }
            let entry = slice.entry(key)?;
            if self.wants(&entry) {
                self.page.entries.push((key, entry));
            }
        }
        Ok(Then::GoOn)
    }

    fn wants(&self, entry: &Entry<'_>) -> bool {
        match entry {
            Entry::Gap(_) => true,
            Entry::Lock(record) => {
                self.filter.lock.as_deref().is_none_or(|lock| lock == record.lock)
                    && self.filter.session.is_none_or(|session| session == record.session)
            }
        }
    }

    /// Adds that a slice is lost.
    pub fn lost(&mut self, seal: &Seal, range: Range) -> Then {
        let key = Key { ordinal: u32::MAX, ..seal.last };
        if !range.holds(&key) {
            return Then::GoOn;
        }
        if self.page.entries.len() >= self.filter.limit {
            self.page.more_before = Some(key.successor());
            return Then::Stop;
        }
        let from = Zxid(seal.first.zxid.0 - 1);
        let gap = Gap { from, missing: Some(seal.entries), why: GapReason::Lost };
        self.page.entries.push((key, Entry::Gap(gap)));
        Then::GoOn
    }
}
