//! reports: `/v1/queue` and `/v1/locks` show the queues as they were at their zxid, which is none that the
//! log has not reached. The queues are made of what happened to their places.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rowlock_proto::report::{HistoryEntry, HistoryEvent, Locks, Place, Queue};
use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::super::Invariant;
use crate::history::Fact;
use crate::history::client::{ClientFact, Events};

/// Places by their paths.
type Places = BTreeMap<String, Shown>;

/// A place as reports show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    token: Option<FencingToken>,
    session: Option<SessionId>,
    is_holder: bool,
    /// Since when it waits or holds. None: it was converted.
    since_ms: Option<i64>,
}

#[derive(Default)]
pub struct Reports {
    /// What has happened to each lock in this life of the cluster.
    events: BTreeMap<String, Vec<Arc<HistoryEntry>>>,
    first: Zxid,
    last: Zxid,
}

/// The place that an event is about, and how it is behind it; `None`: it is gone.
fn effect(entry: &HistoryEntry) -> Option<(&str, &str, Option<Shown>)> {
    let (place, is_holder, since_ms) = match &entry.event {
        HistoryEvent::Requested { place, .. } => (place, false, Some(entry.time_ms)),
        HistoryEvent::Granted { place, .. } => (place, true, Some(entry.time_ms)),
        HistoryEvent::Converted(place) => (place, true, None),
        HistoryEvent::Abandoned(end) | HistoryEvent::Released(end) | HistoryEvent::Lost(end) => {
            return Some((&end.place.lock, &end.place.path, None));
        }
        _ => return None,
    };
    let (token, session) = (Some(place.token), Some(place.session));
    Some((&place.lock, &place.path, Some(Shown { token, session, is_holder, since_ms })))
}

fn shown(place: &Place, is_holder: bool, since_ms: Option<i64>) -> (String, Shown) {
    (place.path.clone(), Shown { token: place.token, session: place.session, is_holder, since_ms })
}

impl Reports {
    /// The queue of a lock at this zxid.
    fn queue(&self, lock: &str, zxid: Zxid) -> Places {
        let mut places = Places::new();
        let events = self.events.get(lock).into_iter().flatten();
        for (_, path, place) in events.take_while(|entry| entry.zxid <= zxid).filter_map(|it| effect(it)) {
            match place {
                Some(place) => drop(places.insert(path.to_owned(), place)),
                None => drop(places.remove(path)),
            }
        }
        places
    }

    /// Whether it is of this life; otherwise it was late.
    fn is_of_now(&self, zxid: Zxid) -> Result<bool, String> {
        if zxid > self.last {
            return Err(format!("shows the state of {zxid}, and the log is at {}", self.last));
        }
        Ok(zxid >= self.first)
    }

    fn judge_queue(&self, queue: &Queue) -> Result<(), String> {
        if !self.is_of_now(queue.zxid)? {
            return Ok(());
        }
        let mut was = self.queue(&queue.lock, queue.zxid);
        let holders = queue.holders.iter().map(|it| (&it.place, shown(&it.place, true, it.since_ms)));
        let waiters = queue.waiters.iter().map(|it| (&it.place, shown(&it.place, false, it.since_ms)));
        let mut tokens: Vec<Option<FencingToken>> = Vec::new();
        for (position, (place, (path, shown))) in (1..).zip(holders.chain(waiters)) {
            let known = was.remove(&path);
            let is_so = known.is_some_and(|it| {
                Shown { since_ms: shown.since_ms, ..it } == shown
                    && (it.since_ms.is_none() || it.since_ms == shown.since_ms)
            });
            if !is_so || place.position != position {
                return Err(format!(
                    "shows {place:?} at {position} as {shown:?}, which was {known:?}: {queue:?}"
                ));
            }
            tokens.push(shown.token);
        }
        let left = was.values().filter(|place| place.is_holder).count();
        let counts = (queue.holder_count, queue.waiter_count);
        let expected = ((queue.holders.len() + left) as u64, (queue.waiters.len() + was.len() - left) as u64);
        if counts != expected || (!queue.more && !was.is_empty()) {
            return Err(format!("does not show {was:?}: {queue:?}"));
        }
        Ok(())
    }

    fn judge_locks(&self, locks: &Locks) -> Result<(), String> {
        if !self.is_of_now(locks.zxid)? {
            return Ok(());
        }
        let mut seen = BTreeSet::new();
        for lock in &locks.locks {
            let was = self.queue(&lock.path, locks.zxid);
            let holders = was.values().filter(|place| place.is_holder).count() as u64;
            let is_so = (lock.holders, lock.waiters) == (holders, was.len() as u64 - holders);
            if !is_so || !seen.insert(&lock.path) {
                return Err(format!("shows {lock:?}, whose places were {was:?}"));
            }
        }
        let is_missing = |lock: &&String| !seen.contains(lock) && !self.queue(lock, locks.zxid).is_empty();
        match self.events.keys().find(is_missing).filter(|_| !locks.more) {
            Some(missing) => Err(format!("does not show {missing}: {locks:?}")),
            None => Ok(()),
        }
    }
}

