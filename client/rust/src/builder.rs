//! Configuration of a client.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rowlock_proto::ClusterId;
use rowlock_proto::path::{self, PathError};

use crate::client::Client;
use crate::connect_error::{ConfigError, ConnectError};
use crate::limits::CREDENTIAL_BYTES;
use crate::observer::{Observed, Observer};
use crate::session::SessionTicket;
use crate::settings::{Credential, PreferLeader, QueueNames};
#[cfg(feature = "tls")]
use crate::tls::Tls;

const DEFAULT_PORT: &str = "2181";

/// Configuration of a client, made by [`Client::builder`], [`Client::from_env`] or from a connect string
/// (`host:port,host:port/chroot`).
///
/// ```no_run
/// # use std::time::Duration;
/// # use rowlock_client::Client;
/// # async fn demo() -> Result<(), rowlock_client::ConnectError> {
/// let builder = Client::builder().endpoints("a:2181,b:2181").label("worker-7");
/// let client = builder.session_timeout(Duration::from_secs(5)).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientBuilder {
    pub(crate) endpoints: Vec<String>,
    pub(crate) session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) label: String,
    pub(crate) auth: Vec<Credential>,
    pub(crate) chroot: String,
    pub(crate) lock_base: String,
    pub(crate) disconnect_grace: Duration,
    pub(crate) queue_names: QueueNames,
    pub(crate) prefer_leader: PreferLeader,
    pub(crate) allow_plaintext_passwords: bool,
    pub(crate) cluster_id: Option<ClusterId>,
    pub(crate) ticket: Option<SessionTicket>,
    pub(crate) observer: Observed,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        ClientBuilder {
            endpoints: Vec::new(),
            session_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            label: String::new(),
            auth: Vec::new(),
            chroot: String::new(),
            lock_base: rowlock_proto::name::LOCK_BASE.to_owned(),
            disconnect_grace: Duration::ZERO,
            queue_names: QueueNames::Curator,
            prefer_leader: PreferLeader::default(),
            allow_plaintext_passwords: false,
            cluster_id: None,
            ticket: None,
            observer: Observed::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl ClientBuilder {
    /// Sets the servers: `host:port,host:port` with default port 2181 and an optional `/chroot` at the end as
    /// in ZooKeeper's connect strings. The client tries the servers in random order, which spreads clients
    /// over the servers. Each attempt resolves the name again and tries all addresses.
    #[must_use]
    pub fn endpoints(mut self, list: &str) -> Self {
        let hosts = match list.find('/') {
            // A URL is no endpoint, and its path no chroot: `check` refuses the URL.
            _ if list.contains("://") => list,
            Some(at) => {
                self = self.chroot(&list[at..]);
                &list[..at]
            }
            None => list,
        };
        self.endpoints =
            hosts.split(',').map(str::trim).filter(|host| !host.is_empty()).map(with_port).collect();
        self
    }

    /// Sets the time by which the session outlives the last heartbeat (default 10 s). The server may clamp
    /// the value.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Bounds the duration of [`ClientBuilder::connect`] (default 10 s).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Names this client for people who read a queue: the label is the data of the client's queue znodes.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// A credential to present on every connection. May be called more than once.
    #[must_use]
    pub fn auth(mut self, scheme: impl Into<String>, secret: impl Into<Bytes>) -> Self {
        self.auth.push(Credential { scheme: scheme.into(), secret: secret.into() });
        self
    }

    /// Prefixes every path of this client with `chroot` (default: none).
    #[must_use]
    pub fn chroot(mut self, chroot: impl Into<String>) -> Self {
        self.chroot = chroot.into();
        if self.chroot == "/" {
            self.chroot.clear();
        }
        self
    }

    /// Sets the parent of the locks of [`Client::mutex`] (default `/locks`).
    #[must_use]
    pub fn lock_base(mut self, base: impl Into<String>) -> Self {
        self.lock_base = base.into();
        self
    }

    /// Asks the server to end the session this long after the socket has closed, unless the client reconnects
    /// before (default: zero, meaning the whole session timeout): the locks of a process that dies on a
    /// living host are soon free. Plain ZooKeeper ignores the setting and keeps the session timeout.
    ///
    /// The session then also ends when a connection breaks and the client reaches no server within the grace:
    /// choose a grace longer than a change of leader (about a second), unless losing locks over a change is
    /// fine. The local deadline follows: at most the loss of the connection plus the grace, less a tenth. A
    /// proxy between client and server must not close one side of a connection much before the other side.
    #[must_use]
    pub fn disconnect_grace(mut self, grace: Duration) -> Self {
        self.disconnect_grace = grace;
        self
    }

    /// Takes over the session of this ticket ([`Client::detach`], [`Client::session_ticket`]) instead of
    /// opening a session, and gives the session the timeout of this builder. A client that still had the
    /// session loses the connection. [`ClientBuilder::connect`] fails with [`ConnectError::SessionExpired`]
    /// if the session has ended. Followed by another [`Client::detach`], the call is a keepalive by hand.
    #[must_use]
    pub fn take_over(mut self, ticket: SessionTicket) -> Self {
        self.ticket = Some(ticket);
        self
    }

    /// Sets the observer of the client's waits and holds (default: none).
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Observed(Some(observer));
        self
    }

    /// Sets the naming scheme of queue znodes (default: Curator's).
    #[must_use]
    pub fn queue_names(mut self, names: QueueNames) -> Self {
        self.queue_names = names;
        self
    }

    /// Sets the policy for moving to the leader from the server that opened the session (default:
    /// [`PreferLeader::ByLoad`]). On the leader a lock takes two messages between servers less; many busy
    /// clients, or clients that mostly read, get more from all servers than from the leader alone
    /// (docs/decisions/speed.md). The client recognizes the leader if an endpoint equals `client` of the
    /// leader's node in `cluster.toml`. The client stays elsewhere if the leader cannot be reached. Apache
    /// ZooKeeper names no leader.
    #[must_use]
    pub fn prefer_leader(mut self, prefer: PreferLeader) -> Self {
        self.prefer_leader = prefer;
        self
    }

    /// Allows credentials ([`ClientBuilder::auth`], [`Client::add_auth`]) over an unencrypted connection to
    /// another machine (default: no), where an eavesdropper can read the credentials. Connections to loopback
    /// always carry credentials.
    #[must_use]
    pub fn allow_plaintext_passwords(mut self, allow: bool) -> Self {
        self.allow_plaintext_passwords = allow;
        self
    }

    /// Accepts only servers of this cluster (default: of any cluster until a session is open, then only of
    /// the cluster that opened the session). A restore makes a cluster with another id: set the id if the
    /// program must not go on with restored data. `rowlock status` shows the id. The client accepts Apache's
    /// servers and releases before 0.2, which report no id.
    #[must_use]
    pub fn cluster_id(mut self, id: ClusterId) -> Self {
        self.cluster_id = Some(id);
        self
    }

    /// Connects by TLS (default: no). The endpoints must then be the TLS ports: `secure_client` of each node
    /// in `cluster.toml`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Connects to a server and opens a session.
    ///
    /// # Errors
    /// [`ConnectError::Config`], [`ConnectError::Unreachable`] after the connect timeout,
    /// [`ConnectError::AuthFailed`], [`ConnectError::PlaintextPassword`], [`ConnectError::OtherCluster`].
    /// # Cancel safety
    /// Dropping the future closes the connection and the session.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        self.check()?;
        Client::open(self).await
    }

    /// Checks the configuration without connecting.
    ///
    /// # Errors
    /// The error of [`ClientBuilder::connect`] for a configuration that needs no server to be refused.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check()
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.endpoints.is_empty() {
            return Err(ConfigError::NoEndpoints);
        }
        self.endpoints.iter().try_for_each(|endpoint| check_endpoint(endpoint))?;
        if self.session_timeout < Duration::from_millis(30) {
            return Err(ConfigError::SessionTimeoutTooShort);
        }
        if i32::try_from(self.session_timeout.as_millis()).is_err() {
            return Err(ConfigError::SessionTimeoutTooLong);
        }
        if self.auth.iter().any(|credential| credential.bytes() > CREDENTIAL_BYTES) {
            return Err(ConfigError::CredentialTooLong { max: CREDENTIAL_BYTES });
        }
        let is_path = |what, path: &str| {
            let wrong = |source: PathError| ConfigError::NotAPath { what, path: path.to_owned(), source };
            path::validate(path).map_err(wrong)
        };
        if !self.chroot.is_empty() {
            is_path("chroot", &self.chroot)?;
        }
        is_path("lock base", &self.lock_base)
    }
}

