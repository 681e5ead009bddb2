//! openraft's state machine: applies committed entries to the replica, and writes and installs snapshots.
//!
//! This adapter sits between openraft's state machine task (the only one that applies) and [`AppliedState`],
//! which all connections read. The [`Apply`] of the layer above performs the other effects of an entry
//! (events, answers). The adapter never answers a client, and never holds the lock of the state across an
//! await.
//!
//! Snapshots on the disk, as sources and sinks of transfers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, TryStreamExt};
use openraft::OptionalSend;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use rowlock_env::busy::{self, Work};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_env::{decides, task, worker};
use rowlock_metrics::Metrics;
use rowlock_state::command::{Batch, Command};
use rowlock_state::{Frozen, Machine};
use rowlock_wal::{Incoming, SnapshotFile, SnapshotStore, StorageError};

use super::network::SnapshotSource;
use super::rpc::{IncomingSnapshot, SnapshotSink};
use super::stored;
use crate::applied_state::AppliedState;
use crate::entry_times::EntryStages;
use crate::limits::APPLY_SLICE;
use crate::node_hook::Hook;
use crate::raft_types::{
    EntryOutcome, EntryPayload, LogId, Payload, SnapshotMeta, StoredMembership, TypeConfig, position,
};

/// Effects of a committed batch on a node. All functions run under the lock of the state, and none may wait.
pub trait Apply: Send + Sync + 'static {
    /// Applies every proposal of `batch`, the log entry `entry`, to `machine`, in order; or none, if the
    /// entry does not follow the last entry of its term.
    fn apply(&self, machine: &mut Machine, entry: EntryStages, batch: Batch) -> EntryOutcome;

    /// Called before a snapshot of this state is written; afterwards the log before the snapshot may be
    /// purged.
    fn frozen(&self, machine: &Machine) {
        let _ = machine;
    }

    /// Called after a snapshot replaced the state, and at the start for the loaded state: entries between the
    /// old and the new state were not applied one by one.
    fn installed(&self, machine: &Machine);
}

type RaftSnapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotFile>;

/// Adapter, owned by openraft's state machine task.
pub struct StateMachine {
    replica: Arc<AppliedState>,
    snapshots: SnapshotStore,
    apply: Arc<dyn Apply>,
    metrics: Arc<Metrics>,
    hook: Hook,
    last_applied: Option<LogId>,
    membership: StoredMembership,
}

/// Frozen state, for writing a snapshot beside apply.
pub struct SnapshotWriter {
    frozen: Frozen,
    meta: rowlock_wal::SnapshotMeta,
    snapshots: SnapshotStore,
    metrics: Arc<Metrics>,
}

/// openraft's builder of a snapshot. Its errors stop the node, so a running node writes its snapshots beside
/// openraft ([`super::compaction`]) and passes finished ones to openraft.
pub enum SnapshotBuilder {
    /// Snapshot written before openraft requested one.
    Written(SnapshotFile),
    /// Snapshot to be written: only while a node starts.
    ToWrite(Option<Box<SnapshotWriter>>),
}

impl StateMachine {
    /// Begins with the newest snapshot, if any; openraft then applies the log behind the snapshot.
    pub async fn open(
        replica: Arc<AppliedState>,
        snapshots: SnapshotStore,
        apply: Arc<dyn Apply>,
        metrics: Arc<Metrics>,
        hook: Hook,
    ) -> Result<StateMachine, StorageError> {
        let (last_applied, membership) = (None, StoredMembership::default());
        let store = snapshots.clone();
        let of = replica.clone();
        let newest = worker::run_blocking("snapshot-load", move || load_newest(&store, &of)).await?;
        let mut opened = StateMachine { replica, snapshots, apply, metrics, hook, last_applied, membership };
        if let Some((machine, snapshot)) = newest {
            drop(opened.replace(machine, &snapshot)); // nothing was in it
        }
        Ok(opened)
    }

    /// Freezes the present state for a snapshot.
    pub fn freeze(&self) -> SnapshotWriter {
        assert!(self.membership.log_id() <= &self.last_applied, "a membership is applied when it is known");
        let frozen = {
            let state = self.replica.state.read();
            self.apply.frozen(&state);
            state.freeze()
        };
        SnapshotWriter {
            frozen,
            meta: stored::meta(&SnapshotMeta {
                last_log_id: self.last_applied,
                last_membership: self.membership.clone(),
            }),
            snapshots: self.snapshots.clone(),
            metrics: self.metrics.clone(),
        }
    }

