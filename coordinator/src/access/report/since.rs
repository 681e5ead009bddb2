//! Past lock events since a change, for the beginning of a stream.

use std::sync::Arc;

use rowlock_env::busy::{self, Work};
use rowlock_env::time::{self, Instant};
use rowlock_history::{Entry, Filter, Key, Unavailable};
use rowlock_proto::Zxid;
use rowlock_proto::acl::Id;
use rowlock_proto::report::HistoryEntry;
use rowlock_state::{Frozen, Machine};
use rowlock_types::limits::{API_WATCH_PAST_MAX, HISTORY_READ_MAX};

use super::Reports;
use super::access::ReaderCache;
use super::history::item;
use super::question::Scope;
use crate::access::lock_feed::{FeedEntry, Happened};

/// Entries per page of the history.
const PAGE: usize = 1_000;

/// Range of changes: after `after`, up to and including `last`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) after: Zxid,
    pub(crate) last: Zxid,
}

impl Span {
    /// Returns the key of an entry inside the range. A gap across the end of the range is cut at the end.
    fn holds(&self, key: Key, entry: &Entry<'_>, scope: &Scope) -> Option<Key> {
        let is_meant = match entry {
            Entry::Gap(gap) => gap.from < self.last,
            Entry::Lock(record) => key.zxid <= self.last && scope.has(&record.lock),
        };
        is_meant.then_some(Key { zxid: key.zxid.min(self.last), ..key })
    }
}

/// Reason for missing events, in the vocabulary of gaps.
pub(crate) type Missing = &'static str;

/// Visible past events, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) entries: Vec<HistoryEntry>,
    /// Events before `entries` may be missing.
    pub(crate) missing: Option<Missing>,
}

impl Reports {
    /// Reads past events from the history. If the history begins later or the range has too many events, only
    /// the newest events are returned.
    pub(crate) async fn since(&self, frozen: &Frozen, scope: &Scope, span: Span, who: &[Id]) -> Past {
        if span.after >= span.last {
            return Past::default();
        }
        let deadline = time::now() + HISTORY_READ_MAX;
        let (mut found, missing) = self.read_back(scope, span, deadline).await;
        found.reverse();
        assert!(found.len() <= API_WATCH_PAST_MAX, "the past is bounded");
        let mut may_see = visible(frozen.machine(), scope, who);
        let shown = found.iter().filter(|(_, entry)| may_see(entry));
        Past { entries: shown.map(|(key, entry)| item(*key, entry)).collect(), missing }
    }

    async fn read_back(
        &self,
        scope: &Scope,
        span: Span,
        deadline: Instant,
    ) -> (Vec<(Key, Entry<'static>)>, Option<Missing>) {
        let lock = if let Scope::Lock(lock) = scope { Some(lock.clone()) } else { None };
        let (mut found, mut before) = (Vec::new(), Key::MAX);
        loop {
            let filter = Filter { lock: lock.clone(), session: None, since_ms: 0, before, limit: PAGE };
            let page = match self.history.page(filter, deadline).await {
                Ok(page) => page,
                Err(Unavailable::Off) => return (found, Some("no-history")),
                Err(Unavailable::NotNow) => return (found, Some("not-now")),
            };
            for (key, entry) in page.entries {
                if key.zxid <= span.after {
                    return (found, None);
                }
                let Some(key) = span.holds(key, &entry, scope) else { continue };
                if found.len() >= API_WATCH_PAST_MAX {
                    return (found, Some("too-many"));
                }
                found.push((key, entry));
            }
            match page.more_before {
                Some(more) => before = more,
                None => {
                    let reaches_back = page.kept_from.is_some_and(|first| first.zxid <= span.after);
                    return (found, (!reaches_back).then_some("trimmed"));
                }
            }
        }
    }
}

/// Returns a filter for entries visible to `who`, by the permissions at the time of the event and the present
/// permissions of the lock.
fn visible<'a>(machine: &'a Machine, scope: &'a Scope, who: &'a [Id]) -> impl FnMut(&Entry<'_>) -> bool {
    let mut known = ReaderCache::default();
    move |entry| {
        busy::spend(Work::Row, 1);
        match entry {
            Entry::Gap(_) => true,
            Entry::Lock(record) => {
                scope.has(&record.lock)
                    && record.readers.include(who)
                    && known.may_see(machine, &record.lock, who)
            }
        }
    }
}

/// Returns the events visible to `who`.
pub(crate) fn shown<'a>(
    events: impl Iterator<Item = &'a Happened>,
    machine: &Machine,
    scope: &Scope,
    who: &[Id],
) -> Vec<Arc<FeedEntry>> {
    let mut may_see = visible(machine, scope, who);
    events.filter(|event| may_see(&event.at.1)).map(|event| event.line(item)).collect()
}

#[cfg(test)]
mod tests {
    use rowlock_history::{Gap, GapReason};

    use super::*;

    #[test]
    fn gap_across_the_end_of_the_span_is_cut_there() {
        let (span, scope) = (Span { after: Zxid(5), last: Zxid(9) }, Scope::Lock("/l".to_owned()));
        let to = |from, zxid| {
            let gap = Entry::Gap(Gap { from: Zxid(from), missing: None, why: GapReason::NoSpace });
            let key = Key { zxid: Zxid(zxid), ..Key::at(1) };
            span.holds(key, &gap, &scope).map(|key| key.zxid)
        };
        assert_eq!([to(3, 8), to(7, 12)], [Some(Zxid(8)), Some(Zxid(9))]);
        assert_eq!(to(9, 12), None, "it begins behind it");
    }
}
