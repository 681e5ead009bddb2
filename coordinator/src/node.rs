//! A node: opens the storage, starts Raft, and wires every part to the others. The one place that knows them all.
//!
//! To embed a node in a program: [`Node::start`], then [`Node::stopped`] beside the program's own work, and
//! [`Node::shutdown`] at the end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::{rng, time};
use tokio::sync::mpsc;

use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::client::outbox::CloseReason;
use crate::client::registry::Registry;
use crate::client::{self, ClientContext};
use crate::config::NodeConfig;
use crate::http::{self, HttpContext, StateView, StatusSource};
use crate::limits::{FOLDER_QUEUE_MAX, PROPOSER_QUEUE_MAX, TOUCH_QUEUE_MAX};
use crate::metrics::Metrics;
use crate::peer::{self, PeerPool, PeerServer};
use crate::proposer::Proposer;
use crate::proposer::apply::Applier;
use crate::proposer::fold::Folder;
use crate::proposer::pending::Pending;
use crate::proposer::router::Router;
use crate::raft::leadership::{self, Leadership};
use crate::raft::{self, Raft};
use crate::replica::Replica;
use crate::service::Service;
use crate::session::SessionTouch;
use crate::session::charge::Charge;
use crate::session::contact::Contact;
use crate::session::liveness::Liveness;
use crate::standing::Standing;
use crate::status::Status;
use crate::storage::{DiskFailure, LogStore, SnapshotStore, StorageError};
use crate::sweep::Sweep;
use crate::zk_config::ZkConfig;

/// How long Raft may take to stop.
const RAFT_STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Why a node does not start, in one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {purpose}: {source}; {remedy}")]
    Listen {
        /// `host:port`.
        address: String,
        /// Who would connect there.
        purpose: &'static str,
        /// Why not.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// Raft's configuration or recovery failed.
    #[error("Raft does not start: {0}")]
    Raft(String),
}

/// Why a running node stopped by itself. A person must act.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NodeError {
    /// The disk failed; nothing was acknowledged after that.
    #[error("{0}")]
    Disk(String),
    /// The node may not be part of its cluster.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Raft stopped.
    #[error("Raft has stopped: {0}; start the node again, and keep its log for us if this repeats")]
    Raft(String),
}

/// A running node. Dropping it without [`Node::shutdown`] leaves its tasks running until the process ends.
pub struct Node {
    raft: Raft,
    tasks: TaskGroup,
    registry: Arc<Registry>,
    status: watch::Receiver<Status>,
    failure: watch::Receiver<Option<NodeError>>,
    storage: LogStore,
    proposer: Proposer,
    metrics: Arc<Metrics>,
}

struct Listeners {
    client: Listener,
    peer: Listener,
    http: Listener,
}