    fn apply_entry(
        &mut self,
        log_id: LogId,
        payload: EntryPayload,
        begun: Instant,
    ) -> io::Result<EntryOutcome> {
        assert!(self.last_applied < Some(log_id), "entries are applied in order, each once");
        let mut outcome = EntryOutcome::Applied;
        match payload {
            EntryPayload::Blank => self.report_raft_entry(log_id),
            EntryPayload::Normal(Payload(bytes)) => {
                let mut batch = match self.replica.batch_cache.take(&bytes) {
                    Some(batch) => batch,
                    // A damaged entry or one of a newer version: skipping the entry would fork this replica.
                    None => Batch::decode_shared(&bytes).map_err(|error| {
                        io::Error::new(io::ErrorKind::InvalidData, format!("{log_id}: {error}"))
                    })?,
                };
                debug_assert_eq!(Batch::decode(&bytes).ok().as_ref(), Some(&batch), "what others apply");
                self.check_versions(&batch)?;
                if mutant::is(Mutant::SkipEntryAfterSnapshot) && self.is_at_snapshot() {
                    batch.proposals.clear();
                }
                busy::spend(Work::LogByte, bytes.len() as u64);
                let stages = self.replica.entry_times.take(log_id.index, begun);
                let mut machine = self.replica.state.write();
                outcome = self.apply.apply(&mut machine, stages, batch);
                self.hook.notify(|hook| hook.applied(position(log_id), Some(&bytes), &machine));
                self.replica.set_version(machine.version().number);
                self.replica.set_applied_index(log_id.index);
            }
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(log_id), membership);
                self.report_raft_entry(log_id);
            }
        }
        self.last_applied = Some(log_id);
        Ok(outcome)
    }

    /// Stops the node before an entry that raises the cluster to an unsupported version.
    fn check_versions(&self, batch: &Batch) -> io::Result<()> {
        for proposal in &batch.proposals {
            if let Command::RaiseVersion { to } = &proposal.command {
                self.replica.check_version(to).map_err(StorageError::OtherRelease)?;
                rare::taken(Rare::VersionRaised);
            }
        }
        Ok(())
    }

    fn is_at_snapshot(&self) -> bool {
        self.snapshots
            .current()
            .is_some_and(|snapshot| snapshot.meta().last_log_id == self.last_applied.map(stored::log_id))
    }

    fn report_raft_entry(&self, log_id: LogId) {
        self.hook.notify(|hook| hook.applied(position(log_id), None, &self.replica.state.read()));
    }

    /// Replaces the replica's state with the snapshot's. Returns the old state.
    fn replace(&mut self, machine: Machine, snapshot: &SnapshotFile) -> Machine {
        let meta = stored::raft_meta(snapshot.meta());
        assert!(meta.last_log_id >= self.last_applied, "a snapshot never takes the state back");
        assert!(meta.last_membership.log_id() <= &meta.last_log_id, "a snapshot covers its membership");
        let mut state = self.replica.state.write();
        let old = std::mem::replace(&mut *state, machine);
        self.replica.set_version(state.version().number);
        self.replica.set_applied_index(meta.last_log_id.map_or(0, |log_id| log_id.index));
        self.apply.installed(&state);
        self.hook.notify(|hook| hook.installed(meta.last_log_id.map(position), &state));
        drop(state);
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership;
        self.metrics.snapshot_bytes.set(snapshot.len());
        old
    }
}

impl SnapshotWriter {
    /// Writes the snapshot, reads it back, and makes it the newest. After an error nothing has changed: the
    /// previous snapshot is the newest, and the log behind that snapshot is needed.
    ///
    /// Dropping the future does not stop the work.
    pub async fn write(self) -> Result<SnapshotFile, StorageError> {
        let SnapshotWriter { frozen, meta, snapshots, metrics } = self;
        let covers = meta.last_log_id;
        // The worker also drops the state, which is long work after many changes.
        let written = worker::run_in_background("snapshot-write", move || {
            let digest = frozen.machine().digest();
            let body = |mut out: &mut dyn io::Write| frozen.encode(&mut out);
            snapshots.write(meta, body, |written| written.check_state(digest))
        })
        .await;
        let snapshot = written.inspect_err(|_| metrics.snapshots_failed_total.inc())?;
        assert!(snapshot.meta().last_log_id >= covers, "the newest snapshot is kept");
        metrics.snapshots_written_total.inc();
        metrics.snapshot_bytes.set(snapshot.len());
        tracing::info!(meta = %stored::raft_meta(snapshot.meta()), bytes = snapshot.len(), "wrote a snapshot");
        Ok(snapshot)
    }
}

