//! What has happened to some locks since a change, for those who go on watching them.

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
use crate::lock_feed::{FeedEntry, Happened};

/// Entries of a page of the history.
const PAGE: usize = 1_000;

/// Which changes are meant: those behind the first one, up to the second one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) after: Zxid,
    pub(crate) last: Zxid,
}

impl Span {
    /// The key of an entry that is meant. Of a gap that ends behind the span, the part that is in it counts.
    fn holds(&self, key: Key, entry: &Entry<'_>, scope: &Scope) -> Option<Key> {
        let is_meant = match entry {
            Entry::Gap(gap) => gap.from < self.last,
            Entry::Lock(record) => key.zxid <= self.last && scope.has(&record.lock),
        };
        is_meant.then_some(Key { zxid: key.zxid.min(self.last), ..key })
    }
}

/// Why the beginning is missing, as gaps say it.
pub(crate) type Missing = &'static str;

/// Visible past events, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) entries: Vec<HistoryEntry>,
    /// Something may have happened before that is not there.
    pub(crate) missing: Option<Missing>,
}

impl Reports {
    /// Reads it. Where the history does not reach back, or there is too much, only the newest part.
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

/// Which entries `who` may see, by the permissions of their time and the present ones of the locks.
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

/// Filters the events that `who` may see.
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
    fn a_gap_that_ends_behind_the_span_is_told_up_to_its_end() {
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
