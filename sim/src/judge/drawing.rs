//! Draws the time around a moment: who led, who held which lock, who waited. Sessions and nodes are hosts of
//! a trace, so the diagram is the same as of a simulated run.

use std::collections::BTreeMap;
use std::ops::Range;

use rowlock_proto::lock_event::{LockEvent, LockEventKind};
use rowlock_proto::{FencingToken, NodeId, SessionId};
use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};

use super::Judgment;
use super::replay::Replayed;

/// Most sessions with a lane.
const SESSIONS_MAX: usize = 60;

/// A trace of the time around a moment.
#[derive(Debug)]
pub struct Drawing {
    pub record: Vec<Happening>,
    pub end: Nanos,
    /// Sessions that held or waited, beyond the largest number of lanes.
    pub left_out: usize,
}

/// A queue position over its life, in milliseconds since 1970.
struct Stay {
    lock: String,
    token: FencingToken,
    session: SessionId,
    requested_ms: i64,
    granted_ms: Option<i64>,
    ended: Option<(i64, String)>,
}

/// Draws the milliseconds since 1970 in `window`. `nodes` get a lane each.
pub fn draw(judgment: &Judgment, nodes: &[NodeId], window: Range<i64>) -> Drawing {
    let mut canvas = Canvas { window, record: Vec::new(), hosts: 0 };
    let leaders = judgment.replayed.leaders.iter().map(|leader| leader.node);
    let mut all: Vec<NodeId> = nodes.iter().copied().chain(leaders).collect();
    all.sort_unstable();
    all.dedup();
    let lanes: BTreeMap<NodeId, HostId> =
        all.into_iter().map(|node| (node, canvas.host(format!("node {node}"), "node"))).collect();
    canvas.leaders(&judgment.replayed, &lanes);
    let mut sessions: BTreeMap<SessionId, HostId> = BTreeMap::new();
    let mut left_out = std::collections::BTreeSet::new();
    for stay in stays(&judgment.replayed) {
        if !canvas.shows(&stay) {
            continue;
        }
        let lane = match sessions.get(&stay.session) {
            Some(lane) => *lane,
            None if sessions.len() >= SESSIONS_MAX => {
                left_out.insert(stay.session);
                continue;
            }
            None => {
                let lane = canvas.host(format!("session {}", stay.session), "client");
                sessions.insert(stay.session, lane);
                lane
            }
        };
        canvas.stay(lane, &stay);
    }
    if let Some((name, what)) = judgment.broken().and_then(|it| Some((it.name(), it.broken()?))) {
        let middle = canvas.window.start.midpoint(canvas.window.end);
        canvas.add(middle, What::Violation { text: format!("{name}: {what}") });
    }
    let end = canvas.nanos(canvas.window.end);
    canvas.record.sort_by_key(|happening| happening.at);
    Drawing { record: canvas.record, end, left_out: left_out.len() }
}

/// Returns all queue positions with their times, those of the start first.
fn stays(replayed: &Replayed) -> impl Iterator<Item = Stay> {
    let mut order: Vec<Stay> = Vec::new();
    let mut open: BTreeMap<(String, FencingToken), usize> = BTreeMap::new();
    for it in &replayed.at_start {
        open.insert((it.lock.clone(), it.token), order.len());
        let (lock, token, session) = (it.lock.clone(), it.token, it.session);
        let (requested_ms, granted_ms) = (it.requested_ms, it.granted_ms);
        order.push(Stay { lock, token, session, requested_ms, granted_ms, ended: None });
    }
    for entry in &replayed.events {
        let Some(event) = entry.event.lock() else { continue };
        let LockEvent { kind, lock, token, session, .. } = event;
        let key = (lock.clone(), *token);
        match kind {
            LockEventKind::Requested { .. } => {
                open.insert(key, order.len());
                let (lock, token, session) = (lock.clone(), *token, *session);
                let requested_ms = entry.time_ms;
                order.push(Stay { lock, token, session, requested_ms, granted_ms: None, ended: None });
            }
            LockEventKind::Granted { .. } => {
                if let Some(at) = open.get(&key) {
                    order[*at].granted_ms = Some(entry.time_ms);
                }
            }
            LockEventKind::Converted | LockEventKind::Asked { .. } => {}
            LockEventKind::Abandoned(end) | LockEventKind::Released(end) | LockEventKind::Lost(end) => {
                if let Some(at) = open.remove(&key) {
                    let by = end.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
                    order[at].ended = Some((entry.time_ms, format!("{}{by}", end.reason.name())));
                }
            }
        }
    }
    order.into_iter()
}

/// Trace of the window, under construction.
struct Canvas {
    window: Range<i64>,
    record: Vec<Happening>,
    hosts: usize,
}

impl Canvas {
    fn nanos(&self, at_ms: i64) -> Nanos {
        let at_ms = at_ms.clamp(self.window.start, self.window.end) - self.window.start;
        Nanos::from_millis(u64::try_from(at_ms).unwrap_or_default())
    }

    /// Adds an event; one before the window begins with the window.
    fn add(&mut self, at_ms: i64, what: What) {
        let at = self.nanos(at_ms);
        self.record.push(Happening { at, what });
    }

    fn host(&mut self, name: String, kind: &'static str) -> HostId {
        let host = HostId(self.hosts);
        self.hosts += 1;
        let begin = self.window.start;
        self.add(begin, What::Host { host, name, kind });
        self.add(begin, What::Up { host });
        host
    }

    fn leaders(&mut self, replayed: &Replayed, lanes: &BTreeMap<NodeId, HostId>) {
        let before = replayed.leaders.iter().rposition(|it| it.at_ms <= self.window.start).unwrap_or(0);
        for leader in replayed.leaders[before.min(replayed.leaders.len())..].iter() {
            if leader.at_ms < self.window.end {
                let (host, term) = (lanes[&leader.node], leader.term);
                self.add(leader.at_ms, What::Leads { host, term });
            }
        }
    }

    fn shows(&self, stay: &Stay) -> bool {
        let ends_ms = stay.ended.as_ref().map_or(i64::MAX, |(at_ms, _)| *at_ms);
        stay.requested_ms < self.window.end && ends_ms >= self.window.start
    }

    fn stay(&mut self, host: HostId, stay: &Stay) {
        let (lock, token) = (stay.lock.clone(), stay.token.0);
        let is_held_at_once =
            stay.granted_ms.is_some_and(|at_ms| at_ms <= self.window.start.max(stay.requested_ms));
        if !is_held_at_once {
            self.add(stay.requested_ms, What::Waits { host, lock: lock.clone() });
        }
        let granted = stay.granted_ms.filter(|at_ms| *at_ms < self.window.end);
        if let Some(at_ms) = granted {
            self.add(at_ms, What::Holds { host, lock: lock.clone(), token });
        }
        let Some((at_ms, why)) = stay.ended.as_ref().filter(|(at_ms, _)| *at_ms < self.window.end) else {
            return;
        };
        let end = match granted {
            Some(_) => What::LetGo { host, lock: lock.clone(), token },
            None => What::GaveUp { host, lock: lock.clone() },
        };
        if why != "released" {
            self.add(
                *at_ms,
                What::Note { host: Some(host), text: format!("{lock} token {token} ended: {why}") },
            );
        }
        self.add(*at_ms, end);
    }
}
