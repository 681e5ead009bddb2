//! Starts the tasks of a node and gives each task its ends of the channels.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::{Entries, Maker, TermBatch};
use rowlock_consensus::peer::PeerServer;
use rowlock_consensus::raft::compaction::{Compaction, Schedule};
use rowlock_consensus::raft::leadership::{self, Leadership};
use rowlock_consensus::raft::reconfigure::Reconfigurer;
use rowlock_consensus::raft::{self, Elections};
use rowlock_env::backoff::Backoff;
use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task::{self, Shutdown};
use rowlock_tls::{Material, Reloaded};
use rowlock_types::limits::{INTAKE_QUEUE_MAX, KEEPALIVE_QUEUE_MAX, PROPOSER_QUEUE_MAX};
use rowlock_types::status::Status;
use tokio::sync::mpsc;

use super::cluster::Operating;
use super::operating::Signals;
use super::parts::{Parts, fail};
use super::stop::stop_at;
use super::tls::Expiry;
use super::{Addresses, Listeners, Node, NodeError};
use crate::config::NodeConfig;
use crate::node::admin::Admin;
use crate::node::proposer::intake::Intake;
use crate::node::proposer::{Proposer, Submission};
use crate::node::service::Service;
use crate::node::status_publisher::StatusPublisher;
use crate::node::zk::read_only::Isolation;
use crate::node::zk::{self, ClientContext, Doors, NewSessions, SecureDoor};
use rowlock_sessions::heartbeat_ack::HeartbeatAcks;
use rowlock_sessions::last_contact::LastContact;
use rowlock_sessions::liveness::Liveness;
use rowlock_sessions::{Keepalive, SessionTouch};

/// Channels between the parts.
pub(super) struct Wires {
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) signals: Signals,
    pub(super) operator: Operating,
    pub(super) status: watch::Receiver<Status>,
    pub(super) proposals: mpsc::Sender<TermBatch>,
    pub(super) proposer: Proposer,
    pub(super) reconfigurer: Arc<Reconfigurer>,
    pub(super) config: Arc<NodeConfig>,
}

const CONTACT_MAX_LEAST: Duration = Duration::from_secs(1);
/// Maximum age of the contact to a quorum. With an older contact a node does not serve, and a leader expires
/// no session. Longer than an election: clients of a follower stay connected while the others elect a leader.
fn contact_max(config: &NodeConfig) -> Duration {
    Duration::from_millis(config.raft.election_timeout_max_ms).max(CONTACT_MAX_LEAST)
}

impl Parts {
    pub(super) fn run(self, config: Arc<NodeConfig>, listeners: Listeners) -> Node {
        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let (status_tx, status) = watch::channel(Status { node: config.id, ..Status::default() });
        let (proposals, batches) = mpsc::channel(INTAKE_QUEUE_MAX);
        let (submit, submissions) = mpsc::channel(PROPOSER_QUEUE_MAX);
        let (touch, keepalives) = mpsc::channel(KEEPALIVE_QUEUE_MAX);
        let (raft, peers) = (self.raft.clone(), self.peers.clone());
        let reconfigurer = Arc::new(Reconfigurer::new(config.id, raft, leadership.clone(), peers));
        let proposer = Proposer::new(submit);
        let (leave, operator, signals) = self.operating(&config, &leadership, &proposer, &proposals);
        let wires =
            Wires { leadership, signals, operator, status, proposals, proposer, reconfigurer, config };
        let contact = Arc::new(LastContact::default());
        let addresses = Addresses::of(&listeners);
        if !wires.config.guards_locks() {
            tracing::info!(
                "locks are open: every client that connects may take, force and delete every lock that no rule \
                 names; see docs/access-control.md"
            );
        }
        self.start_leadership(&wires, leadership_tx);
        self.start_compaction(&wires.config);
        self.access.start(&self.tasks);
        self.start_intake(&wires, (submissions, batches));
        let heartbeat_acks = Arc::new(HeartbeatAcks::new(
            self.raft.clone(),
            self.quorum.clone(),
            self.expiry_table.clone(),
            contact.clone(),
            self.hook.clone(),
        ));
        self.start_sessions(&wires, contact.clone(), heartbeat_acks.clone(), keepalives);
        self.start_status_publisher(&wires, contact.clone(), status_tx);
        let admin = self.start_admin(&wires);
        self.start_peer_server(&wires, heartbeat_acks, listeners.peer, admin.clone());
        let tls = self.trust.tls.clone();
        let secure =
            listeners.secure_client.zip(tls).map(|(listener, keeper)| SecureDoor { listener, keeper });
        let doors = Doors { plain: listeners.client, secure };
        let of_clients = self.start_clients(&wires, (contact, SessionTouch::new(touch)), doors, admin);
        let access = self.start_access(&wires, (listeners.access, self.trust.tokens.clone()), of_clients);
        self.start_bootstrap(&wires);
        self.start_comparison(&wires);
        self.start_watchdog();
        self.start_tls(&wires.config);
        // Separate from the tasks' shutdown: the tasks continue until the node has left.
        let signal = Shutdown::new();
        let folder = (self.snapshots, self.storage.log().clone());
        let audit = self.trust.audit.start();
        let end = stop_at(signal.clone(), leave, (self.tasks, audit), self.raft.clone(), self.access, folder);
        Node {
            #[cfg(feature = "cluster")]
            log_level: wires.operator.log_level.clone(),
            raft: self.raft,
            shutdown_signal: signal,
            end: Some(task::spawn("stop", end)),
            addresses,
            registry: self.registry,
            replica: self.replica,
            status: wires.status,
            failure: self.failure.1,
            proposer: wires.proposer,
            metrics: self.metrics,
            tls: self.trust.tls,
            access,
        }
    }

