//! Starts the tasks of a node and gives each task its ends of the channels.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::{Entries, Maker, TermBatch};
use rowlock_consensus::peer::PeerServer;
use rowlock_consensus::raft::compaction::{Compaction, Schedule};
use rowlock_consensus::raft::elections::{self, Leadership};
use rowlock_consensus::raft::{self, Elections, heartbeats};
use rowlock_env::backoff::Backoff;
use rowlock_env::duty::{self, Duty};
use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task::{self, Shutdown};
use rowlock_sessions::Keepalive;
use rowlock_sessions::expiry_table::HeartbeatAcks;
use rowlock_sessions::liveness::Liveness;
use rowlock_tls::{Material, Reloaded};
use rowlock_wal::StorageError;
use tokio::sync::mpsc;

use super::cluster::{self, Operating};
use super::errors::NodeError;
use super::listeners::{Addresses, Listeners};
use super::node::Node;
use super::open::{Assembly, ChannelEnds};
use super::stop::stop_at;
use super::tls::Expiry;
use crate::node::admin::Admin;
use crate::node::leader_duties::{ClusterDuty, LeaderDuties, LeaderDuty};
use crate::node::proposer::Submission;
use crate::node::proposer::intake::Intake;
use crate::node::remember;
use crate::node::service::Service;
use crate::node::slow_links::SlowLinks;
use crate::node::status_publisher::StatusPublisher;
use crate::node::stored_facts::StoredFacts;
use crate::node::sweep::{LockSweep, Sweep};
use crate::node::zk::read_only::Isolation;
use crate::node::zk::{self, ClientContext, Doors, NewSessions, SecureDoor};

impl Assembly {
    pub(super) fn run(self, ends: ChannelEnds, listeners: Listeners) -> Node {
        let addresses = Addresses::of(&listeners);
        if !self.context.config.guards_locks() {
            tracing::info!(
                "locks are open: every client that connects may take, force and delete every lock that no rule \
                 names; see docs/access-control.md"
            );
        }
        let operator = cluster::operator(&self.context);
        self.start_leadership(&operator, ends.leadership, ends.lock_alarm);
        let admin = self.start_cluster(&operator);
        self.start_duties();
        self.access.start(&self.tasks);
        self.start_intake((ends.submissions, ends.batches));
        let heartbeat_acks = self.start_sessions(ends.keepalives);
        self.tasks.spawn_duty("status-publisher", StatusPublisher::new(self.context.clone(), ends.status));
        self.start_peer_server(heartbeat_acks, listeners.peer, admin.clone());
        let secure = listeners.secure_client.zip(self.trust.tls.clone());
        let secure = secure.map(|(listener, keeper)| SecureDoor { listener, keeper });
        let of_clients = self.start_clients(Doors { plain: listeners.client, secure }, admin);
        let access = self.start_access(listeners.access, of_clients);
        self.enter_cluster();
        let remembering = remember::remember(self.context.clone(), self.failed_disk());
        self.tasks.spawn_until_shutdown("remembering", remembering);
        self.start_watchdog();
        self.start_tls();
        // Separate from the tasks' shutdown: the tasks continue until the node has left.
        let signal = Shutdown::new();
        let audit = self.trust.audit.start();
        let parts = (self.tasks, audit, self.access, self.snapshots);
        let end = stop_at(signal.clone(), self.context.clone(), parts);
        Node {
            #[cfg(feature = "cluster")]
            log_level: operator.log_level.clone(),
            context: self.context,
            shutdown_signal: signal,
            end: Some(task::spawn("stop", end)),
            addresses,
            failure: self.failure.subscribe(),
            tls: self.trust.tls,
            access,
        }
    }

    fn shutdown_signal(&self) -> Shutdown {
        self.tasks.shutdown().clone()
    }

    /// Stops the node after a failure of its data folder.
    fn failed_disk(&self) -> Arc<dyn Fn(StorageError) + Send + Sync> {
        let failure = self.failure.clone();
        Arc::new(move |error| failure.fail(NodeError::Disk(error.to_string())))
    }

