//! Running cluster of `up`: nodes as child processes, their status, and the printed tables and hints.
//!
//! Invariant: no node outlives `up`. Dropping a handle kills the node, and each node asks the kernel for
//! SIGTERM when this process ends without dropping anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rowlock_client::{Client, ClientBuilder};
use rowlock_coordinator::config::ClusterConfig;
use rowlock_env::time::{self, Instant};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::folder::{CertPaths, Folder, TOKEN};
use crate::exit::{Failure, IO, SOFTWARE, UNAVAILABLE};
use crate::http_get;
use crate::lock::SELF_EXE;
use crate::paint::{Paint, Progress};
use crate::print::outln;
use crate::status::{self, Report};
use crate::table::table;

/// Longest start: recovery, election and catching up take a second or two, more with a slow disk.
const SERVING_DEADLINE: Duration = Duration::from_secs(60);
/// Longest hint command aligned with the rest.
const HINT_WIDTH: usize = 80;
const POLL: Duration = Duration::from_millis(50);
/// Shortest life of a healthy node: a node that ends sooner has a problem that a restart does not solve, and
/// gets a few tries.
const SHORT_LIFE: Duration = Duration::from_secs(2);
const SHORT_LIVES_MAX: u32 = 3;

pub struct Running {
    pub config: ClusterConfig,
    pub folder: Folder,
    pub nodes: Nodes,
    /// Client certificate, if the cluster is encrypted.
    pub cert: Option<CertPaths>,
    /// TLS and token for the nodes' HTTP.
    pub http: http_get::HttpAccess,
    pub paint: Paint,
}

impl Running {
    fn ids(&self) -> Vec<u64> {
        self.config.nodes.iter().map(|node| node.id.0).collect()
    }

    pub fn client(&self) -> ClientBuilder {
        let builder = Client::builder().endpoints(&self.config.endpoints());
        match &self.cert {
            Some(cert) => builder.tls(cert.tls()),
            None => builder,
        }
    }

    pub fn start_all(&mut self) -> Result<(), Failure> {
        self.ids().into_iter().try_for_each(|id| self.start(id))
    }

    pub fn start(&mut self, id: u64) -> Result<(), Failure> {
        self.nodes.start(id, &self.folder.log(id))
    }

    async fn reports(&self) -> Vec<std::io::Result<Report>> {
        let addrs: Vec<String> = self.config.nodes.iter().map(|node| node.http_addr.clone()).collect();
        status::fetch_all(&addrs, &self.http).await
    }

    /// Returns the leader, according to the serving node with the highest term.
    pub async fn leader(&self) -> Option<u64> {
        let reports = self.reports().await;
        let serving = reports.into_iter().flatten().filter(|r| r.serving);
        serving.max_by_key(|r| r.term).and_then(|r| r.leader)
    }

    /// Waits until all nodes serve, with progress at the terminal.
    pub async fn wait_until_serving(&mut self, shows_progress: bool) -> Result<Vec<Report>, Failure> {
        let deadline = time::now() + SERVING_DEADLINE;
        let mut progress = Progress::new(self.paint);
        loop {
            if let Some((id, status)) = self.nodes.ended() {
                progress.done();
                return Err(self.node_failed(id, &status.to_string()));
            }
            let reports = self.reports().await;
            let ids = self.ids();
            let states: Vec<String> =
                ids.iter().zip(&reports).map(|(id, r)| format!("node {id} {}", state_of(r))).collect();
            let serving: Vec<Report> = reports.into_iter().flatten().filter(|r| r.serving).collect();
            if serving.len() == ids.len() && serving.iter().all(|r| r.leader.is_some()) {
                progress.done();
                return Ok(serving);
            }
            if shows_progress {
                progress.show(&states.join(", "));
            }
            if time::now() >= deadline {
                progress.done();
                let problem = format!(
                    "the nodes do not serve after {} s ({})",
                    SERVING_DEADLINE.as_secs(),
                    states.join(", ")
                );
                let log = self.folder.log(ids[0]);
                return Err(Failure::new(
                    UNAVAILABLE,
                    format!("{problem}; their logs are beside {}", log.display()),
                ));
            }
            time::sleep(POLL).await;
        }
    }

    fn node_failed(&self, id: u64, status: &str) -> Failure {
        let log = self.folder.log(id);
        let last_line = self.folder.last_log_line(id).unwrap_or_else(|| "its log is empty".to_owned());
        Failure::new(
            UNAVAILABLE,
            format!("node {id} ended ({status}): {last_line}; its log is {}", log.display()),
        )
    }

