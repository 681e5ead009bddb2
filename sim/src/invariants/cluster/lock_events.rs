//! lock-events: a follower of the events of one lock, or of all locks, gets each event once and in the order
//! of the log, from one stream to the next at any node, except within a reported gap; a walk through the
//! pages of a history likewise, from the newest event back. Each gap has a cause. A stream that begins after
//! every fault has healed delivers each event within a bound.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::Zxid;
use rowlock_proto::report::{GapReason, HistoryEntry, HistoryEvent};
use rowlock_world::time::Nanos;

use super::super::{Invariant, Terms};
use crate::history::access::{is_closed, is_guarded};
use crate::history::client::{ClientFact, ClientId, Events};
use crate::history::node::NodeFact;
use crate::history::{Book, Fact};

/// Bound for a stream to deliver an event once every fault has healed.
const STREAMED_WITHIN: Duration = Duration::from_secs(15);

/// Path of the followed lock; `None` follows all locks.
type Scope = Option<String>;

pub struct LockEvents {
    terms: Terms,
    now: Nanos,
    healed: Option<Nanos>,
    log: Log,
    streams: BTreeMap<ClientId, Stream>,
    walks: BTreeMap<ClientId, Walk>,
}

/// Lock events in this life of the cluster.
#[derive(Default)]
struct Log {
    events: Vec<(Nanos, Arc<HistoryEntry>)>,
    last: Zxid,
    /// A snapshot has replaced a node's state, or the cluster began with a state.
    has_snapshots: bool,
}

/// Least number of waiting events of which a node drops some for a slow stream, by their bytes.
const SLOW_MIN: usize = 1_000;
/// Number of past events with which a stream begins at most.
const PAST_MAX: usize = 4_096;
/// Time without faults in which a node reads its history.
const READS_WITHIN: Nanos = Nanos::from_millis(10_000);

struct Stream {
    scope: Scope,
    /// Time from which the stream delivers events.
    since: Option<Nanos>,
    up_to: Zxid,
    /// Index of the first event that the stream may still deliver.
    next: usize,
    /// The stream may lack events after the first zxid and up to the second: a gap covers them.
    gap: (Zxid, Zxid),
}

/// Walk through the pages from the newest event back.
struct Walk {
    scope: Scope,
    /// The walk has shown all events from this index on.
    shown: usize,
    /// The walk has shown nothing yet: its first page may include events after the query.
    is_new: bool,
    /// After this zxid, events may be missing.
    missing: Option<Zxid>,
}

/// Returns the path of the lock that an entry is about.
pub(super) fn lock_in(entry: &HistoryEntry) -> Option<&str> {
    entry.event.lock().map(|event| event.lock.as_str())
}

fn is_about(scope: &Scope, entry: &HistoryEntry) -> bool {
    lock_in(entry).is_some_and(|lock| scope.as_deref().is_none_or(|scope| scope == lock))
}

/// Returns whether a follower of the scope must receive the entry: rules may hide a guarded lock, an ACL a
/// closed one.
fn is_due(scope: &Scope, entry: &HistoryEntry) -> bool {
    is_about(scope, entry) && !lock_in(entry).is_some_and(|lock| is_guarded(lock) || is_closed(lock))
}

/// Returns the zxid after which a gap begins.
fn gap(entry: &HistoryEntry) -> Option<Zxid> {
    if let HistoryEvent::Gap(gap) = entry.event { Some(gap.from_zxid) } else { None }
}

impl Log {
    /// Returns the index after the last event up to `zxid`.
    fn behind(&self, zxid: Zxid) -> usize {
        self.events.partition_point(|(_, entry)| entry.zxid <= zxid)
    }

    /// Returns the indexes of the events of the same change: thousands when a session with thousands of queue
    /// positions ends. So the callers search for an event near its expected index.
    fn of_change_of(&self, wanted: &HistoryEntry) -> Range<usize> {
        self.events.partition_point(|(_, entry)| entry.zxid < wanted.zxid)..self.behind(wanted.zxid)
    }

    fn is_at(&self, place: usize, wanted: &HistoryEntry) -> bool {
        *self.events[place].1 == *wanted
    }