    /// Stops the node so that it drops its state at the next start.
    fn left_behind(&self) -> Arc<dyn Fn() + Send + Sync> {
        let failure = self.failure.clone();
        Arc::new(move || failure.fail(NodeError::LeftBehind))
    }

    /// Starts a duty whose end is a failure of the node.
    fn spawn_vital<D: Duty>(&self, name: &'static str, duty: D, failed: fn(D::End) -> NodeError) {
        let failure = self.failure.clone();
        self.tasks.spawn_until_shutdown(name, async move {
            failure.fail(failed(duty::run(duty).await));
        });
    }

    fn start_leadership(
        &self,
        operator: &Operating,
        publish: watch::Sender<Leadership>,
        lock_alarm: watch::Receiver<Option<i64>>,
    ) {
        let node = &self.context;
        let leadership = elections::follow(node.me, node.raft.clone(), publish, node.hook.clone());
        self.tasks.spawn_until_shutdown("leadership", leadership);
        let (replica, clock) = (node.replica.clone(), node.clock.clone());
        let sweep_every = Duration::from_millis(node.config.znodes.sweep_interval_ms);
        let mut duties: Vec<Box<dyn LeaderDuty>> = vec![
            Box::new(LockSweep { replica: replica.clone(), clock: clock.clone() }),
            Box::new(ClusterDuty::new(node.clone())),
        ];
        duties.extend(cluster::leader_duties(node, operator));
        duties.push(Box::new(Sweep::new(replica, clock, sweep_every)));
        let (leadership, proposals) = (node.leadership.clone(), node.proposals.clone());
        let duties = LeaderDuties::new(node.me, leadership, proposals, lock_alarm, duties);
        self.tasks.spawn_duty("leader-duties", duties);
    }

    /// Starts the duties of every node.
    fn start_duties(&self) {
        let node = &self.context;
        self.spawn_vital("stored-facts", StoredFacts(node.clone()), cluster::of_folder);
        self.tasks.spawn_duty("slow-links", SlowLinks::new(node.clone()));
        let compaction = Compaction {
            schedule: Schedule::new(node.me, node.config.raft.snapshot_every),
            raft: node.raft.clone(),
            log: node.log.clone(),
            metrics: node.metrics.clone(),
            log_max: node.replica.memory.log_max(),
            retry: Backoff::default(),
        };
        self.tasks.spawn_duty("compaction", compaction);
    }

    fn start_intake(&self, queues: (mpsc::Receiver<Submission>, mpsc::Receiver<TermBatch>)) {
        let node = &self.context;
        let maker = Maker {
            me: node.me,
            raft: node.raft.clone(),
            enforce_quota: node.config.znodes.enforce_quota,
            guard_locks: node.config.guards_locks(),
            replica: node.replica.applied().clone(),
            clock: node.clock.clone(),
            metrics: node.metrics.clone(),
        };
        let (pending, peers) = (node.pending.clone(), node.peers.clone());
        let metrics = node.metrics.clone();
        let intake = Intake::new(node.me, queues, node.leadership.clone(), pending, peers, metrics);
        self.tasks.spawn("intake", intake.run(Entries::new(maker), self.shutdown_signal()));
    }

    fn start_sessions(&self, keepalives: mpsc::Receiver<Keepalive>) -> Arc<HeartbeatAcks> {
        let node = &self.context;
        let heartbeat_acks = Arc::new(HeartbeatAcks::new(
            node.raft.clone(),
            node.quorum.clone(),
            node.expiry_table.clone(),
            node.contact.clone(),
            node.hook.clone(),
        ));
        let (replica, timers) = (node.replica.clone(), node.expiry_table.clone());
        let start_timers = move |term| timers.take(term, &replica.state.read());
        let liveness = Liveness {
            me: node.me,
            start_timers: Box::new(start_timers),
            expiry_table: node.expiry_table.clone(),
            heartbeat_acks: heartbeat_acks.clone(),
            contact: node.contact.clone(),
            contact_max: node.contact_max(),
            leadership: node.leadership.clone(),
            keepalives,
            quorum: node.quorum.clone(),
            proposals: node.proposals.clone(),
            peers: node.peers.clone(),
            replica: node.replica.applied().clone(),
            hook: node.hook.clone(),
        };
        self.tasks.spawn("liveness", liveness.run(self.shutdown_signal()));
        heartbeat_acks
    }

