//! Sections `[tls]` and `[peer]`: certificate files, and authentication between nodes.

use std::path::{Path, PathBuf};

use rowlock_proto::NodeId;
pub use rowlock_tls::Files as TlsFiles;
use serde::{Deserialize, Serialize};

use super::source::Source;
use super::{ClientConfig, ClusterConfig, ConfigError, HttpConfig, NodeEntry};

/// Placeholder for the node's number in file names.
const ID: &str = "{id}";

/// Section `[peer]` of `cluster.toml`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerConfig {
    /// Authentication between nodes: `"mtls"`, `"both"` (for the change-over) or `"none"`. Not set: as none,
    /// and the port must be on loopback.
    pub security: Option<PeerSecurity>,
}

/// Authentication between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerSecurity {
    /// No authentication: any host that reaches the nodes' port passes for a node.
    None,
    /// Certificates where nodes have them, trust where not: for the change-over.
    Both,
    /// Each node authenticates by its certificate.
    Mtls,
}

/// Client certificates at a listener with TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// The server requests no certificate.
    None,
    /// The server requests a certificate, and accepts clients without.
    Want,
    /// Required: clients without a certificate are refused.
    #[default]
    Need,
}

impl ClientAuth {
    /// Returns the value in `cluster.toml`.
    pub fn as_str(self) -> &'static str {
        match self {
            ClientAuth::None => "none",
            ClientAuth::Want => "want",
            ClientAuth::Need => "need",
        }
    }
}

impl PeerConfig {
    /// Returns whether nodes use their certificates among themselves.
    pub fn needs_certificates(self) -> bool {
        matches!(self.security, Some(PeerSecurity::Both | PeerSecurity::Mtls))
    }
}

impl PeerSecurity {
    /// Returns the value in `cluster.toml`.
    pub fn as_str(self) -> &'static str {
        match self {
            PeerSecurity::None => "none",
            PeerSecurity::Both => "both",
            PeerSecurity::Mtls => "mtls",
        }
    }
}

pub(super) fn check(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    check_paths(source, config.tls.as_ref())?;
    check_peer(source, config)?;
    check_client(source, config)?;
    check_http(source, config)
}

fn check_http(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    let HttpConfig { tls, token_file, .. } = &config.http;
    if token_file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
        let what = "token_file is empty".to_owned();
        return Err(source.at("http.token_file", what, "give the path of a file of tokens"));
    }
    let refused = |what: &str, remedy| Err(source.at("http.tls", what.to_owned(), remedy));
    match &config.tls {
        _ if !tls => Ok(()),
        None => refused("tls = true in [http] needs certificates", "add [tls] with cert and key"),
        Some(files) if files.client_ca.is_none() && token_file.is_none() => refused(
            "tls = true in [http] lets in clients with a certificate or a token, and there are neither",
            "add client_ca to [tls], or token_file to [http]",
        ),
        Some(_) => Ok(()),
    }
}

fn check_paths(source: &Source<'_>, files: Option<&TlsFiles>) -> Result<(), ConfigError> {
    let keyed = files.into_iter().flat_map(|files| TlsFiles::KEYS.into_iter().zip(files.all()));
    for (key, path) in keyed.filter_map(|(key, path)| Some((key, path?.to_string_lossy()))) {
        let at = |what: String, remedy: &str| Err(source.at(&format!("tls.{key}"), what, remedy));
        if path.is_empty() {
            return at(format!("{key} is empty"), "give the path of a PEM file");
        }
        if path.replace(ID, "").contains(['{', '}']) {
            let what = format!("{key} = \"{path}\" has a brace that is not of {ID}");
            return at(what, "only {id}, the number of the node, is replaced");
        }
    }
    Ok(())
}

fn check_peer(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    let Some(security) = config.peer.security.filter(|written| *written != PeerSecurity::None) else {
        return Ok(());
    };
    let (lacks, remedy) = match &config.tls {
        None => ("certificates", "add [tls] with cert, key and peer_ca"),
        Some(tls) if tls.peer_ca.is_none() => {
            ("the authority of the nodes' certificates", "add peer_ca to [tls]")
        }
        Some(_) => return Ok(()),
    };
    let what = format!("security = \"{}\" needs {lacks}", security.as_str());
    Err(source.at("peer.security", what, remedy))
}