    fn shutdown_signal(&self) -> Shutdown {
        self.tasks.shutdown().clone()
    }

    fn start_leadership(&self, wires: &Wires, publish: watch::Sender<Leadership>) {
        let me = wires.config.id;
        let leadership = leadership::follow(me, self.raft.clone(), publish, self.hook.clone());
        self.tasks.spawn_until_shutdown("leadership", leadership);
        self.start_leader_duties(wires);
    }

    fn start_compaction(&self, config: &NodeConfig) {
        let schedule = Schedule::new(config.id, config.raft.snapshot_every);
        let (raft, log, metrics) = (self.raft.clone(), self.storage.log().clone(), self.metrics.clone());
        let log_max = self.replica.memory.log_max();
        let compaction = Compaction { schedule, raft, log, metrics, log_max, retry: Backoff::default() };
        self.tasks.spawn_until_shutdown("compaction", compaction.run());
    }

    fn start_intake(&self, wires: &Wires, queues: (mpsc::Receiver<Submission>, mpsc::Receiver<TermBatch>)) {
        let maker = Maker {
            me: wires.config.id,
            raft: self.raft.clone(),
            enforce_quota: wires.config.znodes.enforce_quota,
            guard_locks: wires.config.guards_locks(),
            replica: self.replica.applied().clone(),
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
        };
        let (me, pending, peers) = (wires.config.id, self.pending.clone(), self.peers.clone());
        let intake = Intake::new(me, queues, wires.leadership.clone(), pending, peers, self.metrics.clone());
        self.tasks.spawn("intake", intake.run(Entries::new(maker), self.shutdown_signal()));
    }

    fn start_sessions(
        &self,
        wires: &Wires,
        contact: Arc<LastContact>,
        heartbeat_acks: Arc<HeartbeatAcks>,
        keepalives: mpsc::Receiver<Keepalive>,
    ) {
        let (replica, timers) = (self.replica.clone(), self.expiry_table.clone());
        let start_timers = move |term| timers.take(term, &replica.state.read());
        let liveness = Liveness {
            me: wires.config.id,
            start_timers: Box::new(start_timers),
            expiry_table: self.expiry_table.clone(),
            heartbeat_acks,
            contact,
            contact_max: contact_max(&wires.config),
            leadership: wires.leadership.clone(),
            keepalives,
            quorum: self.quorum.clone(),
            proposals: wires.proposals.clone(),
            peers: self.peers.clone(),
            replica: self.replica.applied().clone(),
            hook: self.hook.clone(),
        };
        self.tasks.spawn("liveness", liveness.run(self.shutdown_signal()));
    }

    fn start_status_publisher(
        &self,
        wires: &Wires,
        contact: Arc<LastContact>,
        publish: watch::Sender<Status>,
    ) {
        let publisher = StatusPublisher {
            me: wires.config.id,
            raft: self.raft.clone(),
            leadership: wires.leadership.clone(),
            quorum: self.quorum.clone(),
            lease: self.lease.clone(),
            contact,
            contact_max: contact_max(&wires.config),
            replica: self.replica.clone(),
            log: self.storage.log().clone(),
            pending: self.pending.clone(),
            registry: self.registry.clone(),
            peers: self.peers.clone(),
            leaving: wires.signals.leaving.clone(),
            drained: wires.signals.drained.clone(),
            admission: self.admission.clone(),
            publish,
            metrics: self.metrics.clone(),
        };
        self.tasks.spawn_until_shutdown("status-publisher", publisher.run());
    }

