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
use crate::delivery::lock_feed::{FeedEntry, Happened};

/// Entries of a page of the history.
const PAGE: usize = 1_000;

/// Which changes are meant: those behind the first one, up to the second one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) after: Zxid,
    pub(crate) last: Zxid,
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
                let is_meant = match &entry {
                    Entry::Gap(_) => true,
                    Entry::Lock(record) => scope.has(&record.lock),
                };
                if key.zxid > span.last || !is_meant {
                    continue;
                }
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
