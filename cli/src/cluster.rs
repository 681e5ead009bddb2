//! Finds the cluster for client commands: flag, environment, cluster.toml, or the default ports. Flags and
//! variables for the encryption of the connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rowlock_client::{Client, ClientBuilder, ConfigError, ConnectError, Error};
use rowlock_coordinator::config::ClusterConfig;
use rowlock_env::net::Stream;
use rowlock_env::time;
use rowlock_tls::{ClientKeeper, ClientTls, Pem};

use crate::exit::{CONFIG, DEADLOCK, Failure, LOST, REFUSED, UNAVAILABLE, USAGE};
use crate::found::{self, load};
use crate::moment::duration;
use crate::{patience, status, superuser};

const DEFAULT_ENDPOINTS: &str = "127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183";

/// Default folders of the clusters of `up` and `dev`.
pub const UP_FOLDER: &str = "data/up";
pub const DEV_FOLDER: &str = ".rowlock";
/// Cluster files tried in this order when neither flag nor environment names a cluster.
const USUAL_FILES: [&str; 3] = ["cluster.toml", ".rowlock/cluster.toml", "data/up/cluster.toml"];

const ENDPOINTS: &str = "ROWLOCK_ENDPOINTS";
const CONFIG_FILE: &str = "ROWLOCK_CONFIG";
/// Variable: allows passwords over plain connections to remote machines.
pub const PLAINTEXT_PASSWORDS: &str = "ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS";
const AUTH: &str = "ROWLOCK_AUTH";
const CONNECT_TIMEOUT: &str = "ROWLOCK_CONNECT_TIMEOUT";

const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for asking the nodes why they open no session.
const REASONS_MAX: Duration = Duration::from_secs(2);

/// Longest wait for a silent cluster at the end of a command: once for releasing a lock and once for closing
/// the session.
pub const LEAVING_MAX: Duration = Duration::from_secs(1);

/// Options of every command that connects to a cluster.
#[derive(Clone, clap::Args)]
pub struct Cluster {
    /// Client addresses, host:port,host:port [default: those of cluster.toml here or of `rowlock dev` and
    /// `up`, else 127.0.0.1:2181-2183] [env: ROWLOCK_ENDPOINTS=]
    #[arg(long, value_name = "LIST")]
    endpoints: Option<String>,
    /// Path of cluster.toml [env: ROWLOCK_CONFIG=]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Session timeout; the server may clamp it [env: ROWLOCK_SESSION_TIMEOUT=] [default: 10s]
    #[arg(long, visible_alias = "ttl", value_name = "TIME", value_parser = duration)]
    pub session_timeout: Option<Duration>,
    /// Give up connecting after this time [env: ROWLOCK_CONNECT_TIMEOUT=] [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub connect_timeout: Option<Duration>,
    #[command(flatten)]
    pub tls: TlsOptions,
}

impl Cluster {
    /// Returns the endpoints as `host:port,host:port`.
    pub fn endpoints(&self) -> Result<String, Failure> {
        let file = match self.source() {
            ClusterSource::Endpoints(list) => return Ok(list),
            ClusterSource::File(path) => Some(load(&path)?),
            ClusterSource::Default => default_file()?,
        };
        match file {
            Some(config) if self.tls.is_enabled() => secure_endpoints(&config),
            Some(config) => Ok(config.endpoints()),
            None => Ok(DEFAULT_ENDPOINTS.to_owned()),
        }
    }

    /// Returns the source of the cluster's addresses. Flags take precedence over the environment, and the
    /// environment over the default file; addresses take precedence over a file from an equally explicit
    /// source.
    fn source(&self) -> ClusterSource {
        let var = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (endpoints, config) = (self.endpoints.clone(), self.config.clone());
        let flags = endpoints.map(ClusterSource::Endpoints).or(config.map(ClusterSource::File));
        flags
            .or_else(|| var(ENDPOINTS).map(ClusterSource::Endpoints))
            .or_else(|| var(CONFIG_FILE).map(|path| ClusterSource::File(path.into())))
            .unwrap_or(ClusterSource::Default)
    }

    /// Opens a session. Credentials, chroot and label come from the environment (`ClientBuilder::from_env`).
    pub async fn connect(&self) -> Result<Client, Failure> {
        self.open(self.client()?).await
    }

    /// Opens a session. A failure has a node's reason for refusing sessions, if any node gives a reason
    /// within [`REASONS_MAX`].
    pub async fn open(&self, config: ClientBuilder) -> Result<Client, Failure> {
        match open(config).await {
            Err(failure) if failure.code == UNAVAILABLE => {
                let explained = time::timeout(REASONS_MAX, self.explained(&failure)).await;
                Err(explained.unwrap_or(failure))
            }
            opened => opened,
        }
    }