    pub fn print_table(&self, reports: &[Report]) {
        let rows: Vec<[String; 5]> = self
            .config
            .nodes
            .iter()
            .zip(reports)
            .map(|(node, report)| {
                let http = format!("{}://{}", self.scheme(), node.http_addr);
                [
                    node.id.to_string(),
                    report.role.clone(),
                    node.any_client_addr().to_owned(),
                    node.peer_addr.clone(),
                    http,
                ]
            })
            .collect();
        for line in table(["node", "role", "clients", "peers", "http"], &rows).lines() {
            outln!("  {line}");
        }
        outln!();
    }

    /// Prints the memory and disk space used by the cluster.
    pub fn print_footprint(&self) {
        let resident: u64 = self.ids().into_iter().filter_map(|id| resident_bytes(self.nodes.pid(id)?)).sum();
        let (memory, disk) = (resident.div_ceil(1_000_000), self.folder.bytes().div_ceil(1_000_000));
        let text = format!("{memory} MB of memory, {disk} MB on disk in {}", self.folder.path().display());
        outln!("  {}\n", self.paint.dim(&text));
    }

    fn scheme(&self) -> &'static str {
        if self.config.http.tls { "https" } else { "http" }
    }

    /// Returns the variables for programs with a client of Rowlock.
    fn exports(&self) -> String {
        let api = self.config.nodes.iter().filter_map(|node| node.any_api_addr(&self.config.http));
        let api = api.map(|api| format!("{}://{api}", self.scheme())).collect::<Vec<_>>().join(",");
        let all = format!("export ROWLOCK_ENDPOINTS={} ROWLOCK_API={api}", self.config.endpoints());
        let token = self.folder.path().join(TOKEN);
        if token.exists() { format!("{all} ROWLOCK_TOKEN=$(cat {})", token.display()) } else { all }
    }

    pub fn print_hints(&self) {
        let curl = self.cert.as_ref().map_or("curl".to_owned(), CertPaths::curl);
        let metrics = format!("{curl} {}://{}/metrics", self.scheme(), self.config.nodes[0].http_addr);
        let acquire = self.config.nodes[0].any_api_addr(&self.config.http).map(|api| {
            let body = "-d '{\"ttl_ms\": 10000}'";
            format!("{curl} {}://{api}/v1/locks/nightly/acquire {body}", self.scheme())
        });
        let kill =
            self.ids().into_iter().find_map(|id| self.nodes.pid(id)).map(|pid| format!("kill -9 {pid}"));
        let http = self.config.nodes[0].any_api_addr(&self.config.http);
        let console = format!("{}://{}/ui/", self.scheme(), http.unwrap_or(&self.config.nodes[0].http_addr));
        let drain = self.ids().last().map_or(String::new(), |id| format!("rowlock drain {id}"));
        let mut hints = vec![
            (&*console, "the console, in a browser"),
            ("rowlock status", "roles, positions, sessions"),
            ("rowlock lock nightly -c 'echo $ROWLOCK_LOCK_TOKEN; sleep 20'", "twice: the second waits"),
            ("rowlock queue nightly", "who holds it, who waits and for whom; rowlock history nightly"),
            ("rowlock create /greeting hello && rowlock get /greeting", "any znode"),
            (&metrics, "or /readyz, /v1/status"),
        ];
        hints.extend(acquire.as_deref().map(|acquire| (acquire, "the same lock by HTTP; docs/rest.md")));
        if self.ids().len() > 1 {
            hints.push((&drain, "move its clients to the other nodes; --undo takes them back"));
        }
        hints.extend(kill.as_deref().map(|kill| (kill, "a node; it is started again here")));
        outln!("{}", self.paint.bold("The cluster stays up until Ctrl-C. In another terminal, try:"));
        outln!("  export ROWLOCK_CONFIG={}", self.folder.config().display());
        if let Some(cert) = &self.cert {
            outln!("  {}", cert.exports());
        }
        outln!("  {}", self.exports());
        let width = hints
            .iter()
            .map(|(command, _)| command.chars().count())
            .filter(|width| *width <= HINT_WIDTH)
            .max()
            .unwrap_or(0);
        for (command, why) in hints {
            outln!("  {command:<width$}  {}", self.paint.dim(&format!("# {why}")));
        }
        let program = std::env::current_exe().unwrap_or_else(|_| "rowlock".into());
        outln!("  {}", self.paint.dim(&format!("rowlock is {}", program.display())));
        let by_tls = if self.cert.is_some() { " by TLS" } else { "" };
        let addresses = self.config.endpoints();
        outln!("  {}", self.paint.dim(&format!("ZooKeeper clients connect{by_tls} to {addresses}")));
    }

    /// Restarts nodes that end, until the process is stopped.
    pub async fn supervise(&mut self) -> Result<ExitCode, Failure> {
        let mut short_lives: BTreeMap<u64, (Instant, u32)> = BTreeMap::new();
        loop {
            time::sleep(POLL).await;
            let Some((id, status)) = self.nodes.ended() else { continue };
            let (started, failures) = short_lives.get(&id).copied().unwrap_or((time::now(), 0));
            let short = failures > 0 && started.elapsed() < SHORT_LIFE;
            let failures = if short { failures + 1 } else { 1 };
            // Gives up on a node that cannot start.
            if failures > SHORT_LIVES_MAX {
                return Err(self.node_failed(id, &status.to_string()));
            }
            outln!("  node {id} ended ({status}): starting it again");
            short_lives.insert(id, (time::now(), failures));
            self.start(id)?;
        }
    }
}

