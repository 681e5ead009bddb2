//! reports: `/v1/queue` and `/v1/locks` show the queues, and `/v1/sessions` the sessions, exactly as the log
//! had them at the report's zxid, which is at most the log's last zxid. The checker rebuilds the queues from
//! lock events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rowlock_proto::report::{HistoryEntry, LockEventKind, Locks, Place, Queue, Sessions};
use rowlock_proto::{FencingToken, SessionId, Zxid};

use super::super::Invariant;
use super::rules::{Reader, Rules};
use crate::history::access::Access;
use crate::history::client::{ClientFact, Events};
use crate::history::{Book, Fact};

/// Queue positions by path.
type Places = BTreeMap<String, Shown>;

/// Queue position as reports show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    token: Option<FencingToken>,
    session: Option<SessionId>,
    is_holder: bool,
    /// Start of waiting or holding; `None` after a conversion.
    since_ms: Option<i64>,
}

#[derive(Default)]
pub struct Reports {
    /// Events of each lock in this life of the cluster.
    events: BTreeMap<String, Vec<Arc<HistoryEntry>>>,
    /// Begin and end of each session. `None`: not yet, or by the current command.
    sessions: BTreeMap<SessionId, (Option<Zxid>, Option<Zxid>)>,
    /// Sessions opened (true) or ended (false) by the current command.
    news: Vec<(SessionId, bool)>,
    first: Zxid,
    last: Zxid,
    /// Rules of locks: a list lacks the locks that they hide from its reader.
    rules: Rules,
}

/// Returns the lock, the path and the new state of the position that an event changes; `None` is a removed
/// position.
fn effect(entry: &HistoryEntry) -> Option<(&str, &str, Option<Shown>)> {
    let event = entry.event.lock()?;
    let (is_holder, since_ms) = match &event.kind {
        LockEventKind::Requested { .. } => (false, Some(entry.time_ms)),
        LockEventKind::Granted { .. } => (true, Some(entry.time_ms)),
        LockEventKind::Converted => (true, None),
        LockEventKind::Abandoned(_) | LockEventKind::Released(_) | LockEventKind::Lost(_) => {
            return Some((&event.lock, &event.path, None));
        }
        LockEventKind::Asked { .. } => return None,
    };
    let (token, session) = (Some(event.token), Some(event.session));
    Some((&event.lock, &event.path, Some(Shown { token, session, is_holder, since_ms })))
}

fn shown(place: &Place, is_holder: bool, since_ms: Option<i64>) -> (String, Shown) {
    (place.path.clone(), Shown { token: place.token, session: place.session, is_holder, since_ms })
}

impl Reports {
    /// Returns the queue of a lock at `zxid`.
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

    /// Reports whether the report is about this life; a report about a former life arrived late.
    fn is_of_now(&self, zxid: Zxid) -> Result<bool, String> {
        if zxid > self.last {
            return Err(format!("shows the state of {zxid}, and the log is at {}", self.last));
        }
        Ok(zxid >= self.first)
    }

    fn check_queue(&self, queue: &Queue) -> Result<(), String> {
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

    fn check_locks(&self, reader: Reader, locks: &Locks) -> Result<(), String> {
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
        let times = (locks.zxid, locks.zxid);
        let is_missing = |lock: &&String| {
            !seen.contains(lock)
                && !self.queue(lock, locks.zxid).is_empty()
                && self.rules.may_see(reader, lock, times)
        };
        match self.events.keys().find(is_missing).filter(|_| !locks.more) {
            Some(missing) => Err(format!(
                "does not show {missing}: {locks:?}; {}",
                self.rules.describe(reader, locks.zxid)
            )),
            None => Ok(()),
        }
    }
}

impl Reports {
    /// Returns the open sessions at `zxid`, each with the numbers of held and awaited locks.
    fn sessions_at(&self, zxid: Zxid) -> BTreeMap<SessionId, (u64, u64)> {
        let was_open = |(from, to): &(Option<Zxid>, Option<Zxid>)| {
            from.is_some_and(|from| from <= zxid) && to.is_none_or(|to| to > zxid)
        };
        let open = self.sessions.iter().filter(|(_, times)| was_open(times));
        let mut open: BTreeMap<_, _> = open.map(|(session, _)| (*session, (0, 0))).collect();
        for place in self.events.keys().flat_map(|lock| self.queue(lock, zxid).into_values()) {
            if let Some((held, waiting)) = place.session.and_then(|session| open.get_mut(&session)) {
                *if place.is_holder { held } else { waiting } += 1;
            }
        }
        open
    }

    fn check_sessions(&self, report: &Sessions) -> Result<(), String> {
        if !self.is_of_now(report.zxid)? {
            return Ok(());
        }
        let open = self.sessions_at(report.zxid);
        let shown: Vec<_> =
            report.sessions.iter().map(|it| (it.session, (it.locks_held, it.locks_waiting))).collect();
        let first: Vec<_> =
            open.iter().take(shown.len()).map(|(session, locks)| (*session, *locks)).collect();
        let counts = (report.session_count, report.more);
        if shown != first || counts != (open.len() as u64, shown.len() < open.len()) {
            return Err(format!("shows {report:?}, and there were {open:?}"));
        }
        Ok(())
    }
}

impl Invariant for Reports {
    fn name(&self) -> &'static str {
        "reports"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.rules.observe(fact);
        match fact {
            Fact::LockEvent(entry) => {
                if let Some((lock, ..)) = effect(entry) {
                    self.events.entry(lock.to_owned()).or_default().push(entry.clone());
                }
            }
            Fact::SessionOpened { session, .. } => self.news.push((*session, true)),
            Fact::SessionEnded { session, .. } => self.news.push((*session, false)),
            Fact::Committed { zxid } => {
                self.last = *zxid;
                for (session, opens) in self.news.drain(..) {
                    let (from, to) = self.sessions.entry(session).or_default();
                    *if opens { from } else { to } = Some(*zxid);
                }
            }
            Fact::NewLife(new) => {
                let (first, last) = (new.floor, new.floor);
                let rules = std::mem::take(&mut self.rules);
                *self = Reports { first, last, rules, ..Reports::default() };
            }
            Fact::Client { what: ClientFact::Events(Events::Queue(queue)), .. } => {
                return self.check_queue(queue);
            }
            Fact::Client { client, what: ClientFact::Events(Events::Locks(locks)), .. } => {
                return self.check_locks((*client, SessionId::NONE), locks);
            }
            Fact::Client { client, what: ClientFact::Access(Access::Listed { session, locks }), .. } => {
                return self.check_locks((*client, *session), locks);
            }
            Fact::Client { what: ClientFact::Events(Events::Sessions(sessions)), .. } => {
                return self.check_sessions(sessions);
            }
            _ => {}
        }
        Ok(())
    }
}
