//! [`Cluster`]: nodes, proxies in front of their ports, and what cuts and heals the connections.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rowlock_client::{Client, ClientBuilder};
use rowlock_coordinator::config::NodeEntry;
use rowlock_coordinator::{NodeConfig, Role, Status};
use rowlock_env::net::Listener;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time::{self, Instant};
use rowlock_proto::{NodeId, SessionId};
use rowlock_transport::Identity;
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::node::{Board, NodeSlot, Running, Targets, Threads};
use super::proxy::{Behind, Door};
use super::rules::Rules;

/// Longest wait of the kit, on a machine busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);
/// Session timeout of clients that set none: short, hence no test waits long for the locks of a dead client,
/// and long enough for a machine that stands still for a second.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);
const NAME: &str = "test";
const ANY_PORT: &str = "127.0.0.1:0";

/// Nodes in this process, connected by a switchable network. See the page of the [crate].
pub struct Cluster {
    places: Vec<NodeSlot>,
    rules: watch::Sender<Rules>,
    board: Board,
    /// The doors live here.
    network: Option<Threads>,
    folder: Option<TempDir>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("endpoints", &self.endpoints()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Starts this number of nodes and waits until all serve clients.
    ///
    /// # Panics
    /// If the start takes longer than half a minute, or the system lacks ports, threads or disk.
    pub async fn start(nodes: usize) -> Cluster {
        Cluster::start_with(nodes, |_| ()).await
    }

    /// Starts a cluster like [`Cluster::start`], with changes to the configuration of each node: bounds of
    /// session timeouts, election timeouts, quotas, the lock history (off by default). The kit sets
    /// addresses, folder and members.
    ///
    /// # Panics
    /// As [`Cluster::start`].
    pub async fn start_with(nodes: usize, mut configure: impl FnMut(&mut NodeConfig)) -> Cluster {
        assert!((1..=9).contains(&nodes), "a cluster of {nodes} nodes: want 1 to 9, best 1, 3 or 5");
        let folder = tempfile::Builder::new().prefix("rowlock-test-").tempdir().expect("a temporary folder");
        let network = Threads::start("rowlock-doors".to_owned());
        let rules = watch::channel(Rules::default()).0;
        let doors = network.spawn(open_doors(nodes, rules.subscribe()));
        let doors = doors.await.expect("opening doors does not panic");
        let members: Vec<NodeEntry> =
            doors.iter().enumerate().map(|(at, door)| entry(at, door, &folder)).collect();
        let place = |(at, door): (usize, Doors)| {
            let mut config = config(at, &members);
            configure(&mut config);
            NodeSlot { at, config, targets: door.targets, endpoint: door.client, running: Mutex::new(None) }
        };
        let places = doors.into_iter().enumerate().map(place).collect();
        let board = Arc::new(watch::channel(vec![None; nodes]).0);
        let cluster = Cluster { places, rules, board, network: Some(network), folder: Some(folder) };
        for node in 0..nodes {
            cluster.launch(node).await;
        }
        cluster.wait_until_healthy().await;
        cluster
    }

    /// Number of nodes, running or not.
    pub fn nodes(&self) -> usize {
        self.places.len()
    }

    /// Client addresses of all nodes, for [`ClientBuilder::endpoints`].
    pub fn endpoints(&self) -> String {
        self.places.iter().map(|place| place.endpoint.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Client address of this node.
    pub fn endpoint(&self, node: usize) -> &str {
        &self.place(node).endpoint
    }

    /// HTTP address of the node, while the node runs. No switch affects this address.
    pub fn http(&self, node: usize) -> Option<String> {
        self.place(node).targets.http.borrow().clone()
    }

    /// The node's data folder, removed with the cluster.
    pub fn data_dir(&self, node: usize) -> &Path {
        &self.place(node).config.data_dir
    }

    /// Returns the latest status of the node, while the node runs.
    pub fn status(&self, node: usize) -> Option<Status> {
        self.board.borrow()[self.place(node).at].clone()
    }

    /// A new session, at any of the nodes.
    ///
    /// # Panics
    /// If no node opens the session within half a minute.
    pub async fn client(&self) -> Client {
        self.client_with(|config| config).await
    }

    /// A new session, configured otherwise than with the kit's session timeout of 4 s: a shorter session
    /// timeout, a label, one node's [`Cluster::endpoint`] only.
    ///
    /// # Panics
    /// As [`Cluster::client`].
    pub async fn client_with(&self, configure: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Client {
        let config = Client::builder().endpoints(&self.endpoints()).connect_timeout(PATIENCE);
        let config = config.session_timeout(SESSION_TIMEOUT);
        match configure(config).connect().await {
            Ok(client) => client,
            Err(error) => panic!("no client: {error}; {}", self.report()),
        }
    }

    /// Cuts every link between the two groups of nodes. Clients still reach all nodes.
    pub fn partition(&self, left: &[usize], right: &[usize]) {
        let known = left.iter().chain(right).all(|node| self.place(*node).at == *node);
        debug_assert!(known, "`place` panics otherwise");
        self.rules.modify(|rules| rules.cut(left, right));
    }

    /// Reverts every [`partition`](Cluster::partition), [`pause`](Cluster::pause),
    /// [`cut_clients`](Cluster::cut_clients) and [`isolate_client`](Cluster::isolate_client). Delayed bytes
    /// flow.
    pub fn heal(&self) {
        self.rules.modify(Rules::heal);
    }

    /// A node exchanges nothing any more, with nodes and clients, as if it stood still.
    pub fn pause(&self, node: usize) {
        let node = self.place(node).at;
        self.rules.modify(|rules| rules.pause(node));
    }

    /// Reverts [`Cluster::pause`]. Delayed bytes flow.
    pub fn resume(&self, node: usize) {
        let node = self.place(node).at;
        self.rules.modify(|rules| rules.resume(node));
    }

    /// A node exchanges nothing with clients any more; among the nodes all goes on.
    pub fn cut_clients(&self, node: usize) {
        let node = self.place(node).at;
        self.rules.modify(|rules| rules.cut_clients(node));
    }

    /// Cuts a client's session from all nodes. The session ends, unless the cluster [heals](Cluster::heal) in
    /// time; a fresh session of the same client is not cut.
    pub fn isolate_client(&self, client: &Client) {
        self.isolate_session(client.session_id());
    }

    /// Works like [`Cluster::isolate_client`], for a client in another process.
    pub fn isolate_session(&self, session: SessionId) {
        assert_ne!(session, SessionId::NONE, "a client that has never had a session");
        self.rules.modify(|rules| rules.isolate(session));
    }

    /// Breaks the connections of all clients of a node. They come back by themselves.
    pub fn disconnect_clients(&self, node: usize) {
        let node = self.place(node).at;
        self.rules.modify(|rules| rules.close_clients(node));
    }

    /// Ends a session now, through the log, as the leader does with a client that has fallen silent: its
    /// ephemeral znodes and locks are gone when this returns.
    ///
    /// # Panics
    /// If there is no such session, or no quorum within half a minute.
    pub async fn expire(&self, session: SessionId) {
        let deadline = Instant::now() + PATIENCE;
        let leader = self.leader().await;
        let running = self.place(leader).running.lock().await;
        let running = running.as_ref().expect("a leader runs");
        if let Err(error) = running.node().expire_session(session, deadline).await {
            panic!("session {session} is not expired: {error}; {}", self.report());
        }
    }

    /// Stops a node in order, as `rowlock serve` does at SIGTERM. Nothing happens if it does not run.
    pub async fn stop(&self, node: usize) {
        self.place(node).stop(&self.board).await;
    }

    /// Ends a node abruptly, as SIGKILL would. Does nothing to a stopped node.
    pub async fn kill(&self, node: usize) {
        self.place(node).kill(&self.board).await;
    }

    /// Starts a node again with the data in the node's folder, after stopping a running node. Waits until the
    /// node serves clients.
    ///
    /// # Panics
    /// If it does not within half a minute: without a quorum, for instance.
    pub async fn restart(&self, node: usize) {
        self.launch(node).await;
        self.wait(&format!("node {node} to serve"), |board| {
            board[node].as_ref().filter(|status| status.serving).map(drop)
        })
        .await;
    }

    /// Waits for a leader and returns the node. Right after a partition the result may still be the former
    /// leader: see [`Cluster::leader_among`].
    ///
    /// # Panics
    /// After half a minute.
    pub async fn leader(&self) -> usize {
        let all: Vec<usize> = (0..self.nodes()).collect();
        self.leader_among(&all).await
    }

    /// Waits for a leader among these nodes and returns the node: a leader of the majority side of a
    /// partition, for instance.
    ///
    /// # Panics
    /// After half a minute.
    pub async fn leader_among(&self, nodes: &[usize]) -> usize {
        let leads = |board: &[Option<Status>], node: usize| {
            let status = board[node].as_ref()?;
            (status.serving && status.role == Role::Leader).then_some((status.term, node))
        };
        let newest = |board: &[Option<Status>]| nodes.iter().filter_map(|node| leads(board, *node)).max();
        self.wait(&format!("a leader among {nodes:?}"), newest).await.1
    }

    /// Waits until all running nodes serve clients and follow the same leader.
    ///
    /// # Panics
    /// After half a minute: with a partition that has not been healed, for instance.
    pub async fn wait_until_healthy(&self) {
        self.wait("all nodes to serve under one leader", |board| {
            let mut running = board.iter().flatten();
            let first = running.next()?;
            let agrees =
                |other: &Status| other.serving && (other.leader, other.term) == (first.leader, first.term);
            let leads = |other: &Status| other.role == Role::Leader && first.leader == Some(other.node);
            let healthy = board.iter().flatten().all(agrees) && board.iter().flatten().any(leads);
            healthy.then_some(())
        })
        .await;
    }

    async fn wait<T>(&self, what: &str, found: impl Fn(&[Option<Status>]) -> Option<T>) -> T {
        let mut board = self.board.subscribe();
        let mut it = None;
        let waited = board.wait_for(|board| {
            it = found(board);
            it.is_some()
        });
        let in_time = time::timeout(PATIENCE, waited).await.is_ok();
        match it {
            Some(it) if in_time => it,
            _ => panic!("waited {PATIENCE:?} for {what}; {}", self.report()),
        }
    }

    async fn launch(&self, node: usize) {
        if let Err(error) = self.place(node).start(&self.board).await {
            panic!("node {node} does not start: {error}");
        }
    }

    /// Returns the last status of each node, to find out why a test hangs.
    fn report(&self) -> String {
        let mut report = "the nodes say:".to_owned();
        for (node, status) in self.board.borrow().iter().enumerate() {
            report.push_str(&match status {
                None => format!("\n  node {node} does not run"),
                Some(it) => format!(
                    "\n  node {node}: {:?}, term {}, leader {:?}, serving: {}, applied {} of {}",
                    it.role,
                    it.term,
                    it.leader.map(|leader| leader.0 - 1),
                    it.serving,
                    it.applied_index,
                    it.committed_index
                ),
            });
        }
        report.push_str(&format!("\n{:?}", *self.rules.borrow()));
        report
    }

    fn place(&self, node: usize) -> &NodeSlot {
        let count = self.places.len();
        self.places.get(node).unwrap_or_else(|| panic!("node {node}: the {count} nodes are counted from 0"))
    }
}

impl Drop for Cluster {
    /// Ends the nodes in the middle of whatever they do (their order does not matter any more), waits until
    /// they are gone, and removes the folder. Blocks for some hundredths of a second.
    fn drop(&mut self) {
        let running = self.places.iter_mut().filter_map(|place| place.running.get_mut().take());
        let mut threads: Vec<Threads> = running.map(Running::into_threads).collect();
        threads.extend(self.network.take());
        // Elsewhere, since async code must not wait for the end of a runtime.
        let end = move || threads.into_iter().for_each(|threads| threads.end(PATIENCE));
        let ended = std::thread::Builder::new().name("rowlock-test-end".to_owned()).spawn(end);
        // Without a thread for it they end behind our back.
        let _ = ended.map(std::thread::JoinHandle::join);
        self.folder.take().into_iter().for_each(remove);
    }
}

/// Removes the folder, repeatedly: a thread that writes a log ends behind its runtime, and may create another
/// file in the meantime.
fn remove(folder: TempDir) {
    let deadline = Instant::now() + PATIENCE;
    while std::fs::remove_dir_all(folder.path()).is_err_and(|error| error.kind() != ErrorKind::NotFound)
        && Instant::now() < deadline
    {
        std::thread::yield_now();
    }
}

struct Doors {
    client: String,
    peer: String,
    targets: Targets,
}

async fn open_doors(nodes: usize, rules: watch::Receiver<Rules>) -> Vec<Doors> {
    let tasks = TaskGroup::new(Shutdown::new());
    let mut doors = Vec::new();
    for node in 0..nodes {
        let targets = Targets::new();
        let us = Identity { cluster: NAME.to_owned(), node: id(node) };
        let mut open = Vec::new();
        for (behind, target) in [(Behind::Clients, &targets.client), (Behind::Nodes(us), &targets.peer)] {
            let listener = Listener::bind(ANY_PORT).await.expect("a free loopback port");
            open.push(listener.local_addr().to_string());
            let door = Door { node, behind, target: target.subscribe(), rules: rules.clone() };
            tasks.spawn("door", door.serve(listener, tasks.clone()));
        }
        let peer = open.pop().expect("two were pushed");
        let client = open.pop().expect("two were pushed");
        doors.push(Doors { client, peer, targets });
    }
    doors
}

fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

fn entry(at: usize, doors: &Doors, folder: &TempDir) -> NodeEntry {
    let addresses = [doors.client.clone(), doors.peer.clone(), ANY_PORT.to_owned()];
    NodeEntry::new(id(at), addresses, folder.path().join(format!("node-{}", at + 1)))
}

/// Configures timing for tests: an election within half a second, and short sessions on request.
fn config(at: usize, members: &[NodeEntry]) -> NodeConfig {
    let mut config = NodeConfig::single(&members[at].data_dir);
    config.name = NAME.to_owned();
    config.id = id(at);
    config.nodes = members.to_vec();
    config.raft.heartbeat_ms = 50;
    config.raft.election_timeout_min_ms = 250;
    config.raft.election_timeout_max_ms = 500;
    config.session.min_timeout_ms = 100;
    config.history.enabled = false;
    // A node that comes back reads its log: a moment, also in debug builds.
    config.log_segment_bytes = 1 << 20;
    config.limits.reserve_bytes = 1 << 20;
    config
}
