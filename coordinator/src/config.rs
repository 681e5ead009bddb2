//! Configuration: `cluster.toml`, one file for the whole cluster, the same on every node.
//!
//! Read once at the start of a process (`serve`, `up`, the client commands). `config/parse.rs` parses the
//! file and `config/check.rs` checks the rules. An error names the file, the line, the key and the remedy.
//!
//! Must never do: guess. An unknown key is an error, since a misspelled timeout would otherwise be ignored
//! until an incident.

mod check;
mod cluster;
mod duration;
mod node;
mod parse;
mod security;
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use rowlock_consensus::config::RaftConfig;
use rowlock_env::decides;
use rowlock_env::disk::Dir;
use rowlock_proto::NodeId;
use rowlock_state::version::Versions;
use rowlock_wal::SEGMENT_BYTES;
use serde::{Deserialize, Serialize};

pub use cluster::{AutopilotConfig, BackupConfig, Discovery, Finalize, UpgradeConfig};
pub use node::{AcknowledgeLocks, AuditConfig, HistoryConfig, LimitsConfig, LocksConfig, LogConfig};
pub use security::{ClientAuth, PeerConfig, PeerSecurity, TlsFiles};
pub use source::ConfigError;

/// Contents of `cluster.toml`, with defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// Name of the cluster; data folders and peers of another name are refused.
    pub name: String,
    /// Parent of the data folders: node N keeps its files in `data/node-N`.
    // `None` after parsing.
    #[serde(skip_serializing)]
    pub(crate) data: Option<PathBuf>,
    /// Log level and format.
    #[serde(deserialize_with = "node::level_or_table")]
    pub log: LogConfig,
    /// Nodes in the order of the file.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeEntry>,
    /// Bounds of session timeouts.
    pub session: SessionConfig,
    /// Timers of replication, snapshots, polling.
    pub raft: RaftConfig,
    /// Certificates of the nodes; `{id}` in a path is replaced by the node's number.
    pub tls: Option<TlsFiles>,
    /// Security of the port for nodes.
    pub peer: PeerConfig,
    /// Limits and authentication of clients.
    pub client: ClientConfig,
    /// Sweeps of containers, and quotas.
    pub znodes: ZnodesConfig,
    /// Moment of the answers to commands about locks.
    pub locks: LocksConfig,
    /// Retention of the lock history.
    pub history: HistoryConfig,
    /// Hosts, TLS and tokens of HTTP.
    pub http: HttpConfig,
    /// Events and files of the audit log.
    pub audit: AuditConfig,
    /// Scheduled backups by the leader.
    pub backup: BackupConfig,
    /// Who finalizes an upgrade, and when.
    pub upgrade: UpgradeConfig,
    /// Automatic changes of the membership by the leader.
    pub autopilot: AutopilotConfig,
    /// Discovery of the nodes, instead of a list in the file.
    #[serde(rename = "cluster")]
    pub discovery: Option<Discovery>,
    /// Bounds of the memory used for clients.
    pub limits: LimitsConfig,
    /// Warnings about permitted but unwise settings (an even number of voters, HTTP beyond loopback), logged
    /// at WARN.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// One `[[node]]` of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// Number of the node, 1 to 254, never used again after a removal.
    pub id: NodeId,
    /// `host:port` for clients without TLS. A node has this address, `secure_client`, or both.
    #[serde(rename = "client")]
    pub client_addr: Option<String>,
    /// `host:port` for clients with TLS; needs `[tls]`.
    #[serde(rename = "secure_client")]
    pub secure_client_addr: Option<String>,
    /// `host:port` for the other nodes.
    #[serde(rename = "peer")]
    pub peer_addr: String,
    /// `host:port` for health, metrics, reports and the console, port 8080 plus `id` by default. Open unless
    /// `[http]` requires a token or a certificate.
    #[serde(rename = "http", default)]
    pub http_addr: String,
    /// `host:port` for locks and znodes by HTTP: on loopback, or with `tls` and `token_file` of `[http]`.
    #[serde(rename = "api")]
    pub api_addr: Option<String>,
    /// Listen address for clients, if different from `client` (container, NAT).
    pub client_listen: Option<String>,
    /// Listen address for clients with TLS, if different from `secure_client`.
    pub secure_client_listen: Option<String>,
    /// Listen address for the other nodes, if different from `peer`.
    pub peer_listen: Option<String>,
    /// Data folder of the node.
    #[serde(rename = "data", default)]
    pub data_dir: PathBuf,
    /// Replicates without a vote; joins an existing cluster.
    #[serde(default)]
    pub learner: bool,
}

