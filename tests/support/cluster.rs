//! A cluster of real processes: started from a generated cluster.toml, killed, restarted, queried.
//!
//! Two clusters exist at a time: mostly they wait, and with many on two cores, deadlines would depend on
//! luck. Dropping one ends exactly the processes that it started. When a test fails, the ends of the nodes'
//! logs are printed; `ROWLOCK_TEST_KEEP=1` keeps the folder.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use rowlock_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{command, eventually, http, ports, secs};
use rowlock_frames::raw::SESSION_MS;
use rowlock_testkit::PeerNetwork;

static TURNS: Semaphore = Semaphore::const_new(3);

/// A debug build on a busy machine: recovery, election, catching up.
pub const SERVING: Duration = secs(120);
const LOG_TAIL_LINES: usize = 40;

/// Settings that make failovers short enough for many rounds, and sessions as short as ZooKeeper allows by
/// default.
pub const FAST: &str = "[session]\nmin_timeout_ms = 2000\n[raft]\nheartbeat_ms = 60\nelection_timeout_min_ms = 300\n\
                        election_timeout_max_ms = 600\n";

/// What `rowlock tls init` says.
pub const ENCRYPTED: &str = "[tls]\ncert = \"tls/node-{id}.pem\"\nkey = \"tls/node-{id}.key\"\n\
                         peer_ca = \"tls/peers-ca.pem\"\nclient_ca = \"tls/clients-ca.pem\"\n\
                         [peer]\nsecurity = \"mtls\"\n";

pub struct Cluster {
    pub folder: PathBuf,
    /// Variables of the nodes that are started from now on.
    pub environment: Vec<(OsString, OsString)>,
    settings: String,
    nodes: BTreeMap<u64, Node>,
    network: Option<PeerNetwork>,
    temp: Option<TempDir>,
    _turn: SemaphorePermit<'static>,
}

struct Node {
    client: String,
    peer: String,
    peer_listen: Option<String>,
    /// Where the settings name an authority of clients.
    secure: Option<String>,
    http: String,
    /// Where the cluster takes locks by HTTP.
    api: Option<String>,
    learner: bool,
    process: Option<Child>,
}

/// What nodes are: `ROWLOCK_TEST_BINARY` names another build of the same code, with which times mean more.
fn binary() -> OsString {
    std::env::var_os("ROWLOCK_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_rowlock").into())
}

/// For tests that start their nodes in another way.
pub async fn turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.expect("never closed")
}

impl Cluster {
    /// `count` voters with `settings` (sections of cluster.toml); returns when all serve.
    pub async fn start(count: u64, settings: &str) -> Cluster {
        let mut cluster = Cluster::prepare(count, settings, false).await;
        cluster.start_all().await;
        cluster
    }

    /// The same; `prepare` puts files into the cluster's folder first.
    pub async fn start_with_files(count: u64, settings: &str, prepare: impl FnOnce(&Path)) -> Cluster {
        let mut cluster = Cluster::prepare(count, settings, false).await;
        prepare(&cluster.folder);
        cluster.start_all().await;
        cluster
    }

    /// Nodes with certificates that `rowlock tls` has made from their file, and `secure_client` beside
    /// `client`; and a certificate for the client `alice`.
    pub async fn start_encrypted(count: u64) -> Cluster {
        let mut cluster = Cluster::prepare(count, &format!("{FAST}{ENCRYPTED}"), false).await;
        cluster.write_file();
        for arguments in [&["tls", "init"][..], &["tls", "client", "alice"]] {
            let said = command::run(&cluster.folder, arguments);
            assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
        }
        cluster.start_all().await;
        cluster
    }

    /// The same, and all nodes take locks by HTTP.
    pub async fn start_with_api(count: u64, settings: &str) -> Cluster {
        let mut cluster = Cluster::prepare(count, settings, false).await;
        cluster.nodes.values_mut().for_each(|node| node.api = Some(ports::address()));
        cluster.start_all().await;
        cluster
    }

    /// Where a node takes locks by HTTP.
    pub fn api(&self, id: u64) -> &str {
        self.nodes[&id].api.as_deref().expect("it was started so")
    }

