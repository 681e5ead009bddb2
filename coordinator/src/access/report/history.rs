//! `/v1/history`: events of locks.

use rowlock_env::decides;
use rowlock_env::time;
use rowlock_history::limits::HISTORY_READ_MAX;
use rowlock_history::{Filter, History, Key, Unavailable};
use rowlock_proto::report::{self as shown, HistoryEntry, HistoryEvent};
use rowlock_state::Frozen;

use super::access::ReaderCache;
use super::list::List;
use super::question::{HistoryQuestion, cursor_text};
use super::{Refusal, Viewer};

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
