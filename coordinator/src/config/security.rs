//! `[tls]` and `[peer]`: the files of certificates, and how nodes know each other.

use std::path::{Path, PathBuf};

use rowlock_proto::NodeId;
pub use rowlock_tls::Files as TlsFiles;
use serde::Deserialize;
use toml::Spanned;

use super::check::Source;
use super::parse::{RawCluster, RawHttp, RawPeer, RawTls};
use super::{ClusterConfig, ConfigError};

/// What stands for the number of the node in the names of files.
const ID: &str = "{id}";

/// `[peer]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerConfig {
    /// How nodes know each other. `None`: nothing is written down, so the port may only be on loopback.
    pub security: Option<PeerSecurity>,
}

/// How nodes know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerSecurity {
    /// By their word: whoever reaches the nodes' port is believed.
    None,
    /// By their certificates where they have some, and by their word where not: for the change-over.
    Both,
    /// By their certificates.
    Mtls,
}

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// They are not asked.
    None,
    /// They are asked, and may have none.
    Want,
    /// Those without are refused.
    #[default]
    Need,
}

impl ClientAuth {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            ClientAuth::None => "none",
            ClientAuth::Want => "want",
            ClientAuth::Need => "need",
        }
    }
}

impl PeerConfig {
    /// Whether nodes use their certificates among themselves.
    pub fn needs_certificates(self) -> bool {
        matches!(self.security, Some(PeerSecurity::Both | PeerSecurity::Mtls))
    }
}

impl PeerSecurity {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            PeerSecurity::None => "none",
            PeerSecurity::Both => "both",
            PeerSecurity::Mtls => "mtls",
        }
    }
}

pub(super) fn check(source: &Source<'_>, raw: &RawCluster) -> Result<(), ConfigError> {
    check_paths(source, raw.tls.as_ref())?;
    check_peer(source, raw.tls.as_ref(), &raw.peer)?;
    check_client(source, raw)?;
    check_http(source, raw.tls.as_ref(), &raw.http)
}

fn check_http(source: &Source<'_>, tls: Option<&RawTls>, http: &RawHttp) -> Result<(), ConfigError> {
    if let Some(file) = http.token_file.as_ref().filter(|file| file.get_ref().as_os_str().is_empty()) {
        let what = "token_file is empty".to_owned();
        return Err(source.error(Some(file.span().start), what, "give the path of a file of tokens"));
    }
    let Some(wanted) = http.tls.as_ref().filter(|wanted| *wanted.get_ref()) else { return Ok(()) };
    let refused = |what: &str, remedy| Err(source.error(Some(wanted.span().start), what.to_owned(), remedy));
    match tls {
        None => refused("tls = true in [http] needs certificates", "add [tls] with cert and key"),
        Some(tls) if tls.client_ca.is_none() && http.token_file.is_none() => refused(
            "tls = true in [http] lets in clients with a certificate or a token, and there are neither",
            "add client_ca to [tls], or token_file to [http]",
        ),
        Some(_) => Ok(()),
    }
}

fn check_paths(source: &Source<'_>, tls: Option<&RawTls>) -> Result<(), ConfigError> {
    for (key, path) in tls.into_iter().flat_map(|tls| tls.paths()) {
        let written = path.get_ref().to_string_lossy();
        let at = Some(path.span().start);
        if written.is_empty() {
            return Err(source.error(at, format!("{key} is empty"), "give the path of a PEM file"));
        }
        if written.replace(ID, "").contains(['{', '}']) {
            let what = format!("{key} = \"{written}\" has a brace that is not of {ID}");
            return Err(source.error(at, what, "only {id}, the number of the node, is replaced"));
        }
    }
    Ok(())
}

fn check_peer(source: &Source<'_>, tls: Option<&RawTls>, peer: &RawPeer) -> Result<(), ConfigError> {
    let Some(security) = peer.security.as_ref().filter(|written| *written.get_ref() != PeerSecurity::None)
    else {
        return Ok(());
    };
    let (at, word) = (Some(security.span().start), security.get_ref().as_str());
    match tls {
        None => {
            let what = format!("security = \"{word}\" needs certificates");
            Err(source.error(at, what, "add [tls] with cert, key and peer_ca"))
        }
        Some(tls) if tls.peer_ca.is_none() => {
            let what = format!("security = \"{word}\" needs the authority of the nodes' certificates");
            Err(source.error(at, what, "add peer_ca to [tls]"))
        }
        Some(_) => Ok(()),
    }
}

