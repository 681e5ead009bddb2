//! What a client is told before it connects.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use rowlock_proto::ClusterId;
use rowlock_proto::path::{self, PathError};

use crate::client::Client;
use crate::connect_error::{ConfigError, ConnectError};
use crate::limits::CREDENTIAL_BYTES;
use crate::session::ticket::SessionTicket;
#[cfg(feature = "tls")]
use crate::tls::Tls;

const DEFAULT_PORT: &str = "2181";

/// An identity for `add_auth`: a scheme (`digest`) and its secret (`user:password`).
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The way of identification.
    pub scheme: String,
    /// The secret. Never printed.
    pub secret: Bytes,
}

impl Credential {
    pub(crate) fn bytes(&self) -> usize {
        self.scheme.len() + self.secret.len()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// How to connect. Made by [`Client::builder`] or [`Client::from_env`]; a connect string
/// (`host:port,host:port/chroot`) is one as well.
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
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

/// Under whose names our places stand in the queues of locks: programs that use other clients on the same
/// locks must recognize them. A Rowlock server orders a queue by creation, whatever the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueNames {
    /// `_c_<id>-lock-0000000007`, `_c_<id>-__READ__0000000007`, `_c_<id>-__WRIT__0000000007`. (kazoo's `Lock`
    /// sees them with `extra_lock_patterns`.)
    #[default]
    Curator,
    /// kazoo's names: `<id>__lock__0000000007`, `<id>__rlock__0000000007`.
    Kazoo,
}

/// When our connection moves to the leader, from a server that names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreferLeader {
    /// It stays where it is.
    Never,
    /// When the session has to wait in a queue, has nothing else under way and holds nothing: the wait is
    /// used, and the grant comes a shorter way. The session is
    /// [`SessionState::Suspended`](crate::SessionState::Suspended) for a moment, once. Not with a disconnect
    /// grace, which such a moment would set going.
    WhenWaiting,
    /// As [`PreferLeader::WhenWaiting`], and when the session is at work and its server says that the leader
    /// has room; servers say so to a bounded number of sessions per second. It goes when it holds nothing and
    /// has no call under way. When the lead changes, it follows in the same way.
    #[default]
    ByLoad,
    /// When the session is opened. On a later attachment, with its next heartbeat: where all sessions come
    /// back at once, each is served first. With a disconnect grace at once, too.
    Always,
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
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl ClientBuilder {
    /// The servers: `host:port,host:port`, port 2181 where none is given, with an optional `/chroot` at the
    /// end as in ZooKeeper's connect strings. They are tried in random order, so that clients spread over
    /// them. A name is resolved again at each attempt, and all its addresses are tried.
    #[must_use]
    pub fn endpoints(mut self, list: &str) -> Self {
        let hosts = match list.find('/') {
            // A URL is no endpoint, and its path no chroot: `check` says so.
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

    /// How long the session outlives its last heartbeat (default 10 s). The server may clamp it.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long [`ClientBuilder::connect`] tries (default 10 s).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Who this is, for people who look at a queue: the data of the queue znodes of its locks.
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

    /// Puts every path of this client below this one (default: none).
    #[must_use]
    pub fn chroot(mut self, chroot: impl Into<String>) -> Self {
        self.chroot = chroot.into();
        if self.chroot == "/" {
            self.chroot.clear();
        }
        self
    }

    /// Where [`Client::mutex`] puts its locks (default `/locks`).
    #[must_use]
    pub fn lock_base(mut self, base: impl Into<String>) -> Self {
        self.lock_base = base.into();
        self
    }

    /// Asks the server to end the session so long after our socket has closed, instead of after the whole
    /// session timeout, unless we are back before (default: zero, which is the whole timeout): the locks of a
    /// process that dies on a living host are free soon. Plain ZooKeeper knows no such thing and keeps the
    /// timeout.
    ///
    /// The session then also ends when a connection breaks and no server can be reached within the grace:
    /// choose it longer than the change of a leader takes (about a second), unless losing locks over that is
    /// fine. The local deadline follows: at most the loss of the connection plus the grace, less a tenth.
    /// Nothing between us and the server (a proxy) may close one side of a connection much before the other.
    #[must_use]
    pub fn disconnect_grace(mut self, grace: Duration) -> Self {
        self.disconnect_grace = grace;
        self
    }

    /// Takes over the session of this ticket in the place of opening one. The process that had the session
    /// loses its connection. [`ClientBuilder::connect`] fails if the session has ended.
    #[must_use]
    pub fn take_over(mut self, ticket: SessionTicket) -> Self {
        self.ticket = Some(ticket);
        self
    }

    /// Under whose names our places stand in queues (default: Curator's).
    #[must_use]
    pub fn queue_names(mut self, names: QueueNames) -> Self {
        self.queue_names = names;
        self
    }

    /// When to move to the leader from another server that has opened the session (default:
    /// [`PreferLeader::ByLoad`]). There a lock takes two messages between servers less; but many busy
    /// clients, or such that mostly read, get more from all servers than from one (docs/decisions/speed.md).
    /// The leader is recognized if an endpoint is written as `client` of its node in `cluster.toml`. One that
    /// cannot be reached is done without. Apache ZooKeeper names no leader.
    #[must_use]
    pub fn prefer_leader(mut self, prefer: PreferLeader) -> Self {
        self.prefer_leader = prefer;
        self
    }

    /// Whether credentials ([`ClientBuilder::auth`], [`Client::add_auth`]) may go over a connection that is
    /// not encrypted to another machine (default: no). An eavesdropper there learns them. To servers
    /// on loopback they always go.
    #[must_use]
    pub fn allow_plaintext_passwords(mut self, allow: bool) -> Self {
        self.allow_plaintext_passwords = allow;
        self
    }

    /// Takes only servers of this cluster (default: of any, and from then on of the one that opened the
    /// session). A restore makes a cluster with another id, so a program that must not go on with restored
    /// data says it here. The id is in `rowlock status`. Apache's servers, and releases before 0.2, do not
    /// say theirs and are taken.
    #[must_use]
    pub fn cluster_id(mut self, id: ClusterId) -> Self {
        self.cluster_id = Some(id);
        self
    }

    /// Connects by TLS (default: no). The endpoints are then those for TLS: `secure_client` of each node in
    /// `cluster.toml`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Connects to one of the endpoints and opens a session.
    ///
    /// # Errors
    /// [`ConnectError::Config`], [`ConnectError::Unreachable`] after the connect timeout,
    /// [`ConnectError::AuthFailed`], [`ConnectError::PlaintextPassword`], [`ConnectError::OtherCluster`].
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        self.check()?;
        Client::open(self).await
    }

    /// Whether it can be used, without connecting.
    ///
    /// # Errors
    /// What [`ClientBuilder::connect`] would refuse before it asks any server.
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
    /// The servers of a connect string: [`ClientBuilder::endpoints`].
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

/// Whether it is `host:port`, as [`with_port`] has made it.
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