    async fn explained(&self, failure: &Failure) -> Failure {
        let same = || Failure::new(failure.code, &failure.message);
        let (Ok(endpoints), Ok(secure)) = (self.endpoints(), self.tls.secure()) else { return same() };
        for addr in endpoints.split('/').next().unwrap_or_default().split(',') {
            let answer = status::srvr(addr.trim(), secure.clone()).await.unwrap_or_default();
            if let Some(why) = status::why_no_sessions(&answer) {
                return Failure::new(
                    failure.code,
                    format!("no session was opened; {} reports: {why}", addr.trim()),
                );
            }
        }
        same()
    }

    pub fn client(&self) -> Result<ClientBuilder, Failure> {
        self.client_within(None)
    }

    /// Same as [`Cluster::client`], but for these endpoints, unless a flag names the cluster.
    pub fn client_of(&self, endpoints: &str) -> Result<ClientBuilder, Failure> {
        if self.endpoints.is_some() || self.config.is_some() {
            return self.client();
        }
        let named = Cluster { endpoints: Some(endpoints.to_owned()), ..self.clone() };
        named.client()
    }

    /// Same as [`Cluster::client`], but without the credential that `up` and `dev` leave for their user.
    pub fn client_without_superuser(&self) -> Result<ClientBuilder, Failure> {
        self.keep_credential_from_default_ports()?;
        let endpoints = Some(self.endpoints()?);
        Cluster { endpoints, config: None, ..self.clone() }.client()
    }

    /// Same as [`Cluster::client`], but connecting takes at most `most`, whatever the environment says.
    pub fn client_within(&self, most: Option<Duration>) -> Result<ClientBuilder, Failure> {
        let mut config = self.defaults()?.endpoints(&self.endpoints()?);
        if let Some(timeout) = self.session_timeout {
            config = config.session_timeout(timeout);
        }
        let environment = self.tls.var(CONNECT_TIMEOUT).and_then(|text| duration(&text).ok());
        let timeout = self.connect_timeout.or(environment).unwrap_or(DEFAULT_CONNECT_TIMEOUT);
        Ok(config.connect_timeout(timeout.min(most.unwrap_or(timeout))))
    }

    /// Refuses to send a password to the default ports unless the user names the ports or TLS authenticates
    /// the server: any user of this machine can listen there.
    fn keep_credential_from_default_ports(&self) -> Result<(), Failure> {
        let is_default = matches!(self.source(), ClusterSource::Default) && default_file()?.is_none();
        let has_credential = self.tls.var(AUTH).is_some_and(|auth| !auth.is_empty());
        if !is_default || !has_credential || self.tls.is_enabled() {
            return Ok(());
        }
        let problem = format!("{AUTH} is set, but no cluster is named");
        let remedy = format!("name the cluster, for example with --endpoints {DEFAULT_ENDPOINTS}");
        Err(Failure::new(CONFIG, format!("{problem}; {remedy}")))
    }

    /// Builds the client from the environment and from the flags equivalent to variables.
    pub fn defaults(&self) -> Result<ClientBuilder, Failure> {
        self.keep_credential_from_default_ports()?;
        let var = |name: &str| match self.tls.var(name) {
            Some(empty) if name == AUTH && empty.is_empty() => None,
            None if name == AUTH => self.superuser(),
            value => value,
        };
        ClientBuilder::from_vars(var).map_err(|e| Failure::new(USAGE, e))
    }

    /// Returns the credential left by `up` or `dev` beside the file of the cluster, or, for the cluster of
    /// `./cluster.toml`, in the cluster's own folder.
    fn superuser(&self) -> Option<String> {
        let by_tls = self.tls.is_enabled();
        let credential = |path: &Path| superuser::beside(path, &load(path).ok()?, by_tls);
        match self.source() {
            ClusterSource::Endpoints(_) => None,
            ClusterSource::File(path) => credential(&path),
            ClusterSource::Default => {
                let named = self.endpoints().ok()?;
                let is_same = |path: &&Path| load(path).is_ok_and(|config| config.endpoints() == named);
                let all = USUAL_FILES.map(Path::new).into_iter();
                let is_ours = |path: &&Path| found::check(path, "--config").is_ok();
                all.filter(|path| path.exists()).filter(is_ours).filter(is_same).find_map(credential)
            }
        }
    }

    /// Returns flags that let a child process of `rowlock` reach the same cluster.
    pub fn arguments(&self) -> Result<Vec<String>, Failure> {
        let endpoints = format!("--endpoints={}", self.endpoints()?);
        Ok(std::iter::once(endpoints).chain(self.tls.arguments()).collect())
    }

