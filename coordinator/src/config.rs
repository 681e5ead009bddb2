//! Types of `cluster.toml`: one file for the whole cluster, the same on every node.
//!
//! Read once at the start of a process (`serve`, `up`, the client commands), and never again.
//! `config/parse.rs` parses the file, `config/check.rs` has the rules. A mistake is refused with the file,
//! the line, the key and the remedy.
//!
//! Must never guess. An unknown key is an error: an operator notices an ignored, misspelt timeout only at the
//! worst moment.

mod api;
mod audit;
mod autopilot;
mod backup;
mod check;
mod discovery;
mod limits;
mod log;
mod parse;
mod secrets;
mod security;
mod upgrade;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use rowlock_consensus::config::RaftConfig;
use rowlock_env::disk::Dir;
pub use rowlock_history::HistoryConfig;
use rowlock_proto::NodeId;
use rowlock_types::versions::Versions;
use rowlock_wal::SEGMENT_BYTES;
use serde::{Deserialize, Serialize};

pub use audit::AuditConfig;
pub use autopilot::AutopilotConfig;
pub use backup::BackupConfig;
pub use discovery::Discovery;
pub use limits::LimitsConfig;
pub use log::LogConfig;
pub use security::{ClientAuth, PeerConfig, PeerSecurity, TlsFiles};
pub use upgrade::{Finalize, UpgradeConfig};

/// The contents of `cluster.toml`, with defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// Name of the cluster; data folders and peers of another name are refused.
    pub name: String,
    /// Parent of the data folders that the file does not name. `None` after parsing.
    #[serde(skip_serializing)]
    pub(crate) data: Option<PathBuf>,
    /// Level and filters of the nodes' logs.
    #[serde(deserialize_with = "log::level_or_table")]
    pub log: LogConfig,
    /// The nodes, in the order of the file.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeEntry>,
    /// Bounds of session timeouts.
    pub session: SessionConfig,
    /// Timers of replication, snapshots, polling.
    pub raft: RaftConfig,
    /// Files of the nodes' certificates; `{id}` in a path stands for the node's number.
    pub tls: Option<TlsFiles>,
    /// Authentication between the nodes.
    pub peer: PeerConfig,
    /// Limits and authentication of clients.
    pub client: ClientConfig,
    /// Sweeps of containers, and quotas.
    pub znodes: ZnodesConfig,
    /// Retention of the lock history.
    pub history: HistoryConfig,
    /// Hosts, TLS and tokens of HTTP.
    pub http: HttpConfig,
    /// File, events and retention of the audit log.
    pub audit: AuditConfig,
    /// Scheduled backups by the leader.
    pub backup: BackupConfig,
    /// Finalization of the cluster's upgrades.
    pub upgrade: UpgradeConfig,
    /// Automatic membership changes by the leader.
    pub autopilot: AutopilotConfig,
    /// Discovery by seeds, instead of a list of all nodes.
    #[serde(rename = "cluster")]
    pub discovery: Option<Discovery>,
    /// Bounds on the memory and disk that clients can make a node use.
    pub limits: LimitsConfig,
    /// Legal but unwise settings (an even number of voters, HTTP beyond loopback), to be logged at WARN.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// One `[[node]]` of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// Number of the node, 1 to 254.
    pub id: NodeId,
    /// `host:port` for clients without TLS. Each node has this address or `secure_client_addr`, or both.
    #[serde(rename = "client")]
    pub client_addr: Option<String>,
    /// `host:port` for clients with TLS.
    #[serde(rename = "secure_client")]
    pub secure_client_addr: Option<String>,
    /// `host:port` for the other nodes.
    #[serde(rename = "peer")]
    pub peer_addr: String,
    /// `host:port` for health, metrics and reports.
    #[serde(rename = "http", default)]
    pub http_addr: String,
    /// `host:port` for locks by HTTP. `None`: not served.
    #[serde(rename = "api")]
    pub api_addr: Option<String>,
    /// Listen address for clients, if it differs from `client_addr` (a container, NAT).
    pub client_listen: Option<String>,
    /// Listen address for clients with TLS, if it differs from `secure_client_addr`.
    pub secure_client_listen: Option<String>,
    /// Listen address for the other nodes, if it differs from `peer_addr`.
    pub peer_listen: Option<String>,
    /// This node's data folder.
    #[serde(rename = "data", default)]
    pub data_dir: PathBuf,
    /// Replicates without a vote.
    #[serde(default)]
    pub learner: bool,
}

