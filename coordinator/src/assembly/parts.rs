//! Parts that exist before the first task of a node runs: storage, Raft, and the state that they share with
//! the tasks.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::log_clock::LogClock;
use rowlock_consensus::peer::{self, PeerPool, Releases};
use rowlock_consensus::raft::log_store::LogStore;
use rowlock_consensus::raft::{self, Admission, LeaderLease, OpenError, QuorumContact, Raft};
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::{rng, worker};
use rowlock_types::metrics::Metrics;
use rowlock_types::node_hook::Hook;
use rowlock_wal::{
    DiskFailure, Identity, Opened, Reserve, SnapshotStore, Storage, StorageError, check_release,
};

use super::access::AccessFloor;
use super::audit::AuditLog;
use super::cluster::ClusterFloor;
use super::tls::{self, Tls};
use super::{NodeError, StartError};
use crate::config::NodeConfig;
use crate::node::apply::Applier;
use crate::node::delivery::registry::Registry;
use crate::node::lock_sweep::LockAlarm;
use crate::node::proposer::pending::PendingWrites;
use crate::node::replica::Replica;
use crate::node::slow::SlowRequests;
use rowlock_sessions::expiry_table::ExpiryTable;

/// Parts that must exist before the first task runs.
pub(super) struct Parts {
    pub(super) raft: Raft,
    pub(super) quorum: QuorumContact,
    pub(super) lease: LeaderLease,
    pub(super) storage: LogStore,
    pub(super) snapshots: SnapshotStore,
    pub(super) reserve: Reserve,
    pub(super) admission: Admission,
    pub(super) replica: Arc<Replica>,
    pub(super) pending: Arc<PendingWrites>,
    pub(super) slow: Arc<SlowRequests>,
    pub(super) cluster: ClusterFloor,
    pub(super) registry: Arc<Registry>,
    pub(super) expiry_table: Arc<ExpiryTable>,
    pub(super) access: AccessFloor,
    pub(super) clock: Arc<LogClock>,
    pub(super) lock_rings: watch::Receiver<Option<i64>>,
    pub(super) trust: Trust,
    pub(super) peers: PeerPool,
    pub(super) tasks: TaskGroup,
    pub(super) metrics: Arc<Metrics>,
    pub(super) hook: Hook,
    pub(super) failure: (watch::Sender<Option<NodeError>>, watch::Receiver<Option<NodeError>>),
}

/// Authentication of others, and the audit log.
pub(super) struct Trust {
    pub(super) tls: Tls,
    pub(super) tokens: super::access::Tokens,
    pub(super) audit: AuditLog,
    pub(super) metrics: Arc<Metrics>,
}

impl Parts {
    pub(super) async fn open(config: &NodeConfig, trust: Trust, hook: Hook) -> Result<Parts, StartError> {
        let (metrics, failure) = (trust.metrics.clone(), watch::channel(None));
        let replica = Arc::new(Replica::of(config.versions.clone()));
        replica.memory.limit_to(config.limits.memory_bytes());
        let incarnation = rng::u64();
        let pending = Arc::new(PendingWrites::new(config.id, incarnation));
        let cluster = ClusterFloor::new(config, incarnation)?;
        let (registry, expiry_table) = (Arc::new(Registry::new()), Arc::new(ExpiryTable::default()));
        let clock = Arc::new(LogClock::starting_now());
        let slow_after = config.log.slow_request_ms.map(Duration::from_millis);
        let slow = Arc::new(SlowRequests::new(slow_after, metrics.clone()));
        let (lock_alarm, lock_rings) = LockAlarm::new();
        let tasks = TaskGroup::new(Shutdown::new());
        let access = AccessFloor::open(config, metrics.clone(), (&registry, &clock, &tasks)).await;
        let applier = Arc::new(Applier {
            replica: replica.clone(),
            pending: pending.clone(),
            registry: registry.clone(),
            expiry_table: expiry_table.clone(),
            clock: clock.clone(),
            observers: cluster.observers().into_iter().chain(access.observers()).collect(),
            lock_alarm,
            slow: slow.clone(),
            metrics: metrics.clone(),
        });
        let opened = open_storage(config, metrics.clone(), failure.0.clone()).await?;
        let reserve = opened.reserve.clone();
        let peers = peers_of(config, &trust.tls, &opened, &replica, &tasks);
        let settings = raft::Settings { cluster: config.name.clone(), node: config.id, raft: config.raft };
        let (raft, quorum, lease, storage, snapshots) = raft::open(
            &settings,
            opened,
            replica.applied().clone(),
            applier,
            peers.clone(),
            metrics.clone(),
            hook.clone(),
        )
        .await
        .map_err(|error| cause(error, &failure.1))?;
        Ok(Parts {
            raft,
            quorum,
            lease,
            storage,
            snapshots,
            reserve,
            admission: Admission::default(),
            replica,
            pending,
            slow,
            cluster,
            registry,
            expiry_table,
            access,
            clock,
            lock_rings,
            trust,
            peers,
            tasks,
            metrics,
            hook,
            failure,
        })
    }
}

/// Opens the data folder and recovers.
async fn open_storage(
    config: &NodeConfig,
    metrics: Arc<Metrics>,
    failure: watch::Sender<Option<NodeError>>,
) -> Result<Opened, StorageError> {
    let identity = Identity { cluster: config.name.clone(), node: config.id };
    let (folder, versions) = (config.data_dir.clone(), config.versions.clone());
    worker::run_blocking("folder-release", move || check_release(&folder, &versions)).await?;
    let on_fatal = move |error: &DiskFailure| fail(&failure, NodeError::Disk(error.to_string()));
    let (on_fatal, segment_bytes) = (Arc::new(on_fatal), config.log_segment_bytes);
    Storage::open_with(&config.data_dir, identity, on_fatal, metrics, segment_bytes).await
}

/// Creates the pool of the other nodes, with their configured addresses.
fn peers_of(
    config: &NodeConfig,
    tls: &Tls,
    opened: &Opened,
    replica: &Replica,
    tasks: &TaskGroup,
) -> PeerPool {
    let us = peer::Identity { cluster: config.name.clone(), node: config.id };
    let peers = PeerPool::new(us, tasks.clone())
        .of_folder(opened.folder.clone(), Releases::of(config.versions.clone()));
    let peers = peers.counted_in(replica.memory.peers.clone()).secured_by(tls::security(config, tls));
    for other in config.nodes.iter().filter(|member| member.id != config.id) {
        peers.set_address(other.id, &other.peer_addr);
    }
    peers
}

/// Returns the cause of a failed start: Raft reports only that it stops, and the log has recorded the reason.
fn cause(error: OpenError, failure: &watch::Receiver<Option<NodeError>>) -> StartError {
    match &*failure.borrow() {
        Some(NodeError::Disk(why)) => StartError::Disk(why.clone()),
        _ => error.into(),
    }
}

/// Records a failure. The first failure wins.
pub(super) fn fail(failure: &watch::Sender<Option<NodeError>>, error: NodeError) {
    failure.send_if_modified(|current| {
        let first = current.is_none();
        current.get_or_insert(error);
        first
    });
}
