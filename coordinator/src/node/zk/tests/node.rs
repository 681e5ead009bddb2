//! A node for tests: the real listener and connections, and a log of one node.

use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_consensus::status::Status;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, Task, TaskGroup, spawn};
use rowlock_env::{net, time};
use rowlock_metrics::Metrics;
use rowlock_metrics::Role;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_sessions::expiry_table::ExpiryTable;
use rowlock_sessions::{Keepalive, SessionTouch};
use rowlock_state::Frozen;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::outcome::Attached;
use tokio::sync::mpsc;

use crate::config::{ClientConfig, NodeConfig};
use crate::node::admin::{Admin, Ask, Reader, ReportSource};
use crate::node::apply::{Observer, Sink};
use crate::node::context::Replica;
use crate::node::delivery::outbox::{CloseReason, Message};
use crate::node::delivery::registry::Registry;
use crate::node::proposer::{Proposer, Submission};
use crate::node::slow::SlowRequests;
use crate::node::zk::read_only::Isolation;
use crate::node::zk::{ClientContext, Doors, Listener, NewSessions};

/// Fate of submissions in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    Runs,
    Stands,
    /// Loses submissions: their outcome is unknown.
    Loses,
    /// Runs, and expires a new session before its next command, as after a stall.
    Expires,
}

pub struct Node {
    pub addr: String,
    /// Context of the node's listener.
    pub context: ClientContext,
    pub status: watch::Sender<Status>,
    log: watch::Sender<Log>,
    /// Whether the leader confirms pings.
    pub leader_in_contact: watch::Sender<bool>,
    /// The leader's view of the sessions.
    pub expiry_table: Arc<ExpiryTable>,
    shutdown: Shutdown,
    served: Task<()>,
    tasks: TaskGroup,
}

/// Returns a configuration for tests: all words, a superuser `super:test`, session timeouts as in ZooKeeper.
pub fn config() -> NodeConfig {
    let mut config = NodeConfig::single("/nowhere");
    "test".clone_into(&mut config.name);
    config.nodes.clear();
    config.log.slow_request_ms = None;
    config.client = ClientConfig {
        max_connections: 1_000,
        words: vec!["*".to_owned()],
        super_digest: Some("super:D/InIHSb7yEEbrWz8b9l71RjZJU=".to_owned()),
        sasl_users: [("bob".to_owned(), "secret".to_owned())].into(),
        ..ClientConfig::default()
    };
    config
}

impl Node {
    /// Starts a node with that configuration.
    pub async fn start() -> Node {
        Node::with(config(), "127.0.0.1:0", limits::HANDSHAKE_MAX).await
    }

    pub async fn with(config: NodeConfig, addr: &str, handshake_max: Duration) -> Node {
        Node::amid(Around::new(), config, addr, handshake_max).await
    }

    pub(crate) async fn amid(
        around: Around,
        config: NodeConfig,
        addr: &str,
        handshake_max: Duration,
    ) -> Node {
        let Around { registry, tasks, reports, observers } = around;
        let (proposals, queue) = mpsc::channel(limits::PROPOSER_QUEUE_MAX);
        let (touches, heard) = mpsc::channel(1_024);
        let (questions, asked) = mpsc::channel(limits::RECONFIG_QUEUE_MAX);
        let (status, status_seen) = watch::channel(Status {
            node: NodeId(1),
            role: Role::Leader,
            leader: Some(NodeId(1)),
            voters: vec![NodeId(1)],
            serving: true,
            ..Status::default()
        });
        // Only the serving flag of the status matters here.
        let isolation = Isolation::new(config.client.read_only_mode, Arc::default(), Duration::ZERO);
        let new_sessions = Arc::new(NewSessions::new(config.client.new_sessions_per_second));
        let context = ClientContext {
            new_sessions,
            replica: Arc::new(Replica::default()),
            proposer: Proposer::new(proposals),
            admin: Arc::new(TestAdmin(questions)),
            reports,
            touch: SessionTouch::new(touches),
            status: status_seen,
            isolation: Arc::new(isolation),
            registry,
            config: Arc::new(config),
            audit: Default::default(),
            slow: Arc::new(SlowRequests::new(None, Arc::default())),
            metrics: Arc::new(Metrics::default()),
        };
        let (log, orders) = watch::channel(Log::Runs);
        let (leader_in_contact, contact) = watch::channel(true);
        let stop = tasks.shutdown().clone();
        let expiry_table = Arc::new(ExpiryTable::default());
        expiry_table.take(1, &context.replica.state.read());
        let applier = Applier {
            context: context.clone(),
            expiry_table: expiry_table.clone(),
            observers,
            queue,
            orders,
            requests: 0,
        };
        tasks.spawn("applier", until(stop.clone(), applier.run()));
        let leader = Leader { context: context.clone(), heard, contact, expiry_table: expiry_table.clone() };
        tasks.spawn("leader", until(stop, leader.run()));
        tasks.spawn("reconfig", until(tasks.shutdown().clone(), reconfigure(context.clone(), asked)));
        let listener = net::Listener::bind(addr).await.expect("a free port");
        let addr = listener.local_addr().to_string();
        let shutdown = Shutdown::new();
        let serving = Listener::new(context.clone()).with_handshake_max(handshake_max);
        let served =
            spawn("listener", serving.run(Doors { plain: Some(listener), secure: None }, shutdown.clone()));
        Node { addr, context, status, log, leader_in_contact, expiry_table, shutdown, served, tasks }
    }

