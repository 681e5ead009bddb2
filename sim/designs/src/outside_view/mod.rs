//! Omniscient observer: every client reports its wishes, beliefs and actions in true time, and the observer
//! computes the figures of the table. Designs cannot read the observer; only the [workload](crate::workload)
//! and designs' own counters write to it.
//!
//! A belief counts only while its process can act: the time of a paused or dead holder counts for no client.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_world::time::Nanos;

use crate::wire::Meter;

/// Age by which an earlier request must be served first; a smaller difference is the network's jitter.
const OVERTAKE_GRACE: Duration = Duration::from_millis(100);
/// Time that a returning client may need for its next request.
const RECONNECT: Duration = Duration::from_secs(5);
/// Time after which a lock without a holder but with a waiter is unavailable.
const UNAVAILABLE_AFTER: Duration = Duration::from_secs(1);

pub type Clock = Arc<dyn Fn() -> Nanos + Send + Sync>;

/// Sink of the clients' deeds, for the record.
pub type FactRecorder = Arc<dyn Fn(ClientId, Deed) + Send + Sync>;

/// Deed of a client, for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Waits,
    Holds(Option<u64>),
    /// Release or end of a belief, with the grant's token.
    LetsGo(Option<u64>),
}

/// Contender for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub usize);

/// Moment after the first of two commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    Acquire,
    Release,
}

/// Answer of a release to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// "The lock is free now."
    Freed,
    /// "You did not hold the lock."
    WasNotHeld,
    Unknown,
}

/// Event that a design's client counts about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remark {
    /// The client requested the lock, or was woken for the lock, and did not get it.
    Denied,
    /// A renewal was refused: from here on the client could know that the lock is lost.
    RenewalRefused,
    Renewed,
    /// The design notified the holder of the loss of its lock.
    ToldOfLoss,
}

/// Phase of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Idle,
    Waiting(Nanos),
    Working(Nanos),
    /// The last check is over, and the write is under way.
    Writing,
}

#[derive(Debug)]
struct Client {
    is_alive: bool,
    is_paused: bool,
    is_cut_off: bool,
    /// Time before which the client could not be in any queue.
    back_since: Nanos,
    phase: Phase,
    believes: bool,
    token: Option<u64>,
    between: Option<Between>,
    /// Another client was granted the lock after this client was, and before this client released.
    is_succeeded: bool,
}

impl Client {
    fn can_act(&self) -> bool {
        self.is_alive && !self.is_paused
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    pub grants: u64,
    /// Number of times in which two processes that could act both believed.
    pub windows: u64,
    /// Total time of these windows.
    pub overlap: Duration,
    /// Grants that passed over an earlier request.
    pub overtakes: u64,
    /// Waiting time of each grant.
    pub waits: Vec<Duration>,
    /// Releases that reported "freed" after another client had been granted the lock.
    pub false_releases: u64,
    /// Time from the fault to the next grant.
    pub recovery: Option<Duration>,
    /// Time in which no running client held the lock although a client waited, in stretches of more than a
    /// second.
    pub unavailable: Duration,
    /// No client was granted the lock in the last part of the run, although a client waited and none worked.
    pub is_stuck: bool,
    /// Clients that have waited all through the last part of the run, while others were granted the lock.
    pub starved: u64,
    pub remarks: BTreeMap<Remark, u64>,
    pub messages: u64,
}

#[derive(Debug, Default)]
struct Inner {
    clients: BTreeMap<ClientId, Client>,
    measured: Measured,
    overlap_since: Option<Nanos>,
    idle_since: Option<Nanos>,
    fault_at: Option<Nanos>,
    last_grant: Nanos,
    next_job: Option<Duration>,
    victim: Option<ClientId>,
}

#[derive(Clone)]
pub struct OutsideView {
    clock: Clock,
    fact_recorder: Option<FactRecorder>,
    meter: Meter,
    inner: Arc<Mutex<Inner>>,
}

impl OutsideView {
    /// Creates an observer without observations.
    pub fn new(clock: Clock) -> Self {
        OutsideView { clock, fact_recorder: None, meter: Meter::counting(), inner: Arc::default() }
    }

