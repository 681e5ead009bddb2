//! The history's thread: takes what apply has left in the queue, writes it, and answers questions.
//!
//! It runs in the background: when the processors are busy, it gets little of them, so a node under full load drops
//! records rather than commands.

use std::path::PathBuf;
use std::sync::Arc;

use rowlock_env::time::{self, Instant};
use rowlock_proto::Zxid;
use tokio::sync::oneshot;

use super::error::HistoryError;
use super::page::{Filter, Page};
use super::queue::{Backlog, Bundle, Missed};
use super::record::{Gap, GapReason, Key};
use super::store::{Bounds, Found, Store};
use crate::limits::HISTORY_RETRY_PAUSE;
use crate::metrics::Metrics;

/// What the thread is to do.
pub(super) enum Job {
    /// Write this.
    Record(Bundle),
    /// A snapshot of the state is being taken at this zxid.
    Frozen(Zxid),
    /// A snapshot has replaced the state.
    Installed { zxid: Zxid, time_ms: i64 },
    /// Remove what is too old.
    Trim,
    /// Read, unless it takes until `deadline`.
    Read { filter: Filter, deadline: Instant, reply: oneshot::Sender<Page> },
    /// Write everything out: the node stops.
    Close(oneshot::Sender<()>),
}

/// The thread's own.
pub(super) struct Keeper {
    state: State,
    node: PathBuf,
    bounds: Bounds,
    backlog: Arc<Backlog>,
    metrics: Arc<Metrics>,
    /// What could not be written yet, and must be declared missing.
    missed: Option<Missed>,
}

enum State {
    /// Not opened yet.
    Found(Found),
    /// In use.
    Open(Box<Store>),
    /// Not to be tried again before; and up to where it was.
    Failed(Instant, Zxid),
    /// The node stops.
    Closed,
}

impl Keeper {
    pub fn new(
        node: PathBuf,
        found: Found,
        bounds: Bounds,
        backlog: Arc<Backlog>,
        metrics: Arc<Metrics>,
    ) -> Keeper {
        Keeper { state: State::Found(found), node, bounds, backlog, metrics, missed: None }
    }

    /// Does everything that was queued.
    pub fn handle(&mut self, jobs: &mut Vec<Job>) {
        for job in jobs.drain(..) {
            match job {
                Job::Record(bundle) => {
                    self.record(&bundle);
                    self.backlog.done(&bundle);
                }
                Job::Frozen(zxid) => {
                    // What is sealed as complete is not recorded again.
                    self.collect_missed();
                    self.attempt(|store| store.checkpoint(zxid));
                }
                Job::Installed { zxid, time_ms } => self.installed(zxid, time_ms),
                Job::Trim => self.attempt(|store| store.trim(time::wall_ms())),
                Job::Read { filter, deadline, reply } => self.read(&filter, deadline, reply),
                Job::Close(done) => {
                    self.collect_missed();
                    self.attempt(Store::close);
                    self.state = State::Closed;
                    // Whoever does not wait for it does not need to know.
                    let _ = done.send(());
                }
            }
        }
        self.collect_missed();
    }

    fn store(&mut self) -> Option<&mut Store> {
        let state = std::mem::replace(&mut self.state, State::Closed);
        self.state = match state {
            State::Found(found) => self.begin(found),
            State::Failed(until, covered) if time::now() >= until => match Found::look(&self.node) {
                Ok(found) => self.begin(found),
                Err(error) => failed(covered, &error),
            },
            other => other,
        };
        match &mut self.state {
            State::Open(store) => Some(store),
            _ => None,
        }
    }

    fn begin(&self, found: Found) -> State {
        let covered = found.covered;
        match Store::open(found, self.bounds) {
            Ok(store) => State::Open(Box::new(store)),
            Err(error) => failed(covered, &error),
        }
    }

    /// Tries something; if it fails, the open slice is given up.
    fn attempt(&mut self, work: impl FnOnce(&mut Store) -> Result<(), HistoryError>) {
        let Some(store) = self.store() else { return };
        if let Err(error) = work(store) {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &HistoryError) {
        let State::Open(store) = &mut self.state else { return };
        let (covered, newest) = (store.covered(), store.newest());
        let from = store.abandon(error);
        if covered > from {
            let last = Key { zxid: covered, ..newest };
            self.miss(Missed { from, last, count: None, why: GapReason::Lost });
        }
        self.state = State::Failed(time::now() + HISTORY_RETRY_PAUSE, covered);
    }

    fn record(&mut self, bundle: &Bundle) {
        match self.store().map(|store| store.is_cramped()) {
            Some(false) => {}
            Some(true) => return self.miss_bundle(bundle, GapReason::NoSpace),
            None => return self.miss_bundle(bundle, GapReason::Lost),
        }
        self.declare_missed();
        let mut written = 0;
        for record in bundle.records() {
            let Some(store) = self.store() else { break };
            match store.put(record.key, record.lock, record.session, record.value) {
                Ok(()) => written += 1,
                Err(error) => {
                    self.give_up(&error);
                    break;
                }
            }
        }
        self.metrics.history_records_total.add(written as u64);
        for record in bundle.records().skip(written) {
            self.metrics.history_dropped_total.inc();
            self.miss(Missed::one(record.key, GapReason::Lost));
        }
    }

    fn miss_bundle(&mut self, bundle: &Bundle, why: GapReason) {
        for record in bundle.records() {
            self.metrics.history_dropped_total.inc();
            self.miss(Missed::one(record.key, why));
        }
    }

    fn miss(&mut self, missed: Missed) {
        self.missed = Some(self.missed.map_or(missed, |earlier| earlier.and(missed)));
    }

    /// Hears what apply had to drop, and writes it down.
    fn collect_missed(&mut self) {
        if let Some(missed) = self.backlog.take_missed() {
            self.miss(missed);
        }
        self.declare_missed();
    }

    /// Writes down what is missing, as soon as that is possible.
    fn declare_missed(&mut self) {
        let Some(missed) = self.missed else { return };
        let Some(store) = self.store() else { return };
        if store.is_cramped() {
            return;
        }
        let Missed { from, last, count, why } = missed;
        let gap = Gap { from, missing: count, why };
        match store.put_gap(last, gap) {
            Ok(()) => self.missed = None,
            Err(error) => self.give_up(&error),
        }
    }

    fn installed(&mut self, zxid: Zxid, time_ms: i64) {
        self.store();
        let covered = match &self.state {
            State::Open(store) => store.covered(),
            State::Failed(_, covered) => *covered,
            State::Found(_) | State::Closed => return,
        };
        if zxid > covered {
            let last = Key { time_ms, zxid, ordinal: 0 };
            self.miss(Missed { from: covered, last, count: None, why: GapReason::Snapshot });
            self.declare_missed();
        }
    }

    fn read(&mut self, filter: &Filter, deadline: Instant, reply: oneshot::Sender<Page>) {
        let is_over = || reply.is_closed() || time::now() >= deadline;
        if is_over() {
            return;
        }
        let Some(store) = self.store() else { return };
        match store.page(filter, time::wall_ms(), is_over) {
            Ok(page) => drop(reply.send(page)),
            Err(error) => self.give_up(&error),
        }
    }
}

fn failed(covered: Zxid, error: &HistoryError) -> State {
    tracing::warn!(%error, "the lock history cannot be opened; it is tried again in a while");
    State::Failed(time::now() + HISTORY_RETRY_PAUSE, covered)
}