    /// Loads the cluster's file, which holds more than addresses. Returns `None` if only addresses were
    /// given, or if nothing was given and there is no `cluster.toml` here.
    pub fn file(&self) -> Result<Option<ClusterConfig>, Failure> {
        // A file given as explicitly as the addresses belongs to the same cluster.
        if let Some(path) = &self.config {
            return load(path).map(Some);
        }
        match self.source() {
            ClusterSource::Endpoints(_) if self.endpoints.is_some() => Ok(None),
            ClusterSource::Endpoints(_) => {
                match std::env::var_os(CONFIG_FILE).filter(|path| !path.is_empty()) {
                    Some(path) => load(Path::new(&path)).map(Some),
                    None => Ok(None),
                }
            }
            ClusterSource::File(path) => load(&path).map(Some),
            ClusterSource::Default => default_file(),
        }
    }
}

/// Returns the addresses for clients with TLS.
fn secure_endpoints(config: &ClusterConfig) -> Result<String, Failure> {
    let all: Vec<&str> = config.nodes.iter().filter_map(|node| node.secure_client_addr.as_deref()).collect();
    if all.is_empty() {
        let problem = "no node of the cluster's file has secure_client, but TLS is enabled";
        return Err(Failure::new(
            CONFIG,
            format!("{problem}; add it, or name the addresses with --endpoints"),
        ));
    }
    Ok(all.join(","))
}

/// Loads a cluster file from [`USUAL_FILES`], unless another user can have placed the file there.
fn default_file() -> Result<Option<ClusterConfig>, Failure> {
    let Some(path) = USUAL_FILES.iter().map(Path::new).find(|path| path.exists()) else { return Ok(None) };
    found::check(path, "--config")?;
    load(path).map(Some)
}

enum ClusterSource {
    Endpoints(String),
    File(PathBuf),
    Default,
}

/// Closes the session. If the server does not answer within [`LEAVING_MAX`], the session ends by its timeout.
pub async fn leave(client: &Client) {
    let _ = time::timeout(LEAVING_MAX, client.close()).await;
}

pub async fn open(config: ClientBuilder) -> Result<Client, Failure> {
    let connected = patience::explained(config.connect(), async {
        "no server has opened a session yet; still trying (limit: --connect-timeout)".to_owned()
    });
    let connected = patience::never_silent(connected, || "no server has opened a session yet; still trying");
    connected.await.map_err(|e| match e {
        ConnectError::Config(ConfigError::Tls { .. }) => Failure::new(CONFIG, e),
        ConnectError::Config(_) | ConnectError::PlaintextPassword => Failure::new(USAGE, e),
        ConnectError::AuthFailed => Failure::new(REFUSED, format!("{e}; check ROWLOCK_AUTH")),
        ConnectError::AuthRequired => Failure::new(REFUSED, format!("{e}; {AUTHENTICATE}")),
        ConnectError::SessionExpired => Failure::new(LOST, e),
        ConnectError::OtherCluster => Failure::new(REFUSED, format!("{e}; see ROWLOCK_CLUSTER_ID")),
        // The server answers, but one side refuses the TLS handshake.
        _ if e.to_string().contains("TLS") => Failure::new(UNAVAILABLE, format!("{e}; see docs/tls.md")),
        _ => Failure::new(
            UNAVAILABLE,
            format!("{e}; start the cluster, name it with --endpoints, or ask `rowlock doctor`"),
        ),
    })
}

const AUTHENTICATE: &str = "set ROWLOCK_AUTH=digest:USER:PASSWORD";

/// Turns a failed call about `subject` (a path, the name of a lock) into an exit code and a message.
pub fn failed(subject: &str, e: &Error) -> Failure {
    let code = match e {
        Error::InvalidName(_) | Error::Unsupported(_) => USAGE,
        Error::Deadlock { .. } => DEADLOCK,
        Error::AuthRequired => REFUSED,
        e if e.may_have_happened() || e.is_session_end() => LOST,
        _ => REFUSED,
    };
    let text = match (e.code(), e) {
        (Some(code), _) => format!("{subject}: {code}"),
        (None, Error::LimitConflict { actual: 0 }) => {
            format!("{subject}: the semaphore has no number of permits yet; set it with -n N")
        }
        (None, Error::Deadlock { .. }) => format!("{subject}: {e}; release what is held and retry"),
        (None, Error::AuthRequired) => format!("{e}; {AUTHENTICATE}"),
        (None, _) => format!("{subject}: {e}"),
    };
    Failure::new(code, text)
}

const CA: &str = "ROWLOCK_TLS_CA";
const CERT: &str = "ROWLOCK_TLS_CERT";
const KEY: &str = "ROWLOCK_TLS_KEY";
const SERVER_NAME: &str = "ROWLOCK_TLS_SERVER_NAME";
const HEADING: &str = "Encryption";

