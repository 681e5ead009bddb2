//! Past lock events: the pages of `/v1/history`, and the events since a change for the beginning of a stream.

use std::sync::Arc;

use crate::limits::API_WATCH_PAST_MAX;
use rowlock_env::busy::{self, Work};
use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_history::limits::HISTORY_READ_MAX;
use rowlock_history::{Entry, Filter, History, Key, Readers, Unavailable};
use rowlock_proto::acl::Id;
use rowlock_proto::report::{GapReason, HistoryEntry, HistoryEvent};
use rowlock_proto::{Zxid, report as shown};
use rowlock_state::{Frozen, Machine};

use super::access::ReaderCache;
use super::question::{HistoryQuestion, Scope, cursor_text};
use super::{List, Refusal, Reports, Viewer};
use crate::access::lock_feed::{FeedEntry, FeedEvent};

/// Collects the visible entries, newest first. Also returns the position for the next page, if more entries
/// may exist.
pub(super) async fn collect(
    history: &History,
    frozen: &Frozen,
    question: &HistoryQuestion,
    reader: &Viewer,
) -> Result<(Vec<HistoryEntry>, Option<Key>), Refusal> {
    let deadline = time::now() + HISTORY_READ_MAX;
    let (mut list, mut known, mut before) =
        (List::new(question.limit), ReaderCache::default(), question.before);
    loop {
        let filter = Filter {
            lock: question.lock.clone(),
            session: question.session,
            since_ms: question.since_ms,
            before,
            limit: question.limit - list.items.len(),
        };
        let page = match history.page(filter, deadline).await {
            Ok(page) => page,
            // A partial page is a valid result.
            Err(Unavailable::NotNow) if !list.items.is_empty() => return Ok((list.items, Some(before))),
            Err(off @ Unavailable::Off) => return Err(Refusal::NotKept(off.to_string())),
            Err(not_now @ Unavailable::NotNow) => return Err(Refusal::NotNow(not_now.to_string())),
        };
        for (key, entry) in page.entries {
            // Visible by the permissions at the time of the event and, while the lock exists, by its present
            // permissions.
            let is_shown = entry.event.lock().is_none_or(|event| {
                entry.readers.include(&reader.who)
                    && known.may_see(frozen.machine(), &event.lock, &reader.who)
            });
            if decides!("history-entry-is-visible", is_shown) && !list.push(item(key, entry.event)) {
                return Ok((list.items, Some(key.successor())));
            }
        }
        match page.more_before {
            Some(more) if list.items.len() < question.limit && time::now() < deadline => before = more,
            more => return Ok((list.items, more)),
        }
    }
}

/// Orders the entries as in a log, newest last.
pub(super) fn document(mut newest_first: Vec<HistoryEntry>, more_before: Option<Key>) -> shown::History {
    newest_first.reverse();
    shown::History {
        entries: newest_first,
        more: more_before.is_some(),
        before: more_before.map(cursor_text),
    }
}

pub(super) fn item(key: Key, event: HistoryEvent) -> HistoryEntry {
    HistoryEntry { time_ms: key.time_ms, zxid: key.zxid, event }
}

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
    fn holds(&self, key: Key, entry: &Entry, scope: &Scope) -> Option<Key> {
        let is_meant = match &entry.event {
            HistoryEvent::Gap(gap) => gap.from_zxid < self.last,
            event => key.zxid <= self.last && event.lock().is_some_and(|event| scope.has(&event.lock)),
        };
        is_meant.then_some(Key { zxid: key.zxid.min(self.last), ..key })
    }
}

/// Visible past events, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) entries: Vec<HistoryEntry>,
    /// Events before `entries` may be missing.
    pub(crate) missing: Option<GapReason>,
}

impl Reports {
    /// Reads past events from the history. If the history begins later or the range has too many events, only
    /// the newest events are returned.
    pub(crate) async fn since(&self, frozen: &Frozen, scope: &Scope, span: Span, who: &[Id]) -> Past {
        if decides!("history-span-is-empty", span.after >= span.last) {
            return Past::default();
        }
        let deadline = time::now() + HISTORY_READ_MAX;
        let (mut found, missing) = self.read_back(scope, span, deadline).await;
        found.reverse();
        assert!(found.len() <= API_WATCH_PAST_MAX, "the past is bounded");
        let mut may_see = visible(frozen.machine(), scope, who);
        let shown = found.into_iter().filter(|(_, entry)| may_see(&entry.event, &entry.readers));
        Past { entries: shown.map(|(key, entry)| item(key, entry.event)).collect(), missing }
    }

    async fn read_back(
        &self,
        scope: &Scope,
        span: Span,
        deadline: Instant,
    ) -> (Vec<(Key, Entry)>, Option<GapReason>) {
        let lock = if let Scope::Lock(lock) = scope { Some(lock.clone()) } else { None };
        let (mut found, mut before) = (Vec::new(), Key::MAX);
        loop {
            let filter = Filter { lock: lock.clone(), session: None, since_ms: 0, before, limit: PAGE };
            let page = match self.history.page(filter, deadline).await {
                Ok(page) => page,
                Err(Unavailable::Off) => return (found, Some(GapReason::NoHistory)),
                Err(Unavailable::NotNow) => return (found, Some(GapReason::NotNow)),
            };
            for (key, entry) in page.entries {
                if decides!("history-page-reaches-back", key.zxid <= span.after) {
                    return (found, None);
                }
                let Some(key) = span.holds(key, &entry, scope) else { continue };
                if found.len() >= API_WATCH_PAST_MAX {
                    return (found, Some(GapReason::TooMany));
                }
                found.push((key, entry));
            }
            match page.more_before {
                Some(more) => before = more,
                None => {
                    return (found, (page.complete_after > span.after).then_some(GapReason::Trimmed));
                }
            }
        }
    }
}

/// Returns a filter for entries visible to `who`, by the permissions at the time of the event and the present
/// permissions of the lock.
pub(super) fn visible<'a>(
    machine: &'a Machine,
    scope: &'a Scope,
    who: &'a [Id],
) -> impl FnMut(&HistoryEvent, &Readers) -> bool {
    let mut known = ReaderCache::default();
    move |event, readers| {
        busy::spend(Work::Row, 1);
        event.lock().is_none_or(|event| {
            scope.has(&event.lock) && readers.include(who) && known.may_see(machine, &event.lock, who)
        })
    }
}

/// Returns the events visible to `who`.
pub(crate) fn shown<'a>(
    events: impl Iterator<Item = &'a FeedEvent>,
    machine: &Machine,
    scope: &Scope,
    who: &[Id],
) -> Vec<Arc<FeedEntry>> {
    let mut may_see = visible(machine, scope, who);
    let visible = events.filter(|event| may_see(&event.line.entry.event, &event.readers));
    visible.map(|event| event.line.clone()).collect()
}

#[cfg(test)]
mod tests {
    use rowlock_proto::report::Gap;

    use super::*;

    #[test]
    fn gap_across_the_end_of_the_span_is_cut_there() {
        let (span, scope) = (Span { after: Zxid(5), last: Zxid(9) }, Scope::Lock("/l".to_owned()));
        let to = |from, zxid| {
            let gap = Entry::from(Gap { from_zxid: Zxid(from), missing: None, reason: GapReason::NoSpace });
            let key = Key { zxid: Zxid(zxid), ..Key::at(1) };
            span.holds(key, &gap, &scope).map(|key| key.zxid)
        };
        assert_eq!([to(3, 8), to(7, 12)], [Some(Zxid(8)), Some(Zxid(9))]);
        assert_eq!(to(9, 12), None, "it begins behind it");
    }
}
