//! The leader's sweep: proposes the removal of containers without children and of expired TTL znodes, and
//! warns of exceeded quotas. Applying the command checks again, so a znode with a new child stays.
//!
//! Must never hold the state's lock during a search of possibly millions of znodes: a thread searches a
//! frozen state.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_consensus::log_clock::LogClock;
use rowlock_env::time::Instant;
use rowlock_env::worker;
use rowlock_state::Machine;
use rowlock_state::command::Command;
use rowlock_state::quota::Quota;
use rowlock_types::limits::{BATCH_MAX_COMMANDS, SWEEP_MAX_QUOTA_WARNINGS, SWEEP_MAX_ZNODES};

use crate::leader_duties::{Due, Duty};
use crate::replica::Replica;

/// Interval of the duty's polls of its search thread.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Proposes the removal of due znodes: at once in each new term, then every `every`.
pub struct Sweep {
    replica: Arc<Replica>,
    clock: Arc<LogClock>,
    every: Duration,
    term: u64,
    /// Earliest start of the next search. A search also waits until all found `paths` are proposed.
    next: Option<Instant>,
    search: Option<BoxFuture<'static, Swept>>,
    /// Found paths that are not proposed yet.
    paths: Vec<String>,
}

/// Result of one search.
#[derive(Default)]
struct Swept {
    paths: Vec<String>,
    exceeded: Vec<Quota>,
    exceeded_count: usize,
}

impl Sweep {
    /// Creates the duty. The log's `clock` decides about expiry; `every` is ZooKeeper's
    /// `znode.container.checkIntervalMs`.
    pub fn new(replica: Arc<Replica>, clock: Arc<LogClock>, every: Duration) -> Sweep {
        Sweep { replica, clock, every, term: 0, next: None, search: None, paths: Vec::new() }
    }

    /// Starts a search of a frozen state on a thread. Returns `None` if the state has no container, TTL znode
    /// or quota.
    fn begin_search(&self) -> Option<BoxFuture<'static, Swept>> {
        let frozen = {
            let machine = self.replica.state.read();
            if machine.containers_and_ttl().next().is_none() && !machine.may_have_quotas() {
                return None;
            }
            machine.freeze()
        };
        let now_ms = self.clock.now_ms();
        Some(worker::run_blocking("sweep", move || search(frozen.machine(), now_ms)).boxed())
    }
}

impl Duty for Sweep {
    fn due(&mut self, term: u64, now: Instant) -> Due {
        if self.term != term {
            // A new leader sweeps at once, so that a change of leaders never lengthens a pause.
            (self.term, self.next, self.search, self.paths) = (term, None, None, Vec::new());
        }
        if self.search.is_none() && self.paths.is_empty() && self.next.is_none_or(|at| at <= now) {
            self.next = Some(now + self.every);
            self.search = self.begin_search();
        }
        if let Some(found) = self.search.as_mut().and_then(|search| search.now_or_never()) {
            warn(&found);
            (self.search, self.paths) = (None, found.paths);
        }
        // One batch per call, so that the other duties get their turn in between.
        let count = self.paths.len().min(BATCH_MAX_COMMANDS);
        let commands = self.paths.drain(..count).map(|path| Command::Reap { path }).collect();
        let next = match &self.search {
            Some(_) => Some(now + POLL_EVERY),
            None if self.paths.is_empty() => self.next,
            None => Some(now),
        };
        Due { commands, next }
    }
}

fn search(machine: &Machine, now_ms: i64) -> Swept {
    let paths = machine.reap_due(now_ms).take(SWEEP_MAX_ZNODES).map(str::to_owned).collect();
    let mut found = Swept { paths, ..Swept::default() };
    for quota in machine.quotas().filter(Quota::is_exceeded) {
        found.exceeded_count += 1;
        if found.exceeded.len() < SWEEP_MAX_QUOTA_WARNINGS {
            found.exceeded.push(quota);
        }
    }
    found
}

fn warn(found: &Swept) {
    if !found.paths.is_empty() {
        tracing::debug!(znodes = found.paths.len(), "removing containers and TTL znodes");
    }
    for Quota { path, limits, usage } in &found.exceeded {
        tracing::warn!(
            path,
            znodes = usage.count,
            bytes = usage.bytes,
            znodes_max = limits.count_hard.or(limits.count),
            bytes_max = limits.bytes_hard.or(limits.bytes),
            "quota exceeded: delete znodes there, or raise it with setquota"
        );
    }
    if found.exceeded_count > found.exceeded.len() {
        tracing::warn!(quotas = found.exceeded_count, "more quotas are exceeded; listquota shows each");
    }
}

#[cfg(test)]
mod tests;
