//! Sections `[tls]` and `[peer]`: certificate files, authentication between nodes, and the security of the
//! ports for HTTP.
//!
//! Secrets of a `cluster.toml`, inline or in separate files (`super_digest_file`, `sasl_users_file`), and the
//! check that only the owner can read them; otherwise the node does not start.

use std::path::{Path, PathBuf};

use rowlock_env::disk::Dir;
use rowlock_proto::NodeId;
pub use rowlock_tls::Files as TlsFiles;
use serde::{Deserialize, Serialize};

use super::check::{is_loopback, split};
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

/// Maximum size of a file with secrets. Beyond: refused.
const SECRETS_MAX_BYTES: u64 = 1 << 20;

/// Replaces the file names by the files' contents.
pub(super) fn read_into(
    source: &Source<'_>,
    client: &mut ClientConfig,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<(), ConfigError> {
    let content = |key: &str, file: &Path| {
        let path = source.path.parent().unwrap_or(Path::new("")).join(file);
        read(&path).map_err(|why| {
            let what = format!("{key} = \"{}\" {why}", file.display());
            source.at(&format!("client.{key}"), what, "make it a file of yours alone (chmod 600)")
        })
    };
    if let Some(file) = client.super_digest_file.take() {
        if client.super_digest.is_some() {
            let what = "super_digest is given twice".to_owned();
            let remedy = "remove super_digest or super_digest_file";
            return Err(source.at("client.super_digest_file", what, remedy));
        }
        client.super_digest = Some(content("super_digest_file", &file)?.trim_end().to_owned());
    }
    if let Some(file) = client.sasl_users_file.take() {
        let at = |what: String, remedy: &str| source.at("client.sasl_users_file", what, remedy);
        for (number, line) in (1..).zip(content("sasl_users_file", &file)?.lines()) {
            let Some((user, password)) = line.split_once(':') else {
                let what = format!("line {number} of {} is not user:password", file.display());
                return Err(at(what, "write one user:password a line"));
            };
            if client.sasl_users.insert(user.to_owned(), password.to_owned()).is_some() {
                let what = format!("sasl_users has \"{user}\" twice");
                return Err(at(what, "name each user once, here or in the file"));
            }
        }
    }
    Ok(())
}

/// Returns the content of a file that no other user may read. The error gives the reason of a refusal.
pub(super) fn read_private(path: &Path) -> Result<String, String> {
    let (folder, name) = place_of(path).ok_or("is not the name of a file")?;
    let dir = Dir::open(folder).map_err(|e| format!("cannot be read: {e}"))?;
    let is_open = dir.is_open_to_others(name).map_err(|e| format!("cannot be read: {e}"))?;
    if is_open {
        return Err("can be read or written by other users of this machine".to_owned());
    }
    let bytes = dir.read_at_most(name, SECRETS_MAX_BYTES).map_err(|e| format!("cannot be read: {e}"))?;
    String::from_utf8(bytes).map_err(|_| "is not a text file in UTF-8".to_owned())
}

impl ClusterConfig {
    /// Removes passwords and digests for display. The names of users and files stay.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        if self.client.super_digest.is_some() {
            self.client.super_digest = Some("super:(removed)".to_owned());
        }
        self.client.sasl_users.values_mut().for_each(|password| "(removed)".clone_into(password));
        self
    }

    /// Iterates over the secrets that [`Self::without_secrets`] removes.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.client.sasl_users.values().chain(&self.client.super_digest).map(String::as_str)
    }
}

/// Splits a path into folder and file name.
pub(super) fn place_of(path: &Path) -> Option<(&Path, &str)> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some((folder, path.file_name()?.to_str()?))
}

/// Checks `api` of `[[node]]`: locks by HTTP. Any client of that port could take and release locks, so beyond
/// loopback the port needs TLS and tokens.
pub(super) fn check_api(source: &Source<'_>, config: &ClusterConfig) -> Result<(), ConfigError> {
    if config.http.tls && config.http.token_file.is_some() {
        return Ok(());
    }
    let is_open = |address: &str| split(address).is_ok_and(|(host, _)| !is_loopback(&host));
    for (at, node) in config.nodes.iter().enumerate() {
        let listeners =
            [("api", node.api_addr.as_deref()), ("http", config.http.api.then_some(node.http_addr.as_str()))];
        let open = listeners.into_iter().filter_map(|(key, address)| Some((key, address?)));
        if let Some((key, address)) = open.into_iter().find(|(_, address)| is_open(address)) {
            let what =
                format!("{key} = \"{address}\" takes locks from other machines without TLS and tokens");
            let remedy = "set tls = true and token_file in [http], or give it a loopback address";
            return Err(source.at(&format!("node.{at}.{key}"), what, remedy));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::{ClusterConfig, ConfigError};

    fn parse(api: &str, http: &str) -> Result<ClusterConfig, ConfigError> {
        let node = format!("[[node]]\nid = 1\nclient = \"h:2181\"\npeer = \"h:2281\"\napi = \"{api}\"\n");
        let tls = "[tls]\ncert = \"c\"\nkey = \"k\"\nclient_ca = \"a\"\n";
        ClusterConfig::parse(&format!("{tls}{http}{node}"), Path::new("cluster.toml"))
    }

    #[test]
    fn locks_by_http_from_other_machines_need_tls_and_tokens() {
        let closed = "[http]\ntls = true\ntoken_file = \"tokens\"\n";
        let config = parse("db1:8443", closed).unwrap();
        assert_eq!(config.nodes[0].api_addr.as_deref(), Some("db1:8443"));
        assert_eq!(ClusterConfig::parse(&config.to_toml(), Path::new("x")).unwrap().nodes, config.nodes);
        for half in ["", "[http]\ntls = true\n", "[http]\ntoken_file = \"tokens\"\n"] {
            let error = parse("db1:8443", half).unwrap_err();
            assert!(error.what.contains("without TLS and tokens"), "{error}");
            parse("127.0.0.1:8443", half).unwrap();
            parse("[::1]:8443", half).unwrap();
        }
        let at_http = "[http]\napi = true\n";
        let config = parse("127.0.0.1:8443", at_http).unwrap();
        assert!(config.http.api && ClusterConfig::parse(&config.to_toml(), Path::new("x")).unwrap().http.api);
        let error = parse("127.0.0.1:8443\"\nhttp = \"db1:8081", at_http).unwrap_err();
        assert!(error.what.starts_with("http = \"db1:8081\" takes locks"), "{error}");
        let error = parse("127.0.0.1:8081", "").unwrap_err();
        assert!(error.what.contains("already"), "{error}");
    }
}
