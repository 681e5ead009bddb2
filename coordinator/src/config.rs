//! What `cluster.toml` says: one file for the whole cluster, the same on every node.
//!
//! Read once at the start of a process (`serve`, `up`, the client commands); nothing reads it again. Parsing
//! is in `config/parse.rs`, the rules a file must obey in `config/check.rs`. A mistake is refused with the
//! file, the line, the key and the remedy.
//!
//! Must never do: guess. An unknown key is an error, since a misspelt timeout that is silently ignored is
//! found at the worst moment.

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
use rowlock_proto::NodeId;
pub use rowlock_types::history::HistoryConfig;
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
    /// Parent of the data folders that the file does not name. `None` once these are known.
    #[serde(skip_serializing)]
    pub(crate) data: Option<PathBuf>,
    /// What the nodes log.
    #[serde(deserialize_with = "log::level_or_table")]
    pub log: LogConfig,
    /// The nodes, in the order of the file.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeEntry>,
    /// Bounds of session timeouts.
    pub session: SessionConfig,
    /// Timers of replication, snapshots, polling.
    pub raft: RaftConfig,
    /// The nodes' certificates; `{id}` in a path stands for the number of the node.
    pub tls: Option<TlsFiles>,
    /// Security of the port for nodes.
    pub peer: PeerConfig,
    /// Limits and authentication of clients.
    pub client: ClientConfig,
    /// Sweeps of containers, and quotas.
    pub znodes: ZnodesConfig,
    /// How much lock history is kept.
    pub history: HistoryConfig,
    /// Hosts, TLS and tokens of HTTP.
    pub http: HttpConfig,
    /// What the audit log records, and where.
    pub audit: AuditConfig,
    /// Backups that the leader makes by itself.
    pub backup: BackupConfig,
    /// When an upgrade is finalized.
    pub upgrade: UpgradeConfig,
    /// Changes of the members that the leader makes by itself.
    pub autopilot: AutopilotConfig,
    /// How nodes find each other, if the file does not list them.
    #[serde(rename = "cluster")]
    pub discovery: Option<Discovery>,
    /// Bounds of what clients make a node hold.
    pub limits: LimitsConfig,
    /// What is allowed and yet unwise (an even number of voters, HTTP beyond loopback): to be logged at WARN.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// One `[[node]]` of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// Its number: 1 to 254.
    pub id: NodeId,
    /// `host:port` where clients find it, without TLS. It has this one or `secure_client_addr`, or both.
    #[serde(rename = "client")]
    pub client_addr: Option<String>,
    /// `host:port` where clients find it, with TLS.
    #[serde(rename = "secure_client")]
    pub secure_client_addr: Option<String>,
    /// `host:port` where the other nodes find it.
    #[serde(rename = "peer")]
    pub peer_addr: String,
    /// `host:port` for health, metrics and reports.
    #[serde(rename = "http", default)]
    pub http_addr: String,
    /// `host:port` for locks by HTTP, if it has that.
    #[serde(rename = "api")]
    pub api_addr: Option<String>,
    /// Where it listens for clients, if not at `client_addr` (a container, NAT).
    pub client_listen: Option<String>,
    /// Where it listens for clients with TLS, if not at `secure_client_addr`.
    pub secure_client_listen: Option<String>,
    /// Where it listens for the other nodes, if not at `peer_addr`.
    pub peer_listen: Option<String>,
    /// Its own data folder.
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
    /// Open connections of one node. Beyond: a new connection is closed at once.
    pub max_connections: usize,
    /// Those of one address but loopback. Beyond: likewise. 0: no bound.
    pub max_connections_per_address: usize,
    /// New sessions that this node takes in a second, and five times as many at once. Beyond: their
    /// connections are closed. 0: no bound.
    pub new_sessions_per_second: u32,
    /// Four-letter words that are answered; `*` stands for all.
    pub words: Vec<String>,
    /// `super:<base64 of sha1>`, ZooKeeper's superDigest: who presents it passes every ACL.
    pub super_digest: Option<String>,
    /// Users that may authenticate by SASL (DIGEST-MD5), with their passwords.
    pub sasl_users: BTreeMap<String, String>,
    /// Whether a superuser may change the membership by reconfig.
    pub reconfig: bool,
    /// Whether clients that allow it are served reads while there is no quorum.
    pub read_only_mode: bool,
    /// Nothing is done for a client before it has proven who it is (ZooKeeper's `enforce.auth`).
    pub require_auth: bool,
    /// Whether clients must show a certificate at the listener with TLS.
    pub client_auth: ClientAuth,
    /// Subjects of certificates (RFC 2253, as Java prints them) whose owners pass every ACL.
    pub x509_superusers: Vec<String>,
    /// A file with `super_digest`. `None` once it is read.
    #[serde(skip_serializing)]
    pub(crate) super_digest_file: Option<PathBuf>,
    /// A file with lines `user:password`. `None` once it is read.
    #[serde(skip_serializing)]
    pub(crate) sasl_users_file: Option<PathBuf>,
}

/// A configuration may end in a log: without its secrets.
impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each field by its name, so that a new one is thought of.
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
    /// How often the leader looks for containers and TTL znodes that have served their purpose.
    pub sweep_interval_ms: u64,
    /// Whether hard quotas refuse what goes beyond them. The leader's value counts, for all nodes.
    pub enforce_quota: bool,
}