    /// Returns an error for a gap without a cause in this life of the cluster.
    fn check_cause(&self, entry: &HistoryEntry, terms: &Terms, now: Nanos) -> Result<(), String> {
        let HistoryEvent::Gap(gap) = entry.event else { return Ok(()) };
        let has_cause = match gap.reason {
            GapReason::Snapshot => self.has_snapshots,
            GapReason::NoHistory => !terms.has_history,
            // Only whole segments are removed, and the newest segment never is.
            GapReason::Trimmed => self.events.first().is_some_and(|(_, first)| first.zxid < entry.zxid),
            GapReason::TooMany => self.events.len() - self.behind(gap.from_zxid) > PAST_MAX,
            GapReason::TooSlow => self.events.len() - self.behind(gap.from_zxid) > SLOW_MIN,
            GapReason::NotNow => !terms.disturbances.spare(Nanos(now.0.saturating_sub(READS_WITHIN.0)), now),
            GapReason::TooFast | GapReason::Lost | GapReason::NoSpace => terms.has_faults,
            GapReason::Other => false,
        };
        if has_cause {
            Ok(())
        } else {
            Err(format!("was told of {entry:?}, and nothing has caused that gap"))
        }
    }
}

impl Stream {
    /// Returns the first event before index `before` that the stream should have delivered.
    fn lacked<'a>(&self, log: &'a Log, before: usize) -> Option<&'a (Nanos, Arc<HistoryEntry>)> {
        let is_lost = |entry: &HistoryEntry| self.gap.0 < entry.zxid && entry.zxid <= self.gap.1;
        let mut due = log.events.get(self.next..before).into_iter().flatten();
        due.find(|(_, entry)| is_due(&self.scope, entry) && !is_lost(entry))
    }

    fn told(&mut self, entry: &HistoryEntry, log: &Log) -> Result<(), String> {
        if self.since.is_none() {
            return Err(format!("was told of {entry:?} before its stream said where it begins"));
        }
        let at = match gap(entry) {
            Some(from) => log.behind(from),
            None => {
                let places = log.of_change_of(entry);
                let mut ahead = self.next.max(places.start)..places.end;
                let at = ahead.find(|at| log.is_at(*at, entry)).filter(|_| is_about(&self.scope, entry));
                at.ok_or_else(|| format!("was told of {entry:?}, which it knows, or which never was"))?
            }
        };
        if let Some((_, lacked)) = self.lacked(log, at) {
            return Err(format!("was told of {entry:?}, and not of {lacked:?}"));
        }
        self.next = self.next.max(at);
        match gap(entry) {
            Some(from) if self.gap.1 > from => self.gap = (self.gap.0.min(from), self.gap.1.max(entry.zxid)),
            Some(from) => self.gap = (from, entry.zxid),
            None => self.next = at + 1,
        }
        Ok(())
    }

    fn up_to(&mut self, zxid: Zxid, now: Nanos, log: &Log) -> Result<(), String> {
        if zxid > log.last || zxid < self.up_to {
            return Err(format!(
                "was told of all up to {zxid}, and before up to {}; the log is at {}",
                self.up_to, log.last
            ));
        }
        let behind_it = log.behind(zxid);
        if self.since.is_none() {
            self.next = behind_it;
        }
        self.since.get_or_insert(now);
        self.up_to = zxid;
        match self.lacked(log, behind_it) {
            Some((_, due)) => Err(format!("was told of all up to {zxid}, and not of {due:?}")),
            None => {
                self.next = self.next.max(behind_it);
                Ok(())
            }
        }
    }
}

impl Walk {
    fn page(&mut self, entries: &[HistoryEntry], log: &Log) -> Result<(), String> {
        for entry in entries.iter().rev() {
            let at = match gap(entry) {
                Some(_) => log.behind(entry.zxid),
                None => {
                    let mut places = log.of_change_of(entry);
                    if !self.is_new {
                        places.end = places.end.min(self.shown);
                    }
                    let at = places.rev().find(|at| log.is_at(*at, entry));
                    at.ok_or_else(|| format!("was shown {entry:?} too late, or twice, or it never was"))? + 1
                }
            };
            let may_lack = |lacked: &HistoryEntry| self.missing.is_some_and(|from| lacked.zxid > from);
            let mut left_out = (at..self.shown).map(|at| &log.events[at].1);
            if let Some(lacked) = left_out.find(|lacked| is_due(&self.scope, lacked) && !may_lack(lacked)) {
                return Err(format!("was shown {entry:?}, and not {lacked:?}"));
            }
            let was_new = std::mem::replace(&mut self.is_new, false);
            match gap(entry) {
                Some(from) => {
                    self.missing = Some(self.missing.map_or(from, |known| known.min(from)));
                    self.shown = if was_new { at } else { self.shown.min(at) };
                }
                None => self.shown = at - 1,
            }
        }
        Ok(())
    }
}