/// Section `[session]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// Shortest session timeout a client can get.
    pub min_timeout_ms: u32,
    /// Longest session timeout a client can get.
    pub max_timeout_ms: u32,
}

/// Section `[client]` of `cluster.toml`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Maximum open connections of one node. Beyond: the node closes a new connection at once.
    pub max_connections: usize,
    /// Maximum connections of one client address, loopback excepted. Beyond: likewise. 0: no bound.
    pub max_connections_per_address: usize,
    /// Maximum new sessions per second of one node, with bursts of five times as many. Beyond: the node
    /// closes their connections. 0: no bound.
    pub new_sessions_per_second: u32,
    /// Enabled four-letter words; `*` stands for all.
    pub words: Vec<String>,
    /// `super:<base64 of sha1>`, ZooKeeper's superDigest: a client with this digest passes every ACL.
    pub super_digest: Option<String>,
    /// Users that may authenticate by SASL (DIGEST-MD5), with their passwords.
    pub sasl_users: BTreeMap<String, String>,
    /// Allows superusers to change the membership by reconfig.
    pub reconfig: bool,
    /// Serves reads without a quorum to consenting clients.
    pub read_only_mode: bool,
    /// Refuses requests of unauthenticated clients (ZooKeeper's `enforce.auth`).
    pub require_auth: bool,
    /// Client certificates at the listener with TLS.
    pub client_auth: ClientAuth,
    /// Subjects of superusers' certificates (RFC 2253, as Java prints them).
    pub x509_superusers: Vec<String>,
    /// File with `super_digest`. `None` after parsing.
    #[serde(skip_serializing)]
    pub(crate) super_digest_file: Option<PathBuf>,
    /// File with lines `user:password`. `None` after parsing.
    #[serde(skip_serializing)]
    pub(crate) sasl_users_file: Option<PathBuf>,
}

/// Formats the configuration without its secrets, for logs.
impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The full pattern makes the compiler name each new field.
        let ClientConfig {
            max_connections,
            max_connections_per_address,
            new_sessions_per_second,
            words,
            super_digest,
            sasl_users,
            reconfig,
            read_only_mode,
            require_auth,
            client_auth,
            x509_superusers,
            super_digest_file: _,
            sasl_users_file: _,
        } = self;
        f.debug_struct("ClientConfig")
            .field("max_connections", max_connections)
            .field("max_connections_per_address", max_connections_per_address)
            .field("new_sessions_per_second", new_sessions_per_second)
            .field("words", words)
            .field("super_digest", &super_digest.as_ref().map(|_| "(secret)"))
            .field("sasl_users", &sasl_users.keys())
            .field("reconfig", reconfig)
            .field("read_only_mode", read_only_mode)
            .field("require_auth", require_auth)
            .field("client_auth", client_auth)
            .field("x509_superusers", x509_superusers)
            .finish()
    }
}

/// Section `[znodes]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZnodesConfig {
    /// Interval of the leader's search for removable containers and TTL znodes.
    pub sweep_interval_ms: u64,
    /// Refuses writes beyond hard quotas. The leader's value counts, for all nodes.
    pub enforce_quota: bool,
}

/// Section `[http]` of `cluster.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Allowed `Host` names, besides IP addresses, localhost and the hosts of the nodes' `http`.
    pub hosts: Vec<String>,
    /// Serves HTTPS, with the certificates of `[tls]`.
    pub tls: bool,
    /// File of the bearer tokens that identify clients.
    pub token_file: Option<PathBuf>,
    /// Serves locks and znodes also at the nodes' `http` addresses.
    pub api: bool,
}

impl HttpConfig {
    /// Returns whether all clients but probes must authenticate.
    pub fn is_closed(&self) -> bool {
        self.tls || self.token_file.is_some()
    }
}

