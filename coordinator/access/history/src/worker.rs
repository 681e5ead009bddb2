//! Thread of the history: takes the buffer from apply, writes the entries, and answers queries.
//!
//! The thread lets entries collect for a while
//! ([`HISTORY_DELAY_MAX`](crate::limits::HISTORY_DELAY_MAX)), and takes the buffer before any other
//! job, so a reader sees all events applied earlier.
//!
//! The thread runs in the background: busy processors give the thread little time, so an overloaded node
//! drops records rather than commands.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use rowlock_env::time::{self, Instant};
use rowlock_metrics::Metrics;
use rowlock_proto::Zxid;
use rowlock_proto::lock_event::{Gap, GapReason};
use tokio::sync::oneshot;

use super::block::{Encoded, entries};
use super::query::{Filter, Page};
use super::queue::{Backlog, Buffer};
use super::record::{HistoryError, Key, Missing, Subject, merge};
use super::store::{Bounds, Found, Store};
use crate::limits::HISTORY_RETRY_PAUSE;

/// Bound of the declared gaps kept for readers between two pages.
const DECLARED_KEPT: usize = 16;

pub(super) enum Job {
    Collect,
    /// Make the history durable up to this zxid: a snapshot of the state is in progress.
    Frozen(Zxid),
    Trim,
    /// Read a page, at most until `deadline`.
    Read {
        filter: Filter,
        deadline: Instant,
        reply: oneshot::Sender<Page>,
    },
    Close(oneshot::Sender<()>),
}

pub(super) struct Keeper {
    state: State,
    node: PathBuf,
    bounds: Bounds,
    backlog: Arc<Backlog>,
    /// Empty buffer for the next exchange with apply.
    buffer: Buffer,
    metrics: Arc<Metrics>,
    /// Gap to be declared, for unwritten events.
    missed: Option<Missing>,
    /// Recently declared gaps, newest first.
    declared: VecDeque<Missing>,
}

enum State {
    Found(Found),
    Open(Box<Store>),
    /// Earliest time of the next attempt.
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

    pub fn handle(&mut self, jobs: &mut Vec<Job>) {
        for job in jobs.drain(..) {
            self.collect();
            match job {
                Job::Collect => {}
                // The missing events must be declared before the checkpoint covers them.
                Job::Frozen(_) if self.missed.is_some() => {}
                Job::Frozen(zxid) => self.attempt(|store| store.checkpoint(zxid)),
                Job::Trim => self.attempt(|store| store.trim(time::wall_ms())),
                Job::Read { filter, deadline, reply } => self.read(&filter, deadline, reply),
                Job::Close(done) => {
                    self.attempt(Store::close);
                    self.state = State::Closed;
                    // A dropped caller needs no result.
                    let _ = done.send(());
                }
            }
        }
    }

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
            State::Failed(until) if time::now() >= until => match Found::scan(&self.node) {
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

    /// Runs `work` on the store; abandons the open segment after a failure.
    fn attempt(&mut self, work: impl FnOnce(&mut Store) -> Result<(), HistoryError>) {
        let Some(store) = self.store() else { return };
        if let Err(error) = work(store) {
            self.abandon_store(&error);
        }
    }

    fn abandon_store(&mut self, error: &HistoryError) {
        let State::Open(store) = &mut self.state else { return };
        let (covered, newest) = (store.covered(), store.newest());
        let from = store.abandon(error);
        if covered > from {
            let last = Key { zxid: covered, ordinal: u32::MAX, ..newest };
            let gap = Gap { from_zxid: from, missing: None, reason: GapReason::Lost };
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
                match store.append(item) {
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
            self.abandon_store(&error);
        }
        self.miss_all(left, GapReason::Lost);
    }

    fn miss_all<'a>(&mut self, items: impl Iterator<Item = Encoded<'a>>, why: GapReason) {
        for Encoded { key, subject, .. } in items {
            self.metrics.history_dropped_total.add(u64::from(matches!(subject, Subject::Lock { .. })));
            self.missed = Some(merge(self.missed, subject.missed(key, why)));
        }
    }

    /// Writes the pending gap as soon as possible.
    fn declare_missed(&mut self) {
        let Some((last, gap)) = self.missed else { return };
        let Some(store) = self.store() else { return };
        if store.is_cramped() {
            return;
        }
        match store.append_gap(last, gap) {
            Ok(()) => {
                self.missed = None;
                self.declared.truncate(DECLARED_KEPT - 1);
                self.declared.push_front((last, gap));
            }
            Err(error) => self.abandon_store(&error),
        }
    }

    fn read(&mut self, filter: &Filter, deadline: Instant, reply: oneshot::Sender<Page>) {
        let is_over = || reply.is_closed() || time::now() >= deadline;
        if is_over() {
            return;
        }
        // Between two pages, the first page may have shown the end of a later lost part.
        let before = filter.before;
        let ends_in = |(key, gap): &&Missing| *key >= before && gap.from_zxid < before.zxid;
        let missed = self.declared.iter().find(ends_in).copied().or(self.missed);
        let Some(store) = self.store() else { return };
        match store.page(filter, missed, time::wall_ms(), is_over) {
            Ok(page) => drop(reply.send(page)),
            Err(error) => self.abandon_store(&error),
        }
    }
}

fn items(bytes: &[u8]) -> impl Iterator<Item = Encoded<'_>> {
    entries(bytes).map(|item| item.expect("Invariant: the buffer holds encoded entries"))
}

fn failed(error: &HistoryError) -> State {
    tracing::warn!(%error, "cannot open the lock history; the node retries later");
    State::Failed(time::now() + HISTORY_RETRY_PAUSE)
}