    /// Also passes the clients' deeds to `fact_recorder`.
    pub fn with_fact_recorder(mut self, fact_recorder: FactRecorder) -> Self {
        self.fact_recorder = Some(fact_recorder);
        self
    }

    fn report(&self, client: ClientId, deed: Deed) {
        if let Some(fact_recorder) = &self.fact_recorder {
            fact_recorder(client, deed);
        }
    }

    /// Returns the meter of the lock's messages.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Records the start of a client's process.
    pub fn starts(&self, client: ClientId) {
        let fresh = Client {
            is_alive: true,
            is_paused: false,
            is_cut_off: false,
            back_since: Nanos::default(),
            phase: Phase::Idle,
            believes: false,
            token: None,
            between: None,
            is_succeeded: false,
        };
        self.change(|inner, _| {
            inner.clients.insert(client, fresh);
        });
    }

    /// Records the end of a client's process and of its belief.
    pub fn dies(&self, client: ClientId) {
        self.client(client, |c| (c.is_alive, c.believes, c.phase) = (false, false, Phase::Idle));
    }

    /// Records a pause of a client's process, or its end.
    pub fn pauses(&self, client: ClientId, is_paused: bool) {
        let back = (self.clock)() + RECONNECT;
        self.client(client, |c| (c.is_paused, c.back_since) = (is_paused, back));
    }

    /// Records a cut between a client and the other hosts, or its end. Order does not count across such a
    /// cut.
    pub fn cuts_off(&self, client: ClientId, is_cut_off: bool) {
        let back = (self.clock)() + RECONNECT;
        self.client(client, |c| (c.is_cut_off, c.back_since) = (is_cut_off, back));
    }

    /// Records the start of a client's request for the lock.
    pub fn wants(&self, client: ClientId) {
        let now = (self.clock)();
        self.client(client, |c| c.phase = Phase::Waiting(now));
        self.report(client, Deed::Waits);
    }

    /// Records that a client believes to hold the lock. Returns the job's duration, if the stage has set one.
    pub fn holds(&self, client: ClientId, token: Option<u64>) -> Option<Duration> {
        self.report(client, Deed::Holds(token));
        self.change(|inner, now| {
            let waited = match inner.clients[&client].phase {
                Phase::Waiting(since) => since,
                _ => now,
            };
            let is_earlier = |c: &Client| match c.phase {
                Phase::Waiting(since) => {
                    c.can_act() && !c.is_cut_off && since.max(c.back_since) + OVERTAKE_GRACE < waited
                }
                _ => false,
            };
            let overtakes = inner.clients.iter().any(|(id, c)| *id != client && is_earlier(c));
            for (id, c) in &mut inner.clients {
                if *id == client {
                    (c.phase, c.believes, c.is_succeeded) = (Phase::Working(now), true, false);
                    c.token = token;
                } else {
                    c.is_succeeded |= c.believes;
                }
            }
            inner.measured.grants += 1;
            inner.measured.overtakes += u64::from(overtakes);
            inner.measured.waits.push(now - waited);
            inner.last_grant = now;
            if let Some(fault) = inner.fault_at
                && inner.measured.recovery.is_none()
            {
                inner.measured.recovery = Some(now - fault);
            }
            let job = inner.next_job.take();
            if job.is_some() {
                inner.victim = Some(client);
            }
            job
        })
    }

    /// Records a client's last check before its write, which is now under way.
    pub fn writes(&self, client: ClientId) {
        self.client(client, |c| c.phase = Phase::Writing);
    }

    /// Records the end of a client's belief: the client releases the lock, or has learned of the loss.
    pub fn lets_go(&self, client: ClientId) {
        let mut held = None;
        self.client(client, |c| held = std::mem::take(&mut c.believes).then_some(c.token));
        if let Some(token) = held {
            self.report(client, Deed::LetsGo(token));
        }
    }

    /// Records the answer to a client's release.
    pub fn released(&self, client: ClientId, how: Released) {
        self.change(|inner, _| {
            let Some(c) = inner.clients.get_mut(&client) else { return };
            inner.measured.false_releases += u64::from(how == Released::Freed && c.is_succeeded);
            c.phase = Phase::Idle;
        });
    }

    /// Records that a client has done the first of two commands, or `None` after the second.
    pub fn between(&self, client: ClientId, between: Option<Between>) {
        self.client(client, |c| c.between = between);
    }