    /// Sets the fate of the following submissions.
    pub fn log(&self, log: Log) {
        self.log.send(log);
    }

    /// Simulates the loss of the quorum.
    pub fn stop_serving(&self) {
        self.status.modify(|status| status.serving = false);
        self.context.registry.close_all(CloseReason::NotServing);
    }

    /// Simulates the return of the quorum.
    pub fn serve_again(&self) {
        self.status.modify(|status| status.serving = true);
        self.context.registry.close_read_only();
    }

    /// Shuts down; every task has ended when this returns.
    pub async fn stop(self) {
        self.shutdown.trigger();
        self.served.await.expect("listener ends");
        assert!(self.context.registry.is_empty(), "connections are off the books");
        assert_eq!(self.context.metrics.connections.get(), 0);
        assert_eq!(self.context.metrics.requests_outstanding.get(), 0);
        assert_eq!(self.context.replica.watches.lock().len(), 0);
        self.tasks.stop().await;
    }
}

async fn until(stop: Shutdown, work: impl Future<Output = ()>) {
    tokio::select! { () = stop.wait() => {}, () = work => {} }
}

/// What a node for tests shares with a floor on it.
pub(crate) struct Around {
    pub(crate) registry: Arc<Registry>,
    pub(crate) tasks: TaskGroup,
    pub(crate) reports: Arc<dyn ReportSource>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
}

impl Around {
    pub(crate) fn new() -> Around {
        let (registry, tasks) = (Arc::new(Registry::new()), TaskGroup::new(Shutdown::new()));
        Around { registry, tasks, reports: Arc::new(Reporter), observers: Vec::new() }
    }
}

/// Answers each report at once, by the zxid of the state.
pub(crate) struct Reporter;

impl ReportSource for Reporter {
    fn report(&self, frozen: Frozen, ask: Ask<String>, _: Reader) -> Result<(), ErrorCode> {
        let result = Ok(frozen.machine().last_zxid().0.to_string());
        ask.reply_to.push(Message::Reported { tag: ask.tag, result });
        Ok(())
    }
}

/// Passes changes of the membership to [`reconfigure`].
struct TestAdmin(mpsc::Sender<Ask<Wanted>>);

impl Admin for TestAdmin {
    fn reconfigure(&self, ask: Ask<Wanted>) -> Result<(), ErrorCode> {
        self.0.try_send(ask).map_err(|_| ErrorCode::ReconfigInProgress)
    }
}

