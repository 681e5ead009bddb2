//! `/v1/contention`: which locks clients waited for, how long, and behind which holders.
//!
//! frozen state (present positions) + history, newest entry first -> [`sweep`] -> document. The sweep needs
//! no entries again, so a report has the memory of its sums and of the positions at one moment.
//!
//! Invariant: a report counts exactly the positions and entries that the reader may see in `/v1/queue` and
//! `/v1/history`. Invariant: what the report does not know is in the document: the time before its beginning,
//! gaps of the history, waits without an end.

mod one_lock;
mod sweep;

use std::sync::Arc;

use rowlock_env::time;
use rowlock_env::worker;
use rowlock_history::limits::HISTORY_READ_MAX;
use rowlock_history::{Entry, Filter, History, Key, Unavailable};
use rowlock_proto::report::GapReason;
use rowlock_state::{Frozen, LockView, Machine};

use super::access::{self, Viewer};
use super::history::visible;
use super::locks::{address, label};
use super::question::{ContentionQuestion, Scope};
use super::{Refusal, json_of};
use sweep::{Party, Sweep};

/// Entries per page of the history.
const PAGE: usize = 5_000;
const DEFAULT_TIME_MS: i64 = 3_600_000;

/// A question at a time, by a reader.
pub(super) struct Asked {
    pub question: ContentionQuestion,
    /// Time of the report, by the clock of the log.
    pub until_ms: i64,
    pub reader: Viewer,
}

/// Builds the document from the frozen state and the history.
pub(super) async fn document(history: &History, frozen: Frozen, asked: Asked) -> Result<String, Refusal> {
    if let Scope::Lock(lock) = &asked.question.scope {
        access::check(frozen.machine(), lock, &asked.reader.who)?;
    }
    let (frozen, asked) = (Arc::new(frozen), Arc::new(asked));
    let since_ms = asked.question.since_ms.unwrap_or(asked.until_ms - DEFAULT_TIME_MS);
    let since_ms = since_ms.clamp(0, asked.until_ms.max(0));
    let is_one = matches!(asked.question.scope, Scope::Lock(_));
    let mut sweep = Sweep::new((since_ms, asked.until_ms.max(0)), asked.question.by, is_one);
    let (of, by) = (frozen.clone(), asked.clone());
    sweep = worker::run_blocking("report", move || {
        add_queues(&mut sweep, of.machine(), &by);
        sweep
    })
    .await;
    let read = read(history, (&frozen, &asked), sweep, since_ms).await?;
    let (zxid, limit) = (frozen.machine().last_zxid(), asked.question.limit);
    let write = move || json_of(&read.sweep.document(read.from_ms, read.cut, zxid, limit));
    Ok(worker::run_blocking("report", write).await)
}

/// Adds the present holders and waiters.
fn add_queues(sweep: &mut Sweep, machine: &Machine, asked: &Asked) {
    let who = &asked.reader.who;
    let mut add = |queue: LockView<'_>| {
        for place in queue.holders().chain(queue.waiters()) {
            if sweep.is_full() || !access::may_see_place(machine, &place.path, who) {
                continue;
            }
            let (label, address) = (label(&place.label), address(&place.address));
            let party = Party { label: &label, address: address.as_deref(), session: place.session };
            sweep.add_present(queue.path(), party, place.token, (place.requested_ms, place.granted_ms));
        }
    };
    match &asked.question.scope {
        Scope::Lock(lock) => machine.lock_queue(lock).into_iter().for_each(add),
        scope => {
            let is_meant =
                |queue: &LockView<'_>| scope.has(queue.path()) && access::may_see(machine, queue.path(), who);
            machine.locks().filter(is_meant).for_each(&mut add);
        }
    }
}

/// A sweep back to `from_ms`.
struct Read {
    sweep: Sweep,
    from_ms: i64,
    /// Why `from_ms` is after the beginning of the requested time.
    cut: Option<GapReason>,
}

/// Passes the history since `since_ms` to the sweep.
async fn read(
    history: &History,
    (frozen, asked): (&Arc<Frozen>, &Arc<Asked>),
    mut sweep: Sweep,
    since_ms: i64,
) -> Result<Read, Refusal> {
    let lock = if let Scope::Lock(lock) = &asked.question.scope { Some(lock.clone()) } else { None };
    let (deadline, mut before) = (time::now() + HISTORY_READ_MAX, Key::MAX);
    loop {
        if sweep.is_full() {
            let from_ms = before.time_ms.min(asked.until_ms);
            return Ok(Read { sweep, from_ms, cut: Some(GapReason::TooMany) });
        }
        let filter = Filter { lock: lock.clone(), session: None, since_ms, before, limit: PAGE };
        let page = match history.page(filter, deadline).await {
            Ok(page) => page,
            Err(off @ Unavailable::Off) => return Err(Refusal::NotKept(off.to_string())),
            Err(not_now @ Unavailable::NotNow) if before == Key::MAX => {
                return Err(Refusal::NotNow(not_now.to_string()));
            }
            // A part of the time is a valid result.
            Err(Unavailable::NotNow) => {
                return Ok(Read { sweep, from_ms: before.time_ms, cut: Some(GapReason::NotNow) });
            }
        };
        let (of, by, entries) = (frozen.clone(), asked.clone(), page.entries);
        (sweep, before) = worker::run_blocking("report", move || {
            let reached = add_entries(&mut sweep, &of, &by, entries);
            (sweep, reached.unwrap_or(before))
        })
        .await;
        match page.more_before {
            _ if sweep.is_full() => {}
            Some(more) => before = more,
            None => {
                let (from_ms, cut) = (page.complete_from_ms, Some(GapReason::Trimmed));
                return Ok(Read { sweep, from_ms, cut });
            }
        }
    }
}

/// Adds the entries that the reader may see, up to the bounds of the report. Returns the last added entry.
fn add_entries(sweep: &mut Sweep, frozen: &Frozen, asked: &Asked, entries: Vec<(Key, Entry)>) -> Option<Key> {
    let machine = frozen.machine();
    let mut may_see = visible(machine, &asked.question.scope, &asked.reader.who);
    let mut reached = None;
    for (key, Entry { event, readers }) in entries {
        if sweep.is_full() {
            break;
        }
        reached = Some(key);
        // Later positions and ends are in the queues of the frozen state.
        if key.zxid <= machine.last_zxid() && may_see(&event, &readers) {
            sweep.add_entry(key, &event);
        }
    }
    reached
}

#[cfg(test)]
pub(super) mod tests;