/// Section `[session]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// Shortest session timeout that a client gets, in milliseconds.
    pub min_timeout_ms: u32,
    /// Longest session timeout that a client gets, in milliseconds.
    pub max_timeout_ms: u32,
}

/// Section `[client]` of `cluster.toml`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Open client connections of a node; also at most 768 fewer than the files that the process may open.
    pub max_connections: usize,
    /// Open client connections of one address, except loopback; 0: no bound. Raise it behind NAT or a proxy.
    pub max_connections_per_address: usize,
    /// New sessions per second at a node, with a burst of five times as many, shared by `sessions_share` of
    /// `[limits]`; 0: no bound.
    pub new_sessions_per_second: u32,
    /// Four-letter words that the node answers; `"*"`: all.
    pub words: Vec<String>,
    /// `super:` and the base64 of SHA-1(`super:PASSWORD`): the owner of the password is a superuser and
    /// passes every ACL.
    pub super_digest: Option<String>,
    /// Table `[client.sasl_users]` of users and passwords for DIGEST-MD5. MD5 is weak: use TLS or a private
    /// network.
    pub sasl_users: BTreeMap<String, String>,
    /// Permits superusers to change the membership by ZooKeeper's `reconfig`.
    pub reconfig: bool,
    /// Lets a node without a quorum serve reads to clients that accept read-only sessions.
    pub read_only_mode: bool,
    /// Requires authentication (digest, SASL, certificate) before the first request (ZooKeeper's
    /// `enforce.auth`).
    pub require_auth: bool,
    /// Certificate requirement at `secure_client`: `"need"`, `"want"` or `"none"`.
    pub client_auth: ClientAuth,
    /// Certificate subjects of superusers, as `rowlock tls check` prints them.
    pub x509_superusers: Vec<String>,
    /// File that contains `super_digest`.
    // `None` after reading.
    #[serde(skip_serializing)]
    pub(crate) super_digest_file: Option<PathBuf>,
    /// File with a line `user:password` per SASL user.
    // `None` after reading.
    #[serde(skip_serializing)]
    pub(crate) sasl_users_file: Option<PathBuf>,
}

/// Omits secrets: a configuration may appear in a log.
impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Destructures all fields, so the compiler reports a new field.
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
    /// Milliseconds between the leader's removals of expired TTL znodes, and of containers empty for 5 s (or
    /// this interval, if shorter).
    pub sweep_interval_ms: u64,
    /// Makes hard quotas (`setquota -N`, `-B`) refuse excess writes. The leader's value counts.
    pub enforce_quota: bool,
}

/// Section `[http]` of `cluster.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Permitted host names of requests, besides IP addresses, localhost and the hosts of the nodes' `http`
    /// and `api`. Requests for other hosts get 421 (DNS rebinding). With `tls` any name of the certificate
    /// will do.
    pub hosts: Vec<String>,
    /// Uses TLS with the certificates of `[tls]`.
    pub tls: bool,
    /// File of tokens (mode 0600). With this file or `tls`, all requests except probes need a token or a
    /// certificate.
    pub token_file: Option<PathBuf>,
    /// Serves locks and znodes at the nodes' `http` addresses as well, which are then on loopback or have
    /// `tls` and `token_file`.
    pub api: bool,
}

impl HttpConfig {
    /// Returns whether requests except probes need an identity.
    pub fn is_closed(&self) -> bool {
        self.tls || self.token_file.is_some()
    }
}

/// Configuration of one node: its listen addresses and the contents of `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Number of this node, 1 to 254.
    pub id: NodeId,
    /// `host:port` for listening to clients without TLS; `nodes` has the advertised address.
    pub client_addr: Option<String>,
    /// `host:port` for listening to clients with TLS; `nodes` has the advertised address.
    pub secure_client_addr: Option<String>,
    /// `host:port` for listening to the other nodes; `nodes` has the advertised address.
    pub peer_addr: String,
    /// `host:port` for listening to HTTP.
    pub http_addr: String,
    /// `host:port` for listening to locks by HTTP.
    pub api_addr: Option<String>,
    /// Data folder of this node.
    pub data_dir: PathBuf,
    /// Replicates without a vote.
    pub learner: bool,
    /// Settings of the cluster, also accessible as fields of this type (`config.session`). `nodes` is sorted
    /// by id; with `discovery` the list contains only this node. The certificates are this node's.
    pub file: ClusterConfig,
    /// Size of a log segment in bytes. Not in `cluster.toml`: only tests with many small clusters use smaller
    /// segments.
    pub log_segment_bytes: u64,
    /// Versions known to the node. Not in `cluster.toml` and not for embedders: a release's code defines its
    /// versions. Tests of upgrades use the versions of an imaginary release.
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