    fn start_peer_server(
        &self,
        heartbeat_acks: Arc<HeartbeatAcks>,
        listener: Listener,
        admin: Arc<dyn Admin>,
    ) {
        let node = &self.context;
        let elections = Elections {
            raft: node.raft.clone(),
            peers: node.peers.clone(),
            lease: node.lease.clone(),
            admission: node.admission.clone(),
            recollection: node.recollection.clone(),
            timers: node.config.raft,
        };
        self.tasks.spawn_until_shutdown("elections", elections.run());
        let every = Duration::from_millis(node.config.raft.heartbeat_ms);
        self.tasks.spawn_until_shutdown("heartbeats", heartbeats::send(node.raft.clone(), every));
        let dispatch = raft::dispatch(
            &node.raft,
            &self.storage,
            &self.snapshots,
            &node.metrics,
            (&node.admission, &node.lease),
            (node.replica.applied(), &node.recollection),
            remember::dropping(node.clone(), self.failed_disk(), self.left_behind()),
        );
        let service = Arc::new(Service { node: node.clone(), heartbeat_acks, admin });
        let server = PeerServer::new(node.peers.identity().clone(), dispatch, service, self.tasks.clone());
        let refused = super::open::of_nodes_port(node.audit.clone());
        let server = server.counted_in(node.replica.memory.peers.clone());
        let server = server.measured_by(node.metrics.clone(), refused);
        let server = server.secured_by(super::tls::security(&node.config, &self.trust.tls));
        server.of_folder(node.peers.folder().clone(), node.peers.releases().clone()).start(listener);
    }

    fn start_clients(&self, doors: Doors, admin: Arc<dyn Admin>) -> ClientContext {
        let (node, settings) = (&self.context, &self.context.config.client);
        let isolation = Isolation::new(settings.read_only_mode, node.contact.clone(), node.contact_max());
        let context = ClientContext {
            replica: node.replica.clone(),
            proposer: node.proposer.clone(),
            admin,
            reports: self.access.reports(),
            new_sessions: Arc::new(NewSessions::new(settings.new_sessions_per_second)),
            touch: node.touch.clone(),
            status: node.status.clone(),
            isolation: Arc::new(isolation),
            registry: node.registry.clone(),
            config: node.config.clone(),
            audit: node.audit.clone(),
            slow: node.slow.clone(),
            metrics: node.metrics.clone(),
        };
        let shutdown = self.shutdown_signal();
        self.tasks.spawn("client-listener", zk::Listener::new(context.clone()).run(doors, shutdown));
        context
    }

    /// Starts the task that rereads changed certificates.
    fn start_tls(&self) {
        let Some(keeper) = self.trust.tls.clone() else { return };
        let expiry = Expiry::new(&self.context.config, self.context.metrics.clone());
        expiry.show(&keeper.material());
        let on_reload =
            move |material: &Material, reloaded: &Reloaded, closed| expiry.report(material, reloaded, closed);
        self.tasks.spawn_until_shutdown("tls-files", keeper.run(on_reload));
    }

    /// Starts the task that stops the node when Raft stops by itself.
    fn start_watchdog(&self) {
        let (node, failure) = (self.context.clone(), self.failure.clone());
        self.tasks.spawn_until_shutdown("watchdog", async move {
            let error = raft::stopped(&node.raft).await;
            failure.fail(match node.replica.left_behind() {
                Some(other) => NodeError::OtherRelease(other.clone()),
                None => NodeError::Raft(error),
            });
        });
    }
}