/// Encryption options of every command that connects to a cluster.
#[derive(Clone, clap::Args)]
pub struct TlsOptions {
    /// Use TLS and trust this CA bundle (PEM) [env: ROWLOCK_TLS_CA=]
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    tls_ca: Option<String>,
    /// Client certificate (PEM) [env: ROWLOCK_TLS_CERT=]
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    tls_cert: Option<String>,
    /// Private key for --tls-cert (PEM, mode 0600) [env: ROWLOCK_TLS_KEY=]
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    tls_key: Option<String>,
    /// Host name to expect in server certificates, instead of the endpoints' hosts [env:
    /// ROWLOCK_TLS_SERVER_NAME=]
    #[arg(long, help_heading = HEADING, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Allow passwords and tokens over unencrypted connections to other machines [env:
    /// ROWLOCK_ALLOW_PLAINTEXT_PASSWORDS=]
    #[arg(long, help_heading = HEADING)]
    allow_plaintext_passwords: bool,
}

#[derive(Clone)]
pub struct Secure {
    keeper: Arc<ClientKeeper>,
    server_name: Option<String>,
}

impl Secure {
    /// Loads the TLS files. `server_name` replaces the hosts of all servers' addresses.
    pub fn new(tls: ClientTls, server_name: Option<String>) -> Result<Secure, Failure> {
        let keeper = ClientKeeper::open(tls).map_err(|e| Failure::new(CONFIG, e))?;
        Ok(Secure { keeper, server_name })
    }

    /// Encrypts a connection to the server at `addr`, and requires a certificate for that host. The caller
    /// sets a deadline.
    pub async fn connect(&self, stream: Stream, addr: &str) -> std::io::Result<Stream> {
        let host = self.server_name.as_deref().unwrap_or(host_of(addr));
        self.keeper.connector().connect(stream, host).await.map_err(std::io::Error::other)
    }
}

/// Returns the host of `host:port`; an IPv6 address without brackets.
fn host_of(addr: &str) -> &str {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

impl TlsOptions {
    /// Returns the value of a variable. A flag takes precedence over the environment.
    pub fn var(&self, name: &str) -> Option<String> {
        let flag = match name {
            CA => self.tls_ca.clone(),
            CERT => self.tls_cert.clone(),
            KEY => self.tls_key.clone(),
            SERVER_NAME => self.tls_server_name.clone(),
            PLAINTEXT_PASSWORDS => self.allow_plaintext_passwords.then(|| "true".to_owned()),
            _ => None,
        };
        flag.or_else(|| std::env::var(name).ok())
    }

    /// Returns these flags for a child process with the same environment.
    pub fn arguments(&self) -> Vec<String> {
        let flags = [
            ("--tls-ca", &self.tls_ca),
            ("--tls-cert", &self.tls_cert),
            ("--tls-key", &self.tls_key),
            ("--tls-server-name", &self.tls_server_name),
        ];
        let flags = flags
            .into_iter()
            .filter_map(|(flag, value)| value.as_ref().map(|value| format!("{flag}={value}")));
        flags
            .chain(self.allow_plaintext_passwords.then(|| "--allow-plaintext-passwords".to_owned()))
            .collect()
    }

    pub fn is_enabled(&self) -> bool {
        self.file(CA).is_some()
    }

    /// Returns true if secrets may go over plain connections to other machines.
    pub fn allows_plaintext_passwords(&self) -> bool {
        self.var(PLAINTEXT_PASSWORDS).is_some_and(|value| value == "true")
    }

    /// Returns TLS for connections outside of a session, or `None` if connections are plain.
    pub fn secure(&self) -> Result<Option<Secure>, Failure> {
        let Some(ca) = self.file(CA) else { return Ok(None) };
        let identity = match (self.file(CERT), self.file(KEY)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(Failure::new(USAGE, format!("{CERT} and {KEY} need each other"))),
        };
        let server_name = self.var(SERVER_NAME).filter(|name| !name.is_empty());
        Secure::new(ClientTls { ca, identity }, server_name).map(Some)
    }

    fn file(&self, name: &str) -> Option<Pem> {
        self.var(name).filter(|path| !path.is_empty()).map(|path| Pem::File(path.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_process_gets_the_same_flags() {
        let options = TlsOptions {
            tls_ca: Some("a b.pem".to_owned()),
            tls_cert: None,
            tls_key: None,
            tls_server_name: Some("db".to_owned()),
            allow_plaintext_passwords: true,
        };
        let wanted = ["--tls-ca=a b.pem", "--tls-server-name=db", "--allow-plaintext-passwords"];
        assert_eq!(options.arguments(), wanted);
        assert_eq!(options.var(CA).as_deref(), Some("a b.pem"));
        assert_eq!(options.var(PLAINTEXT_PASSWORDS).as_deref(), Some("true"));
        assert_eq!(["h.example:1", "[::1]:2"].map(host_of), ["h.example", "::1"]);
    }
}