impl From<&str> for ClientBuilder {
    /// Parses a connect string: [`ClientBuilder::endpoints`].
    fn from(endpoints: &str) -> Self {
        Client::builder().endpoints(endpoints)
    }
}

impl From<String> for ClientBuilder {
    fn from(endpoints: String) -> Self {
        endpoints.as_str().into()
    }
}

impl From<&String> for ClientBuilder {
    fn from(endpoints: &String) -> Self {
        endpoints.as_str().into()
    }
}

/// Checks the form `host:port` that [`with_port`] produces.
fn check_endpoint(endpoint: &str) -> Result<(), ConfigError> {
    let wrong = |what| Err(ConfigError::Endpoint { endpoint: endpoint.to_owned(), what });
    if endpoint.contains("://") {
        return wrong("write host:port, without a scheme");
    }
    if endpoint.contains(|c: char| c.is_whitespace() || c == ';') {
        return wrong("separate endpoints by commas");
    }
    let Some((host, port)) = endpoint.rsplit_once(':') else { return wrong("write host:port") };
    if !host.starts_with('[') && host.contains(':') {
        return wrong("write an IPv6 address in brackets, as [::1]:2181");
    }
    if host.is_empty() {
        return wrong("it has no host; write host:port");
    }
    match port.parse::<u16>() {
        Ok(0) | Err(_) => wrong("the port is no number from 1 to 65535"),
        Ok(_) => Ok(()),
    }
}

