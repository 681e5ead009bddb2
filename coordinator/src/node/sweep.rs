//! Sweep of the leader: proposes the removal of empty containers and expired TTL znodes, and warns of
//! exceeded quotas. Applying the command checks the znode again, so a znode with a new child stays.
//!
//! Must never hold the lock of the state during a search: there may be millions of znodes. A thread searches
//! a frozen state.
//!
//! Timeouts of locks, on the leader: proposes `LockDue` when a lock-delay or the longest time of holding is
//! over. Applying the command checks the lock again, so an extra command has no effect.
//!
//! In the flow: apply signals an earlier due time through the [`LockAlarm`]; the leader's duties then call
//! [`LockSweep`], and again at the due time returned by the sweep.

use std::sync::Arc;
use std::time::Duration;

use crate::limits::{LOCK_SWEEP_MAX, SWEEP_MAX_QUOTA_WARNINGS, SWEEP_MAX_ZNODES};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_consensus::limits::BATCH_MAX_COMMANDS;
use rowlock_consensus::log_clock::LogClock;
use rowlock_env::sync::watch;
use rowlock_env::time::Instant;
use rowlock_env::{decides, worker};
use rowlock_proto::Zxid;
use rowlock_state::Machine;
use rowlock_state::command::Command;
use rowlock_state::quota::Quota;

use crate::node::context::Replica;
use crate::node::leader_duties::{Due, LeaderDuty};

/// Interval of polling the search thread.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Least time that a container stays without children: ZooKeeper's recipes create a lock's znode first and
/// their child second, and some fail when the znode is removed between.
const EMPTY_FOR: Duration = Duration::from_secs(5);

/// Finds removable znodes: soon after the beginning of each term, then at intervals.
pub struct Sweep {
    replica: Arc<Replica>,
    clock: Arc<LogClock>,
    every: Duration,
    term: u64,
    /// Earliest time of the next search; a search starts only after all proposals of the previous search.
    next: Option<Instant>,
    /// Time of a search that is due, and the last change that a container in it may have had.
    wait: Option<(Instant, Zxid)>,
    search: Option<BoxFuture<'static, Swept>>,
    /// Found and not yet proposed.
    paths: Vec<String>,
}

#[derive(Default)]
struct Swept {
    /// Paths of removable znodes.
    paths: Vec<String>,
    exceeded: Vec<Quota>,
    exceeded_count: usize,
}

impl Sweep {
    /// Returns a sweep with TTLs measured by the `clock` of the log. `every`: ZooKeeper's
    /// `znode.container.checkIntervalMs`.
    pub fn new(replica: Arc<Replica>, clock: Arc<LogClock>, every: Duration) -> Sweep {
        Sweep { replica, clock, every, term: 0, next: None, wait: None, search: None, paths: Vec::new() }
    }

    /// Starts a search. Returns `None` if there is nothing to search.
    fn begin_search(&self, empty_since: Zxid) -> Option<BoxFuture<'static, Swept>> {
        let frozen = {
            let machine = self.replica.state.read();
            if machine.containers_and_ttl().next().is_none() && !machine.may_have_quotas() {
                return None;
            }
            machine.freeze()
        };
        let now_ms = self.clock.now_ms();
        Some(worker::run_blocking("sweep", move || search(frozen.machine(), now_ms, empty_since)).boxed())
    }
}

impl LeaderDuty for Sweep {
    fn due(&mut self, term: u64, now: Instant) -> Due {
        if decides!("sweep-is-of-earlier-term", self.term != term) {
            // A new leader sweeps soon, so frequent changes of the leader do not postpone the sweep.
            (self.term, self.next, self.wait) = (term, None, None);
            (self.search, self.paths) = (None, Vec::new());
        }
        if self.search.is_none() && self.paths.is_empty() && self.next.is_none_or(|at| at <= now) {
            let empty_for = EMPTY_FOR.min(self.every);
            let (at, empty_since) =
                *self.wait.get_or_insert_with(|| (now + empty_for, self.replica.state.read().last_zxid()));
            self.next = Some(at);
            if at <= now {
                (self.next, self.wait) = (Some(now + self.every.saturating_sub(empty_for)), None);
                self.search = self.begin_search(empty_since);
            }
        }
        if let Some(found) = self.search.as_mut().and_then(|search| search.now_or_never()) {
            warn(&found);
            (self.search, self.paths) = (None, found.paths);
        }
        // Proposes one batch per call, so the other duties get their turns.
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

fn search(machine: &Machine, now_ms: i64, empty_since: Zxid) -> Swept {
    let paths = machine.reap_due(now_ms, empty_since).take(SWEEP_MAX_ZNODES).map(str::to_owned).collect();
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
            "quota exceeded: delete znodes below this path, or raise the quota with setquota"
        );
    }
    if found.exceeded_count > found.exceeded.len() {
        tracing::warn!(quotas = found.exceeded_count, "further quotas are exceeded; listquota shows all");
    }
}

/// Interval between two proposals for the same due lock. Also the longest delay of a lock that becomes due in
/// this interval.
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// Wakes the leader's duties when a lock becomes due earlier than scheduled. Apply signals the alarm, so the
/// alarm never waits.
pub struct LockAlarm(watch::Sender<Option<i64>>);

impl LockAlarm {
    /// Returns the alarm and its receiver, which holds the earliest due time (ms since 1970).
    pub fn new() -> (LockAlarm, watch::Receiver<Option<i64>>) {
        let (sender, receiver) = watch::channel(None);
        (LockAlarm(sender), receiver)
    }

    /// Wakes the duties if the changed state has an earlier due time.
    pub fn update(&self, machine: &Machine) {
        let next = machine.next_lock_due();
        self.0.send_if_modified(|known| {
            let is_earlier = next.is_some_and(|next| known.is_none_or(|known| next < known));
            *known = next;
            is_earlier
        });
    }
}

pub struct LockSweep {
    pub replica: Arc<Replica>,
    /// Clock of the log. Only this node advances the clock while it leads, so the computed delay is exact.
    pub clock: Arc<LogClock>,
}

impl LeaderDuty for LockSweep {
    fn due(&mut self, _: u64, now: Instant) -> Due {
        due_locks(&self.replica.state.read(), self.clock.now_ms(), now)
    }

    fn wakes_on_alarm(&self) -> bool {
        true
    }
}

/// Returns the due locks. `now_ms` is `now` by the clock of the log.
fn due_locks(machine: &Machine, now_ms: i64, now: Instant) -> Due {
    let Some(next_ms) = machine.next_lock_due() else { return Due::default() };
    if decides!("no-lock-is-due", next_ms > now_ms) {
        let next = Some(now + Duration::from_millis(next_ms.abs_diff(now_ms)));
        return Due { next, ..Due::default() };
    }
    let mut locks: Vec<&str> = machine.locks_due(now_ms).take(LOCK_SWEEP_MAX).collect();
    locks.sort_unstable();
    locks.dedup();
    let commands = locks.into_iter().map(|lock| Command::LockDue { lock: lock.to_owned() }).collect();
    Due { commands, next: Some(now + REPEAT_AFTER) }
}

#[cfg(test)]
mod tests;
