//! The history's thread: takes what apply has left in the buffer, writes it, and answers questions.
//!
//! It lets what apply leaves collect for a while
//! ([`HISTORY_DELAY_MAX`](rowlock_types::limits::HISTORY_DELAY_MAX)), and looks into the buffer before it
//! does anything else, so a reader sees what was applied before.
//!
//! It runs in the background: when the processors are busy, it gets little of them, so a node under full load
//! drops records rather than commands.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use rowlock_env::time::{self, Instant};
use rowlock_proto::Zxid;
use rowlock_types::limits::HISTORY_RETRY_PAUSE;
use rowlock_types::metrics::Metrics;
use tokio::sync::oneshot;

use super::block::{Encoded, entries};
use super::error::HistoryError;
use super::query::{Filter, Page};
use super::queue::{Backlog, Buffer};
use super::record::{Gap, GapReason, Key, Missing, Subject, merge};
use super::store::{Bounds, Found, Store};

/// How many of the latest gaps are kept for readers who are between two pages.
const DECLARED_KEPT: usize = 16;

/// What the thread is to do.
pub(super) enum Job {
    /// There is something in the buffer.
    Collect,
    /// A snapshot of the state is being taken at this zxid.
    Frozen(Zxid),
    /// Remove what is too old.
    Trim,
    /// Read, unless it takes until `deadline`.
    Read { filter: Filter, deadline: Instant, reply: oneshot::Sender<Page> },
    /// Write everything out: the node stops.
    Close(oneshot::Sender<()>),
}

pub(super) struct Keeper {
    state: State,
    node: PathBuf,
    bounds: Bounds,
    backlog: Arc<Backlog>,
    /// Changed for the one that apply fills.
    buffer: Buffer,
    metrics: Arc<Metrics>,
    /// What could not be written yet, and must be declared missing.
    missed: Option<Missing>,
    /// What was declared missing lately.
    declared: VecDeque<Missing>,
}

enum State {
    Found(Found),
    Open(Box<Store>),
    /// Not to be tried again before.
    Failed(Instant),
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
        let (state, buffer) = (State::Found(found), Buffer::default());
        Keeper { state, node, bounds, backlog, buffer, metrics, missed: None, declared: VecDeque::new() }
    }

    /// Does everything that was queued.
    pub fn handle(&mut self, jobs: &mut Vec<Job>) {
        for job in jobs.drain(..) {
            self.collect();
            match job {
                Job::Collect => {}
                // What is missing must be in the files before they are said to have everything.
                Job::Frozen(_) if self.missed.is_some() => {}
                Job::Frozen(zxid) => self.attempt(|store| store.checkpoint(zxid)),
                Job::Trim => self.attempt(|store| store.trim(time::wall_ms())),
                Job::Read { filter, deadline, reply } => self.read(&filter, deadline, reply),
                Job::Close(done) => {
                    self.attempt(Store::close);
                    self.state = State::Closed;
                    // A caller that has gone does not need the answer.
                    let _ = done.send(());
                }
            }
        }
    }

    /// Writes what apply has left.
    fn collect(&mut self) {
        let mut taken = std::mem::take(&mut self.buffer);
        self.backlog.take(&mut taken);
        self.record(&taken.bytes);
        self.backlog.done(&mut taken);
        self.buffer = taken;
        self.declare_missed();
    }

    fn store(&mut self) -> Option<&mut Store> {
        let state = std::mem::replace(&mut self.state, State::Closed);
        self.state = match state {
            State::Found(found) => self.begin(found),
            State::Failed(until) if time::now() >= until => match Found::look(&self.node) {
                Ok(found) => self.begin(found),
                Err(error) => failed(&error),
            },
            other => other,
        };
        match &mut self.state {
            State::Open(store) => Some(store),
            _ => None,
        }
    }

    fn begin(&self, found: Found) -> State {
        match Store::open(found, self.bounds) {
            Ok(store) => State::Open(Box::new(store)),
            Err(error) => failed(&error),
        }
    }

    /// Tries something; if it fails, the open segment is given up.
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
            let last = Key { zxid: covered, ordinal: u32::MAX, ..newest };
            let gap = Gap { from, missing: None, why: GapReason::Lost };
            self.missed = Some(merge(self.missed, (last, gap)));
        }
        self.state = State::Failed(time::now() + HISTORY_RETRY_PAUSE);
    }

    fn record(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.store().map(|store| store.is_cramped()) {
            Some(false) => {}
            Some(true) => return self.miss_all(items(bytes), GapReason::NoSpace),
            None => return self.miss_all(items(bytes), GapReason::Lost),
        }
        self.declare_missed();
        if self.missed.is_some() {
            return self.miss_all(items(bytes), GapReason::NoSpace);
        }
        let (mut left, mut written) = (items(bytes).peekable(), 0);
        let mut failed = None;
        if let Some(store) = self.store() {
            while let Some(item) = left.peek()
                && failed.is_none()
            {
                match store.put(item) {
                    Ok(()) => {
                        written += u64::from(matches!(item.subject, Subject::Lock { .. }));
                        left.next();
                    }
                    Err(error) => failed = Some(error),
                }
            }
        }
        self.metrics.history_records_total.add(written);
        if let Some(error) = failed {
            self.give_up(&error);
        }
        self.miss_all(left, GapReason::Lost);
    }

    fn miss_all<'a>(&mut self, items: impl Iterator<Item = Encoded<'a>>, why: GapReason) {
        for Encoded { key, subject, .. } in items {
            self.metrics.history_dropped_total.add(u64::from(matches!(subject, Subject::Lock { .. })));
            self.missed = Some(merge(self.missed, subject.missed(key, why)));
        }
    }

    /// Writes down what is missing, as soon as that is possible.
    fn declare_missed(&mut self) {
        let Some((last, gap)) = self.missed else { return };
        let Some(store) = self.store() else { return };
        if store.is_cramped() {
            return;
        }
        match store.put_gap(last, gap) {
            Ok(()) => {
                self.missed = None;
                self.declared.truncate(DECLARED_KEPT - 1);
                self.declared.push_front((last, gap));
            }
            Err(error) => self.give_up(&error),
        }
    }

    fn read(&mut self, filter: &Filter, deadline: Instant, reply: oneshot::Sender<Page>) {
        let is_over = || reply.is_closed() || time::now() >= deadline;
        if is_over() {
            return;
        }
        // Who reads page by page may have been shown the end of what was lost since.
        let before = filter.before;
        let ends_in = |(key, gap): &&Missing| *key >= before && gap.from < before.zxid;
        let missed = self.declared.iter().find(ends_in).copied().or(self.missed);
        let Some(store) = self.store() else { return };
        match store.page(filter, missed, time::wall_ms(), is_over) {
            Ok(page) => drop(reply.send(page)),
            Err(error) => self.give_up(&error),
        }
    }
}

/// What apply has left in the buffer.
fn items(bytes: &[u8]) -> impl Iterator<Item = Encoded<'_>> {
    entries(bytes).map(|item| item.expect("Invariant: the buffer holds what was encoded a moment ago"))
}

fn failed(error: &HistoryError) -> State {
    tracing::warn!(%error, "the lock history cannot be opened; it is tried again in a while");
    State::Failed(time::now() + HISTORY_RETRY_PAUSE)
}