/// Section `[http]` of `cluster.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Names that requests may be for, besides IP addresses, localhost and the hosts of the nodes' `http`.
    pub hosts: Vec<String>,
    /// By TLS, with the certificates of `[tls]`.
    pub tls: bool,
    /// The file of the tokens by which clients say who they are.
    pub token_file: Option<PathBuf>,
    /// Locks and znodes by HTTP at the nodes' `http`, too.
    pub api: bool,
}

impl HttpConfig {
    /// Whether clients must say who they are, but for probes.
    pub fn is_closed(&self) -> bool {
        self.tls || self.token_file.is_some()
    }
}

/// What one node needs to start: where it listens, and all that `cluster.toml` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// This node's number, 1 to 254.
    pub id: NodeId,
    /// `host:port` to listen on for clients without TLS; the address that others use is in `nodes`.
    pub client_addr: Option<String>,
    /// `host:port` to listen on for clients with TLS; likewise.
    pub secure_client_addr: Option<String>,
    /// `host:port` to listen on for the other nodes; the address that others use is in `nodes`.
    pub peer_addr: String,
    /// `host:port` to listen on for HTTP.
    pub http_addr: String,
    /// `host:port` to listen on for locks by HTTP.
    pub api_addr: Option<String>,
    /// This node's data folder.
    pub data_dir: PathBuf,
    /// Replicates without a vote.
    pub learner: bool,
    /// The settings of the cluster, which are fields of this type as well (`config.session`). The nodes are
    /// ordered by id; with `discovery` there is only this one. The certificates are this node's.
    pub file: ClusterConfig,
    /// How much of the disk the log takes at a time. Not in `cluster.toml`: only tests with many small
    /// clusters have a reason to take less.
    pub log_segment_bytes: u64,
    /// Which versions the node knows. Not in `cluster.toml`, and not for embedders: what a release knows is
    /// in its code. Tests of upgrades let a node be of a release that does not exist.
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

/// Why a `cluster.toml` is refused, in one line: where, what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {what}; {remedy}", .file.display(), .line.map(|l| format!(":{l}")).unwrap_or_default())]
pub struct ConfigError {
    /// The file that has the mistake.
    pub file: PathBuf,
    /// The line, counted from 1, where the mistake has one.
    pub line: Option<usize>,
    /// The mistake, with the key it is about.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Default for SessionConfig {
    /// ZooKeeper's 2 and 20 ticks of 2 s.
    fn default() -> Self {
        SessionConfig { min_timeout_ms: 4_000, max_timeout_ms: 40_000 }
    }
}

impl SessionConfig {
    /// The timeout a client gets that asks for `wanted`.
    pub fn clamp(&self, wanted: Duration) -> Duration {
        wanted.clamp(
            Duration::from_millis(self.min_timeout_ms.into()),
            Duration::from_millis(self.max_timeout_ms.into()),
        )
    }
}

impl Default for ClientConfig {
    /// ZooKeeper's `maxClientCnxns` and `4lw.commands.whitelist`; a throttle that only floods meet.
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
    /// ZooKeeper's `znode.container.checkIntervalMs` and `enforceQuota`.
    fn default() -> Self {
        ZnodesConfig { sweep_interval_ms: 60_000, enforce_quota: false }
    }
}

impl NodeEntry {
    /// A voter that listens for clients without TLS, other nodes and HTTP at these addresses, and has no API.
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

    /// Where it takes locks by HTTP, if it does.
    pub fn any_api_addr(&self, http: &HttpConfig) -> Option<&str> {
        self.api_addr.as_deref().or_else(|| http.api.then_some(self.http_addr.as_str()))
    }

    /// Where clients find it: without TLS if it listens so, else with it.
    pub fn any_client_addr(&self) -> &str {
        self.client_addr.as_deref().or(self.secure_client_addr.as_deref()).unwrap_or_default()
    }
}

impl NodeConfig {
    /// The configuration of the node with this entry.
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

    /// The names that HTTP requests may be for: those of `[http]`, and the hosts of all nodes' `http` and
    /// `api`.
    pub fn http_hosts(&self) -> Arc<[String]> {
        let addresses = self.nodes.iter().flat_map(|node| node.api_addr.iter().chain([&node.http_addr]));
        let of_nodes = addresses.filter_map(|address| Some(address.rsplit_once(':')?.0.to_owned()));
        self.http.hosts.iter().cloned().chain(of_nodes).collect()
    }
}

impl ClusterConfig {
    /// Reads and checks a file. Relative data folders in it are relative to the folder of the file.
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
        // The file alone: secrets in files of their own are looked at where they are read.
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

    /// Checks the text of a file; `path` is only named in errors and the base of relative data folders.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::parse_with(text, path, &secrets::read_private)
    }

    /// The same, with another reader of the files that the text names for its secrets: for the fuzz targets.
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

    /// What the node `id` needs to start, or nothing if the file has no such node.
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

    /// The client addresses of all nodes, as `--endpoints` takes them.
    pub fn endpoints(&self) -> String {
        let addresses: Vec<&str> = self.nodes.iter().map(NodeEntry::any_client_addr).collect();
        addresses.join(",")
    }

    /// The file that says the same as this configuration.
    pub fn to_toml(&self) -> String {
        parse::print(self)
    }
}
