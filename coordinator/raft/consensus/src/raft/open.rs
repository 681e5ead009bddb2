//! Opens the storage and starts Raft with Rowlock's settings (docs/decisions/openraft.md).
//!
//! Permission of this node to vote, acknowledge and stand for election.
//!
//! Closed at every start, until `bootstrap/` has learned from the other nodes that this node's data is
//! complete. Until then this node answers no vote request and no append request (`rpc.rs`).

use std::sync::Arc;
use std::time::Duration;

use openraft::{Config, SnapshotPolicy};
use parking_lot::Mutex;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::sync::watch;
use rowlock_metrics::Metrics;
use rowlock_proto::NodeId;
use rowlock_wal::{Opened, SnapshotStore, StorageError};

use super::acks::Acks;
use super::classes::Classes;
use super::contradiction::{Contradiction, DropState, Find, ids_in, last_shared};
use super::lease::{LeaderLease, ROUND_MAX};
use super::log_store::{LogStore, contradicts};
use super::network::Network;
use super::quorum_contact::QuorumContact;
use super::recollection::{Recollection, RestartEntry};
use super::rpc::RaftDispatch;
use super::state_machine::{Apply, StateMachine};
use super::stored;
use crate::applied_state::AppliedState;
use crate::config::RaftConfig;
use crate::node_hook::Hook;
use crate::peer::{PeerPool, RaftService};
use crate::raft_types::{Payload, TypeConfig};

pub type Raft = openraft::Raft<TypeConfig, StateMachine>;

/// Most entries in one append request between nodes. Each holds up to `limits::BATCH_MAX_COMMANDS` commands;
/// the log's reader bounds the bytes.
const APPEND_MAX_ENTRIES: u64 = 64;
/// Timeout of one snapshot chunk, milliseconds.
const SNAPSHOT_CHUNK_TIMEOUT_MS: u64 = 10_000;

/// openraft's wait for a vote. `elections.rs` limits the candidacy, and openraft ignores votes for an earlier
/// one.
const VOTE_MS: u64 = 10_000;
const _: () = assert!(VOTE_MS as u128 > ROUND_MAX.as_millis());

/// Pauses before replication retries an unreachable member; the last one repeats. Short, so that a recovered
/// node serves soon: dialing has its own, longer pauses (`DIAL_PAUSES`), so a try costs little.
const REPLICATION_BACKOFF: &str = "20ms 50ms 100ms 100ms";

fn raft_config(settings: &Settings) -> Config {
    let raft = &settings.raft;
    let vote_ms = VOTE_MS.max(2 * raft.election_timeout_max_ms);
    Config {
        cluster_name: settings.cluster.clone(),
        heartbeat_interval: raft.heartbeat_ms,
        // Limits of openraft's waiting only: openraft neither begins an election nor refuses a vote by
        // itself.
        election_timeout_min: vote_ms,
        election_timeout_max: vote_ms + 1,
        install_snapshot_timeout: SNAPSHOT_CHUNK_TIMEOUT_MS,
        max_payload_entries: APPEND_MAX_ENTRIES,
        // A follower further behind than the kept log gets a snapshot.
        replication_lag_threshold: raft.snapshot_every.max(raft.keep_logs),
        // See `compaction`.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: raft.keep_logs,
        backoff: REPLICATION_BACKOFF.to_owned(),
        // See `elections`, `lease` and `heartbeats`.
        enable_elect: false,
        enable_tick: false,
        quorum_loss_probe_interval: None,
        enable_leader_restore: Some(mutant::is(Mutant::LeaderRestore)),
        // A follower that has forgotten entries gets the entries again. A follower with an older copy of its
        // folder does not come this far (`bootstrap/`).
        allow_log_reversion: Some(true),
        ..Config::default()
    }
}

/// Settings of this node's Raft.
#[derive(Clone, Debug)]
pub struct Settings {
    pub cluster: String,
    pub node: NodeId,
    /// Timers, and the period of snapshots.
    pub raft: RaftConfig,
    /// Acknowledges entries about locks before their flush.
    pub acknowledges_early: bool,
}

/// Raft on an open folder.
pub struct Started {
    pub raft: Raft,
    pub quorum: QuorumContact,
    pub lease: LeaderLease,
    pub log: LogStore,
    pub snapshots: SnapshotStore,
    pub recollection: Recollection,
}

/// Reason why Raft does not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The settings are invalid, or the recovery failed.
    #[error("{0}")]
    Raft(String),
}