/// Returns the resident memory of a process.
#[expect(
    clippy::disallowed_methods,
    reason = "a file of the system about another process; no node code runs here"
)]
fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

fn state_of(report: &std::io::Result<Report>) -> &'static str {
    match report {
        Ok(r) if r.serving => "serves",
        Ok(r) if r.leader.is_some() => "catches up",
        Ok(_) => "elects",
        Err(_) => "starts",
    }
}

/// Time for a node to transfer its leadership and to flush; then the node is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

pub struct Nodes {
    config: PathBuf,
    log_level: String,
    running: BTreeMap<u64, Child>,
}

impl Nodes {
    /// Creates the handle of the nodes in `config`, none started yet.
    pub fn new(config: PathBuf, log_level: String) -> Self {
        Nodes { config, log_level, running: BTreeMap::new() }
    }

    /// Starts node `id`, with its log appended to `log`. Must be called on the main thread: the kernel ties
    /// the child to the thread that started the child.
    pub fn start(&mut self, id: u64, log: &Path) -> Result<(), Failure> {
        let log =
            append_to(log).map_err(|e| Failure::new(IO, format!("cannot write {}: {e}", log.display())))?;
        let copy = log.try_clone().map_err(|e| Failure::new(IO, format!("cannot share the log: {e}")))?;
        let child = Command::new(SELF_EXE)
            .arg0("rowlock")
            .arg("serve")
            .arg("--config")
            .arg(&self.config)
            .args(["--node", &id.to_string(), "--log", &self.log_level, "--log-format", "text"])
            .args(["--parent", &std::process::id().to_string()])
            // A data folder in our environment was meant for another command.
            .env_remove("ROWLOCK_DATA")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(copy)
            // Ctrl-C goes to this process only, which stops the nodes in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| Failure::new(SOFTWARE, format!("cannot start {SELF_EXE} as node {id}: {e}")))?;
        self.running.insert(id, child);
        Ok(())
    }

    /// Returns the process id of node `id`.
    pub fn pid(&self, id: u64) -> Option<u32> {
        self.running.get(&id).and_then(Child::id)
    }

    pub fn ended(&mut self) -> Option<(u64, ExitStatus)> {
        self.running.iter_mut().find_map(|(id, child)| Some((*id, child.try_wait().ok().flatten()?)))
    }

    /// Sends SIGKILL to node `id` and waits for its end.
    pub async fn kill(&mut self, id: u64) -> Result<(), Failure> {
        let Some(mut child) = self.running.remove(&id) else { return Ok(()) };
        child.kill().await.map_err(|e| Failure::new(SOFTWARE, format!("cannot kill node {id}: {e}")))
    }

    /// Sends SIGTERM to all nodes, and SIGKILL to nodes that do not end in time.
    pub async fn stop(&mut self) {
        let deadline = time::now() + STOP_DEADLINE;
        for child in self.running.values() {
            if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
                // The process may have ended already.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        for (_, mut child) in std::mem::take(&mut self.running) {
            if time::timeout_at(deadline, child.wait()).await.is_err() {
                // Dropping the child would kill it later.
                let _ = child.kill().await;
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a child process needs a descriptor of the system; no node code runs here"
)]
fn append_to(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().create(true).append(true).open(path)
}
