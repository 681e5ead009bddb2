//! `/v1/locks` and `/v1/queue`: who holds and who waits.

use std::cmp::Reverse;

use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Mode, Owner};
use rowlock_proto::{FencingToken, SessionId};
use rowlock_state::{ContenderView, LockView, Machine};
use serde_json::{Map, Value, json};

use super::list::List;
use super::{Refusal, access};

/// The most contended locks first.
pub(super) fn overview(machine: &Machine, limit: usize, who: &[Id], now_ms: i64) -> Value {
    let mut locks: Vec<LockView<'_>> = machine.locks().collect();
    locks.sort_by_key(|lock| (Reverse(lock.waiter_count()), Reverse(lock.holder_count())));
    let mut list = List::new(limit);
    for lock in locks.iter().filter(|lock| access::may_see(machine, lock.path(), who)) {
        let oldest = lock.waiters().next().filter(|place| access::may_see_place(machine, &place.path, who));
        let oldest = oldest.map(|waiter| since(waiter.requested_ms, now_ms));
        let item = json!({
            "lock": lock.path(),
            "holders": lock.holder_count(),
            "waiters": lock.waiter_count(),
            "oldest_wait_ms": oldest,
            "limit": lock.limit(),
            "delayed_until_ms": lock.delayed_until_ms(),
        });
        if !list.push(item) {
            break;
        }
    }
    json!({ "zxid": machine.last_zxid().0, "time_ms": now_ms, "locks": list.items, "more": list.more })
}

/// One lock's queue, in its order; of it only the place with that token, if there is one.
pub(super) fn queue(
    machine: &Machine,
    lock: &str,
    token: Option<FencingToken>,
    limit: usize,
    who: &[Id],
    now_ms: i64,
) -> Result<Value, Refusal> {
    access::check(machine, lock, who)?;
    let view = machine.lock_queue(lock);
    if view.is_none() && machine.stat(lock).is_none() {
        return Err(Refusal::NotThere(format!("there is no {lock}")));
    }
    let shown = |place: &ContenderView| access::may_see_place(machine, &place.path, who);
    let is_meant = |place: &ContenderView| token.is_none_or(|token| place.token == token && shown(place));
    let (mut holders, mut waiters, mut before) = (List::new(limit), List::new(limit), Before::default());
    if let Some(view) = &view {
        for (position, place) in (1u64..).zip(view.holders()) {
            before.pass(&place);
            if !is_meant(&place) {
                continue;
            }
            if !holders.push(limited(shown(&place), holder(position, &place, now_ms))) {
                break;
            }
        }
        waiters = List::rest_of(limit, &holders);
        if holders.more {
            // What the waiters depend on may be a holder that is not shown: without these, nothing else is.
            waiters = List::new(0);
        }
        let first = 1 + view.holder_count() as u64;
        for (position, place) in (first..).zip(view.waiters()).take_while(|_| !holders.more) {
            let waits_for = before.pass(&place);
            if !is_meant(&place) {
                continue;
            }
            if !waiters.push(limited(shown(&place), waiter(position, &place, waits_for, now_ms))) {
                break;
            }
        }
    }
    Ok(json!({
        "zxid": machine.last_zxid().0,
        "time_ms": now_ms,
        "lock": lock,
        "limit": view.and_then(|view| view.limit()),
        "delayed_until_ms": view.and_then(|view| view.delayed_until_ms()),
        "holder_count": view.map_or(0, |view| view.holder_count()),
        "waiter_count": view.map_or(0, |view| view.waiter_count()),
        "holders": holders.items,
        "waiters": waiters.items,
        "more": holders.more || waiters.more,
    }))
}

/// What a place in the queue depends on: the one right before it, but for shared ones the last that is not
/// shared, since they are granted together.
#[derive(Default)]
struct Before {
    last: Option<String>,
    last_not_shared: Option<String>,
}

impl Before {
    /// Gives what `place` waits for if it waits, and goes past it.
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

fn holder(position: u64, place: &ContenderView, now_ms: i64) -> Map<String, Value> {
    let granted_ms = place.granted_ms.unwrap_or(place.requested_ms);
    let mut item = contender(position, place);
    item.insert("since_ms".to_owned(), granted_ms.into());
    item.insert("held_ms".to_owned(), since(granted_ms, now_ms).into());
    item.insert("waited_ms".to_owned(), since(place.requested_ms, granted_ms).into());
    item.insert("revoke_at_ms".to_owned(), place.revoke_at_ms.into());
    item
}

fn waiter(
    position: u64,
    place: &ContenderView,
    waits_for: Option<String>,
    now_ms: i64,
) -> Map<String, Value> {
    let mut item = contender(position, place);
    item.insert("since_ms".to_owned(), place.requested_ms.into());
    item.insert("waited_ms".to_owned(), since(place.requested_ms, now_ms).into());
    item.insert("waits_for".to_owned(), waits_for.into());
    item
}

fn contender(position: u64, place: &ContenderView) -> Map<String, Value> {
    let owner = match place.owner {
        Owner::Unnamed => Value::Null,
        Owner::Session => "session".into(),
        Owner::Named(number) => number.to_string().into(),
        Owner::Under(number) => format!("under {number}").into(),
    };
    let mut item = Map::new();
    item.insert("position".to_owned(), position.into());
    item.insert("path".to_owned(), place.path.clone().into());
    item.insert("session".to_owned(), session(place.session));
    item.insert("token".to_owned(), place.token.0.into());
    item.insert("label".to_owned(), label(&place.label));
    item.insert("address".to_owned(), address(&place.address));
    item.insert("mode".to_owned(), mode(place.mode).into());
    item.insert("permits".to_owned(), permits(place.mode));
    item.insert("owner".to_owned(), owner);
    item.insert("acquired".to_owned(), place.is_acquired.into());
    item
}

/// What a place shows to whom may not READ it: where it stands in the queue and its name, as the lock's
/// children do.
fn limited(is_shown: bool, mut item: Map<String, Value>) -> Value {
    if !is_shown {
        let hidden =
            item.iter_mut().filter(|(name, _)| !matches!(name.as_str(), "position" | "path" | "waits_for"));
        hidden.for_each(|(_, value)| *value = Value::Null);
    }
    item.into()
}

fn since(then_ms: i64, now_ms: i64) -> i64 {
    now_ms.saturating_sub(then_ms).max(0)
}

/// As ZooKeeper's tools write it. Not a number: a program that reads JSON numbers as floating point would
/// change it.
pub(super) fn session(id: SessionId) -> Value {
    id.to_string().into()
}

/// The text of a label; of other bytes what is text.
pub(super) fn label(bytes: &[u8]) -> Value {
    String::from_utf8_lossy(bytes).into()
}

/// Null if it is not known.
pub(super) fn address(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { text.into() }
}

/// The mode's name.
pub(super) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits(_) => "permits",
    }
}

/// How many permits; null in other modes.
pub(super) fn permits(mode: Mode) -> Value {
    match mode {
        Mode::Permits(permits) => permits.into(),
        Mode::Exclusive | Mode::Shared => Value::Null,
    }
}