/// Adds the default port; an IPv6 address with a port is written `[::1]:2181`.
fn with_port(host: &str) -> String {
    let has_port = match host.rfind(']') {
        Some(end) => host[end..].contains(':'),
        None => host.contains(':'),
    };
    if has_port { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_get_the_default_port_and_the_chroot_of_a_connect_string() {
        let it = ClientBuilder::default().endpoints("a:1, b ,[::1]:3,[::2]/app/x");
        assert_eq!(it.endpoints, ["a:1", "b:2181", "[::1]:3", "[::2]:2181"]);
        assert_eq!(it.chroot, "/app/x");
        assert_eq!(ClientBuilder::default().endpoints("a/").chroot, "");
    }

    #[test]
    fn a_secret_is_never_printed() {
        let it = ClientBuilder::default().auth("digest", "user:hush");
        assert!(!format!("{it:?}").contains("hush"));
    }

    #[test]
    fn nonsense_is_refused_before_connecting() {
        assert!(ClientBuilder::default().check().is_err());
        assert!(ClientBuilder::default().endpoints("a").chroot("nope").check().is_err());
        assert!(ClientBuilder::default().endpoints("a").lock_base("/x/").check().is_err());
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_how_to_write_it() {
        for (list, what) in [
            ("::1", "brackets"),
            ("a:2181,::1:2181", "brackets"),
            ("tcp://a:2181", "without a scheme"),
            ("http://a:2181/x,b", "without a scheme"),
            ("a:99999", "from 1 to 65535"),
            ("a:0", "from 1 to 65535"),
            ("a:client", "from 1 to 65535"),
            (":2181", "no host"),
            ("a:2181 b:2181", "by commas"),
            ("a;b:2181", "by commas"),
        ] {
            let error = ClientBuilder::default().endpoints(list).check().unwrap_err().to_string();
            assert!(error.contains(what), "{list}: {error}");
        }
        for list in ["a", "a:1,b:65535/app", "[::1]", "[::1]:2181", "10.0.0.1:2181"] {
            assert_eq!(ClientBuilder::default().endpoints(list).check(), Ok(()), "{list}");
        }
    }

    #[test]
    fn what_is_printed_of_a_configuration_has_no_secret_in_it() {
        let it = ClientBuilder::default().auth("digest", "bob:hunter2");
        for shown in [format!("{it:?}"), format!("{it:#?}")] {
            assert!(shown.contains("digest") && !shown.contains("hunter2"), "{shown}");
        }
    }
}
