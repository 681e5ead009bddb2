//! `rowlock serve`: runs one node of the cluster in the foreground until SIGINT or SIGTERM. SIGHUP makes the
//! node check its certificates and tokens for changes, and reads the log filter again.
//!
//! The node is selected by id, or by the ordinal at the end of the host's name, as orchestrators number hosts
//! (`rowlock-0`, `rowlock-1`, `rowlock-2`). Each client takes an open file, and some must stay free for the
//! log and the snapshots: a node that cannot open the next segment of its log stops.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use rowlock_coordinator::config::NodeConfig;
use rowlock_coordinator::{BootstrapError, Node, NodeError, StartError};
use rowlock_proto::NodeId;
use rowlock_wal::{StorageError, is_of_the_disk};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use tokio::signal::unix::SignalKind;

use crate::exit::{CONFIG, DATA_FOLDER, Failure, IO, SOFTWARE, UNAVAILABLE, USAGE};
use crate::found;
use crate::logging::LogSink;
use crate::logging::{self, LogFormat, Switch};
use crate::signals::{Stop, listen_unless_ignored, next};
use crate::systemd::Manager;

/// Run one node of a cluster
#[derive(clap::Args)]
pub struct Serve {
    /// Path of cluster.toml, the same on every node [default: cluster.toml]
    #[arg(long, value_name = "FILE", env = "ROWLOCK_CONFIG")]
    config: Option<PathBuf>,
    /// Node id in cluster.toml, or from-hostname: N + 1 on a host whose name ends in -N
    #[arg(long, value_name = "ID", env = "ROWLOCK_NODE")]
    node: WhichNode,
    /// Data folder of this node [default: that of cluster.toml]
    #[arg(long, value_name = "DIR", env = "ROWLOCK_DATA")]
    data: Option<PathBuf>,
    /// Log level (error, warn, info, debug, trace) or filter [default: that of cluster.toml]
    #[arg(long, value_name = "LEVEL", env = "ROWLOCK_LOG")]
    log: Option<String>,
    /// Format of log lines
    #[arg(long, value_enum, env = "ROWLOCK_LOG_FORMAT", default_value_t)]
    log_format: LogFormat,
    /// Exit when this process exits (used by `rowlock up`)
    #[arg(long, hide = true, value_name = "PID")]
    parent: Option<i32>,
}

/// Builds the runtime of a node with half as many threads as processors: the log, the history and other
/// programs of the machine need processors too, and each additional thread is woken for little work. A single
/// thread needs no multi-threaded scheduler (docs/decisions/speed.md). The variable TOKIO_WORKER_THREADS
/// overrides the number.
pub fn runtime() -> tokio::runtime::Builder {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() && processors < 4 {
        return tokio::runtime::Builder::new_current_thread();
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        runtime.worker_threads(processors / 2);
    }
    runtime
}

