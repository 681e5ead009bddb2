//! `/v1/history`: what happened to locks.

use rowlock_env::time;
use rowlock_history::{Entry, Filter, Gap, GapReason, History, Key, Record, Unavailable};
use rowlock_state::Frozen;
use rowlock_state::outcome::{LockEventKind, Why};
use rowlock_types::limits::HISTORY_READ_MAX;
use serde_json::{Map, Value, json};

use super::access::Known;
use super::list::List;
use super::locks::{address, label, mode, permits, session};
use super::question::{HistoryQuestion, cursor_text};
use super::{Reader, Refusal};

/// The entries that are asked for and may be seen, newest first, and where there may be more.
pub(super) async fn collect(
    history: &History,
    frozen: &Frozen,
    question: &HistoryQuestion,
    reader: &Reader,
) -> Result<(Vec<Value>, Option<Key>), Refusal> {
    let deadline = time::now() + HISTORY_READ_MAX;
    let (mut list, mut known, mut before) = (List::new(question.limit), Known::default(), question.before);
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
            // What has been found is an answer.
            Err(Unavailable::NotNow) if !list.items.is_empty() => return Ok((list.items, Some(before))),
            Err(off @ Unavailable::Off) => return Err(Refusal::NotKept(off.to_string())),
            Err(not_now @ Unavailable::NotNow) => return Err(Refusal::NotNow(not_now.to_string())),
        };
        for (key, entry) in page.entries {
            let is_shown = match &entry {
                Entry::Gap(_) => true,
                // By the permissions of its time and, as long as the lock is there, by its present ones.
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

/// The newest comes last, as in a log.
pub(super) fn document(newest_first: &[Value], more_before: Option<Key>) -> Value {
    let entries: Vec<&Value> = newest_first.iter().rev().collect();
    json!({ "entries": entries, "more": more_before.is_some(), "before": more_before.map(cursor_text) })
}

fn item(key: Key, entry: &Entry<'_>) -> Value {
    let mut item = Map::new();
    item.insert("time_ms".to_owned(), key.time_ms.into());
    item.insert("zxid".to_owned(), key.zxid.0.into());
    match entry {
        Entry::Lock(record) => add_record(&mut item, record),
        Entry::Gap(gap) => add_gap(&mut item, gap),
    }
    item.into()
}

fn add_record(item: &mut Map<String, Value>, record: &Record<'_>) {
    let mut put = |name: &str, value: Value| {
        item.insert(name.to_owned(), value);
    };
    match record.kind {
        LockEventKind::Requested { ahead } => {
            put("event", "requested".into());
            put("ahead", ahead.into());
        }
        LockEventKind::Granted { waited_ms } => {
            put("event", "granted".into());
            put("waited_ms", waited_ms.into());
        }
        LockEventKind::Converted => put("event", "converted".into()),
        LockEventKind::Gone { held_ms, waited_ms, why } => {
            put("event", end_of(held_ms.is_some(), why).into());
            put("reason", reason(why).into());
            put("waited_ms", waited_ms.into());
            put("held_ms", held_ms.into());
        }
    }
    put("lock", (&*record.lock).into());
    put("path", record.path().into());
    put("token", record.token.0.into());
    put("session", session(record.session));
    put("label", label(&record.label));
    put("address", address(&record.address));
    put("mode", mode(record.mode).into());
    put("permits", permits(record.mode));
    put("acquired", record.is_acquired.into());
}

/// What the end of a place was to whoever had it.
fn end_of(held: bool, why: Why) -> &'static str {
    match (held, why) {
        (false, _) => "abandoned",
        (true, Why::Released | Why::SessionClosed) => "released",
        (true, Why::SessionExpired | Why::Deleted | Why::Forced | Why::Revoked) => "lost",
    }
}

fn reason(why: Why) -> &'static str {
    match why {
        Why::Released => "released",
        Why::SessionClosed => "session-closed",
        Why::SessionExpired => "session-expired",
        Why::Deleted => "deleted",
        Why::Forced => "forced",
        Why::Revoked => "revoked",
    }
}

fn add_gap(item: &mut Map<String, Value>, gap: &Gap) {
    let reason = match gap.why {
        GapReason::TooFast => "too-fast",
        GapReason::Snapshot => "snapshot",
        GapReason::Lost => "lost",
        GapReason::NoSpace => "no-space",
    };
    item.insert("event".to_owned(), "gap".into());
    item.insert("reason".to_owned(), reason.into());
    item.insert("from_zxid".to_owned(), gap.from.0.into());
    item.insert("missing".to_owned(), gap.missing.into());
}