/// Configuration of a node: the listeners, and the whole `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Number of this node, 1 to 254.
    pub id: NodeId,
    /// Listen address for clients without TLS; `nodes` has the public address.
    pub client_addr: Option<String>,
    /// Listen address for clients with TLS; `nodes` has the public address.
    pub secure_client_addr: Option<String>,
    /// Listen address for the other nodes; `nodes` has the public address.
    pub peer_addr: String,
    /// Listen address for HTTP.
    pub http_addr: String,
    /// Listen address for locks by HTTP.
    pub api_addr: Option<String>,
    /// Path of this node's data folder.
    pub data_dir: PathBuf,
    /// Replicates without a vote.
    pub learner: bool,
    /// Settings of the cluster, accessible as fields of this type as well (`config.session`). The nodes are
    /// ordered by id; with `discovery` the list has only this node. The certificates are this node's.
    pub file: ClusterConfig,
    /// Size of a log segment in bytes. Not in `cluster.toml`: only tests with many small clusters need less.
    pub log_segment_bytes: u64,
    /// Supported versions of the cluster. Not in `cluster.toml`, and not for embedders: the code of a release
    /// decides. Tests of upgrades simulate a later release.
    #[doc(hidden)]
    pub versions: Versions,
}

impl Deref for NodeConfig {
    type Target = ClusterConfig;

    fn deref(&self) -> &ClusterConfig {
        &self.file
    }
}

impl DerefMut for NodeConfig {
    fn deref_mut(&mut self) -> &mut ClusterConfig {
        &mut self.file
    }
}

/// Refusal of a `cluster.toml`, in one line: the place, the mistake, the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {what}; {remedy}", .file.display(), .line.map(|l| format!(":{l}")).unwrap_or_default())]
pub struct ConfigError {
    /// File with the mistake.
    pub file: PathBuf,
    /// Line of the mistake, counted from 1, if known.
    pub line: Option<usize>,
    /// Mistake, with its key.
    pub what: String,
    /// Next step for the operator.
    pub remedy: String,
}

impl Default for SessionConfig {
    /// Sets ZooKeeper's 2 and 20 ticks of 2 s.
    fn default() -> Self {
        SessionConfig { min_timeout_ms: 4_000, max_timeout_ms: 40_000 }
    }
}

impl SessionConfig {
    /// Returns the session timeout granted for a request of `wanted`.
    pub fn clamp(&self, wanted: Duration) -> Duration {
        wanted.clamp(
            Duration::from_millis(self.min_timeout_ms.into()),
            Duration::from_millis(self.max_timeout_ms.into()),
        )
    }
}

impl Default for ClientConfig {
    /// Sets ZooKeeper's `maxClientCnxns` and `4lw.commands.whitelist`, and a throttle that only floods reach.
    fn default() -> Self {
        ClientConfig {
            max_connections: 20_000,
            max_connections_per_address: 60,
            new_sessions_per_second: 2_000,
            words: vec!["srvr".to_owned()],
            super_digest: None,
            sasl_users: BTreeMap::new(),
            reconfig: true,
            read_only_mode: false,
            require_auth: false,
            client_auth: ClientAuth::Need,
            x509_superusers: Vec::new(),
            super_digest_file: None,
            sasl_users_file: None,
        }
    }
}

impl Default for ZnodesConfig {
    /// Sets ZooKeeper's `znode.container.checkIntervalMs` and `enforceQuota`.
    fn default() -> Self {
        ZnodesConfig { sweep_interval_ms: 60_000, enforce_quota: false }
    }
}

impl NodeEntry {
    /// Creates a voter without an API, with listeners for clients without TLS, for other nodes and for HTTP.
    pub fn new(id: NodeId, [client, peer, http]: [String; 3], data_dir: PathBuf) -> NodeEntry {
        NodeEntry {
            id,
            client_addr: Some(client),
            secure_client_addr: None,
            peer_addr: peer,
            http_addr: http,
            api_addr: None,
            client_listen: None,
            secure_client_listen: None,
            peer_listen: None,
            data_dir,
            learner: false,
        }
    }

    /// Returns the address of locks by HTTP, if the node serves them.
    pub fn any_api_addr(&self, http: &HttpConfig) -> Option<&str> {
        self.api_addr.as_deref().or_else(|| http.api.then_some(self.http_addr.as_str()))
    }

