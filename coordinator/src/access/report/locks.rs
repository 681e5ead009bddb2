//! Reports from the state: `/v1/locks` and `/v1/queue` with holders and waiters, and `/v1/sessions` with open
//! sessions and their znodes. A client sees its own session; superusers see all sessions.

use std::cmp::Reverse;

use rowlock_env::decides;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Mode, Owner};
use rowlock_proto::report::{
    Holder, Lock, Locks, Place, Queue, Session as Shown, SessionZnode, Sessions, ShownQuestion, Waiter,
};
use rowlock_proto::{FencingToken, SessionId};
use rowlock_state::{ContenderView, LockView, Machine, Question, Session};

use super::question::LocksQuestion;
use super::{List, Refusal, Viewer, access};
use crate::node::delivery::registry::Registry;

/// Lists locks, the most contended first.
pub(super) fn overview(machine: &Machine, asked: &LocksQuestion, who: &[Id], now_ms: i64) -> Locks {
    let is_meant = |path: &str| path.starts_with(&asked.prefix) && path.contains(&asked.contains);
    let mut locks: Vec<LockView<'_>> = machine.locks().filter(|lock| is_meant(lock.path())).collect();
    locks.sort_by_key(|lock| (Reverse(lock.waiter_count()), Reverse(lock.holder_count())));
    let mut list = List::new(asked.limit);
    let is_shown = |path: &str| decides!("listed-lock-is-visible", access::may_see(machine, path, who));
    for lock in locks.iter().filter(|lock| is_shown(lock.path())) {
        let shown = |place: &ContenderView| access::may_see_place(machine, &place.path, who);
        let oldest = lock.waiters().next().filter(shown);
        let first = asked.holders.then(|| lock.holders().next().filter(shown)).flatten();
        let item = Lock {
            path: lock.path().to_owned(),
            holders: lock.holder_count() as u64,
            waiters: lock.waiter_count() as u64,
            holder: first.as_ref().map(name),
            held_ms: first.map(|holder| since(holder.granted_ms.unwrap_or(holder.requested_ms), now_ms)),
            oldest_wait_ms: oldest.map(|waiter| since(waiter.requested_ms, now_ms)),
            limit: lock.limit(),
            delayed_until_ms: lock.delayed_until_ms(),
        };
        if !list.push(item) {
            break;
        }
    }
    Locks { zxid: machine.last_zxid(), time_ms: now_ms, locks: list.items, more: list.more }
}

/// Lists a lock's queue in order; with `token` only the position of this token.
pub(super) fn queue(
    machine: &Machine,
    lock: &str,
    token: Option<FencingToken>,
    limit: usize,
    who: &[Id],
    now_ms: i64,
) -> Result<Queue, Refusal> {
    access::check(machine, lock, who)?;
    let view = machine.lock_queue(lock);
    if view.is_none() && machine.stat(lock).is_none() {
        return Err(Refusal::NotThere(format!("there is no {lock}")));
    }
    let shown = |place: &ContenderView| access::may_see_place(machine, &place.path, who);
    let is_meant = |place: &ContenderView| token.is_none_or(|token| place.token == token && shown(place));
    let (mut holders, mut waiters, mut before) =
        (List::new(limit), List::new(limit), Predecessors::default());
    if let Some(view) = &view {
        for (position, place) in (1u64..).zip(view.holders()) {
            before.pass(&place);
            if !is_meant(&place) {
                continue;
            }
            if !holders.push(holder(position, &place, shown(&place), now_ms)) {
                break;
            }
        }
        waiters = List::rest_of(limit, &holders);
        if holders.more {
            // Waiters may depend on holders beyond the page, so an incomplete page of holders has no waiters.
            waiters = List::new(0);
        }
        let first = 1 + view.holder_count() as u64;
        for (position, place) in (first..).zip(view.waiters()).take_while(|_| !holders.more) {
            let waits_for = before.pass(&place);
            if !is_meant(&place) {
                continue;
            }
            if !waiters.push(waiter(position, &place, shown(&place), waits_for, now_ms)) {
                break;
            }
        }
    }
    Ok(Queue {
        zxid: machine.last_zxid(),
        time_ms: now_ms,
        lock: lock.to_owned(),
        limit: view.and_then(|view| view.limit()),
        delayed_until_ms: view.and_then(|view| view.delayed_until_ms()),
        holder_count: view.map_or(0, |view| view.holder_count()) as u64,
        waiter_count: view.map_or(0, |view| view.waiter_count()) as u64,
        more: holders.more || waiters.more,
        holders: holders.items,
        waiters: waiters.items,
    })
}

/// Finds the predecessor of a queue position: the position directly before, or for a shared position the last
/// one without mode shared, since shared positions are granted together.
#[derive(Default)]
struct Predecessors {
    last: Option<String>,
    last_not_shared: Option<String>,
}

impl Predecessors {
    /// Returns the predecessor of `place` and advances past `place`.
    fn pass(&mut self, place: &ContenderView) -> Option<String> {
        let is_shared = place.mode == Mode::Shared;
        let waits_for = if is_shared { self.last_not_shared.clone() } else { self.last.clone() };
        self.last = Some(place.path.clone());
        if !is_shared {
            self.last_not_shared = self.last.clone();
        }
        waits_for
    }
}