/// Starts Raft on an open folder. The node takes no part before its [`Admission`] is granted and
/// [`Elections`](super::Elections) run.
pub async fn open(
    settings: &Settings,
    opened: Opened,
    replica: Arc<AppliedState>,
    apply: Arc<dyn Apply>,
    peers: PeerPool,
    metrics: Arc<Metrics>,
    (hook, restart): (Hook, RestartEntry),
) -> Result<Started, OpenError> {
    let raft_config = raft_config(settings).validate().map_err(|e| OpenError::Raft(e.to_string()))?;
    if let Some(after) = opened.report.cut_behind {
        hook.notify(|hook| hook.truncated(after.map(stored::position)));
    }
    let polled = LogStore::new(opened.log).polled(Duration::from_micros(settings.raft.busy_poll_us));
    let timed = polled.timed(replica.entry_times.clone());
    let recollection = Recollection::of(opened.mark);
    let last = opened.report.last.map_or(0, |last| last.index);
    let classes = settings.acknowledges_early.then(|| Classes::new(replica.clone(), last));
    let remembering = timed.remembering(recollection.clone(), Some(restart), classes);
    let (log, snapshots) = (remembering.hooked(hook.clone()), opened.snapshots);
    let state_machine = StateMachine::open(replica, snapshots.clone(), apply, metrics, hook).await?;
    let acks = Acks::default();
    let lease = LeaderLease::new(&settings.raft, acks.clone());
    let network = Network::new(peers, acks.clone(), lease.clone()).remembering(recollection.clone());
    let raft = Raft::new(settings.node.0, Arc::new(raft_config), network, log.clone(), state_machine).await;
    let raft = raft.map_err(|e| OpenError::Raft(e.to_string()))?;
    acks.follow_raft(raft.metrics());
    let quorum = QuorumContact::new(raft.clone(), acks);
    Ok(Started { raft, quorum, lease, log, snapshots, recollection })
}

/// Finds positions at which this log has another entry.
fn finding(log: LogStore) -> Find {
    Arc::new(move |request| {
        let log = log.log().read();
        let last = log.checkpoint().last?.index;
        last_shared(request, last).filter(|id| contradicts(&log, *id))?;
        let first = ids_in(request).find(|id| contradicts(&log, *id)).map(|id| id.index);
        assert!(first.is_some_and(|first| first <= last), "this log has another entry there");
        first
    })
}

/// Creates the service through which other nodes reach this Raft.
pub fn dispatch(
    raft: &Raft,
    log: &LogStore,
    snapshots: &SnapshotStore,
    metrics: &Arc<Metrics>,
    (admission, lease): (&Admission, &LeaderLease),
    (replica, recollection): (&Arc<AppliedState>, &Recollection),
    drop_state: DropState,
) -> Arc<dyn RaftService> {
    let sink = Arc::new(snapshots.clone());
    let dispatch = RaftDispatch::new(raft.clone(), lease.clone(), sink, metrics.clone());
    let replica = replica.clone();
    let reader = Arc::new(move |payload: &Payload| match payload.0.first() {
        Some(version) if u16::from(*version) > replica.versions.most => {
            Err(format!("the batch has version {version}, and this is {}", replica.versions))
        }
        _ => replica.batch_cache.read(&payload.0).map_err(|error| error.to_string()),
    });
    let contradiction = Contradiction { find: finding(log.clone()), drop_state };
    let dispatch = dispatch.remembering(recollection.clone(), contradiction);
    Arc::new(dispatch.hooked(log.hook().clone()).behind(admission.clone()).reading(reader))
}

/// Gate before Raft's requests. Clones share their state.
#[derive(Clone)]
pub struct Admission {
    is_open: watch::Sender<bool>,
    waits_for: Arc<Mutex<Vec<NodeId>>>,
}

impl Default for Admission {
    fn default() -> Self {
        Admission { is_open: watch::channel(false).0, waits_for: Arc::default() }
    }
}

impl Admission {
    /// Creates an open gate.
    pub fn open() -> Self {
        let admission = Admission::default();
        admission.grant();
        admission
    }

    /// Opens the gate, for as long as the node runs.
    pub fn grant(&self) {
        self.waits_for.lock().clear();
        self.is_open.send(true);
    }

    pub fn is_granted(&self) -> bool {
        *self.is_open.borrow()
    }

    /// Waits until the gate is open. Cancel safe.
    pub async fn granted(&self) {
        let opened = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
        assert!(opened.is_ok(), "this door has the sender");
    }

    /// Records the nodes whose introduction this node still needs.
    pub fn wait_for(&self, nodes: Vec<NodeId>) {
        *self.waits_for.lock() = nodes;
    }

    /// Returns the nodes whose introduction this node still needs; empty after the admission.
    pub fn waits_for(&self) -> Vec<NodeId> {
        self.waits_for.lock().clone()
    }
}