fn check_client(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    let ClientConfig { client_auth: auth, x509_superusers, .. } = &config.client;
    if let Some((at, name)) = x509_superusers.iter().enumerate().find(|(_, name)| !name.contains('=')) {
        let what = format!("x509_superusers has \"{name}\", which is no subject of a certificate");
        let remedy = "write it as `rowlock tls check` shows it, e.g. \"CN=admin\"";
        return Err(source.at(&format!("client.x509_superusers.{at}"), what, remedy));
    }
    let Some(secure) = config.nodes.iter().position(|node| node.secure_client_addr.is_some()) else {
        let key = match (*auth == ClientAuth::default(), x509_superusers.is_empty()) {
            (true, true) => return Ok(()),
            (true, false) => "x509_superusers",
            (false, _) => "client_auth",
        };
        let what = format!("{key} counts for clients with TLS, and no node listens for them");
        return Err(source.at(&format!("client.{key}"), what, "add secure_client to the nodes"));
    };
    let secure = format!("node.{secure}.secure_client");
    let Some(tls) = &config.tls else {
        let what = "secure_client needs certificates".to_owned();
        return Err(source.at(&secure, what, "add [tls] with cert, key and client_ca"));
    };
    if *auth != ClientAuth::None && tls.client_ca.is_none() {
        let offset = source.offset("client.client_auth").or(source.offset(&secure));
        let auth = auth.as_str();
        let what = format!("client_auth = \"{auth}\" needs the authority of the clients' certificates");
        let remedy = "add client_ca to [tls], or set client_auth = \"none\" in [client]";
        return Err(source.error(offset, what, remedy));
    }
    Ok(())
}

impl ClusterConfig {
    /// Returns whether some clients must authenticate: by a certificate, a token or a password. Then only
    /// operators may end holds of other clients, where no rule says otherwise (docs/access-control.md).
    pub fn guards_locks(&self) -> bool {
        let has_secure_port = self.nodes.iter().any(|node| node.secure_client_addr.is_some());
        let by_certificate = has_secure_port
            && self.client.client_auth != ClientAuth::None
            && self.tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        by_certificate || self.client.require_auth || self.http.is_closed()
    }
}

/// Returns warnings about legal but unwise settings.
pub(super) fn warnings(config: &ClusterConfig) -> Vec<String> {
    let mut found = Vec::new();
    let is_for_clients = config.nodes.iter().any(|node| node.secure_client_addr.is_some());
    let is_used = config.peer.needs_certificates() || is_for_clients || config.http.tls;
    if config.tls.is_some() && !is_used {
        found.push(
            "nothing uses the certificates of [tls]: set security = \"mtls\" in [peer], secure_client in [[node]], or tls = true in [http]"
                .to_owned(),
        );
    }
    if config.client.require_auth
        && !config.http.is_closed()
        && config.nodes.iter().any(|it| it.any_api_addr(&config.http).is_some())
    {
        found.push(
            "require_auth = true asks nothing of locks by HTTP (api): set token_file or tls = true in [http], \
             or take api out of [[node]]"
                .to_owned(),
        );
    }
    let is_by_tls_only = |node: &&NodeEntry| node.client_addr.is_none();
    if let Some(other) = config.nodes.iter().find(is_by_tls_only) {
        found.extend(config.nodes.iter().filter_map(|node| {
            let (id, client, other) = (node.id, node.client_addr.as_ref()?, other.id);
            Some(format!(
                "client = \"{client}\" of node {id} takes clients without TLS, and node {other} takes them by TLS only: write \
                 secure_client instead"
            ))
        }));
    }
    if config.peer.security == Some(PeerSecurity::Both) {
        found.push(
            "security = \"both\" believes any host that reaches the nodes' port: set \"mtls\" once all nodes have \
             their certificates"
                .to_owned(),
        );
    }
    found
}

/// Returns the files of one node.
pub(super) fn of_node(files: &TlsFiles, id: NodeId) -> TlsFiles {
    files.map(|path| numbered(path, id))
}

/// Replaces `{id}` in a path by the node's number.
pub(super) fn numbered(path: &Path, id: NodeId) -> PathBuf {
    match path.to_str() {
        Some(path) => PathBuf::from(path.replace(ID, &id.to_string())),
        None => path.to_owned(),
    }
}