impl Default for SessionConfig {
    /// Returns ZooKeeper's bounds: 2 and 20 ticks of 2 s.
    fn default() -> Self {
        SessionConfig { min_timeout_ms: 4_000, max_timeout_ms: 40_000 }
    }
}

impl SessionConfig {
    /// Returns the granted timeout for a requested timeout.
    pub fn clamp(&self, wanted: Duration) -> Duration {
        wanted.clamp(
            Duration::from_millis(self.min_timeout_ms.into()),
            Duration::from_millis(self.max_timeout_ms.into()),
        )
    }
}

impl Default for ClientConfig {
    /// Returns ZooKeeper's `maxClientCnxns` and `4lw.commands.whitelist`, and a rate limit above normal load.
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
    /// Returns ZooKeeper's `znode.container.checkIntervalMs` and `enforceQuota`.
    fn default() -> Self {
        ZnodesConfig { sweep_interval_ms: 60_000, enforce_quota: false }
    }
}

impl NodeEntry {
    /// Returns a voter with these addresses, without TLS for clients and without an API.
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

    /// Returns the address for locks by HTTP.
    pub fn any_api_addr(&self, http: &HttpConfig) -> Option<&str> {
        self.api_addr.as_deref().or_else(|| http.api.then_some(self.http_addr.as_str()))
    }

    /// Returns the clients' address without TLS, else the address with TLS.
    pub fn any_client_addr(&self) -> &str {
        self.client_addr.as_deref().or(self.secure_client_addr.as_deref()).unwrap_or_default()
    }
}

impl NodeConfig {
    /// Returns the configuration of the node with this entry.
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

    /// Returns the permitted host names of HTTP requests: the names in `[http]`, and the hosts of all nodes'
    /// `http` and `api`. `None`: any, because clients compare the name with the certificate.
    pub fn http_hosts(&self) -> Option<Arc<[String]>> {
        if decides!("certificate-names-hosts", self.http.tls) {
            return None;
        }
        let addresses = self.nodes.iter().flat_map(|node| node.api_addr.iter().chain([&node.http_addr]));
        let of_nodes = addresses.filter_map(|address| Some(address.rsplit_once(':')?.0.to_owned()));
        Some(self.http.hosts.iter().cloned().chain(of_nodes).collect())
    }
}

impl ClusterConfig {
    /// Reads and checks a file. Relative data folders are relative to the folder of the file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |what: String| ConfigError {
            file: path.to_owned(),
            line: None,
            what,
            remedy: "give the path of a cluster.toml with --config".to_owned(),
        };
        let (folder, name) = security::place_of(path)
            .ok_or_else(|| unreadable("this is not the name of a file".to_owned()))?;
        let cannot = |e: std::io::Error| unreadable(format!("cannot be read: {e}"));
        let dir = Dir::open(folder).map_err(cannot)?;
        let bytes = dir.read(name).map_err(cannot)?;
        let text =
            String::from_utf8(bytes).map_err(|_| unreadable("is not a text file in UTF-8".to_owned()))?;
        // Checks the permissions of this file only; separate files of secrets are checked by their reader.
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

    /// Parses and checks the text of a file; `path` is used in errors and as the base of relative data
    /// folders.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::parse_with(text, path, &security::read_private)
    }

    /// Parses like [`Self::parse`], with another reader for files of secrets: for the fuzz targets.
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

    /// Returns the configuration of node `id`, or `None` without such a node.
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

    /// Returns the client addresses of all nodes in the format of `--endpoints`.
    pub fn endpoints(&self) -> String {
        let addresses: Vec<&str> = self.nodes.iter().map(NodeEntry::any_client_addr).collect();
        addresses.join(",")
    }

    /// Returns a file equivalent to this configuration.
    pub fn to_toml(&self) -> String {
        parse::print(self)
    }
}