async fn bind(address: &str, purpose: &'static str) -> Result<Listener, StartError> {
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

impl Node {
    /// Opens the data folder, listens, and starts everything. Returns before the node serves: see [`Node::status`].
    ///
    /// Cancelling it may leave tasks running until the process ends.
    pub async fn start(config: NodeConfig) -> Result<Node, StartError> {
        let config = Arc::new(config);
        let listeners = Listeners {
            client: bind(&config.client_addr, "clients").await?,
            peer: bind(&config.peer_addr, "the other nodes").await?,
            http: bind(&config.http_addr, "HTTP").await?,
        };
        let parts = Parts::open(&config).await?;
        Ok(parts.run(config, listeners))
    }

    /// What this node currently is.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// The door for writes, for programs that embed the node, and for its benchmarks.
    pub fn proposer(&self) -> Proposer {
        self.proposer.clone()
    }

    /// What this node counts and measures.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Raft's handle, for operators' tools and tests.
    pub fn raft(&self) -> &Raft {
        &self.raft
    }

    /// Waits until the node fails. It serves nobody then; shut it down. Cancel safe.
    pub async fn stopped(&self) -> NodeError {
        let mut failure = self.failure.clone();
        loop {
            if let Some(error) = failure.borrow_and_update().clone() {
                return error;
            }
            if failure.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Stops in order: clients first, then the tasks, Raft, and the log.
    pub async fn shutdown(self) {
        self.registry.close_all(CloseReason::Shutdown);
        self.tasks.stop().await;
        if time::timeout(RAFT_STOP_DEADLINE, self.raft.shutdown()).await.is_err() {
            tracing::warn!("Raft did not stop in time");
        }
        self.storage.close().await;
        tracing::info!("stopped");
    }
}

/// What must be there before the first task runs.
struct Parts {
    raft: Raft,
    storage: LogStore,
    snapshots: SnapshotStore,
    replica: Arc<Replica>,
    pending: Arc<Pending>,
    registry: Arc<Registry>,
    charge: Arc<Charge>,
    peers: PeerPool,
    tasks: TaskGroup,
    metrics: Arc<Metrics>,
    failure: (watch::Sender<Option<NodeError>>, watch::Receiver<Option<NodeError>>),
}

impl Parts {
    async fn open(config: &NodeConfig) -> Result<Parts, StartError> {
        let metrics = Arc::new(Metrics::started_at(time::wall_ms()));
        let failure = watch::channel(None);
        let on_disk_failure = {
            let failure = failure.0.clone();
            move |error: &DiskFailure| fail(&failure, NodeError::Disk(error.to_string()))
        };
        let replica = Arc::new(Replica::default());
        let pending = Arc::new(Pending::new(config.id, rng::u64()));
        let registry = Arc::new(Registry::new());
        let charge = Arc::new(Charge::new(grace(config)));
        let applier = Arc::new(Applier {
            replica: replica.clone(),
            pending: pending.clone(),
            registry: registry.clone(),
            charge: charge.clone(),
            metrics: metrics.clone(),
        });
        let tasks = TaskGroup::new(Shutdown::new());
        let us = peer::Identity { cluster: config.cluster.clone(), node: config.id };
        let peers = PeerPool::new(us, tasks.clone());
        for member in config.members.iter().filter(|m| m.id != config.id) {
            peers.set_address(member.id, &member.peer_addr);
        }
        let (raft, storage, snapshots) =
            raft::open(config, replica.clone(), applier, peers.clone(), metrics.clone(), on_disk_failure)
                .await?;
        Ok(Parts {
            raft,
            storage,
            snapshots,
            replica,
            pending,
            registry,
            charge,
            peers,
            tasks,
            metrics,
            failure,
        })
    }

    fn run(self, config: Arc<NodeConfig>, listeners: Listeners) -> Node {
        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let (status_tx, status) = watch::channel(Status { node: config.id, ..Status::default() });
        let (folder_tx, folder) = mpsc::channel(FOLDER_QUEUE_MAX);
        let (submit, submissions) = mpsc::channel(PROPOSER_QUEUE_MAX);
        let (touch, touches) = mpsc::channel(TOUCH_QUEUE_MAX);
        let wires = Wires { leadership, status, folder: folder_tx, proposer: Proposer::new(submit), config };
        let contact = Arc::new(Contact::default());
        self.start_leadership(&wires, leadership_tx, folder);
        self.start_router(&wires, submissions);
        self.start_sessions(&wires, contact.clone(), touches);
        self.start_standing(&wires, contact.clone(), status_tx);
        self.start_peer_server(&wires, contact, listeners.peer);
        self.start_clients(&wires, SessionTouch::new(touch), listeners.client);
        self.start_http(&wires, listeners.http);
        self.start_bootstrap(&wires);
        self.start_watchdog();
        Node {
            raft: self.raft,
            tasks: self.tasks,
            registry: self.registry,
            status: wires.status,
            failure: self.failure.1,
            storage: self.storage,
            proposer: wires.proposer,
            metrics: self.metrics,
        }
    }
}

/// The channels between the parts.
struct Wires {
    leadership: watch::Receiver<Leadership>,
    status: watch::Receiver<Status>,
    folder: mpsc::Sender<crate::proposer::fold::Parcel>,
    proposer: Proposer,
    config: Arc<NodeConfig>,
}

/// Heartbeats are answered, and sessions expire later, by this much: docs/decisions/heartbeats.md.
fn grace(config: &NodeConfig) -> Duration {
    Duration::from_millis(config.raft.election_timeout_max_ms)
}

/// The first failure stands.
fn fail(failure: &watch::Sender<Option<NodeError>>, error: NodeError) {
    failure.send_if_modified(|current| {
        let first = current.is_none();
        current.get_or_insert(error);
        first
    });
}

impl Parts {
    fn shutdown_word(&self) -> Shutdown {
        self.tasks.shutdown().clone()
    }

    fn start_leadership(
        &self,
        wires: &Wires,
        publish: watch::Sender<Leadership>,
        queue: mpsc::Receiver<crate::proposer::fold::Parcel>,
    ) {
        let me = wires.config.id;
        self.tasks
            .spawn("leadership", leadership::follow(me, self.raft.clone(), publish, self.shutdown_word()));
        let folder = Folder {
            me,
            raft: self.raft.clone(),
            leadership: wires.leadership.clone(),
            queue,
            enforce_quota: wires.config.znodes.enforce_quota,
            metrics: self.metrics.clone(),
        };
        self.tasks.spawn("folder", folder.run(self.shutdown_word()));
        let zk_config = ZkConfig {
            me,
            raft: self.raft.clone(),
            leadership: wires.leadership.clone(),
            replica: self.replica.clone(),
            folder: wires.folder.clone(),
        };
        self.tasks.spawn("zk-config", zk_config.run(self.shutdown_word()));
        let sweep = Sweep {
            me,
            leadership: wires.leadership.clone(),
            replica: self.replica.clone(),
            folder: wires.folder.clone(),
            every: Duration::from_millis(wires.config.znodes.sweep_interval_ms),
        };
        self.tasks.spawn("sweep", sweep.run(self.shutdown_word()));
    }

    fn start_router(&self, wires: &Wires, submissions: mpsc::Receiver<crate::proposer::Submission>) {
        let router = Router {
            me: wires.config.id,
            submissions,
            leadership: wires.leadership.clone(),
            pending: self.pending.clone(),
            folder: wires.folder.clone(),
            peers: self.peers.clone(),
            metrics: self.metrics.clone(),
        };
        self.tasks.spawn("router", router.run(self.shutdown_word()));
    }

    fn start_sessions(
        &self,
        wires: &Wires,
        contact: Arc<Contact>,
        touches: mpsc::Receiver<crate::session::Touch>,
    ) {
        let liveness = Liveness {
            me: wires.config.id,
            replica: self.replica.clone(),
            charge: self.charge.clone(),
            contact,
            grace: grace(&wires.config),
            leadership: wires.leadership.clone(),
            touches,
            raft: self.raft.clone(),
            folder: wires.folder.clone(),
            peers: self.peers.clone(),
        };
        self.tasks.spawn("liveness", liveness.run(self.shutdown_word()));
    }

    fn start_standing(&self, wires: &Wires, contact: Arc<Contact>, publish: watch::Sender<Status>) {
        let standing = Standing {
            me: wires.config.id,
            raft: self.raft.clone(),
            leadership: wires.leadership.clone(),
            contact,
            contact_max: 2 * grace(&wires.config),
            replica: self.replica.clone(),
            pending: self.pending.clone(),
            registry: self.registry.clone(),
            peers: self.peers.clone(),
            publish,
            metrics: self.metrics.clone(),
        };
        self.tasks.spawn("standing", standing.run(self.shutdown_word()));
    }

    fn start_peer_server(&self, wires: &Wires, contact: Arc<Contact>, listener: Listener) {
        let service = Service {
            me: wires.config.id,
            raft: self.raft.clone(),
            leadership: wires.leadership.clone(),
            folder: wires.folder.clone(),
            charge: self.charge.clone(),
            contact,
            grace: grace(&wires.config),
            status: wires.status.clone(),
            metrics: self.metrics.clone(),
        };
        let dispatch = raft::dispatch(&self.raft, &self.snapshots);
        let us = self.peers.identity().clone();
        PeerServer::new(us, dispatch, Arc::new(service), self.tasks.clone()).start(listener);
    }

    fn start_clients(&self, wires: &Wires, touch: SessionTouch, listener: Listener) {
        let context = ClientContext {
            replica: self.replica.clone(),
            proposer: wires.proposer.clone(),
            touch,
            status: wires.status.clone(),
            registry: self.registry.clone(),
            config: wires.config.clone(),
            metrics: self.metrics.clone(),
        };
        let shutdown = self.shutdown_word();
        self.tasks.spawn("client-listener", client::Listener::new(context).run(listener, shutdown));
    }

    fn start_http(&self, wires: &Wires, listener: Listener) {
        let source = Source { replica: self.replica.clone(), registry: self.registry.clone() };
        let context = HttpContext {
            metrics: self.metrics.clone(),
            status: wires.status.clone(),
            source: Arc::new(source),
            started: time::now(),
        };
        let shutdown = self.shutdown_word();
        self.tasks.spawn("http", async move {
            if let Err(error) = http::serve(listener, context, shutdown).await {
                tracing::error!(%error, "the HTTP listener has failed; health checks and metrics are gone until a restart");
            }
        });
    }

    fn start_bootstrap(&self, wires: &Wires) {
        let (raft, peers) = (self.raft.clone(), self.peers.clone());
        let bootstrap = Bootstrap { config: wires.config.clone(), raft, peers };
        let (failure, shutdown) = (self.failure.0.clone(), self.shutdown_word());
        self.tasks.spawn("bootstrap", async move {
            if let Err(error) = bootstrap.run(shutdown).await {
                fail(&failure, error.into());
            }
        });
    }

    /// Raft stopping by itself stops the node.
    fn start_watchdog(&self) {
        let (raft, failure, shutdown) = (self.raft.clone(), self.failure.0.clone(), self.shutdown_word());
        self.tasks.spawn("watchdog", async move {
            tokio::select! {
                biased;
                () = shutdown.wait() => {}
                error = raft::stopped(&raft) => fail(&failure, NodeError::Raft(error)),
            }
        });
    }
}

/// What `/v1/status` tells about the state.
struct Source {
    replica: Arc<Replica>,
    registry: Arc<Registry>,
}

impl StatusSource for Source {
    fn state(&self) -> StateView {
        let machine = self.replica.state.read();
        let counts = machine.counts();
        StateView {
            applied_index: self.replica.applied_index(),
            zxid: machine.last_zxid(),
            digest: format!("{:016x}", machine.digest()),
            sessions: counts.sessions,
            znodes: counts.znodes,
            ephemerals: counts.ephemerals,
            watches: self.replica.watches.lock().len() as u64,
            connections: self.registry.len() as u64,
        }
    }
}