    /// Where a node takes clients by TLS.
    pub fn secure(&self, id: u64) -> &str {
        self.nodes[&id].secure.as_deref().expect("it was started so")
    }

    /// Other settings, for nodes that are started from now on.
    pub fn change_settings(&mut self, settings: &str) {
        settings.clone_into(&mut self.settings);
    }

    /// The same, with a switchable network between the nodes.
    pub async fn start_on_network(count: u64, settings: &str) -> Cluster {
        let mut cluster = Cluster::prepare(count, settings, true).await;
        cluster.start_all().await;
        cluster
    }

    async fn prepare(count: u64, settings: &str, switchable: bool) -> Cluster {
        let turn = turn().await;
        let temp = tempfile::Builder::new().prefix("rowlock-test-").tempdir().unwrap();
        let mut cluster = Cluster {
            folder: temp.path().to_owned(),
            environment: Vec::new(),
            settings: settings.to_owned(),
            nodes: BTreeMap::new(),
            network: None,
            temp: Some(temp),
            _turn: turn,
        };
        for id in 1..=count {
            cluster.add(id, false, switchable);
        }
        if switchable {
            let routes =
                cluster.nodes.iter().map(|(id, n)| (*id, n.peer.clone(), n.peer_listen.clone().unwrap()));
            cluster.network = Some(PeerNetwork::start("test", routes.collect()).await);
        }
        cluster
    }

    /// `count` voters that find each other by the addresses of all, and none is started.
    pub async fn of_strangers(count: u64, settings: &str) -> Cluster {
        let mut cluster = Cluster::prepare(count, settings, false).await;
        // By names that must be looked up.
        let names = cluster.nodes.values().map(|node| node.peer.replace("127.0.0.1", "localhost"));
        let seeds = names.collect::<Vec<_>>().join(", ");
        cluster.settings = format!("{settings}[cluster]\nexpect = {count}\nseeds = \"{seeds}\"\n");
        cluster
    }

    async fn start_all(&mut self) {
        for id in self.ids() {
            self.start_node(id);
        }
        self.wait_until_serving().await;
    }

    fn add(&mut self, id: u64, learner: bool, switchable: bool) {
        let peer_listen = switchable.then(ports::address);
        let (client, peer, http) = (ports::address(), ports::address(), ports::address());
        let (secure, api) = (self.settings.contains("client_ca").then(ports::address), None);
        self.nodes.insert(id, Node { client, peer, peer_listen, http, api, secure, learner, process: None });
    }

    /// One more node, not started; only files written from now on know it.
    pub fn add_learner(&mut self, id: u64) {
        self.add(id, true, false);
    }

    fn file(&self) -> String {
        let mut text = format!("name = \"test\"\n{}\n", with_long_sessions(&self.settings));
        for (id, node) in &self.nodes {
            text.push_str(&format!(
                "[[node]]\nid = {id}\nclient = \"{}\"\npeer = \"{}\"\nhttp = \"{}\"\nlearner = {}\n",
                node.client, node.peer, node.http, node.learner
            ));
            if let Some(api) = &node.api {
                text.push_str(&format!("api = \"{api}\"\n"));
            }
            if let Some(secure) = &node.secure {
                text.push_str(&format!("secure_client = \"{secure}\"\n"));
            }
            if let Some(listen) = &node.peer_listen {
                text.push_str(&format!("peer_listen = \"{listen}\"\n"));
            }
        }
        text
    }

    pub fn ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub fn config(&self) -> PathBuf {
        self.folder.join("cluster.toml")
    }

    /// In one step: another node may be reading it.
    fn write_file(&self) {
        let beside = self.folder.join("cluster.toml.new");
        fs::write(&beside, self.file()).unwrap();
        // Some have secrets.
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(beside, self.config()).unwrap();
    }

