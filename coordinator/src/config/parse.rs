//! The text of `cluster.toml` to and from `ClusterConfig`. Only the form is judged here; the rules are in
//! `check.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rowlock_proto::NodeId;
use serde::Deserialize;
use toml::Spanned;

use super::autopilot::{self, RawAutopilot};
use super::backup::{self, RawBackup};
use super::check::{self, Source};
use super::discovery::{self, RawDiscovery};
use super::limits::{self, RawLimits};
use super::log::{self, RawLog};
use super::secrets;
use super::upgrade::{self, RawUpgrade};
use super::{
    AuditConfig, ClientAuth, ClientConfig, ClusterConfig, ConfigError, HistoryConfig, HttpConfig, NodeEntry,
    PeerConfig, PeerSecurity, RaftConfig, SessionConfig, SpareFlushes, ZnodesConfig, security,
};
use crate::audit::Event;

/// The file as written, each judged value with its place.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCluster {
    pub name: Option<Spanned<String>>,
    pub data: Option<PathBuf>,
    #[serde(default)]
    pub log: RawLog,
    #[serde(default)]
    pub node: Vec<Spanned<RawNode>>,
    #[serde(default)]
    pub session: RawSession,
    #[serde(default)]
    pub raft: RawRaft,
    pub tls: Option<RawTls>,
    #[serde(default)]
    pub peer: RawPeer,
    #[serde(default)]
    pub client: RawClient,
    #[serde(default)]
    pub znodes: RawZnodes,
    #[serde(default)]
    pub history: RawHistory,
    #[serde(default)]
    pub http: RawHttp,
    #[serde(default)]
    pub audit: RawAudit,
    #[serde(default)]
    pub backup: RawBackup,
    #[serde(default)]
    pub upgrade: RawUpgrade,
    #[serde(default)]
    pub autopilot: RawAutopilot,
    pub cluster: Option<RawDiscovery>,
    #[serde(default)]
    pub limits: RawLimits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub id: Spanned<i64>,
    pub client: Option<Spanned<String>>,
    pub secure_client: Option<Spanned<String>>,
    pub peer: Spanned<String>,
    pub http: Option<Spanned<String>>,
    pub api: Option<Spanned<String>>,
    pub client_listen: Option<Spanned<String>>,
    pub secure_client_listen: Option<Spanned<String>>,
    pub peer_listen: Option<Spanned<String>>,
    pub data: Option<PathBuf>,
    #[serde(default)]
    pub learner: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLogTable {
    pub level: Option<String>,
    pub slow_request: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSession {
    pub min_timeout_ms: Option<Spanned<u32>>,
    pub max_timeout_ms: Option<Spanned<u32>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRaft {
    pub heartbeat_ms: Option<Spanned<u64>>,
    pub election_timeout_min_ms: Option<Spanned<u64>>,
    pub election_timeout_max_ms: Option<Spanned<u64>>,
    pub snapshot_every: Option<Spanned<u64>>,
    pub keep_logs: Option<u64>,
    pub busy_poll_us: Option<Spanned<u64>>,
    pub spare_flushes: Option<SpareFlushes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    pub cert: Spanned<PathBuf>,
    pub key: Spanned<PathBuf>,
    pub peer_ca: Option<Spanned<PathBuf>>,
    pub client_ca: Option<Spanned<PathBuf>>,
    pub crl: Option<Spanned<PathBuf>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPeer {
    pub security: Option<Spanned<PeerSecurity>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClient {
    pub max_connections: Option<Spanned<usize>>,
    pub max_connections_per_address: Option<usize>,
    pub new_sessions_per_second: Option<u32>,
    pub words: Option<Spanned<Vec<String>>>,
    pub super_digest: Option<Spanned<String>>,
    pub super_digest_file: Option<Spanned<PathBuf>>,
    #[serde(default)]
    pub sasl_users: BTreeMap<Spanned<String>, String>,
    pub sasl_users_file: Option<Spanned<PathBuf>>,
    pub reconfig: Option<bool>,
    pub read_only_mode: Option<bool>,
    pub require_auth: Option<bool>,
    pub client_auth: Option<Spanned<ClientAuth>>,
    #[serde(default)]
    pub x509_superusers: Vec<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawZnodes {
    pub sweep_interval_ms: Option<Spanned<u64>>,
    pub enforce_quota: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHistory {
    pub enabled: Option<bool>,
    pub max_age: Option<Spanned<String>>,
    pub max_bytes: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHttp {
    #[serde(default)]
    pub hosts: Vec<Spanned<String>>,
    pub tls: Option<Spanned<bool>>,
    pub token_file: Option<Spanned<PathBuf>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAudit {
    pub file: Option<Spanned<PathBuf>>,
    pub events: Option<BTreeSet<Event>>,
    pub max_bytes: Option<Spanned<u64>>,
    pub keep: Option<Spanned<u32>>,
}

/// Units of a duration, the longest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Milliseconds of a text like "7d", "12h", "30m", "90s" or "100ms".
pub(super) fn duration_ms(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
    let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*ms)
}

/// The text that [`duration_ms`] reads so.
pub(super) fn duration_text(duration_ms: u64) -> String {
    let fits = |(_, ms): &&(&str, u64)| duration_ms.is_multiple_of(*ms);
    let (unit, ms) = UNITS.iter().find(fits).unwrap_or(&("ms", 1));
    format!("{}{unit}", duration_ms / ms)
}

/// `secrets`: reads the files that the text names for them.
pub(super) fn parse(
    text: &str,
    path: &Path,
    secrets: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<ClusterConfig, ConfigError> {
    let source = Source { text, path };
    let mut raw: RawCluster = toml::from_str(text).map_err(|e| {
        let at = e.span().map(|span| span.start);
        source.error(at, first_line(e.message()), remedy_for(e.message()))
    })?;
    secrets::read_into(&source, &mut raw.client, secrets)?;
    check::check_raw(&source, &raw)?;
    let mut config = convert(raw, path);
    config.warnings = check::warnings(&config);
    Ok(config)
}

/// Whether the text holds secrets itself. Of one that cannot be read: no; its mistake is told elsewhere.
pub(super) fn has_secrets(text: &str) -> bool {
    let raw: Result<RawCluster, _> = toml::from_str(text);
    raw.is_ok_and(|raw| raw.client.super_digest.is_some() || !raw.client.sasl_users.is_empty())
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or("cannot be read as TOML").to_owned()
}

fn remedy_for(message: &str) -> &'static str {
    if message.starts_with("unknown field") {
        "correct the spelling of this key or remove it"
    } else if message.starts_with("missing field") {
        "add this key"
    } else if message.starts_with("invalid") {
        "see cluster.toml in the repository for the form of this value"
    } else {
        "correct the line (the file is TOML: https://toml.io)"
    }
}

fn convert(raw: RawCluster, path: &Path) -> ClusterConfig {
    let folder = path.parent().unwrap_or(Path::new(""));
    let root = folder.join(raw.data.unwrap_or_else(|| PathBuf::from("data")));
    let nodes = raw.node.into_iter().map(|node| convert_node(node.into_inner(), folder, &root)).collect();
    let (session, raft, client) = (SessionConfig::default(), RaftConfig::default(), ClientConfig::default());
    let (znodes, history) = (ZnodesConfig::default(), HistoryConfig::default());
    let max_age_ms = raw.history.max_age.and_then(|age| duration_ms(age.get_ref()));
    ClusterConfig {
        name: or(raw.name, "rowlock".to_owned()),
        log: raw.log.config(),
        nodes,
        session: SessionConfig {
            min_timeout_ms: or(raw.session.min_timeout_ms, session.min_timeout_ms),
            max_timeout_ms: or(raw.session.max_timeout_ms, session.max_timeout_ms),
        },
        raft: RaftConfig {
            heartbeat_ms: or(raw.raft.heartbeat_ms, raft.heartbeat_ms),
            election_timeout_min_ms: or(raw.raft.election_timeout_min_ms, raft.election_timeout_min_ms),
            election_timeout_max_ms: or(raw.raft.election_timeout_max_ms, raft.election_timeout_max_ms),
            snapshot_every: or(raw.raft.snapshot_every, raft.snapshot_every),
            keep_logs: raw.raft.keep_logs.unwrap_or(raft.keep_logs),
            busy_poll_us: or(raw.raft.busy_poll_us, raft.busy_poll_us),
            spare_flushes: raw.raft.spare_flushes.unwrap_or(raft.spare_flushes),
        },
        tls: raw.tls.map(|tls| tls.files(folder)),
        peer: PeerConfig { security: raw.peer.security.map(Spanned::into_inner) },
        client: ClientConfig {
            max_connections: or(raw.client.max_connections, client.max_connections),
            max_connections_per_address: raw
                .client
                .max_connections_per_address
                .unwrap_or(client.max_connections_per_address),
            new_sessions_per_second: raw
                .client
                .new_sessions_per_second
                .unwrap_or(client.new_sessions_per_second),
            words: or(raw.client.words, client.words),
            super_digest: raw.client.super_digest.map(Spanned::into_inner),
            sasl_users: raw.client.sasl_users.into_iter().map(|(k, v)| (k.into_inner(), v)).collect(),
            reconfig: raw.client.reconfig.unwrap_or(client.reconfig),
            read_only_mode: raw.client.read_only_mode.unwrap_or(client.read_only_mode),
            require_auth: raw.client.require_auth.unwrap_or(client.require_auth),
            client_auth: or(raw.client.client_auth, client.client_auth),
            x509_superusers: raw.client.x509_superusers.into_iter().map(Spanned::into_inner).collect(),
        },
        znodes: ZnodesConfig {
            sweep_interval_ms: or(raw.znodes.sweep_interval_ms, znodes.sweep_interval_ms),
            enforce_quota: raw.znodes.enforce_quota.unwrap_or(znodes.enforce_quota),
        },
        history: HistoryConfig {
            enabled: raw.history.enabled.unwrap_or(history.enabled),
            max_age_ms: max_age_ms.unwrap_or(history.max_age_ms),
            max_bytes: or(raw.history.max_bytes, history.max_bytes),
        },
        http: convert_http(raw.http, folder),
        audit: convert_audit(raw.audit),
        backup: raw.backup.config(),
        upgrade: raw.upgrade.config(),
        autopilot: raw.autopilot.config(),
        discovery: raw.cluster.map(RawDiscovery::config),
        limits: raw.limits.config(),
        warnings: Vec::new(),
    }
}

fn convert_node(node: RawNode, folder: &Path, root: &Path) -> NodeEntry {
    let id = u64::try_from(*node.id.get_ref()).expect("check refuses ids below 1");
    NodeEntry {
        id: NodeId(id),
        client_addr: node.client.map(Spanned::into_inner),
        secure_client_addr: node.secure_client.map(Spanned::into_inner),
        peer_addr: node.peer.into_inner(),
        http_addr: or(node.http, default_http(id)),
        api_addr: node.api.map(Spanned::into_inner),
        client_listen: node.client_listen.map(Spanned::into_inner),
        secure_client_listen: node.secure_client_listen.map(Spanned::into_inner),
        peer_listen: node.peer_listen.map(Spanned::into_inner),
        data_dir: match node.data {
            Some(own) => folder.join(own),
            None => root.join(format!("node-{id}")),
        },
        learner: node.learner,
    }
}

fn convert_audit(audit: RawAudit) -> AuditConfig {
    let default = AuditConfig::default();
    AuditConfig {
        file: audit.file.map(Spanned::into_inner),
        events: audit.events.unwrap_or(default.events),
        max_bytes: or(audit.max_bytes, default.max_bytes),
        keep: or(audit.keep, default.keep),
    }
}

fn convert_http(http: RawHttp, folder: &Path) -> HttpConfig {
    HttpConfig {
        hosts: http.hosts.into_iter().map(Spanned::into_inner).collect(),
        tls: or(http.tls, false),
        token_file: http.token_file.map(|file| folder.join(file.into_inner())),
    }
}

/// Loopback unless the file says otherwise: unless `[http]` asks for it, the routes have no authentication.
pub(super) fn default_http(id: u64) -> String {
    format!("127.0.0.1:{}", 8_080 + id)
}

fn or<T>(given: Option<Spanned<T>>, default: T) -> T {
    given.map_or(default, Spanned::into_inner)
}

/// A TOML basic string.
pub(super) fn quote(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

pub(super) fn print(config: &ClusterConfig) -> String {
    let mut out = String::new();
    let text = quote;
    let words: Vec<String> = config.client.words.iter().map(|w| text(w)).collect();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "name = {}\n\n[session]\nmin_timeout_ms = {}\nmax_timeout_ms = {}\n\n[raft]\nheartbeat_ms = {}\n\
         election_timeout_min_ms = {}\nelection_timeout_max_ms = {}\nsnapshot_every = {}\nkeep_logs = {}\nbusy_poll_us = {}\nspare_flushes = {}\n\n[client]\n\
         max_connections = {}\nmax_connections_per_address = {}\nnew_sessions_per_second = {}\nwords = [{}]\n",
        text(&config.name),
        config.session.min_timeout_ms,
        config.session.max_timeout_ms,
        config.raft.heartbeat_ms,
        config.raft.election_timeout_min_ms,
        config.raft.election_timeout_max_ms,
        config.raft.snapshot_every,
        config.raft.keep_logs,
        config.raft.busy_poll_us,
        text(config.raft.spare_flushes.as_str()),
        config.client.max_connections,
        config.client.max_connections_per_address,
        config.client.new_sessions_per_second,
        words.join(", "),
    );
    if let Some(digest) = &config.client.super_digest {
        let _ = writeln!(out, "super_digest = {}", text(digest));
    }
    let ClientConfig { reconfig, read_only_mode, require_auth, .. } = config.client;
    let _ = write!(
        out,
        "reconfig = {reconfig}\nread_only_mode = {read_only_mode}\nrequire_auth = {require_auth}\n"
    );
    print_secure_clients(&mut out, config);
    if !config.client.sasl_users.is_empty() {
        out.push_str("\n[client.sasl_users]\n");
        for (user, password) in &config.client.sasl_users {
            let _ = writeln!(out, "{} = {}", text(user), text(password));
        }
    }
    let ZnodesConfig { sweep_interval_ms, enforce_quota } = config.znodes;
    let _ =
        write!(out, "\n[znodes]\nsweep_interval_ms = {sweep_interval_ms}\nenforce_quota = {enforce_quota}\n");
    let HistoryConfig { enabled, max_age_ms, max_bytes } = config.history;
    let max_age = text(&duration_text(max_age_ms));
    let _ = write!(out, "\n[history]\nenabled = {enabled}\nmax_age = {max_age}\nmax_bytes = {max_bytes}\n");
    print_http(&mut out, &config.http);
    print_audit(&mut out, &config.audit);
    log::print(&mut out, &config.log);
    backup::print(&mut out, &config.backup);
    upgrade::print(&mut out, config.upgrade);
    autopilot::print(&mut out, config.autopilot);
    config.discovery.iter().for_each(|discovery| discovery::print(&mut out, discovery));
    limits::print(&mut out, config.limits);
    if let Some(files) = &config.tls {
        out.push_str("\n[tls]\n");
        for (key, path) in security::written(files) {
            let _ = writeln!(out, "{key} = {}", text(&path.to_string_lossy()));
        }
    }
    if let Some(security) = config.peer.security {
        let _ = write!(out, "\n[peer]\nsecurity = \"{}\"\n", security.as_str());
    }
    config.nodes.iter().for_each(|node| print_node(&mut out, node));
    out
}

/// Of `[client]`, what only counts for clients with TLS.
fn print_secure_clients(out: &mut String, config: &ClusterConfig) {
    let ClientConfig { client_auth, x509_superusers, .. } = &config.client;
    if config.nodes.iter().any(|node| node.secure_client_addr.is_some()) {
        let names: Vec<String> = x509_superusers.iter().map(|name| quote(name)).collect();
        let (auth, names) = (client_auth.as_str(), names.join(", "));
        let _ = write!(out, "client_auth = \"{auth}\"\nx509_superusers = [{names}]\n");
    }
}

fn print_http(out: &mut String, HttpConfig { hosts, tls, token_file }: &HttpConfig) {
    let hosts: Vec<String> = hosts.iter().map(|host| quote(host)).collect();
    let _ = write!(out, "\n[http]\nhosts = [{}]\ntls = {tls}\n", hosts.join(", "));
    if let Some(file) = token_file {
        let _ = writeln!(out, "token_file = {}", quote(&file.to_string_lossy()));
    }
}

fn print_audit(out: &mut String, AuditConfig { file, events, max_bytes, keep }: &AuditConfig) {
    let events: Vec<String> = events.iter().map(|event| quote(event.as_str())).collect();
    let _ =
        write!(out, "\n[audit]\nevents = [{}]\nmax_bytes = {max_bytes}\nkeep = {keep}\n", events.join(", "));
    if let Some(file) = file {
        let _ = writeln!(out, "file = {}", quote(&file.to_string_lossy()));
    }
}

fn print_node(out: &mut String, node: &NodeEntry) {
    let text = quote;
    let data = node.data_dir.to_string_lossy();
    let _ = write!(
        out,
        "\n[[node]]\nid = {}\npeer = {}\nhttp = {}\ndata = {}\nlearner = {}\n",
        node.id,
        text(&node.peer_addr),
        text(&node.http_addr),
        text(&data),
        node.learner,
    );
    let addresses = [
        ("api", &node.api_addr),
        ("client", &node.client_addr),
        ("client_listen", &node.client_listen),
        ("secure_client", &node.secure_client_addr),
        ("secure_client_listen", &node.secure_client_listen),
        ("peer_listen", &node.peer_listen),
    ];
    for (key, address) in addresses {
        if let Some(address) = address {
            let _ = writeln!(out, "{key} = {}", text(address));
        }
    }
}
