//! The omniscient view from outside: every client reports to it what it wants, believes and does, in true
//! time, and it computes the figures of the table. Designs cannot read it; only the
//! [workload](crate::workload) and designs' own counters write to it.
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

/// A request that began this much later may not be served first; less is the network's jitter.
const OVERTAKE_GRACE: Duration = Duration::from_millis(100);
/// A client that was away may need this long to ask again.
const RECONNECT: Duration = Duration::from_secs(5);
/// A lock without a holder but with a waiter is unavailable after this long.
const UNAVAILABLE_AFTER: Duration = Duration::from_secs(1);

pub type Clock = Arc<dyn Fn() -> Nanos + Send + Sync>;

/// Writes down for people what a client does.
pub type FactRecorder = Arc<dyn Fn(ClientId, Deed) + Send + Sync>;

/// What a client does, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Waits,
    Holds(Option<u64>),
    /// It lets go, with the token that it had.
    LetsGo(Option<u64>),
}

/// A contender for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub usize);

/// A moment between two commands of which only the first has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    Acquire,
    Release,
}

/// What a release came to, as the client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// "It is free now."
    Freed,
    /// "You did not hold it."
    WasNotHeld,
    Unknown,
}

/// Something that a design's client counts about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remark {
    /// It asked for the lock, or was woken for it, and did not get it.
    Denied,
    /// Its renewal was refused: from here on it could know that the lock is lost.
    RenewalRefused,
    Renewed,
    /// It was told of the loss of its lock while it held it.
    ToldOfLoss,
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Idle,
    Waiting(Nanos),
    Working(Nanos),
    /// Has checked for the last time, and its write is on the way.
    Writing,
}

#[derive(Debug)]
struct Client {
    is_alive: bool,
    is_paused: bool,
    is_cut_off: bool,
    /// It could not be expected to be in any queue before.
    back_since: Nanos,
    phase: Phase,
    believes: bool,
    token: Option<u64>,
    between: Option<Between>,
    /// Another client was granted the lock after this client was, and before it released.
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
    /// Times in which two processes that could act both believed.
    pub windows: u64,
    /// How long those lasted together.
    pub overlap: Duration,
    /// Grants that passed over an earlier request.
    pub overtakes: u64,
    /// How long each grant had been waited for.
    pub waits: Vec<Duration>,
    /// Releases that said "freed" though another had been granted the lock in the meantime.
    pub false_releases: u64,
    /// From the fault to the next grant.
    pub recovery: Option<Duration>,
    /// No running client held it although one waited, in stretches of more than a second.
    pub unavailable: Duration,
    /// No client was granted the lock in the last part of the run, although one waited and none worked.
    pub is_stuck: bool,
    /// Clients that have waited all through the last part of the run, though others were granted the lock.
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
    /// One that has seen nothing.
    pub fn new(clock: Clock) -> Self {
        OutsideView { clock, fact_recorder: None, meter: Meter::counting(), inner: Arc::default() }
    }

    /// What clients do is told to `fact recorder` as well.
    pub fn with_fact_recorder(mut self, fact_recorder: FactRecorder) -> Self {
        self.fact_recorder = Some(fact_recorder);
        self
    }

    fn note(&self, client: ClientId, deed: Deed) {
        if let Some(fact_recorder) = &self.fact_recorder {
            fact_recorder(client, deed);
        }
    }

    /// Counts the messages that the lock costs.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// A client's process starts, or starts again.
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

    /// A client's process ends, and its belief with it.
    pub fn dies(&self, client: ClientId) {
        self.client(client, |c| (c.is_alive, c.believes, c.phase) = (false, false, Phase::Idle));
    }

    /// A client's process stands still, or goes on.
    pub fn pauses(&self, client: ClientId, is_paused: bool) {
        let back = (self.clock)() + RECONNECT;
        self.client(client, |c| (c.is_paused, c.back_since) = (is_paused, back));
    }

    /// A client cannot reach what the others reach, or can again. Order is not asked for across such a cut.
    pub fn cuts_off(&self, client: ClientId, is_cut_off: bool) {
        let back = (self.clock)() + RECONNECT;
        self.client(client, |c| (c.is_cut_off, c.back_since) = (is_cut_off, back));
    }

    /// A client begins to ask for the lock.
    pub fn wants(&self, client: ClientId) {
        let now = (self.clock)();
        self.client(client, |c| c.phase = Phase::Waiting(now));
        self.note(client, Deed::Waits);
    }

    /// A client has the lock, as it believes. Returns how long its job must be, if that is fixed.
    pub fn holds(&self, client: ClientId, token: Option<u64>) -> Option<Duration> {
        self.note(client, Deed::Holds(token));
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

    /// A client has looked for the last time whether it holds the lock; its write is on the way.
    pub fn writes(&self, client: ClientId) {
        self.client(client, |c| c.phase = Phase::Writing);
    }

    /// A client believes no longer: it releases the lock, or was told of its loss.
    pub fn lets_go(&self, client: ClientId) {
        let mut held = None;
        self.client(client, |c| held = std::mem::take(&mut c.believes).then_some(c.token));
        if let Some(token) = held {
            self.note(client, Deed::LetsGo(token));
        }
    }

    /// A client was told what its release came to.
    pub fn released(&self, client: ClientId, how: Released) {
        self.change(|inner, _| {
            let Some(c) = inner.clients.get_mut(&client) else { return };
            inner.measured.false_releases += u64::from(how == Released::Freed && c.is_succeeded);
            c.phase = Phase::Idle;
        });
    }

    /// A client has done the first of two commands; or is past that.
    pub fn between(&self, client: ClientId, between: Option<Between>) {
        self.client(client, |c| c.between = between);
    }

    /// A client counts something.
    pub fn remark(&self, remark: Remark) {
        *self.inner.lock().measured.remarks.entry(remark).or_default() += 1;
    }

    /// The next client that gets the lock works that long, and is the victim of what is to come.
    pub fn set_next_job(&self, job: Duration) {
        self.inner.lock().next_job = Some(job);
    }

    pub fn fault_begins(&self) {
        self.change(|inner, now| inner.fault_at = Some(now));
    }

    /// The client whose job was chosen by [`OutsideView::set_next_job`].
    pub fn victim(&self) -> Option<ClientId> {
        self.inner.lock().victim
    }

    pub fn phase(&self, client: ClientId) -> Phase {
        self.inner.lock().clients.get(&client).map_or(Phase::Idle, |c| c.phase)
    }

    /// A client that is between two commands of this kind.
    pub fn find_between(&self, between: Between) -> Option<ClientId> {
        let inner = self.inner.lock();
        inner.clients.iter().find(|(_, c)| c.between == Some(between) && c.can_act()).map(|(id, _)| *id)
    }

    /// Those who wait, who has waited longest first.
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

    /// Ends the observation. `stuck_after`: no client was granted the lock for this long, although one
    /// waited.
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

    /// Every change goes through here: what follows from the new state is brought up to date.
    fn change<T>(&self, change: impl FnOnce(&mut Inner, Nanos) -> T) -> T {
        let now = (self.clock)();
        let mut inner = self.inner.lock();
        let result = change(&mut inner, now);
        inner.settle(now);
        result
    }
}

impl Inner {
    fn settle(&mut self, now: Nanos) {
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