impl Serve {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let sink = LogSink::start();
        sink.take_panics();
        let ended = self.run_node(&sink).await;
        // The reader of stderr may hang: send the failure through the same sink as log lines.
        let last = ended.as_ref().err().map_or(String::new(), |failure| format!("rowlock: {failure}\n"));
        sink.end(last.as_bytes());
        ended.map_err(|failure| Failure::new(failure.code, ""))
    }

    async fn run_node(self, sink: &LogSink) -> Result<ExitCode, Failure> {
        if let Some(parent) = self.parent {
            exit_with_parent(parent)?;
        }
        let (mut config, warnings, level) = self.node_config()?;
        let writer = sink.clone();
        let writer = move || writer.clone();
        let started = logging::start(self.log.as_deref().unwrap_or(&level), self.log_format, writer);
        let log = started.map_err(|e| match self.log {
            Some(_) => e,
            None => Failure::new(
                CONFIG,
                format!("{}: {e}", found::cluster_path(self.config.as_deref()).display()),
            ),
        })?;
        log_start(&config);
        for warning in warnings {
            tracing::warn!("{}: {warning}", found::cluster_path(self.config.as_deref()).display());
        }
        reserve_files_for_node(&mut config);
        // Libraries create files as well, for example the history's.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        // Listens before the node starts: a signal during recovery would be lost otherwise.
        let mut stop = Stop::listen()?;
        let mut hangup = listen_unless_ignored(SignalKind::hangup())?;
        let mut manager = Manager::from_env();
        let node = Node::start(config).await.map_err(|e| not_started(&e))?;
        node.set_log_switch(log.clone());
        sink.set_metrics(node.metrics());
        manager.ready();
        loop {
            tokio::select! {
                signal = stop.signal() => {
                    tracing::info!(signal, "stopping");
                    manager.stopping();
                    node.shutdown().await;
                    return Ok(ExitCode::SUCCESS);
                }
                // SIGHUP comes from a closed terminal or a request to read files again: go on serving.
                () = next(hangup.as_mut()) => {
                    manager.reloading();
                    self.reload(&node, &log);
                    manager.ready();
                }
                () = manager.keep_notified(&node) => {}
                error = node.stopped() => {
                    node.shutdown().await;
                    return Err(stopped_by_error(&error));
                }
            }
        }
    }

    /// Reloads certificates, tokens and the log filter after SIGHUP.
    fn reload(&self, node: &Node, log: &Switch) {
        let has_files = node.reload_files_soon();
        tracing::info!(
            has_files,
            "SIGHUP: reloading certificates, tokens and the log filter; other settings need a restart"
        );
        // The level given at the start takes precedence over the file.
        if self.log.is_none() {
            let file = found::cluster_file(self.config.as_deref());
            if let Err(error) = file.and_then(|file| log.set_usual(&file.log.level)) {
                tracing::warn!(%error, file = %found::cluster_path(self.config.as_deref()).display(), "cannot reload the log filter; still using the previous one");
            }
        }
    }

    fn node_config(&self) -> Result<(NodeConfig, Vec<String>, String), Failure> {
        let cluster = found::cluster_file(self.config.as_deref())?;
        let id = self.node.id()?;
        let Some(mut node) = cluster.node(NodeId(id)) else {
            let known: Vec<String> = cluster.nodes.iter().map(|n| n.id.to_string()).collect();
            let (file, known) = (found::cluster_path(self.config.as_deref()).display(), known.join(", "));
            return Err(Failure::new(
                USAGE,
                format!("{file} has no node {id}; use --node with one of {known}"),
            ));
        };
        if let Some(own) = &self.data {
            node.data_dir = own.clone();
        }
        Ok((node, cluster.warnings, cluster.log.level))
    }
}

/// Writes the first line of every log: program, node, addresses, members.
fn log_start(config: &NodeConfig) {
    let or_empty = |address: &Option<String>| address.clone().unwrap_or_default();
    let members: Vec<String> =
        config.nodes.iter().map(|node| format!("{}@{}", node.id, node.peer_addr)).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        commit = rowlock_state::version::COMMIT,
        cluster = config.name,
        node = %config.id,
        client = or_empty(&config.client_addr),
        secure_client = or_empty(&config.secure_client_addr),
        peer = config.peer_addr,
        http = config.http_addr,
        api = or_empty(&config.api_addr),
        data = %config.data_dir.display(),
        members = members.join(","),
        "node starts"
    );
}

/// Limits the clients, each of which takes an open file, to leave some files for the node itself.
fn reserve_files_for_node(config: &mut NodeConfig) {
    let limit = raise();
    let wanted = config.client.max_connections;
    if let Some(allowed) = clients_below(wanted, limit) {
        let text = "max_connections lowered to fit the limit of open files: raise the hard limit (LimitNOFILE= in \
                    systemd's unit, ulimit -Hn in a shell)";
        // A hard limit of 20,000 lacks a few files of the default: no reason to warn.
        if allowed < wanted / 2 {
            tracing::warn!(allowed, wanted, files = limit, "{text}");
        } else {
            tracing::info!(allowed, wanted, files = limit, "{text}");
        }
        config.client.max_connections = allowed;
    }
}

/// Maps the cause of a failed start to an exit code. A supervisor restarts the node after a disk error (74),
/// but not after an error that needs a person.
fn not_started(e: &StartError) -> Failure {
    match e {
        StartError::Storage(error) if error.is_of_the_disk() => Failure::new(IO, e),
        StartError::Storage(StorageError::Io { .. }) => {
            Failure::new(DATA_FOLDER, format!("{e} Or name another folder with --data."))
        }
        StartError::Audit(error) if is_of_the_disk(error.kind()) => Failure::new(IO, e),
        StartError::Disk(_) => Failure::new(IO, e),
        StartError::Storage(_) | StartError::Audit(_) => Failure::new(DATA_FOLDER, e),
        StartError::Listen { .. } => Failure::new(UNAVAILABLE, e),
        StartError::Tls(_)
        | StartError::Tokens(_)
        | StartError::Insecure { .. }
        | StartError::NotBuilt { .. }
        | StartError::NoClients => Failure::new(CONFIG, e),
        StartError::Raft(_) => Failure::new(SOFTWARE, e),
    }
}

