//! Starts the tasks of a node and hands each its ends of the channels.

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
use rowlock_env::time;
use rowlock_tls::{Material, Reloaded};
use rowlock_types::limits::{INTAKE_QUEUE_MAX, KEEPALIVE_QUEUE_MAX, PROPOSER_QUEUE_MAX, RECONFIG_QUEUE_MAX};
use rowlock_types::status::Status;
use tokio::sync::mpsc;

use super::operating::Signals;
use super::parts::{Parts, fail};
use super::source::Source;
use super::stop::stop_at;
use super::tls::Expiry;
use super::{Addresses, Listeners, Node, NodeError};
use crate::api::Api;
use crate::bootstrap::Bootstrap;
use crate::comparison::Comparison;
use crate::config::NodeConfig;
use crate::http::api::{ApiContext, Direct};
use crate::http::{self, Access, HttpAddresses, HttpContext, LeaderView};
use crate::operations::Operator;
use crate::proposer::intake::Intake;
use crate::proposer::{Proposer, Submission};
use crate::reconfig::{Ask, Reconfig};
use crate::service::Service;
use crate::status_publisher::StatusPublisher;
use crate::zk::read_only::Isolation;
use crate::zk::{self, ClientContext, Doors, NewSessions, SecureDoor};
use rowlock_sessions::heartbeat_ack::HeartbeatAcks;
use rowlock_sessions::last_contact::LastContact;
use rowlock_sessions::liveness::Liveness;
use rowlock_sessions::{Keepalive, SessionTouch};

/// The channels between the parts.
pub(super) struct Wires {
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) signals: Signals,
    pub(super) operator: Arc<Operator>,
    pub(super) status: watch::Receiver<Status>,
    pub(super) proposals: mpsc::Sender<TermBatch>,
    pub(super) proposer: Proposer,
    pub(super) reconfigurer: Arc<Reconfigurer>,
    pub(super) config: Arc<NodeConfig>,
}

