//! Opens the storage and starts Raft with Rowlock's settings (docs/decisions/openraft.md).

use std::sync::Arc;
use std::time::Duration;

use openraft::{Config, SnapshotPolicy};
use rowlock_env::mutant::{self, Mutant};
use rowlock_proto::NodeId;
use rowlock_types::metrics::Metrics;
use rowlock_types::node_hook::Hook;
use rowlock_wal::{Opened, SnapshotStore, StorageError};

use super::acks::{Acks, QuorumContact};
use super::admission::Admission;
use super::log_store::LogStore;
use super::network::Network;
use super::rpc::RaftDispatch;
use super::state_machine::{Apply, StateMachine};
use super::stored;
use crate::applied_state::AppliedState;
use crate::config::RaftConfig;
use crate::peer::{PeerPool, RaftService};
use crate::raft_types::{Payload, TypeConfig};

pub type Raft = openraft::Raft<TypeConfig, StateMachine>;

/// Entries in one append request between nodes. Each holds up to `limits::BATCH_MAX_COMMANDS` commands; bytes
/// are bounded by the log's reader.
const APPEND_MAX_ENTRIES: u64 = 64;
/// Silence after which sending one chunk of a snapshot has failed, milliseconds.
const SNAPSHOT_CHUNK_TIMEOUT_MS: u64 = 10_000;

/// Pre-votes, votes and their flushes.
const ELECTION_MS: u64 = 50;

/// Pauses before replication tries an unreachable member again; the last one stays. Short, so that a node
/// that comes back serves soon: dialing has its own, longer pauses (`pacing::DIAL_PAUSES`), so a try
/// costs little.
const REPLICATION_BACKOFF: &str = "20ms 50ms 100ms 100ms";

/// A leader that has not heard its quorum for a lease is silent for this long, then sends heartbeats for as
/// long, and so on. Silence lasts for the lease of a node that still hears it, for one election timeout, and
/// for an election; else a connected quorum that needs that node would not elect (openraft 2080).
fn silence_ms(raft: &RaftConfig) -> u64 {
    2 * raft.election_timeout_max_ms + ELECTION_MS
}

fn raft_config(settings: &Settings) -> Config {
    let raft = &settings.raft;
    Config {
        cluster_name: settings.cluster.clone(),
        heartbeat_interval: raft.heartbeat_ms,
        election_timeout_min: raft.election_timeout_min_ms,
        election_timeout_max: raft.election_timeout_max_ms,
        install_snapshot_timeout: SNAPSHOT_CHUNK_TIMEOUT_MS,
        max_payload_entries: APPEND_MAX_ENTRIES,
        // Further behind than what stays in the log: by snapshot.
        replication_lag_threshold: raft.snapshot_every.max(raft.keep_logs),
        // See `compaction`.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: raft.keep_logs,
        backoff: REPLICATION_BACKOFF.to_owned(),
        enable_pre_vote: Some(true),
        quorum_loss_probe_interval: (!mutant::is(Mutant::HeartbeatsWithoutQuorum)).then(|| silence_ms(raft)),
        // Not before it is known that the node has forgotten nothing, see `take_part`.
        enable_elect: false,
        enable_leader_restore: Some(mutant::is(Mutant::LeaderRestore)),
        ..Config::default()
    }
}

/// How this node's Raft is set.
#[derive(Clone, Debug)]
pub struct Settings {
    pub cluster: String,
    pub node: NodeId,
    /// Its timers, and when a snapshot is taken.
    pub raft: RaftConfig,
}

/// Why Raft does not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The settings are refused, or the recovery has failed.
    #[error("{0}")]
    Raft(String),
}

/// Starts Raft on an open folder. It takes no part yet: see [`take_part`](super::take_part).
pub async fn open(
    settings: &Settings,
    opened: Opened,
    replica: Arc<AppliedState>,
    apply: Arc<dyn Apply>,
    peers: PeerPool,
    metrics: Arc<Metrics>,
    hook: Hook,
) -> Result<(Raft, QuorumContact, LogStore, SnapshotStore), OpenError> {
    let raft_config = raft_config(settings).validate().map_err(|e| OpenError::Raft(e.to_string()))?;
    if let Some(after) = opened.report.cut_behind {
        hook.tell(|hook| hook.truncated(after.map(stored::position)));
    }
    let polled = LogStore::new(opened.log).polled(Duration::from_micros(settings.raft.busy_poll_us));
    let timed = polled.timed(replica.entry_times.clone());
    let (log, snapshots) = (timed.hooked(hook.clone()), opened.snapshots);
    let state_machine = StateMachine::open(replica, snapshots.clone(), apply, metrics, hook).await?;
    let acks = Acks::default();
    let network = Network::new(peers, acks.clone());
    let raft = Raft::new(settings.node.0, Arc::new(raft_config), network, log.clone(), state_machine).await;
    let raft = raft.map_err(|e| OpenError::Raft(e.to_string()))?;
    Ok((raft.clone(), QuorumContact::new(raft, acks), log, snapshots))
}

/// The other nodes' way to this Raft.
pub fn dispatch(
    raft: &Raft,
    log: &LogStore,
    snapshots: &SnapshotStore,
    metrics: &Arc<Metrics>,
    admission: &Admission,
    replica: &Arc<AppliedState>,
) -> Arc<dyn RaftService> {
    let sink = Arc::new(snapshots.clone());
    let dispatch = RaftDispatch::new(raft.clone(), sink, metrics.clone());
    let replica = replica.clone();
    let reader = Arc::new(move |payload: &Payload| match payload.0.first() {
        Some(version) if u16::from(*version) > replica.versions.most => {
            Err(format!("the batch has version {version}, and this is {}", replica.versions))
        }
        _ => replica.batch_cache.read(&payload.0).map_err(|error| error.to_string()),
    });
    Arc::new(dispatch.hooked(log.hook().clone()).behind(admission.clone()).reading(reader))
}
