//! `rowlock serve`: one node of the cluster, in the foreground, until SIGINT or SIGTERM. SIGHUP has
//! certificates and tokens looked at, and the filter of the log read again.

use std::path::PathBuf;
use std::process::ExitCode;

use rowlock_coordinator::config::NodeConfig;
use rowlock_coordinator::node::{Node, NodeError, StartError};
use rowlock_proto::NodeId;
use rowlock_wal::StorageError;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::signal::unix::SignalKind;

use crate::exit::{CONFIG, DATA_FOLDER, Failure, IO, SOFTWARE, UNAVAILABLE, USAGE};
use crate::found;
use crate::log_sink::LogSink;
use crate::logging::{self, LogFormat, Switch};
use crate::open_files;
use crate::signals::{Stop, hear_unless_ignored, next};
use crate::systemd::Manager;
use crate::which_node::WhichNode;

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

/// The runtime of a node: half as many threads as there are processors, because the log, the history and the
/// other programs of the machine need some as well, and because the threads wake each additional one for
/// little work. One thread needs no multi-threaded scheduler (docs/decisions/speed.md). The variable
/// TOKIO_WORKER_THREADS overrides this.
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
        // The reader of stderr may hang: a failure goes the way of the log lines.
        let last = ended.as_ref().err().map_or(String::new(), |failure| format!("rowlock: {failure}\n"));
        sink.end(last.as_bytes());
        ended.map_err(|failure| Failure::new(failure.code, ""))
    }

    async fn run_node(self, sink: &LogSink) -> Result<ExitCode, Failure> {
        if let Some(parent) = self.parent {
            end_with(parent)?;
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
        say_what_starts(&config);
        for warning in warnings {
            tracing::warn!("{}: {warning}", found::cluster_path(self.config.as_deref()).display());
        }
        leave_files_for_the_node(&mut config);
        // What libraries make for us, too: the history's files.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        // Before the node starts, so that a signal during recovery is not lost.
        let mut stop = Stop::listen()?;
        let mut hangup = hear_unless_ignored(SignalKind::hangup())?;
        let mut manager = Manager::from_env();
        let node = Node::start(config).await.map_err(|e| not_started(&e))?;
        node.log_is_switched_by(log.clone());
        sink.count_in(node.metrics());
        manager.ready();
        loop {
            tokio::select! {
                signal = stop.signal() => {
                    tracing::info!(signal, "stopping");
                    manager.stopping();
                    node.shutdown().await;
                    return Ok(ExitCode::SUCCESS);
                }
                // A closed terminal, or a request to read files again: no reason to stop serving.
                () = next(hangup.as_mut()) => {
                    manager.reloading();
                    self.hang_up(&node, &log);
                    manager.ready();
                }
                () = manager.accompany(&node) => {}
                error = node.stopped() => {
                    node.shutdown().await;
                    return Err(stopped_by_itself(&error));
                }
            }
        }
    }

    /// What SIGHUP is for.
    fn hang_up(&self, node: &Node, log: &Switch) {
        let looks = if node.look_at_files() {
            "looking at certificates and tokens"
        } else {
            "there are no certificates and no tokens"
        };
        tracing::info!(
            "SIGHUP: {looks}; of the file only `log` is read again, restart the node for the rest"
        );
        // What was said at the start goes before the file.
        if self.log.is_none() {
            let file = found::cluster_file(self.config.as_deref());
            if let Err(error) = file.and_then(|file| log.set_usual(&file.log.level)) {
                tracing::warn!(%error, file = %found::cluster_path(self.config.as_deref()).display(), "the filter of the log stays as it was");
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

/// The first line of every log: which program, which node, where.
fn say_what_starts(config: &NodeConfig) {
    let or_none = |address: &Option<String>| address.clone().unwrap_or_default();
    let members: Vec<String> =
        config.nodes.iter().map(|node| format!("{}@{}", node.id, node.peer_addr)).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        commit = crate::version::COMMIT,
        cluster = config.name,
        node = %config.id,
        client = or_none(&config.client_addr),
        secure_client = or_none(&config.secure_client_addr),
        peer = config.peer_addr,
        http = config.http_addr,
        api = or_none(&config.api_addr),
        data = %config.data_dir.display(),
        members = members.join(","),
        "node starts"
    );
}

/// Each client takes an open file: limits the clients so that some files are left for the node itself.
fn leave_files_for_the_node(config: &mut NodeConfig) {
    let limit = open_files::raise();
    let wanted = config.client.max_connections;
    if let Some(allowed) = open_files::clients_below(wanted, limit) {
        let text = "max_connections lowered to fit the limit of open files: raise the hard limit (LimitNOFILE= in \
                    systemd's unit, ulimit -Hn in a shell)";
        // A hard limit of 20,000 lacks a few files of the default; that alone is no reason to warn.
        if allowed < wanted / 2 {
            tracing::warn!(allowed, wanted, files = limit, "{text}");
        } else {
            tracing::info!(allowed, wanted, files = limit, "{text}");
        }
        config.client.max_connections = allowed;
    }
}

fn not_started(e: &StartError) -> Failure {
    if let StartError::Storage(StorageError::Io { .. }) = e {
        return Failure::new(DATA_FOLDER, format!("{e} Or name another folder with --data."));
    }
    let code = match e {
        StartError::Storage(_) => DATA_FOLDER,
        StartError::Listen { .. } => UNAVAILABLE,
        StartError::Audit(_) => DATA_FOLDER,
        StartError::Tls(_) | StartError::Tokens(_) | StartError::Insecure { .. } | StartError::NoClients => {
            CONFIG
        }
        StartError::Raft(_) => SOFTWARE,
    };
    Failure::new(code, e)
}

fn stopped_by_itself(e: &NodeError) -> Failure {
    let code = match e {
        NodeError::Disk(_) => IO,
        NodeError::Bootstrap(_) | NodeError::OtherRelease(_) => DATA_FOLDER,
        NodeError::Raft(_) | NodeError::Differs(_) => SOFTWARE,
    };
    Failure::new(code, e)
}

/// Asks the kernel to kill this process when its parent ends, in any way.
fn end_with(parent: i32) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|e| Failure::new(SOFTWARE, format!("cannot be tied to process {parent}: {e}")))?;
    // It may have ended between our start and the line above.
    match getppid() {
        Some(now) if Pid::from_raw(parent) == Some(now) => Ok(()),
        _ => Err(Failure::new(USAGE, format!("process {parent} is not our parent, or has already ended"))),
    }
}