    /// Returns the client address: without TLS if the node has one, else with TLS.
    pub fn any_client_addr(&self) -> &str {
        self.client_addr.as_deref().or(self.secure_client_addr.as_deref()).unwrap_or_default()
    }
}

impl NodeConfig {
    /// Builds the configuration of the node with this entry.
    pub(crate) fn of(entry: &NodeEntry, file: ClusterConfig) -> NodeConfig {
        let listen =
            |listen: &Option<String>, found: &Option<String>| listen.as_ref().or(found.as_ref()).cloned();
        NodeConfig {
            id: entry.id,
            client_addr: listen(&entry.client_listen, &entry.client_addr),
            secure_client_addr: listen(&entry.secure_client_listen, &entry.secure_client_addr),
            peer_addr: entry.peer_listen.as_ref().unwrap_or(&entry.peer_addr).clone(),
            http_addr: entry.http_addr.clone(),
            api_addr: entry.api_addr.clone(),
            data_dir: entry.data_dir.clone(),
            learner: entry.learner,
            file,
            log_segment_bytes: SEGMENT_BYTES,
            versions: Versions::of_this_release(),
        }
    }

    /// Returns the allowed `Host` names: those of `[http]`, and the hosts of all nodes' `http` and `api`.
    pub(crate) fn http_hosts(&self) -> Arc<[String]> {
        let addresses = self.nodes.iter().flat_map(|node| node.api_addr.iter().chain([&node.http_addr]));
        let of_nodes = addresses.filter_map(|address| Some(address.rsplit_once(':')?.0.to_owned()));
        self.http.hosts.iter().cloned().chain(of_nodes).collect()
    }
}

impl ClusterConfig {
    /// Reads and checks a file. Resolves relative data folders against the folder of the file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |what: String| ConfigError {
            file: path.to_owned(),
            line: None,
            what,
            remedy: "give the path of a cluster.toml with --config".to_owned(),
        };
        let (folder, name) =
            secrets::place_of(path).ok_or_else(|| unreadable("this is not the name of a file".to_owned()))?;
        let cannot = |e: std::io::Error| unreadable(format!("cannot be read: {e}"));
        let dir = Dir::open(folder).map_err(cannot)?;
        let bytes = dir.read(name).map_err(cannot)?;
        let text =
            String::from_utf8(bytes).map_err(|_| unreadable("is not a text file in UTF-8".to_owned()))?;
        // This checks only the file itself; files that hold secrets are checked when read.
        let has_secrets = parse::has_secrets(&text);
        if has_secrets && dir.is_open_to_others(name).map_err(cannot)? {
            return Err(ConfigError {
                remedy: format!(
                    "chmod 600 {}, or name files for them: super_digest_file, sasl_users_file",
                    path.display()
                ),
                ..unreadable(
                    "has secrets, and can be read or written by other users of this machine".to_owned(),
                )
            });
        }
        Self::parse(&text, path)
    }

    /// Checks the text of a file. `path` serves as the base of relative data folders, and names the file in
    /// errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::parse_with(text, path, &secrets::read_private)
    }

    /// Checks the text with another reader of the secrets' files: for the fuzz targets.
    #[doc(hidden)]
    pub fn parse_with(
        text: &str,
        path: &Path,
        read: &dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ConfigError> {
        let config = parse::parse(text, path, read)?;
        debug_assert!(!config.nodes.is_empty(), "check refuses a file without nodes");
        Ok(config)
    }

    /// Returns the configuration of node `id`, or `None` if the file has no such node.
    pub fn node(&self, id: NodeId) -> Option<NodeConfig> {
        let entry = self.nodes.iter().find(|n| n.id == id)?;
        let mut file = self.clone();
        file.nodes.sort_by_key(|n| n.id);
        if file.discovery.is_some() {
            file.nodes.retain(|n| n.id == id);
        }
        file.tls = self.tls.as_ref().map(|files| security::of_node(files, id));
        Some(NodeConfig::of(entry, file))
    }

    /// Returns the client addresses of all nodes, in the form of `--endpoints`.
    pub fn endpoints(&self) -> String {
        let addresses: Vec<&str> = self.nodes.iter().map(NodeEntry::any_client_addr).collect();
        addresses.join(",")
    }

    /// Formats this configuration as a file.
    pub fn to_toml(&self) -> String {
        parse::print(self)
    }
}