    fn start_peer_server(
        &self,
        wires: &Wires,
        heartbeat_acks: Arc<HeartbeatAcks>,
        listener: Listener,
        admin: Arc<dyn Admin>,
    ) {
        let elections = Elections {
            raft: self.raft.clone(),
            peers: self.peers.clone(),
            lease: self.lease.clone(),
            admission: self.admission.clone(),
            timers: wires.config.raft,
        };
        self.tasks.spawn_until_shutdown("elections", elections.run());
        let service = Service {
            me: wires.config.id,
            raft: self.raft.clone(),
            leadership: wires.leadership.clone(),
            proposals: wires.proposals.clone(),
            leaving: wires.signals.leaving.clone(),
            expiry_table: self.expiry_table.clone(),
            heartbeat_acks,
            lease: self.lease.clone(),
            reconfigurer: wires.reconfigurer.clone(),
            admin,
            status: wires.status.clone(),
            quorum: self.quorum.clone(),
            admission: self.admission.clone(),
            data_folder: self.peers.folder().clone(),
            discovers: wires.config.discovery.is_some(),
            replica: self.replica.applied().clone(),
            metrics: self.metrics.clone(),
        };
        let dispatch = raft::dispatch(
            &self.raft,
            &self.storage,
            &self.snapshots,
            &self.metrics,
            (&self.admission, &self.lease),
            self.replica.applied(),
        );
        let us = self.peers.identity().clone();
        let server = PeerServer::new(us, dispatch, Arc::new(service), self.tasks.clone());
        let refused = super::audit::of_nodes_port(self.trust.audit.handle.clone());
        let server = server.counted_in(self.replica.memory.peers.clone());
        let server = server.measured_by(self.metrics.clone(), refused);
        let server = server.secured_by(super::tls::security(&wires.config, &self.trust.tls));
        server.of_folder(self.peers.folder().clone(), self.peers.releases().clone()).start(listener);
    }

    fn start_clients(
        &self,
        wires: &Wires,
        (contact, touch): (Arc<LastContact>, SessionTouch),
        doors: Doors,
        admin: Arc<dyn Admin>,
    ) -> ClientContext {
        let isolation =
            Isolation::new(wires.config.client.read_only_mode, contact, contact_max(&wires.config));
        let context = ClientContext {
            replica: self.replica.clone(),
            proposer: wires.proposer.clone(),
            admin,
            reports: self.access.reports(),
            new_sessions: Arc::new(NewSessions::new(wires.config.client.new_sessions_per_second)),
            touch,
            status: wires.status.clone(),
            isolation: Arc::new(isolation),
            registry: self.registry.clone(),
            config: wires.config.clone(),
            audit: self.trust.audit.handle.clone(),
            slow: self.slow.clone(),
            metrics: self.metrics.clone(),
        };
        let shutdown = self.shutdown_signal();
        self.tasks.spawn("client-listener", zk::Listener::new(context.clone()).run(doors, shutdown));
        context
    }

    /// Starts the task that rereads changed certificates.
    fn start_tls(&self, config: &NodeConfig) {
        let Some(keeper) = self.trust.tls.clone() else { return };
        let expiry = Expiry::new(config, self.metrics.clone());
        expiry.show(&keeper.material());
        let on_reload =
            move |material: &Material, reloaded: &Reloaded, closed| expiry.report(material, reloaded, closed);
        self.tasks.spawn_until_shutdown("tls-files", keeper.run(on_reload));
    }

    /// Starts the task that stops the node when Raft stops by itself.
    fn start_watchdog(&self) {
        let (raft, failure) = (self.raft.clone(), self.failure.0.clone());
        let replica = self.replica.clone();
        self.tasks.spawn_until_shutdown("watchdog", async move {
            let error = raft::stopped(&raft).await;
            match replica.left_behind() {
                Some(other) => fail(&failure, NodeError::OtherRelease(other.clone())),
                None => fail(&failure, NodeError::Raft(error)),
            }
        });
    }
}