fn holder(position: u64, view: &ContenderView, is_shown: bool, now_ms: i64) -> Holder {
    let granted_ms = view.granted_ms.unwrap_or(view.requested_ms);
    Holder {
        place: place(position, view, is_shown),
        since_ms: is_shown.then_some(granted_ms),
        held_ms: is_shown.then(|| since(granted_ms, now_ms)),
        waited_ms: is_shown.then(|| since(view.requested_ms, granted_ms)),
        revoke_at_ms: view.revoke_at_ms.filter(|_| is_shown),
        asked: view.asked.as_deref().filter(|_| is_shown).map(|question| shown_question(question, now_ms)),
    }
}

/// Converts a question to its form in reports.
pub(crate) fn shown_question(question: &Question, now_ms: i64) -> ShownQuestion {
    ShownQuestion {
        reason: question.reason.clone(),
        by: question.by.clone(),
        asked_ms_ago: since(question.asked_ms, now_ms),
        revoked_in_ms: question.deadline.map(|deadline| since(now_ms, deadline.at_ms())),
    }
}

fn waiter(
    position: u64,
    view: &ContenderView,
    is_shown: bool,
    waits_for: Option<String>,
    now_ms: i64,
) -> Waiter {
    Waiter {
        place: place(position, view, is_shown),
        since_ms: is_shown.then_some(view.requested_ms),
        waited_ms: is_shown.then(|| since(view.requested_ms, now_ms)),
        waits_for,
    }
}

/// Converts a queue position. Without READ the viewer sees only position and name, the same data as in the
/// list of the lock's children.
fn place(position: u64, view: &ContenderView, is_shown: bool) -> Place {
    let owner = match view.owner {
        Owner::Unnamed => None,
        Owner::Session => Some("session".to_owned()),
        Owner::Named(number) => Some(number.to_string()),
        Owner::Under(number) => Some(format!("under {number}")),
    };
    Place {
        position,
        path: view.path.clone(),
        session: is_shown.then_some(view.session),
        token: is_shown.then_some(view.token),
        label: is_shown.then(|| label(&view.label)),
        address: address(&view.address).filter(|_| is_shown),
        mode: is_shown.then(|| view.mode.into()),
        permits: view.mode.permits().filter(|_| is_shown),
        owner: owner.filter(|_| is_shown),
        acquired: is_shown.then_some(view.is_acquired),
    }
}

/// Returns the name of a contender for people.
fn name(view: &ContenderView) -> String {
    let label = label(&view.label);
    if label.is_empty() { address(&view.address).unwrap_or_else(|| view.session.to_string()) } else { label }
}

fn since(then_ms: i64, now_ms: i64) -> i64 {
    now_ms.saturating_sub(then_ms).max(0)
}

/// Decodes a label; invalid UTF-8 becomes replacement characters.
pub(super) fn label(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns `None` for an unknown address.
pub(super) fn address(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Lists the visible sessions in the order of their ids, or one session.
pub(super) fn session_overview(
    machine: &Machine,
    only: Option<SessionId>,
    limit: usize,
    reader: &Viewer,
    registry: &Registry,
) -> Result<Sessions, Refusal> {
    let mut list = List::new(limit);
    if let Some(id) = only {
        if decides!("session-is-hidden", !reader.may_see_session(id)) {
            return Err(Refusal::NotPermitted(format!(
                "{id} is a foreign session, visible to superusers only"
            )));
        }
        let Some(session) = machine.session(id) else {
            return Err(Refusal::NotThere(format!("there is no session {id}")));
        };
        let mut one = session_item(machine, id, session, registry);
        one.znodes = znodes(machine, id, limit);
        list.push(one);
    } else if !reader.is_super() {
        let own = machine.session(reader.session);
        own.map(|session| list.push(session_item(machine, reader.session, session, registry)));
    } else {
        for (id, session) in machine.sessions() {
            if !list.push(session_item(machine, id, session, registry)) {
                break;
            }
        }
    }
    Ok(Sessions {
        zxid: machine.last_zxid(),
        session_count: machine.counts().sessions,
        sessions: list.items,
        more: list.more,
    })
}

fn session_item(machine: &Machine, id: SessionId, session: &Session, registry: &Registry) -> Shown {
    let (held, waiting) = machine.session_locks(id);
    Shown {
        session: id,
        timeout_ms: session.timeout_ms,
        attachment: session.attachment.0,
        address: registry.address_of(id).map(|address| address.to_string()),
        ephemerals: session.ephemeral_count() as u64,
        locks_held: held as u64,
        locks_waiting: waiting as u64,
        znodes: Vec::new(),
    }
}

/// Lists the session's first znodes, bounded by the size of a report.
fn znodes(machine: &Machine, id: SessionId, limit: usize) -> Vec<SessionZnode> {
    let mut list = List::new(limit);
    for (path, czxid, holds) in machine.session_znodes(id) {
        let place = holds.map(|holds| if holds { "holds" } else { "waits" }.to_owned());
        if !list.push(SessionZnode { path: path.to_owned(), czxid, place }) {
            break;
        }
    }
    list.items
}
