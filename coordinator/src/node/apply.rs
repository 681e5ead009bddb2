//! Effects of a committed entry on this node besides the change of the state: watches fire, sessions and lock
//! waiters get notices, and this node's own clients get their replies. The state machine adapter calls this
//! module under the write lock of the state.

use std::sync::Arc;

use rowlock_consensus::entry_times::EntryStages;
use rowlock_consensus::log_clock::LogClock;
use rowlock_consensus::raft::state_machine::Apply;
use rowlock_consensus::raft_types::EntryOutcome;
use rowlock_env::busy::{self, Work};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_env::{decides, rng};
use rowlock_metrics::{Metrics, Stage};
use rowlock_proto::{Request, SessionId};
use rowlock_sessions::expiry_table::ExpiryTable;
use rowlock_state::command::{Attachment, Batch, Command, Proposal};
use rowlock_state::outcome::{Change, EventContext, EventSink, LockEvent, LockEventKind, SessionEnd};
use rowlock_state::{Machine, Question};

use crate::node::context::Replica;
use crate::node::delivery::events::Dispatcher;
use crate::node::delivery::outbox::CloseReason;
use crate::node::delivery::registry::Registry;
use crate::node::delivery::watch::WatchTable;
use crate::node::proposer::pending::PendingWrites;
use crate::node::slow::SlowRequests;
use crate::node::sweep::LockAlarm;

/// Number of commands between two clock reads: a command takes microseconds.
const CLOCK_EVERY: usize = 16;
/// Counted work for each changed znode, a flat amount.
const CHANGE_STEPS: u64 = 64;

/// Hears of everything that is applied. Called under the write lock of the state, in order: no function may
/// wait or fail.
pub trait Observer: Send + Sync + 'static {
    /// Hears of an event of a queue position, behind the connections.
    fn lock(&self, _: &LockEvent<&str>, _: &EventContext<'_>) {}
    /// Hears of the end of a batch: `machine` is the state behind the entry at `index`.
    fn applied(&self, _index: u64, _: &[Proposal], _machine: &Machine) {}
    /// Hears of a snapshot of the present state: afterwards the log may be purged up to it.
    fn frozen(&self, _machine: &Machine) {}
    /// Hears that a snapshot has replaced the state.
    fn installed(&self, _machine: &Machine) {}
}

/// Observer in the state machine adapter.
pub struct Applier {
    /// Source of the watches; the state is a parameter of each call.
    pub replica: Arc<Replica>,
    /// Writes of this node's clients.
    pub pending: Arc<PendingWrites>,
    /// Connections of moved and ended sessions.
    pub registry: Arc<Registry>,
    /// Sessions in the leader's care.
    pub expiry_table: Arc<ExpiryTable>,
    /// Clock of the log, advanced to the time of each applied entry, so a new leader continues from this
    /// time.
    pub clock: Arc<LogClock>,
    /// Called in this order.
    pub observers: Vec<Arc<dyn Observer>>,
    pub lock_alarm: LockAlarm,
    /// Log of slow entries.
    pub slow: Arc<SlowRequests>,
    pub metrics: Arc<Metrics>,
}

/// Receiver of the changes of a batch.
pub(crate) struct Sink<'a> {
    connections: Dispatcher<'a>,
    expiry_table: &'a ExpiryTable,
    observers: &'a [Arc<dyn Observer>],
}

impl<'a> Sink<'a> {
    /// Returns a sink for one batch; `watches` stays locked (after the state) during the batch.
    pub(crate) fn new(
        watches: &'a mut WatchTable,
        registry: &'a Registry,
        metrics: &'a Metrics,
        expiry_table: &'a ExpiryTable,
    ) -> Self {
        Sink { connections: Dispatcher::new(watches, registry, metrics), expiry_table, observers: &[] }
    }

    /// Adds observers of lock events.
    pub(crate) fn observed_by(self, observers: &'a [Arc<dyn Observer>]) -> Self {
        Sink { observers, ..self }
    }
}

impl EventSink for Sink<'_> {
    fn changed(&mut self, change: &Change<'_>) {
        busy::spend(Work::Step, CHANGE_STEPS);
        self.connections.changed(change);
    }

    fn session_opened(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.expiry_table.opened(session, attachment, timeout_ms);
        self.connections.session_opened(session, attachment, timeout_ms);
    }

    fn session_attached(&mut self, session: SessionId, attachment: Attachment, timeout_ms: u32) {
        self.expiry_table.opened(session, attachment, timeout_ms);
        self.connections.session_attached(session, attachment, timeout_ms);
    }

    fn session_ended(&mut self, session: SessionId, end: SessionEnd) {
        match end {
            SessionEnd::Expired => tracing::info!(%session, "session expired"),
            SessionEnd::Ended => tracing::info!(%session, "session ended by a superuser"),
            SessionEnd::Closed => {}
        }
        self.expiry_table.ended(session);
        self.connections.session_ended(session, end);
    }

    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        if let LockEventKind::Lost(end) = event.kind {
            tracing::info!(
                lock = event.lock,
                reason = end.reason.name(),
                session = %event.session,
                token = event.token.0,
                label = event.label,
                address = event.address.unwrap_or_default(),
                held_ms = end.held_ms.unwrap_or_default(),
                "lock lost"
            );
        }
        self.connections.lock(event, context);
        self.observers.iter().for_each(|observer| observer.lock(event, context));
    }

    fn asked(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>, question: &Question) {
        self.connections.asked(event, context, question);
        self.observers.iter().for_each(|observer| observer.lock(event, context));
    }
}

