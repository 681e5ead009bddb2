//! Opens a node: storage, Raft, and the context that the tasks share. No task runs before that.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::{INTAKE_QUEUE_MAX, KEEPALIVE_QUEUE_MAX, PROPOSER_QUEUE_MAX};
use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::log_clock::LogClock;
use rowlock_consensus::node_hook::Hook;
use rowlock_consensus::peer::{self, PeerPool, RefusalListener, Releases};
use rowlock_consensus::raft::elections::Leadership;
use rowlock_consensus::raft::log_store::LogStore;
use rowlock_consensus::raft::reconfigure::Reconfigurer;
use rowlock_consensus::raft::{
    self, Admission, LeaderLease, OpenError, QuorumContact, Raft, Recollection, RestartEntry,
};
use rowlock_consensus::status::Status;
use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, Task, TaskGroup, spawn};
use rowlock_env::{rng, time, worker};
use rowlock_metrics::Metrics;
use rowlock_proto::{ClusterId, NodeId};
use rowlock_sessions::expiry_table::ExpiryTable;
use rowlock_sessions::expiry_table::LastContact;
use rowlock_sessions::{Keepalive, SessionTouch};
use rowlock_state::command::{Batch, Command};
use rowlock_wal::{
    Acknowledge, DiskFailure, Identity, Opened, Reserve, SnapshotStore, Storage, StorageError, check_release,
};
use tokio::sync::mpsc;

use super::access::AccessFloor;
use super::cluster::ClusterFloor;
use super::errors::{NodeError, StartError};
use super::tls::{self, Tls};
use crate::config::NodeConfig;
use crate::node::apply::Applier;
use crate::node::audit::{Audit, AuditRecord, AuditWriter, Client, Event, text};
use crate::node::context::{NodeContext, Replica};
use crate::node::delivery::registry::Registry;
use crate::node::proposer::pending::PendingWrites;
use crate::node::proposer::{Proposer, Submission, of_the_cluster};
use crate::node::slow::SlowRequests;
use crate::node::sweep::LockAlarm;

/// A node before its first task runs.
pub(super) struct Assembly {
    pub(super) context: Arc<NodeContext>,
    pub(super) storage: LogStore,
    pub(super) snapshots: SnapshotStore,
    pub(super) cluster: ClusterFloor,
    pub(super) access: AccessFloor,
    pub(super) trust: Trust,
    pub(super) tasks: TaskGroup,
    pub(super) failure: Failure,
}

/// Ends of the context's channels, each for one task.
pub(super) struct ChannelEnds {
    pub(super) leadership: watch::Sender<Leadership>,
    pub(super) status: watch::Sender<Status>,
    pub(super) batches: mpsc::Receiver<TermBatch>,
    pub(super) submissions: mpsc::Receiver<Submission>,
    pub(super) keepalives: mpsc::Receiver<Keepalive>,
    /// Earliest time at which a lock becomes due.
    pub(super) lock_alarm: watch::Receiver<Option<i64>>,
}

/// The context's side of the channels.
struct Channels {
    leadership: watch::Receiver<Leadership>,
    status: watch::Receiver<Status>,
    proposals: mpsc::Sender<TermBatch>,
    proposer: Proposer,
    touch: SessionTouch,
}

impl Channels {
    fn open(me: NodeId, lock_alarm: watch::Receiver<Option<i64>>) -> (Channels, ChannelEnds) {
        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let (status_tx, status) = watch::channel(Status { node: me, ..Status::default() });
        let (proposals, batches) = mpsc::channel(INTAKE_QUEUE_MAX);
        let (submit, submissions) = mpsc::channel(PROPOSER_QUEUE_MAX);
        let (touch, keepalives) = mpsc::channel(KEEPALIVE_QUEUE_MAX);
        let (proposer, touch) = (Proposer::new(submit), SessionTouch::new(touch));
        let channels = Channels { leadership, status, proposals, proposer, touch };
        let (leadership, status) = (leadership_tx, status_tx);
        (channels, ChannelEnds { leadership, status, batches, submissions, keepalives, lock_alarm })
    }
}

/// Raft on the opened data folder, with its connections to the other nodes.
struct OpenedRaft {
    raft: Raft,
    quorum: QuorumContact,
    lease: LeaderLease,
    storage: LogStore,
    snapshots: SnapshotStore,
    recollection: Recollection,
    reserve: Reserve,
    peers: PeerPool,
}

/// Authentication of others, and the audit log.
pub(super) struct Trust {
    pub(super) tls: Tls,
    pub(super) tokens: super::access::Tokens,
    pub(super) audit: AuditLog,
    pub(super) metrics: Arc<Metrics>,
}