impl LockEvents {
    pub fn new(terms: Terms) -> Self {
        let (now, log) = (Nanos(0), Log::default());
        LockEvents { terms, now, healed: None, log, streams: BTreeMap::new(), walks: BTreeMap::new() }
    }

    fn heard(&mut self, client: ClientId, what: &Events) -> Result<(), String> {
        let (streams, log) = (&mut self.streams, &self.log);
        match what {
            Events::Begins { scope, after } => {
                let (scope, up_to) = (scope.clone(), after.unwrap_or(Zxid(0)));
                let since = after.map(|_| self.now);
                let next = log.behind(up_to);
                let gap = (up_to, up_to);
                streams.insert(client, Stream { scope, since, up_to, next, gap });
            }
            Events::Ends => drop(streams.remove(&client)),
            Events::Pages { scope } => {
                let shown = log.events.len();
                let walk = Walk { scope: scope.clone(), shown, is_new: true, missing: None };
                self.walks.insert(client, walk);
            }
            // An event without a stream belongs to an earlier life of the cluster.
            Events::Told(entry) => {
                log.check_cause(entry, &self.terms, self.now)?;
                return streams.get_mut(&client).map_or(Ok(()), |it| it.told(entry, log));
            }
            Events::UpTo(zxid) => {
                let now = self.now;
                return streams.get_mut(&client).map_or(Ok(()), |it| it.up_to(*zxid, now, log));
            }
            Events::Page(entries) => {
                entries.iter().try_for_each(|entry| log.check_cause(entry, &self.terms, self.now))?;
                return self.walks.get_mut(&client).map_or(Ok(()), |it| it.page(entries, log));
            }
            Events::Refused => {
                if let Some(stream) = streams.get(&client) {
                    return Err(format!("was refused a stream behind {}, which it knows of", stream.up_to));
                }
            }
            Events::Queue(_) | Events::Locks(_) | Events::Sessions(_) => {}
        }
        Ok(())
    }

    fn overdue(&self) -> Result<(), String> {
        let Some(healed) = self.healed else { return Ok(()) };
        for (client, stream) in &self.streams {
            // Clients of a machine that lost power before may wait on a connection on which nothing arrives
            // any more.
            let Some(since) = stream.since.filter(|since| *since >= healed) else { continue };
            let Some((at, due)) = stream.lacked(&self.log, self.log.events.len()) else { continue };
            let begins = (*at).max(since);
            if self.terms.owes_service && self.now > begins + STREAMED_WITHIN {
                return Err(format!("client {}: was not told of {due:?} since {begins}", client.0));
            }
        }
        Ok(())
    }
}

impl Invariant for LockEvents {
    fn name(&self) -> &'static str {
        "lock-events"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        match fact {
            Fact::LockEvent(entry) => self.log.events.push((self.now, entry.clone())),
            Fact::Committed { zxid } => self.log.last = *zxid,
            Fact::Node { what: NodeFact::Installed { .. }, .. } => self.log.has_snapshots = true,
            Fact::NewLife(new) => {
                self.log = Log { events: Vec::new(), last: new.floor, has_snapshots: true };
                self.streams.clear();
                self.walks.clear();
            }
            Fact::Healed { at } => self.healed = Some(*at),
            Fact::Passed { .. } => return self.overdue(),
            Fact::Client { client, what: ClientFact::Events(what), .. } => {
                return self.heard(*client, what).map_err(|why| format!("client {} {why}", client.0));
            }
            Fact::Client { client, what: ClientFact::Ended, .. } => {
                self.streams.remove(client);
                self.walks.remove(client);
            }
            _ => {}
        }
        Ok(())
    }
}