/// Returns the newest readable snapshot and its state. An unreadable snapshot is set aside if an older one
/// and the log, or the log alone, replace it.
fn load_newest(
    store: &SnapshotStore,
    replica: &AppliedState,
) -> Result<Option<(Machine, SnapshotFile)>, StorageError> {
    while let Some(snapshot) = store.current() {
        match load(snapshot, replica) {
            Ok(loaded) => {
                store.remove_older();
                return Ok(Some(loaded));
            }
            Err(StorageError::BadSnapshot { why, .. }) => store.set_aside_newest(&why)?,
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Decodes the state of a snapshot. Blocks on the disk.
fn load(snapshot: SnapshotFile, replica: &AppliedState) -> Result<(Machine, SnapshotFile), StorageError> {
    let mut machine = snapshot.state()?;
    replica.check_version(machine.version()).map_err(StorageError::OtherRelease)?;
    if mutant::is(Mutant::SnapshotForgetsOutcomes) {
        machine.forget_outcomes();
    }
    Ok((machine, snapshot))
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.last_applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut at_work = Duration::ZERO;
        while let Some((entry, responder)) = entries.try_next().await? {
            let begun = time::now();
            let outcome = self.apply_entry(entry.log_id, entry.payload, begun)?;
            let took = begun.elapsed();
            self.metrics.apply_longest_seconds.raise_to(took);
            at_work += took;
            if let Some(responder) = responder {
                responder.send(outcome);
            }
            // Heartbeats, votes and status requests may share the thread with apply.
            if at_work >= APPLY_SLICE || busy::turn_is_over() {
                at_work = Duration::ZERO;
                task::yield_now().await;
            }
        }
        Ok(())
    }

    /// openraft sets `force` only while a node starts, where the error is reported to the operator.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        if force {
            return Some(self.get_snapshot_builder().await);
        }
        self.snapshots.current().map(SnapshotBuilder::Written)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder::ToWrite(Some(Box::new(self.freeze())))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        if decides!("received-snapshot-differs", *snapshot.meta() != stored::meta(meta)) {
            let found = stored::raft_meta(snapshot.meta());
            let why = format!("it covers {found} and was announced as {meta}");
            return Err(StorageError::BadSnapshot { path: snapshot.path(), why }.into());
        }
        let (store, replica) = (self.snapshots.clone(), self.replica.clone());
        let (machine, snapshot) = worker::run_blocking("snapshot-install", move || {
            // Decode the snapshot before it becomes the newest: an unreadable snapshot must not replace a
            // readable one.
            let (machine, snapshot) = load(snapshot, &replica)?;
            store.keep(snapshot).map(|kept| (machine, kept))
        })
        .await?;
        let old = self.replace(machine, &snapshot);
        // Dropping a large tree takes long, and this thread has other work.
        worker::run_in_background("state-drop", move || drop(old)).await;
        tracing::info!(%meta, bytes = snapshot.len(), "installed a snapshot");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<RaftSnapshot>, io::Error> {
        let current = self.snapshots.current();
        Ok(current.map(|snapshot| Snapshot { meta: stored::raft_meta(snapshot.meta()), snapshot }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> Result<RaftSnapshot, io::Error> {
        let snapshot = match self {
            SnapshotBuilder::Written(snapshot) => snapshot.clone(),
            SnapshotBuilder::ToWrite(writer) => {
                let writer =
                    writer.take().ok_or_else(|| io::Error::other("a builder builds one snapshot"))?;
                writer.write().await?
            }
        };
        Ok(Snapshot { meta: stored::raft_meta(snapshot.meta()), snapshot })
    }
}

impl SnapshotSource for SnapshotFile {
    fn total_bytes(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        SnapshotFile::read_exact_at(self, buf, offset)
    }
}

impl SnapshotSink for SnapshotStore {
    type Data = SnapshotFile;
    type Incoming = Incoming;

    fn begin(&self) -> io::Result<Incoming> {
        Ok(self.begin_receive()?)
    }
}

impl IncomingSnapshot for Incoming {
    type Data = SnapshotFile;

    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        Incoming::write(self, data)
    }

    /// Also decodes the state: openraft stops the node when an installed snapshot cannot be decoded.
    fn finish(self) -> io::Result<SnapshotFile> {
        let snapshot = Incoming::finish(self)?;
        snapshot.load_state()?;
        Ok(snapshot)
    }
}