const CONTACT_MAX_LEAST: Duration = Duration::from_secs(1);
/// With older contact to a quorum a node does not serve, and a leader expires no session. Longer than an
/// election takes: clients of a follower keep their connections while a new leader is elected.
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
        let (leave, operator, signals) =
            self.operator((config.id, config.upgrade), &leadership, &proposer, &proposals);
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
        self.tasks.spawn_until_shutdown("history", self.history.clone().keep_trimmed());
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
        self.start_peer_server(&wires, heartbeat_acks, listeners.peer);
        let tls = self.trust.tls.clone();
        let secure =
            listeners.secure_client.zip(tls).map(|(listener, keeper)| SecureDoor { listener, keeper });
        let doors = Doors { plain: listeners.client, secure };
        let of_clients = self.start_clients(&wires, contact, SessionTouch::new(touch), doors);
        let api = self.start_http(&wires, listeners.http, listeners.api, of_clients);
        self.start_bootstrap(&wires);
        self.start_comparison(&wires);
        self.start_watchdog();
        self.start_tls(&wires.config);
        self.start_tokens();
        // Not the tasks' word: they go on until the node has left.
        let word = Shutdown::new();
        let folder = (self.snapshots, self.storage.log().clone());
        let audit = self.trust.audit.start();
        let end = stop_at(word.clone(), leave, (self.tasks, audit), self.raft.clone(), self.history, folder);
        Node {
            raft: self.raft,
            word,
            end: Some(task::spawn("stop", end)),
            addresses,
            registry: self.registry,
            replica: self.replica,
            status: wires.status,
            failure: self.failure.1,
            proposer: wires.proposer,
            metrics: self.metrics,
            log_level: wires.operator.log_level.clone(),
            tls: self.trust.tls,
            tokens: self.trust.tokens,
            api,
        }
    }

    fn shutdown_word(&self) -> Shutdown {
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
        self.tasks.spawn("intake", intake.run(Entries::new(maker), self.shutdown_word()));
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
        self.tasks.spawn("liveness", liveness.run(self.shutdown_word()));
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

    fn start_peer_server(&self, wires: &Wires, heartbeat_acks: Arc<HeartbeatAcks>, listener: Listener) {
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
            operator: wires.operator.clone(),
            status: wires.status.clone(),
            quorum: self.quorum.clone(),
            admission: self.admission.clone(),
            data_folder: self.peers.folder().clone(),
            founders: wires.config.discovery.clone().map(|discovery| (discovery, self.founders.clone())),
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
        let refused = super::audit::of_nodes_port(self.trust.audit.door.clone());
        let server = server.counted_in(self.replica.memory.peers.clone());
        let server = server.measured_by(self.metrics.clone(), refused);
        let server = server.secured_by(super::tls::security(&wires.config, &self.trust.tls));
        server.of_folder(self.peers.folder().clone(), self.peers.releases().clone()).start(listener);
    }

    fn start_clients(
        &self,
        wires: &Wires,
        contact: Arc<LastContact>,
        touch: SessionTouch,
        doors: Doors,
    ) -> ClientContext {
        let isolation =
            Isolation::new(wires.config.client.read_only_mode, contact, contact_max(&wires.config));
        let (reconfig, questions) = mpsc::channel(RECONFIG_QUEUE_MAX);
        self.start_reconfig(wires, questions);
        let operations = self.start_operations(wires.config.id, &wires.leadership, &wires.operator);
        let context = ClientContext {
            replica: self.replica.clone(),
            proposer: wires.proposer.clone(),
            reconfig,
            operations,
            new_sessions: Arc::new(NewSessions::new(wires.config.client.new_sessions_per_second)),
            reports: self.reports.clone().guarded(wires.config.guards_locks()),
            touch,
            status: wires.status.clone(),
            isolation: Arc::new(isolation),
            registry: self.registry.clone(),
            config: wires.config.clone(),
            audit: self.trust.audit.door.clone(),
            slow: self.slow.clone(),
            metrics: self.metrics.clone(),
        };
        let shutdown = self.shutdown_word();
        self.tasks.spawn("client-listener", zk::Listener::new(context.clone()).run(doors, shutdown));
        context
    }

    fn start_reconfig(&self, wires: &Wires, queue: mpsc::Receiver<Ask>) {
        let reconfig = Reconfig {
            me: wires.config.id,
            queue,
            leadership: wires.leadership.clone(),
            here: wires.reconfigurer.clone(),
            peers: self.peers.clone(),
            replica: self.replica.clone(),
        };
        self.tasks.spawn_until_shutdown("reconfig", reconfig.run());
    }

    /// In a simulated world nothing is started: there requests come by what is returned.
    fn start_http(
        &self,
        wires: &Wires,
        listener: Listener,
        api: Option<Listener>,
        clients: ClientContext,
    ) -> Option<Direct> {
        let context = HttpContext {
            metrics: self.metrics.clone(),
            status: wires.status.clone(),
            source: Arc::new(Source { replica: self.replica.clone(), registry: self.registry.clone() }),
            reports: self.reports.clone().guarded(wires.config.guards_locks()),
            hosts: wires.config.http_hosts(),
            access: Arc::new(self.http_access(&wires.config)),
            nodes: HttpAddresses::of(&wires.config),
            elections: http::Elections::start(&self.tasks, wires.status.clone()),
            leader_view: LeaderView::start(&self.tasks, self.peers.clone(), wires.status.clone()),
            started: time::now(),
            turnstile: self.registry.turnstile.clone(),
        };
        let keeper = self.trust.tls.clone().filter(|_| wires.config.http.tls);
        let shutdown = self.shutdown_word();
        if rowlock_env::world::is_simulated() {
            let api = Arc::new(Api::new(clients));
            return Some(Direct::new(ApiContext { http: context, api }, shutdown));
        }
        let api_context = ApiContext { http: context.clone(), api: Arc::new(Api::new(clients)) };
        if let Some(listener) = api {
            let (context, keeper, shutdown) = (api_context.clone(), keeper.clone(), shutdown.clone());
            self.tasks.spawn("api", http::api::serve(listener, context, false, keeper, shutdown));
        }
        if wires.config.http.api {
            self.tasks.spawn("http", http::api::serve(listener, api_context, true, keeper, shutdown));
        } else {
            self.tasks.spawn("http", http::serve(listener, context, keeper, shutdown));
        }
        None
    }

    fn http_access(&self, config: &NodeConfig) -> Access {
        let superusers = config.client.x509_superusers.clone();
        Access::new(config.http.is_closed(), self.trust.tokens.clone(), superusers)
            .recorded_in(self.trust.audit.door.clone())
    }

    /// Reads the tokens again when their file changes.
    fn start_tokens(&self) {
        let Some(keeper) = self.trust.tokens.clone() else { return };
        let metrics = self.metrics.clone();
        self.tasks.spawn_until_shutdown("token-file", async move {
            let reader = keeper.clone();
            let told = |reloaded| super::tokens::tell(&keeper, &metrics, reloaded);
            keeper.run("token-file", move || reader.reload(), told).await;
        });
    }

    fn start_bootstrap(&self, wires: &Wires) {
        let (raft, peers) = (self.raft.clone(), self.peers.clone());
        let admission = self.admission.clone();
        let (config, founders) = (wires.config.clone(), self.founders.clone());
        let status = wires.status.clone();
        let bootstrap = Bootstrap { config, raft, peers, admission, founders, status };
        let (failure, shutdown) = (self.failure.0.clone(), self.shutdown_word());
        self.tasks.spawn("bootstrap", async move {
            if let Err(error) = bootstrap.run(shutdown).await {
                fail(&failure, error.into());
            }
        });
    }

    fn start_comparison(&self, wires: &Wires) {
        let (raft, marks) = (self.raft.clone(), self.marks.clone());
        let comparison = Comparison { raft, marks, proposer: wires.proposer.clone() };
        let failure = self.failure.0.clone();
        self.tasks.spawn_until_shutdown("comparison", async move {
            fail(&failure, NodeError::Differs(comparison.run().await));
        });
    }

    /// Reads the certificates again when their files change.
    fn start_tls(&self, config: &NodeConfig) {
        let Some(keeper) = self.trust.tls.clone() else { return };
        let expiry = Expiry::new(config, self.metrics.clone());
        expiry.show(&keeper.material());
        let told =
            move |material: &Material, reloaded: &Reloaded, closed| expiry.tell(material, reloaded, closed);
        self.tasks.spawn_until_shutdown("tls-files", keeper.run(told));
    }

    /// Raft stopping by itself stops the node.
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
