//! TLS handshakes: turn a plain stream into an encrypted stream, on both sides.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use rowlock_env::busy::{self, Work};
use rowlock_env::net::Stream;
use rowlock_env::time;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, HandshakeKind, ServerConfig};

use crate::certificate::Certificate;
use crate::conduit::{self, Frames, TlsConduit, TlsState};
use crate::error::TlsError;
use crate::verify::Registry;

/// First byte of a TLS connection, distinct from any frame of Rowlock or ZooKeeper.
const HANDSHAKE_RECORD: u8 = 0x16;
/// TLS alert (RFC 8446, section 6): fatal, protocol_version.
const WRONG_VERSION: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 70];

/// A received client hello, before the reply.
pub struct Hello {
    stream: Stream,
    accepted: rustls::server::Accepted,
}

#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    /// True for ZooKeeper's protocol: each written frame becomes a separate record.
    writes_frames: bool,
    /// Registry of the open connections, for closing them after a revocation or expiry.
    registry: Option<Registry>,
}

#[derive(Clone)]
pub struct Connector {
    config: Arc<ClientConfig>,
    registry: Option<Registry>,
}

#[derive(Debug)]
pub struct Secured {
    pub stream: Stream,
    /// Verified certificate of the peer; `None` if the peer has shown no certificate.
    pub certificate: Option<Certificate>,
    /// True after a resumption by ticket, without a full key exchange.
    pub is_resumed: bool,
}

/// Returns true if `first`, the first byte of a connection, begins a TLS handshake.
pub fn looks_like_tls(first: u8) -> bool {
    first == HANDSHAKE_RECORD
}

/// Refuses a client without TLS by the alert of a wrong version. Never waits; best effort.
pub fn refuse_plain(stream: &Stream) {
    // Unread input would discard the alert on closing.
    let _ = stream.try_read(&mut [0; 1_024]);
    let _ = stream.try_write(&WRONG_VERSION);
}

impl Acceptor {
    pub(crate) fn of_peers(config: ServerConfig, registry: Registry) -> Self {
        Acceptor { config: Arc::new(config), writes_frames: false, registry: Some(registry) }
    }

    pub(crate) fn of_clients(config: ServerConfig, registry: Registry) -> Self {
        Acceptor { config: Arc::new(config), writes_frames: true, registry: Some(registry) }
    }

    /// Makes the acceptor for HTTP. HTTP connections live for seconds and stay unregistered.
    pub(crate) fn of_http(config: ServerConfig) -> Self {
        Acceptor { config: Arc::new(config), writes_frames: false, registry: None }
    }

    /// Runs the handshake with a connected client. Without a time limit: the caller sets a deadline.
    ///
    /// # Errors
    /// The peer does not speak TLS, a side refuses the handshake, or the connection breaks.
    /// # Cancel safety
    /// The connection is closed.
    pub async fn accept(&self, stream: Stream) -> Result<Secured, TlsError> {
        self.answer(Hello::read(stream).await?).await
    }

    /// Runs the rest of [`Self::accept`], which costs some tenths of a millisecond of processor time.
    ///
    /// # Errors
    /// The same errors as [`Self::accept`].
    /// # Cancel safety
    /// The connection is closed.
    pub async fn answer(&self, hello: Hello) -> Result<Secured, TlsError> {
        let Hello { mut stream, accepted } = hello;
        let tls = conduit::answer_hello(&mut stream, accepted, self.config.clone());
        let tls = tls.map_err(|error| TlsError::Handshake(error.to_string()))?;
        let frames = self.writes_frames.then(Frames::default);
        run_handshake(stream, tls, frames, self.registry.as_ref()).await
    }
}

impl Hello {
    /// Reads a whole client hello, at a negligible cost. Waits without a limit: the caller sets a deadline.
    ///
    /// # Errors
    /// The peer does not speak TLS, or the connection breaks.
    /// # Cancel safety
    /// The connection is closed.
    pub async fn read(mut stream: Stream) -> Result<Hello, TlsError> {
        let mut acceptor = rustls::server::Acceptor::default();
        let accepted = poll_fn(|cx| conduit::poll_hello(&mut stream, &mut acceptor, cx)).await;
        Ok(Hello { accepted: accepted.map_err(|error| to_tls_error(&error))?, stream })
    }
}

impl Connector {
    pub(crate) fn new(config: ClientConfig) -> Self {
        Connector { config: Arc::new(config), registry: None }
    }

    pub(crate) fn to_peers(config: ClientConfig, registry: Registry) -> Self {
        Connector { config: Arc::new(config), registry: Some(registry) }
    }

    /// Runs the handshake with a server whose certificate must name `host`, a host name or an IP address.
    /// Waits without a limit: the caller sets a deadline.
    ///
    /// # Errors
    /// The peer does not speak TLS, a side refuses the handshake, or the connection breaks.
    /// # Cancel safety
    /// The connection is closed.
    pub async fn connect(&self, stream: Stream, host: &str) -> Result<Stream, TlsError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| TlsError::Handshake(format!("{host:?} cannot be the name of a server")))?;
        Ok(self.dial(stream, name).await?.stream)
    }

    /// Runs the handshake with a node, and returns the node's certificate. Waits without a limit: the caller
    /// sets a deadline.
    ///
    /// # Errors
    /// The peer does not speak TLS, a side refuses the handshake, or the connection breaks.
    /// # Cancel safety
    /// The connection is closed.
    pub async fn connect_to_node(&self, stream: Stream) -> Result<(Stream, Certificate), TlsError> {
        let name = ServerName::IpAddress(stream.peer_addr().ip().into());
        let Secured { stream, certificate, .. } = self.dial(stream, name).await?;
        let certificate = certificate
            .ok_or_else(|| TlsError::Identity("the other side has shown no certificate".to_owned()))?;
        Ok((stream, certificate))
    }

    async fn dial(&self, stream: Stream, name: ServerName<'static>) -> Result<Secured, TlsError> {
        let tls = ClientConnection::new(self.config.clone(), name);
        let tls = tls.map_err(|error| TlsError::Handshake(error.to_string()))?;
        run_handshake(stream, tls.into(), None, self.registry.as_ref()).await
    }
}

async fn run_handshake(
    stream: Stream,
    tls: Connection,
    frames: Option<Frames>,
    registry: Option<&Registry>,
) -> Result<Secured, TlsError> {
    let mut state = TlsState::new(stream, tls, frames);
    busy::spend(Work::Handshake, 1);
    poll_fn(|cx| state.poll_handshake(cx)).await.map_err(|error| to_tls_error(&error))?;
    let shown = state.tls().peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(Certificate::of).transpose()?;
    // Checks the expiry again, because a resumption skips the verification.
    if certificate.as_ref().is_some_and(|certificate| certificate.expires_ms <= time::wall_ms()) {
        return Err(TlsError::Identity("the certificate has expired".to_owned()));
    }
    let is_resumed = state.tls().handshake_kind() == Some(HandshakeKind::Resumed);
    let expires_ms = certificate.as_ref().map(|certificate| certificate.expires_ms);
    let conduit = Arc::new(TlsConduit::new(state, expires_ms));
    if let Some(registry) = registry.filter(|_| expires_ms.is_some())
        && !registry.register(&conduit)
    {
        return Err(TlsError::Handshake("the files of certificates have changed meanwhile".to_owned()));
    }
    Ok(Secured { stream: Stream::through(conduit), certificate, is_resumed })
}

fn to_tls_error(error: &io::Error) -> TlsError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            TlsError::HungUp
        }
        _ => TlsError::Handshake(error.to_string()),
    }
}