fn check_client(source: &Source<'_>, raw: &RawCluster) -> Result<(), ConfigError> {
    let client = &raw.client;
    let refused = |at: usize, what: String, remedy: &str| Err(source.error(Some(at), what, remedy));
    if let Some(name) = client.x509_superusers.iter().find(|name| !name.get_ref().contains('=')) {
        let what =
            format!("x509_superusers has \"{}\", which is no subject of a certificate", name.get_ref());
        return refused(
            name.span().start,
            what,
            "write it as `rowlock tls check` shows it, e.g. \"CN=admin\"",
        );
    }
    let Some(secure) = raw.node.iter().find_map(|node| node.get_ref().secure_client.as_ref()) else {
        let auth = client.client_auth.as_ref().map(|auth| ("client_auth", auth.span().start));
        let superusers = client.x509_superusers.first().map(|name| ("x509_superusers", name.span().start));
        return match auth.or(superusers) {
            Some((key, at)) => {
                let what = format!("{key} counts for clients with TLS, and no node listens for them");
                refused(at, what, "add secure_client to the nodes")
            }
            None => Ok(()),
        };
    };
    let Some(tls) = &raw.tls else {
        let what = "secure_client needs certificates".to_owned();
        return refused(secure.span().start, what, "add [tls] with cert, key and client_ca");
    };
    let auth = client.client_auth.as_ref().map_or(ClientAuth::default(), |auth| *auth.get_ref());
    if auth != ClientAuth::None && tls.client_ca.is_none() {
        let at = client.client_auth.as_ref().map_or(secure.span().start, |auth| auth.span().start);
        let what =
            format!("client_auth = \"{}\" needs the authority of the clients' certificates", auth.as_str());
        return refused(at, what, "add client_ca to [tls], or set client_auth = \"none\" in [client]");
    }
    Ok(())
}

/// What is allowed and yet unwise.
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
        && config.nodes.iter().any(|it| it.api_addr.is_some())
    {
        found.push(
            "require_auth = true asks nothing of locks by HTTP (api): set token_file or tls = true in [http], \
             or take api out of [[node]]"
                .to_owned(),
        );
    }
    if config.peer.security == Some(PeerSecurity::Both) {
        found.push(
            "security = \"both\" believes whoever reaches the nodes' port: set \"mtls\" once all nodes have \
             their certificates"
                .to_owned(),
        );
    }
    found
}

impl RawTls {
    fn paths(&self) -> impl Iterator<Item = (&'static str, &Spanned<PathBuf>)> {
        let RawTls { cert, key, peer_ca, client_ca, crl } = self;
        with_keys([Some(cert), Some(key), peer_ca.as_ref(), client_ca.as_ref(), crl.as_ref()])
    }

    /// Its files; relative ones are in `folder`.
    pub(super) fn files(self, folder: &Path) -> TlsFiles {
        let maybe = |path: Option<Spanned<PathBuf>>| path.map(Spanned::into_inner);
        let written = TlsFiles {
            cert: self.cert.into_inner(),
            key: self.key.into_inner(),
            peer_ca: maybe(self.peer_ca),
            client_ca: maybe(self.client_ca),
            crl: maybe(self.crl),
        };
        written.map(|path| folder.join(path))
    }
}

/// The files of one node.
pub(super) fn of_node(files: &TlsFiles, id: NodeId) -> TlsFiles {
    files.map(|path| numbered(path, id))
}

/// The path with the number of the node in it.
pub(super) fn numbered(path: &Path, id: NodeId) -> PathBuf {
    match path.to_str() {
        Some(path) => PathBuf::from(path.replace(ID, &id.to_string())),
        None => path.to_owned(),
    }
}

/// Each path with its key.
pub(super) fn written(files: &TlsFiles) -> impl Iterator<Item = (&'static str, &Path)> {
    with_keys(files.all())
}

/// Values that are there, with their keys in `[tls]`.
fn with_keys<T>(values: [Option<T>; TlsFiles::KEYS.len()]) -> impl Iterator<Item = (&'static str, T)> {
    TlsFiles::KEYS.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?)))
}