impl Invariant for Reports {
    fn name(&self) -> &'static str {
        "reports"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::LockEvent(entry) => {
                if let Some((lock, ..)) = effect(entry) {
                    self.events.entry(lock.to_owned()).or_default().push(entry.clone());
                }
            }
            Fact::Committed { zxid } => self.last = *zxid,
            Fact::NewLife(new) => {
                let (first, last) = (new.floor, new.floor);
                *self = Reports { events: BTreeMap::new(), first, last };
            }
            Fact::Client { what: ClientFact::Events(Events::Queue(queue)), .. } => {
                return self.judge_queue(queue);
            }
            Fact::Client { what: ClientFact::Events(Events::Locks(locks)), .. } => {
                return self.judge_locks(locks);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::super::judge;
    use super::super::testing::client;
    use super::*;

    fn event(zxid: i64, token: i64, event: &str) -> Fact {
        let entry = json!({
            "time_ms": zxid * 10, "zxid": zxid, "event": event, "ahead": 0, "waited_ms": 0, "held_ms": 0,
            "reason": "released", "lock": "/a", "path": format!("/a/{token}"), "token": token, "session": "0x7",
            "label": "", "address": null, "mode": "exclusive", "permits": null, "acquired": true,
        });
        Fact::LockEvent(Arc::new(serde_json::from_value(entry).expect("an entry")))
    }

    /// Place 1 holds from 1 on and is gone at 3, when place 2 is granted the lock.
    fn happened() -> Vec<Fact> {
        let committed = |zxid| Fact::Committed { zxid: Zxid(zxid) };
        vec![
            event(1, 1, "requested"),
            event(1, 1, "granted"),
            committed(1),
            event(2, 2, "requested"),
            committed(2),
            event(3, 1, "released"),
            event(3, 2, "granted"),
            committed(3),
        ]
    }

    fn place(position: u64, token: i64, since_ms: i64) -> Value {
        json!({
            "position": position, "path": format!("/a/{token}"), "session": "0x7", "token": token, "label": "",
            "address": null, "mode": "exclusive", "permits": null, "owner": null, "acquired": true,
            "since_ms": since_ms, "held_ms": 0, "waited_ms": 0, "revoke_at_ms": null, "waits_for": null,
        })
    }

    fn of_queue(zxid: i64, holders: Vec<Value>, waiters: Vec<Value>) -> Result<(), String> {
        let queue = json!({
            "zxid": zxid, "time_ms": 0, "lock": "/a", "limit": null, "delayed_until_ms": null,
            "holder_count": holders.len(), "waiter_count": waiters.len(), "holders": holders,
            "waiters": waiters, "more": false,
        });
        let queue = Box::new(serde_json::from_value(queue).expect("a queue"));
        let heard = client(1, ClientFact::Events(Events::Queue(queue)));
        judge(Reports::default(), &[happened(), vec![heard]].concat())
    }

    #[test]
    fn a_queue_that_never_was_so_is_caught() {
        assert_eq!(of_queue(2, vec![place(1, 1, 10)], vec![place(2, 2, 20)]), Ok(()), "it may be older");
        assert_eq!(of_queue(3, vec![place(1, 2, 30)], vec![]), Ok(()));
        assert!(of_queue(4, vec![place(1, 2, 30)], vec![]).is_err(), "of the future");
        assert!(of_queue(3, vec![place(1, 1, 10)], vec![place(2, 2, 20)]).is_err());
        assert!(of_queue(2, vec![place(1, 1, 10)], vec![]).is_err(), "the waiter is missing");
        assert!(of_queue(2, vec![place(1, 2, 20)], vec![place(2, 1, 10)]).is_err());
        assert!(of_queue(3, vec![place(1, 2, 20)], vec![]).is_err(), "that is when it was requested");
    }

    #[test]
    fn wrong_counts_and_missing_locks_are_caught() {
        let opinion = |zxid: i64, locks: Value| {
            let locks = json!({ "zxid": zxid, "time_ms": 0, "locks": locks, "more": false });
            let locks = Box::new(serde_json::from_value(locks).expect("locks"));
            let heard = client(1, ClientFact::Events(Events::Locks(locks)));
            judge(Reports::default(), &[happened(), vec![heard]].concat())
        };
        let lock =
            |holders: u64, waiters: u64| json!([{ "lock": "/a", "holders": holders, "waiters": waiters }]);
        assert_eq!(opinion(2, lock(1, 1)), Ok(()));
        assert!(opinion(3, lock(1, 1)).is_err());
        assert!(opinion(2, json!([])).is_err());
    }
}