    pub fn start_node(&mut self, id: u64) {
        self.write_file();
        let log = OpenOptions::new().create(true).append(true).open(log_path(&self.folder, id)).unwrap();
        let child = command::clean(binary())
            .envs(self.environment.iter().cloned())
            .args(["serve", "--node", &id.to_string(), "--log", "info", "--config"])
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.node_mut(id).process = Some(child);
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill(&mut self, id: u64) {
        let mut process = self.node_mut(id).process.take().expect("the node runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// SIGTERM; returns when the node has left in order.
    pub async fn stop(&mut self, id: u64) {
        self.signal(id, Signal::TERM);
        assert_eq!(self.exit_code(id).await, Some(0));
    }

    /// Stops a node in order and starts it again; returns when it serves.
    pub async fn restart(&mut self, id: u64) {
        self.stop(id).await;
        self.start_node(id);
        self.wait_until_serves(id).await;
    }

    pub fn signal(&self, id: u64, signal: Signal) {
        kill_process(Pid::from_raw(self.pid(id).cast_signed()).unwrap(), signal).unwrap();
    }

    /// SIGKILL to all before any is waited for.
    pub fn kill_all(&mut self) {
        let mut gone: Vec<Child> = self.nodes.values_mut().filter_map(|n| n.process.take()).collect();
        for process in &mut gone {
            process.kill().unwrap();
        }
        for process in &mut gone {
            process.wait().unwrap();
        }
    }

    /// Deletes the data of all nodes, which must not run.
    pub fn forget_everything(&mut self) {
        assert!(self.nodes.values().all(|node| node.process.is_none()));
        fs::remove_dir_all(self.folder.join("data")).unwrap();
    }

    /// Deletes the data of a node, which must not run.
    pub fn wipe(&mut self, id: u64) {
        assert!(self.node_mut(id).process.is_none());
        fs::remove_dir_all(self.data(id)).unwrap();
    }

    /// A node, which must not run, is no more: its data is gone, and the cluster's file does not know it.
    pub fn lose(&mut self, id: u64) {
        if self.data(id).exists() {
            self.wipe(id);
        }
        self.nodes.remove(&id);
        self.write_file();
    }

    pub fn data(&self, id: u64) -> PathBuf {
        self.folder.join("data").join(format!("node-{id}"))
    }

    /// Waits until a node has stopped by itself, and gives its exit code.
    pub async fn exit_code(&mut self, id: u64) -> Option<i32> {
        let deadline = std::time::Instant::now() + SERVING;
        loop {
            if let Some(status) = self.node_mut(id).process.as_mut().unwrap().try_wait().unwrap() {
                self.node_mut(id).process = None;
                return status.code();
            }
            assert!(std::time::Instant::now() < deadline, "node {id} does not stop by itself");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Where it answers HTTP.
    pub fn http(&self, id: u64) -> &str {
        &self.nodes[&id].http
    }

    /// The most memory that its process ever had, in bytes.
    pub fn peak_bytes(&self, id: u64) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid(id))).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        kib << 10
    }

    /// What `readyz` says that is not 200.
    pub async fn unready(&self, id: u64) -> Option<String> {
        http::get_refused(&self.nodes[&id].http, "/readyz").await
    }

    pub fn is_running(&mut self, id: u64) -> bool {
        let process = self.node_mut(id).process.as_mut();
        process.is_some_and(|p| p.try_wait().unwrap().is_none())
    }

    pub fn pid(&self, id: u64) -> u32 {
        self.nodes[&id].process.as_ref().expect("the node runs").id()
    }

    /// Its addresses in files that are written from now on: for clients this one, for nodes a free one.
    pub fn move_node(&mut self, id: u64, client: &str) {
        (self.node_mut(id).client, self.node_mut(id).peer) = (client.to_owned(), ports::address());
    }

    fn node_mut(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node of this cluster")
    }

    pub fn network(&self) -> &PeerNetwork {
        self.network.as_ref().expect("started with start_on_network")
    }

    /// Where it listens for the other nodes.
    pub fn peer(&self, id: u64) -> &str {
        &self.nodes[&id].peer
    }

    pub fn endpoint(&self, id: u64) -> &str {
        &self.nodes[&id].client
    }

    pub fn endpoints(&self) -> String {
        let voters = self.nodes.values().filter(|n| !n.learner);
        voters.map(|n| n.client.as_str()).collect::<Vec<_>>().join(",")
    }

    pub async fn status(&self, id: u64) -> Option<Value> {
        http::status(&self.nodes[&id].http).await
    }

    /// A counter or gauge without labels.
    pub async fn metric(&self, id: u64, name: &str) -> u64 {
        let value = || async move {
            let text = http::get(&self.nodes[&id].http, "/metrics").await?;
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            Some(line.unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap())
        };
        eventually(name, SERVING, value).await
    }

    /// The sum of a counter over all running nodes.
    pub async fn metric_of_all(&self, name: &str) -> u64 {
        let mut sum = 0;
        for id in self.ids().into_iter().filter(|id| self.nodes[id].process.is_some()) {
            sum += self.metric(id, name).await;
        }
        sum
    }

    pub async fn wait_until_serving(&self) {
        for id in self.ids() {
            if self.nodes[&id].process.is_some() {
                self.wait_until_serves(id).await;
            }
        }
    }

    pub async fn wait_until_serves(&self, id: u64) {
        let serves = || async move {
            match self.status(id).await {
                Some(status) => (status["serving"] == true).then_some(()),
                None => http::get(self.http(id), "/readyz").await.map(drop),
            }
        };
        eventually(&format!("node {id} serves"), SERVING, serves).await;
    }

    /// The leader that a node which serves knows, once it serves itself.
    pub async fn leader(&self) -> u64 {
        let found = || async move {
            let mut best = None;
            for id in self.ids() {
                let Some(status) = self.status(id).await else { continue };
                if status["serving"] == true && status["raft"]["role"] == "leader" {
                    best = best.max(Some((status["raft"]["term"].as_u64(), id)));
                }
            }
            best.map(|(_, id)| id)
        };
        eventually("a leader", SERVING, found).await
    }

    /// A node that does not lead.
    pub async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        self.ids().into_iter().find(|id| *id != leader && self.nodes[id].process.is_some()).unwrap()
    }

    /// Waits until all running nodes have applied the same and gives their digest.
    pub async fn wait_for_equal_digests(&self) -> String {
        let equal = || async move {
            let mut seen = Vec::new();
            for id in self.ids().into_iter().filter(|id| self.nodes[id].process.is_some()) {
                let state = self.status(id).await?["state"].clone();
                seen.push((state["applied_index"].as_u64()?, state["digest"].as_str()?.to_owned()));
            }
            let first = seen.first()?.clone();
            if seen.iter().any(|(index, _)| *index != first.0) {
                return None;
            }
            assert!(seen.iter().all(|s| *s == first), "different digests at the same index: {seen:?}");
            Some(first.1)
        };
        eventually("all nodes at the same index", SERVING, equal).await
    }

    /// A client of all voters.
    pub async fn client(&self) -> Client {
        self.client_of(&self.endpoints()).await
    }

    pub async fn client_of(&self, endpoints: &str) -> Client {
        let config =
            Client::builder().endpoints(endpoints).session_timeout(secs(40)).connect_timeout(secs(30));
        config.connect().await.unwrap()
    }

    pub fn log(&self, id: u64) -> String {
        fs::read_to_string(log_path(&self.folder, id)).unwrap_or_default()
    }
}

/// Allows sessions that outlive a slow test, unless the test says otherwise.
fn with_long_sessions(settings: &str) -> String {
    if settings.contains("max_timeout_ms") {
        return settings.to_owned();
    }
    let section = format!("[session]\nmax_timeout_ms = {SESSION_MS}\n");
    match settings.contains("[session]\n") {
        true => settings.replace("[session]\n", &section),
        false => format!("{settings}{section}"),
    }
}

fn log_path(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!("node-{id}.log"))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes.values_mut() {
            if let Some(mut process) = node.process.take() {
                // It may have ended by itself.
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        if std::thread::panicking() {
            for id in self.ids() {
                let log = self.log(id);
                let lines: Vec<&str> = log.lines().collect();
                let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
                eprintln!("--- node {id}, the end of its log:\n{}", tail.join("\n"));
            }
        }
        if std::env::var_os("ROWLOCK_TEST_KEEP").is_some()
            && let Some(temp) = self.temp.take()
        {
            eprintln!("kept: {}", temp.keep().display());
        }
    }
}
