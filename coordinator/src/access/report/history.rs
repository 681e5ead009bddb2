//! `/v1/history`: events of locks.

use rowlock_env::time;
use rowlock_history::{Entry, Filter, Gap, GapReason, History, Key, Record, Unavailable};
use rowlock_proto::report::{self as shown, HistoryEnd, HistoryEntry, HistoryEvent, HistoryPlace};
use rowlock_state::Frozen;
use rowlock_state::outcome::{LockEventKind, Why};
use rowlock_types::limits::HISTORY_READ_MAX;

use super::access::ReaderCache;
use super::list::List;
use super::locks::{address, label, permits};
use super::question::{HistoryQuestion, cursor_text};
use super::{Refusal, Viewer};
use crate::node::apply::reason;

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
            let is_shown = match &entry {
                Entry::Gap(_) => true,
                // Visible by the permissions at the time of the event and, while the lock exists, by its
                // present permissions.
                Entry::Lock(record) => {
                    record.readers.include(&reader.who)
                        && known.may_see(frozen.machine(), &record.lock, &reader.who)
                }
            };
            if is_shown && !list.push(item(key, &entry)) {
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

pub(super) fn item(key: Key, entry: &Entry<'_>) -> HistoryEntry {
    let event = match entry {
        Entry::Lock(record) => lock_event(record),
        Entry::Gap(gap) => gap_event(gap),
    };
    HistoryEntry { time_ms: key.time_ms, zxid: key.zxid, event }
}

fn lock_event(record: &Record<'_>) -> HistoryEvent {
    let place = HistoryPlace {
        lock: record.lock.to_string(),
        path: record.path(),
        token: record.token,
        session: record.session,
        label: label(&record.label),
        address: address(&record.address),
        mode: record.mode.into(),
        permits: permits(record.mode),
        acquired: record.is_acquired,
    };
    match record.kind {
        LockEventKind::Requested { ahead } => HistoryEvent::Requested { ahead, place },
        LockEventKind::Granted { waited_ms } => HistoryEvent::Granted { waited_ms, place },
        LockEventKind::Converted => HistoryEvent::Converted(place),
        LockEventKind::Asked => {
            let question = place.label.clone();
            HistoryEvent::Asked { question, place: HistoryPlace { label: String::new(), ..place } }
        }
        LockEventKind::Gone { held_ms, waited_ms, why } => {
            let by = (!record.by.is_empty()).then(|| record.by.to_string());
            let end = HistoryEnd { reason: reason(why).to_owned(), waited_ms, held_ms, by, place };
            match (held_ms, why) {
                (None, _) => HistoryEvent::Abandoned(end),
                (Some(_), Why::Released | Why::SessionClosed) => HistoryEvent::Released(end),
                (
                    Some(_),
                    Why::SessionExpired | Why::SessionEnded | Why::Deleted | Why::Forced | Why::Revoked,
                ) => HistoryEvent::Lost(end),
            }
        }
    }
}

fn gap_event(gap: &Gap) -> HistoryEvent {
    let reason = match gap.why {
        GapReason::TooFast => "too-fast",
        GapReason::Snapshot => "snapshot",
        GapReason::Lost => "lost",
        GapReason::NoSpace => "no-space",
    };
    HistoryEvent::Gap { reason: reason.to_owned(), from_zxid: gap.from, missing: gap.missing }
}