/// Failure of the running node.
#[derive(Clone)]
pub(super) struct Failure(watch::Sender<Option<NodeError>>);

impl Failure {
    /// Records a failure. The first failure wins.
    pub(super) fn fail(&self, error: NodeError) {
        self.0.send_if_modified(|current| {
            let first = current.is_none();
            current.get_or_insert(error);
            first
        });
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<NodeError>> {
        self.0.subscribe()
    }

    /// Returns the cause of a failed start: Raft reports only that it stops, and the log has recorded the
    /// reason.
    fn cause(&self, error: OpenError) -> StartError {
        match &*self.0.borrow() {
            Some(NodeError::Disk(why)) => StartError::Disk(why.clone()),
            _ => error.into(),
        }
    }
}

impl Assembly {
    pub(super) async fn open(
        config: Arc<NodeConfig>,
        trust: Trust,
        hook: Hook,
    ) -> Result<(Assembly, ChannelEnds), StartError> {
        let (me, metrics, failure) = (config.id, trust.metrics.clone(), Failure(watch::channel(None).0));
        let replica = Arc::new(Replica::of(config.versions.clone()));
        replica.memory.limit_to(config.limits.memory_bytes());
        let incarnation = rng::u64();
        let pending = Arc::new(PendingWrites::new(me, incarnation));
        let cluster = ClusterFloor::new(&config, incarnation)?;
        let (registry, expiry_table) = (Arc::new(Registry::new()), Arc::new(ExpiryTable::default()));
        let clock = Arc::new(LogClock::starting_now());
        let slow_after = config.log.slow_request_ms.map(Duration::from_millis);
        let slow = Arc::new(SlowRequests::new(slow_after, metrics.clone()));
        let ((lock_alarm, lock_rings), tasks) = (LockAlarm::new(), TaskGroup::new(Shutdown::new()));
        let access = AccessFloor::open(&config, metrics.clone(), (&registry, &clock, &tasks)).await;
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
        let (tls, applied) = (&trust.tls, (applier, replica.clone(), clock.clone()));
        let opened = open_raft(&config, applied, (tls, &tasks, &failure), (metrics.clone(), hook.clone()));
        let OpenedRaft { raft, quorum, lease, storage, snapshots, recollection, reserve, peers } =
            opened.await?;
        let (channels, ends) = Channels::open(me, lock_rings);
        let Channels { leadership, status, proposals, proposer, touch } = channels;
        let timeout = Duration::from_millis(config.raft.election_timeout_min_ms);
        let reconfigurer = Reconfigurer::new(me, raft.clone(), leadership.clone(), peers.clone(), timeout);
        let context = NodeContext {
            me,
            config,
            raft,
            leadership,
            quorum,
            lease,
            contact: Arc::new(LastContact::default()),
            admission: Admission::default(),
            recollection,
            reconfigurer: Arc::new(reconfigurer),
            log: storage.log().clone(),
            reserve,
            replica,
            peers,
            registry,
            pending,
            proposer,
            proposals,
            touch,
            expiry_table,
            clock,
            status,
            leaving: watch::channel(false).0,
            drained: watch::channel(false).0,
            slow,
            audit: trust.audit.handle.clone(),
            metrics,
            hook,
        };
        let context = Arc::new(context);
        let assembly = Assembly { context, storage, snapshots, cluster, access, trust, tasks, failure };
        Ok((assembly, ends))
    }
}

/// Opens the data folder, connects the other nodes, and starts Raft.
async fn open_raft(
    config: &NodeConfig,
    (applier, replica, clock): (Arc<Applier>, Arc<Replica>, Arc<LogClock>),
    (tls, tasks, failure): (&Tls, &TaskGroup, &Failure),
    (metrics, hook): (Arc<Metrics>, Hook),
) -> Result<OpenedRaft, StartError> {
    let opened = open_storage(config, metrics.clone(), failure.clone()).await?;
    let reserve = opened.reserve.clone();
    let peers = peers_of(config, tls, &opened, &replica, tasks);
    let settings = raft::Settings {
        cluster: config.name.clone(),
        node: config.id,
        raft: config.raft,
        acknowledges_early: config.locks.acknowledge() != Acknowledge::Flushed,
    };
    let (applied, restart) = (replica.applied().clone(), restart_entry(config, clock));
    let started = raft::open(&settings, opened, applied, applier, peers.clone(), metrics, (hook, restart));
    let started = started.await.map_err(|error| failure.cause(error))?;
    let raft::Started { raft, quorum, lease, log: storage, snapshots, recollection } = started;
    replica.memory.count_log(storage.log().tally().clone());
    Ok(OpenedRaft { raft, quorum, lease, storage, snapshots, recollection, reserve, peers })
}

/// Returns the first entry of a leadership that restarts the cluster. Every release reads the entry.
fn restart_entry(config: &NodeConfig, clock: Arc<LogClock>) -> RestartEntry {
    let grace_ms = config.session.max_timeout_ms;
    let payload = move || {
        let id = u128::from(rng::u64()) << 64 | u128::from(rng::u64());
        let restart = Command::Restart { cluster: ClusterId(id), grace_ms };
        let proposals = vec![of_the_cluster(restart)];
        Batch { time_ms: clock.now_ms(), proposals, ..Batch::default() }.encode()
    };
    RestartEntry { node: config.id, payload: Arc::new(payload) }
}

/// Opens the data folder and recovers.
async fn open_storage(
    config: &NodeConfig,
    metrics: Arc<Metrics>,
    failure: Failure,
) -> Result<Opened, StorageError> {
    let identity = Identity { cluster: config.name.clone(), node: config.id };
    let (folder, versions) = (config.data_dir.clone(), config.versions.clone());
    worker::run_blocking("folder-release", move || check_release(&folder, &versions)).await?;
    let on_fatal = move |error: &DiskFailure| failure.fail(NodeError::Disk(error.to_string()));
    let settings = (config.log_segment_bytes, config.locks.acknowledge());
    metrics.locks_written.set(u64::from(settings.1 != Acknowledge::Flushed));
    Storage::open_with(&config.data_dir, identity, Arc::new(on_fatal), metrics, settings).await
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

/// Listens on an address of the configuration, or returns the advice to the operator.
pub(super) async fn bind(address: &str, purpose: &'static str) -> Result<Listener, StartError> {
    Listener::bind(address).await.map_err(|source| {
        let remedy = match source.kind() {
            io::ErrorKind::AddrInUse => {
                "another process uses it: stop that process, or change the port in cluster.toml"
            }
            io::ErrorKind::AddrNotAvailable => "this machine has no such address: correct it in cluster.toml",
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need a privilege: use a higher port in cluster.toml"
            }
            _ => "correct the address in cluster.toml",
        };
        StartError::Listen { address: address.to_owned(), purpose, source, remedy }
    })
}

/// Maximum wait for the last records at the end of a node.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// Handle for records, and the writer that runs until its shutdown.
#[derive(Default)]
pub(super) struct AuditLog {
    pub(super) handle: Audit,
    writer: Option<AuditWriter>,
}

pub(super) async fn open_audit(config: &NodeConfig, metrics: Arc<Metrics>) -> Result<AuditLog, StartError> {
    let Some(settings) = config.audit.settings(config.id, &config.data_dir) else {
        return Ok(AuditLog::default());
    };
    let (events, id) = (config.audit.events.clone(), config.id);
    let opened = worker::run_blocking("audit", move || Audit::open(settings, events, id, metrics)).await;
    let (handle, writer) = opened.map_err(StartError::Audit)?;
    Ok(AuditLog { handle, writer: Some(writer) })
}

/// Records an act of the node itself.
pub(super) fn record_audit(audit: &Audit, op: &str) {
    audit.record(&AuditRecord::new(Event::Admin, op, Client::default()));
}

/// Records the connections that the nodes' port refuses.
pub(super) fn of_nodes_port(audit: Audit) -> RefusalListener {
    Arc::new(move |address, reason| {
        let client = Client { address: Some(address), ..Client::default() };
        let detail = text(reason);
        let record = AuditRecord::new(Event::Denied, "nodePort", client);
        audit.record(&AuditRecord { detail: &detail, result: "refused", ..record });
    })
}

pub(super) struct AuditTask {
    audit: Audit,
    end: Shutdown,
    task: Option<Task<()>>,
}

impl AuditLog {
    pub(super) fn start(self) -> AuditTask {
        let end = Shutdown::new();
        let task = self.writer.map(|writer| spawn("audit", writer.run(end.clone())));
        record_audit(&self.handle, "start");
        AuditTask { audit: self.handle, end, task }
    }
}

impl AuditTask {
    /// Writes the remaining records and ends. Does not wait for a disk that hangs.
    pub(super) async fn finish(self) {
        record_audit(&self.audit, "stop");
        self.end.trigger();
        let Some(task) = self.task else { return };
        match time::timeout(END_DEADLINE, task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the audit log did not end in order"),
            Err(_) => tracing::error!("the audit log did not end in time: its last records are lost"),
        }
    }
}