fn stopped_by_error(e: &NodeError) -> Failure {
    let code = match e {
        NodeError::Disk(_) | NodeError::Bootstrap(BootstrapError::Disk(_)) | NodeError::LeftBehind => IO,
        NodeError::Bootstrap(_) | NodeError::OtherRelease(_) => DATA_FOLDER,
        NodeError::Raft(_) | NodeError::Differs(_) => SOFTWARE,
    };
    Failure::new(code, e)
}

/// Asks the kernel for SIGTERM when the parent process ends for any reason.
fn exit_with_parent(parent: i32) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|e| Failure::new(SOFTWARE, format!("cannot be tied to process {parent}: {e}")))?;
    // The parent may have ended between the start of this process and the line above.
    match getppid() {
        Some(now) if Pid::from_raw(parent) == Some(now) => Ok(()),
        _ => Err(Failure::new(USAGE, format!("process {parent} is not our parent, or has already ended"))),
    }
}

/// Files of a node besides its clients: other nodes (`limits::PEER_CONNECTIONS_MAX` and its own), HTTP
/// (`limits::HTTP_CONNECTIONS_MAX`), log, snapshots, history.
const NODE_FILES: u64 = 768;

/// Raises the limit to the hard limit and returns the result.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Ignores a refusal: the present limit is returned below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the number of clients allowed by `limit`, if less than `wanted`.
fn clients_below(wanted: usize, limit: u64) -> Option<usize> {
    let allowed = usize::try_from(limit.saturating_sub(NODE_FILES).max(1)).unwrap_or(usize::MAX);
    (allowed < wanted).then_some(allowed)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichNode {
    Number(u64),
    /// Node N + 1 on host `NAME-N`: ids begin with 1.
    FromHostname,
}

impl FromStr for WhichNode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "from-hostname" => Ok(WhichNode::FromHostname),
            number => number.parse().map(WhichNode::Number).map_err(|_| {
                "use the node's id, or from-hostname for a host whose name ends in -0, -1, ...".to_owned()
            }),
        }
    }
}

impl WhichNode {
    /// Resolves the option to a node id.
    ///
    /// # Errors
    /// The host's name does not end in an ordinal.
    pub fn id(self) -> Result<u64, Failure> {
        match self {
            WhichNode::Number(id) => Ok(id),
            WhichNode::FromHostname => {
                let host = rustix::system::uname();
                let name = host.nodename().to_string_lossy();
                id_of_host(&name).ok_or_else(|| {
                    let problem = "does not end in -0, -1, ...; use --node ID";
                    Failure::new(USAGE, format!("the name of this host, {name}, {problem}"))
                })
            }
        }
    }
}