impl Applier {
    /// Records the stages of an applied entry. `first_taken`: intake time of the first command of this node
    /// in the entry.
    fn measure(&self, entry: &EntryStages, first_taken: Option<Instant>, commands: usize) {
        if !entry.known {
            return;
        }
        let (ended, stages) = (time::now(), &self.metrics.stage_seconds);
        debug_assert!(entry.appended <= entry.begun && entry.begun <= ended, "a clock does not go back");
        debug_assert!(commands > 0 || first_taken.is_none(), "who waits waits for a command");
        if let Some(taken) = first_taken {
            stages.record(Stage::Forward, entry.appended.saturating_since(taken));
        }
        if let Some(flush) = entry.flush() {
            stages.record(Stage::Flush, flush);
        }
        stages.record(Stage::Quorum, entry.quorum());
        stages.record(Stage::Apply, ended.saturating_since(entry.begun));
        self.slow.entry(entry, commands, ended);
    }
}

fn forget_min_hold(command: &mut Command) {
    match command {
        Command::Tagged { command, .. } => forget_min_hold(command),
        Command::Client(Request::Acquire(all)) => all.iter_mut().for_each(|one| one.min_hold_ms = 0),
        _ => {}
    }
}

impl Apply for Applier {
    fn apply(&self, machine: &mut Machine, entry: EntryStages, mut batch: Batch) -> EntryOutcome {
        if decides!("entry-is-overtaken", !machine.takes(batch.ordinal))
            && !mutant::is(Mutant::OvertakenApplied)
        {
            rare::taken(Rare::EntryOvertaken);
            tracing::warn!(
                entry = entry.index,
                "skipped a log entry out of order; its leader proposes the commands again"
            );
            self.metrics.batches_skipped_total.inc();
            return EntryOutcome::Skipped;
        }
        let mut watches = self.replica.watches.lock();
        let sink = Sink::new(&mut watches, &self.registry, &self.metrics, &self.expiry_table);
        let mut sink = sink.observed_by(&self.observers);
        let mut stamp = batch.stamp();
        if mutant::is(Mutant::ApplyByLocalClock) {
            stamp.time_ms = time::wall_ms();
        }
        stamp.time_ms += i64::from(mutant::is(Mutant::SilentlyDiffers) && rng::below(300) == 0);
        if mutant::is(Mutant::GateByRelease) {
            machine.gate_by(self.replica.versions.most);
        }
        let (mut now, mut first_taken) = (entry.begun, None);
        for (nth, proposal) in batch.proposals.iter_mut().enumerate() {
            busy::spend(Work::Command, 1);
            if mutant::is(Mutant::MinHoldForgotten) {
                forget_min_hold(&mut proposal.command);
            }
            let applied = machine.apply_stamped(stamp, proposal, &mut sink);
            if nth % CLOCK_EVERY == 0 {
                now = time::now();
            }
            // The reply follows the events of its own command and precedes the events of the next: zxid order
            // per connection.
            let taken = self.pending.answer(applied, proposal, (entry, now));
            first_taken = first_taken.or(taken);
        }
        self.replica.memory.set_state(machine);
        self.clock.observe(machine.time_ms());
        self.observers.iter().for_each(|one| one.applied(entry.index, &batch.proposals, machine));
        self.lock_alarm.update(machine);
        self.measure(&entry, first_taken, batch.proposals.len());
        EntryOutcome::Applied
    }

    fn frozen(&self, machine: &Machine) {
        self.observers.iter().for_each(|observer| observer.frozen(machine));
    }

    /// Handles a snapshot that replaced the state. Events and replies of the skipped entries are lost for
    /// this node's clients, so the node closes their connections; the clients reconnect, and setWatches
    /// returns the missed events.
    fn installed(&self, machine: &Machine) {
        self.replica.memory.set_state(machine);
        self.clock.observe(machine.time_ms());
        self.observers.iter().for_each(|observer| observer.installed(machine));
        self.lock_alarm.update(machine);
        if self.metrics.connections.get() > 0 {
            rare::taken(Rare::SnapshotUnderClients);
        }
        self.pending.abandon_all();
        if !mutant::is(Mutant::SnapshotKeepsConnections) {
            self.registry.close_all(CloseReason::NotServing);
        }
    }
}