    /// Counts a remark of a client.
    pub fn remark(&self, remark: Remark) {
        *self.inner.lock().measured.remarks.entry(remark).or_default() += 1;
    }

    /// Sets the job's duration for the next holder, which becomes the victim of the next fault.
    pub fn set_next_job(&self, job: Duration) {
        self.inner.lock().next_job = Some(job);
    }

    pub fn fault_begins(&self) {
        self.change(|inner, now| inner.fault_at = Some(now));
    }

    /// Returns the client whose job [`OutsideView::set_next_job`] set.
    pub fn victim(&self) -> Option<ClientId> {
        self.inner.lock().victim
    }

    pub fn phase(&self, client: ClientId) -> Phase {
        self.inner.lock().clients.get(&client).map_or(Phase::Idle, |c| c.phase)
    }

    /// Returns a client that is between two commands of this kind.
    pub fn find_between(&self, between: Between) -> Option<ClientId> {
        let inner = self.inner.lock();
        inner.clients.iter().find(|(_, c)| c.between == Some(between) && c.can_act()).map(|(id, _)| *id)
    }

    /// Returns the waiting clients, longest wait first.
    pub fn waiters(&self) -> Vec<ClientId> {
        let inner = self.inner.lock();
        let mut waiters: Vec<(Nanos, ClientId)> = inner
            .clients
            .iter()
            .filter(|(_, c)| c.can_act())
            .filter_map(|(id, c)| match c.phase {
                Phase::Waiting(since) => Some((since, *id)),
                _ => None,
            })
            .collect();
        waiters.sort_unstable();
        waiters.into_iter().map(|(_, id)| id).collect()
    }

    /// Ends the observation. The lock is stuck if no client was granted the lock for `stuck_after` although a
    /// client waited.
    pub fn finish(&self, stuck_after: Duration) -> Measured {
        self.change(|inner, now| {
            let mut alive = inner.clients.values().filter(|c| c.can_act());
            let is_wanted = alive.clone().any(|c| matches!(c.phase, Phase::Waiting(_)));
            let is_held = alive.any(|c| c.believes);
            inner.measured.is_stuck = is_wanted && !is_held && now - inner.last_grant >= stuck_after;
            let is_starved = |c: &&Client| match c.phase {
                Phase::Waiting(since) => c.can_act() && now - since >= stuck_after,
                _ => false,
            };
            if now - inner.last_grant < stuck_after {
                inner.measured.starved = inner.clients.values().filter(is_starved).count() as u64;
            }
            for c in inner.clients.values_mut() {
                (c.is_alive, c.believes) = (false, false);
            }
        });
        let mut measured = self.inner.lock().measured.clone();
        measured.messages = self.meter.total();
        measured.waits.sort_unstable();
        measured
    }

    fn client(&self, client: ClientId, change: impl FnOnce(&mut Client)) {
        self.change(|inner, _| {
            if let Some(c) = inner.clients.get_mut(&client) {
                change(c);
            }
        });
    }

    /// Applies every change of the clients' states, and then updates the figures.
    fn change<T>(&self, change: impl FnOnce(&mut Inner, Nanos) -> T) -> T {
        let now = (self.clock)();
        let mut inner = self.inner.lock();
        let result = change(&mut inner, now);
        inner.update_figures(now);
        result
    }
}

impl Inner {
    fn update_figures(&mut self, now: Nanos) {
        let holders = self.clients.values().filter(|c| c.believes && c.can_act()).count();
        let is_wanted = self.clients.values().any(|c| c.can_act() && matches!(c.phase, Phase::Waiting(_)));
        match (self.overlap_since, holders > 1) {
            (None, true) => self.overlap_since = Some(now),
            (Some(since), false) => {
                self.overlap_since = None;
                if now > since {
                    self.measured.windows += 1;
                    self.measured.overlap += now - since;
                }
            }
            _ => {}
        }
        match (self.idle_since, holders == 0 && is_wanted) {
            (None, true) => self.idle_since = Some(now),
            (Some(since), false) => {
                self.idle_since = None;
                if now - since > UNAVAILABLE_AFTER {
                    self.measured.unavailable += now - since;
                }
            }
            _ => {}
        }
    }
}