/// Parses the ordinal in the first label of the name: the rest is the domain.
fn id_of_host(name: &str) -> Option<u64> {
    let host = name.split('.').next()?;
    let (_, ordinal) = host.rsplit_once('-')?;
    // A sign, a leading zero or more than three digits belong to a name, not to an ordinal.
    let is_ordinal = ordinal.len() <= 3 && ordinal.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = ordinal.parse().ok().filter(|_| is_ordinal)?;
    (number.to_string() == ordinal).then_some(number + 1)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use rowlock_wal::Identity;

    use super::*;

    fn io(source: Error) -> StartError {
        StartError::Storage(StorageError::Io { action: "creating", path: "/data".into(), source })
    }

    /// Checks the exit codes against systemd's unit, which restarts a node except after 64, 70, 73 and 78.
    #[test]
    fn a_start_that_fails_has_the_exit_code_of_its_cause() {
        let exposed = |kind: ErrorKind| StorageError::Exposed { path: "/data".into(), source: kind.into() };
        let (damaged, why) = (StorageError::KnownNodes { path: "/data".into() }, "why".to_owned());
        let found = Identity { cluster: "a".to_owned(), node: NodeId(1) };
        let expected = Identity { cluster: "b".to_owned(), node: NodeId(1) };
        let others = StorageError::NotOurs { path: "/data".into(), found, expected };
        let listen = || Error::from(ErrorKind::AddrInUse);
        for (error, code) in [
            // Disk full or failing.
            (io(ErrorKind::StorageFull.into()), IO),
            (io(ErrorKind::QuotaExceeded.into()), IO),
            (io(ErrorKind::ReadOnlyFilesystem.into()), IO),
            (io(Error::from_raw_os_error(5)), IO),
            (io(Error::other("no such device")), IO),
            (io(ErrorKind::UnexpectedEof.into()), IO),
            (exposed(ErrorKind::ReadOnlyFilesystem).into(), IO),
            (StartError::Audit(ErrorKind::StorageFull.into()), IO),
            (StartError::Disk(why.clone()), IO),
            // Folder to be corrected by a person.
            (io(ErrorKind::PermissionDenied.into()), DATA_FOLDER),
            (io(ErrorKind::NotADirectory.into()), DATA_FOLDER),
            (exposed(ErrorKind::PermissionDenied).into(), DATA_FOLDER),
            (damaged.into(), DATA_FOLDER),
            (others.into(), DATA_FOLDER),
            (StorageError::InUse("/data".into()).into(), DATA_FOLDER),
            (StartError::Audit(ErrorKind::PermissionDenied.into()), DATA_FOLDER),
            // Neither disk nor folder.
            (
                StartError::Listen { address: why.clone(), purpose: "HTTP", source: listen(), remedy: "" },
                UNAVAILABLE,
            ),
            (StartError::NoClients, CONFIG),
            (StartError::NotBuilt { setting: "api", feature: "access" }, CONFIG),
            (StartError::Tokens(why.clone()), CONFIG),
            (StartError::Raft(why.clone()), SOFTWARE),
        ] {
            let failure = not_started(&error);
            assert_eq!(failure.code, code, "{error:?}");
            assert_eq!(
                failure.message.contains("--data"),
                matches!(&error, StartError::Storage(StorageError::Io { .. }) if code == DATA_FOLDER)
            );
        }
        let unit = include_str!("../../deploy/rowlock.service");
        assert!(
            unit.contains("\nRestart=on-failure\n")
                && unit.contains("\nRestartPreventExitStatus=64 70 73 78\n")
        );
    }

    #[test]
    fn a_disk_error_of_a_running_node_has_the_same_exit_code() {
        let disk = || StorageError::Io {
            action: "writing",
            path: "/data".into(),
            source: Error::from_raw_os_error(5),
        };
        for (error, code) in [
            (NodeError::Disk("why".to_owned()), IO),
            (BootstrapError::from(disk()).into(), IO),
            (BootstrapError::from(StorageError::KnownNodes { path: "/data".into() }).into(), DATA_FOLDER),
            (BootstrapError::NotAMember { node: NodeId(1) }.into(), DATA_FOLDER),
            (NodeError::Raft("why".to_owned()), SOFTWARE),
        ] {
            assert_eq!(stopped_by_error(&error).code, code, "{error:?}");
        }
    }

    #[test]
    fn clients_leave_files_for_the_node_itself() {
        assert_eq!(clients_below(20_000, 1_048_576), None);
        assert_eq!(clients_below(20_000, 20_768), None);
        assert_eq!(clients_below(20_000, 20_000), Some(19_232));
        assert_eq!(clients_below(20_000, 100), Some(1));
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        let limit = raise();
        assert_eq!(Some(limit), getrlimit(Resource::Nofile).maximum.or(Some(u64::MAX)));
    }

    #[test]
    fn the_ordinal_of_a_host_gives_the_id() {
        for (name, id) in [
            ("rowlock-0", Some(1)),
            ("rowlock-2", Some(3)),
            ("rowlock-10.rowlock.default.svc.cluster.local", Some(11)),
            ("my-lock-1", Some(2)),
            ("rowlock", None),
            ("rowlock-", None),
            ("rowlock-00", None),
            ("rowlock-+1", None),
            ("rowlock-01", None),
            ("rowlock-1a", None),
            ("rowlock-20261123", None),
            ("rowlock.host-1", None),
            ("", None),
        ] {
            assert_eq!(id_of_host(name), id, "{name}");
        }
    }

    #[test]
    fn a_node_is_named_by_its_number_or_by_its_host() {
        assert_eq!("7".parse(), Ok(WhichNode::Number(7)));
        assert_eq!("from-hostname".parse(), Ok(WhichNode::FromHostname));
        assert!("hostname".parse::<WhichNode>().unwrap_err().contains("from-hostname"));
        assert!("-1".parse::<WhichNode>().is_err());
    }
}