/// Replaces the leader that changes the membership: writes joining servers into /zookeeper/config.
async fn reconfigure(context: ClientContext, mut asked: mpsc::Receiver<Ask<Wanted>>) {
    while let Some(Ask { wanted, reply_to, tag }) = asked.recv().await {
        let result = wanted.change().map(|_| ());
        if result.is_ok() {
            let (outbox, mut answer) = crate::node::delivery::outbox::channel();
            let config = format!("{}\nversion=1", wanted.joining.unwrap_or_default());
            let submission = Submission {
                session: SessionId::NONE,
                attachment: Attachment::default(),
                identities: Default::default(),
                command: Command::Configure { config },
                reply_to: outbox,
                tag: 0,
                received: time::now(),
            };
            if context.proposer.submit(submission).await.is_err() {
                return;
            }
            answer.ready().await;
        }
        reply_to.push(Message::Reconfigured { tag, result });
    }
}

/// Replaces log and apply.
struct Applier {
    context: ClientContext,
    expiry_table: Arc<ExpiryTable>,
    observers: Vec<Arc<dyn Observer>>,
    queue: mpsc::Receiver<Submission>,
    orders: watch::Receiver<Log>,
    requests: u64,
}

impl Applier {
    async fn run(mut self) {
        let mut batch = Vec::new();
        while self.queue.recv_many(&mut batch, rowlock_consensus::limits::BATCH_MAX_COMMANDS).await > 0 {
            if self.orders.wait_for(|log| *log != Log::Stands).await.is_err() {
                return;
            }
            let orders = *self.orders.borrow();
            if orders == Log::Loses {
                batch.drain(..).for_each(|submission| submission.reply_to.push(Message::Lost));
            } else {
                self.apply(&mut batch, orders == Log::Expires);
            }
        }
    }

    fn apply(&mut self, batch: &mut Vec<Submission>, expires: bool) {
        let replica = &self.context.replica;
        let mut state = replica.state.write();
        let mut watches = replica.watches.lock();
        let mut sink =
            Sink::new(&mut watches, &self.context.registry, &self.context.metrics, &self.expiry_table)
                .observed_by(&self.observers);
        for submission in batch.drain(..) {
            self.requests += 1;
            let proposal = Proposal {
                origin: Origin { node: NodeId(1), incarnation: 1, request: self.requests },
                session: submission.session,
                attachment: submission.attachment,
                identities: submission.identities,
                command: submission.command,
            };
            let applied = state.apply(0, &proposal, &mut sink);
            if let (true, Some(Attached { session, attachment, .. })) = (expires, applied.attached) {
                let command = Command::ExpireSession { session, attachment };
                let expiry = Proposal { session: SessionId::NONE, command, ..proposal };
                state.apply(0, &expiry, &mut sink);
            }
            submission.reply_to.push(Message::applied(submission.tag, applied));
        }
        self.observers.iter().for_each(|observer| observer.applied(self.requests, &[], &state));
    }
}

/// Replaces session liveness: the leader's own tracker, without a peer.
struct Leader {
    context: ClientContext,
    heard: mpsc::Receiver<Keepalive>,
    contact: watch::Receiver<bool>,
    expiry_table: Arc<ExpiryTable>,
}

impl Leader {
    async fn run(mut self) {
        let term = self.expiry_table.term().expect("it leads");
        loop {
            tokio::select! {
                sign = self.heard.recv() => match sign {
                    Some(Keepalive::Touch { session, confirm }) => {
                        assert!(self.expiry_table.touch(term, &[session]));
                        if let Some(waiter) = confirm {
                            if self.contact.wait_for(|in_contact| *in_contact).await.is_err() {
                                return;
                            }
                            waiter.answer(true);
                        }
                    }
                    Some(Keepalive::ClientDisconnect(disconnect)) => assert!(self.expiry_table.client_disconnected(term, &[disconnect])),
                    None => return,
                },
                () = time::sleep(Duration::from_millis(20)) => self.expire().await,
            }
        }
    }

    async fn expire(&mut self) {
        let (_, due) = self.expiry_table.due(time::now()).expect("it leads");
        for (session, attachment) in due {
            self.submit(Command::ExpireSession { session, attachment }).await;
        }
    }

    async fn submit(&self, command: Command) {
        let submission = Submission {
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command,
            reply_to: crate::node::delivery::outbox::channel().0,
            tag: 0,
            received: time::now(),
        };
        // The state shows the outcome.
        let _ = self.context.proposer.submit(submission).await;
    }
}
