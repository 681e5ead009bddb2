//! From a plain stream to an encrypted one, on both sides.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use rowlock_env::busy::{self, Work};
use rowlock_env::net::Stream;
use rowlock_env::time;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, HandshakeKind, ServerConfig};

use crate::certificate::Certificate;
use crate::conduit::{self, Both, TlsConduit};
use crate::error::TlsError;
use crate::frames::Frames;
use crate::watched::Book;

/// What the first record of TLS begins with. No frame of Rowlock or ZooKeeper does.
const HANDSHAKE_RECORD: u8 = 0x16;
/// An alert of TLS (RFC 8446, section 6): fatal, protocol_version.
const WRONG_VERSION: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 70];

/// A client that has said hello, and has not been answered.
pub struct Hello {
    stream: Stream,
    said: rustls::server::Accepted,
}

/// The listening side of handshakes.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    /// What is written are frames of ZooKeeper's protocol, each to be a record of its own.
    writes_frames: bool,
    /// Where connections are noted, to be closed when their certificates do not count any more.
    book: Option<Book>,
}

/// The dialing side of handshakes.
#[derive(Clone)]
pub struct Connector {
    config: Arc<ClientConfig>,
    book: Option<Book>,
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Secured {
    /// What is written to it is encrypted.
    pub stream: Stream,
    /// Of the other side, verified; `None`: it has none, or was not asked for it.
    pub certificate: Option<Certificate>,
    /// By a ticket of an earlier connection: without the arithmetic of a new one.
    pub is_resumed: bool,
}

/// Whether a connection that begins with this byte speaks TLS.
pub fn looks_like_tls(first: u8) -> bool {
    first == HANDSHAKE_RECORD
}

/// Tells a client without TLS that this port requires it, by the alert of a wrong version. Never waits;
/// best effort.
pub fn refuse_plain(stream: &Stream) {
    // What is not read would have the alert thrown away with the connection.
    let _ = stream.try_read(&mut [0; 1_024]);
    let _ = stream.try_write(&WRONG_VERSION);
}

impl Acceptor {
    pub(crate) fn of_peers(config: ServerConfig, book: Book) -> Self {
        Acceptor { config: Arc::new(config), writes_frames: false, book: Some(book) }
    }

    pub(crate) fn of_clients(config: ServerConfig, book: Book) -> Self {
        Acceptor { config: Arc::new(config), writes_frames: true, book: Some(book) }
    }

    /// Its connections live for seconds: they are not noted.
    pub(crate) fn of_http(config: ServerConfig) -> Self {
        Acceptor { config: Arc::new(config), writes_frames: false, book: None }
    }

    /// Does the handshake with a connected client. Has no time limit: the caller sets a deadline.
    ///
    /// # Errors
    /// The other side does not speak TLS, one side refuses the other, or the connection broke.
    /// # Cancel safety
    /// The connection is closed.
    pub async fn accept(&self, stream: Stream) -> Result<Secured, TlsError> {
        self.answer(Hello::read(stream).await?).await
    }

    /// The rest of [`Self::accept`], which takes a processor some tenths of a millisecond.
    ///
    /// # Errors
    /// As there.
    /// # Cancel safety
    /// The connection is closed.
    pub async fn answer(&self, hello: Hello) -> Result<Secured, TlsError> {
        let Hello { mut stream, said } = hello;
        let tls = conduit::answer_hello(&mut stream, said, self.config.clone());
        let tls = tls.map_err(|error| TlsError::Handshake(error.to_string()))?;
        let frames = self.writes_frames.then(Frames::default);
        shake_hands(stream, tls, frames, self.book.as_ref()).await
    }
}

impl Hello {
    /// Reads all of it, which costs next to nothing. Waits for ever: the caller sets a deadline.
    ///
    /// # Errors
    /// The other side does not speak TLS, or the connection broke.
    /// # Cancel safety
    /// The connection is closed.
    pub async fn read(mut stream: Stream) -> Result<Hello, TlsError> {
        let mut acceptor = rustls::server::Acceptor::default();
        let said = poll_fn(|cx| conduit::poll_hello(&mut stream, &mut acceptor, cx)).await;
        Ok(Hello { said: said.map_err(|error| failed(&error))?, stream })
    }
}

impl Connector {
    pub(crate) fn new(config: ClientConfig) -> Self {
        Connector { config: Arc::new(config), book: None }
    }

    pub(crate) fn to_peers(config: ClientConfig, book: Book) -> Self {
        Connector { config: Arc::new(config), book: Some(book) }
    }

    /// Does the handshake with a server whose certificate must be for `host`: a name or an IP address. Waits
    /// for ever: the caller sets a deadline.
    ///
    /// # Errors
    /// The other side does not speak TLS, one side refuses the other, or the connection broke.
    /// # Cancel safety
    /// The connection is closed.
    pub async fn connect(&self, stream: Stream, host: &str) -> Result<Stream, TlsError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| TlsError::Handshake(format!("{host:?} cannot be the name of a server")))?;
        Ok(self.dial(stream, name).await?.stream)
    }

    /// Does the handshake with a node; gives its certificate, which names it. Waits for ever: the caller sets
    /// a deadline.
    ///
    /// # Errors
    /// The other side does not speak TLS, one side refuses the other, or the connection broke.
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
        shake_hands(stream, tls.into(), None, self.book.as_ref()).await
    }
}

async fn shake_hands(
    stream: Stream,
    tls: Connection,
    frames: Option<Frames>,
    book: Option<&Book>,
) -> Result<Secured, TlsError> {
    let mut both = Both::new(stream, tls, frames);
    busy::spend(Work::Handshake, 1);
    poll_fn(|cx| both.poll_handshake(cx)).await.map_err(|error| failed(&error))?;
    let shown = both.tls().peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(Certificate::of).transpose()?;
    // A resumed connection was verified when it was new.
    if certificate.as_ref().is_some_and(|certificate| certificate.expires_ms <= time::wall_ms()) {
        return Err(TlsError::Identity("the certificate has expired".to_owned()));
    }
    let is_resumed = both.tls().handshake_kind() == Some(HandshakeKind::Resumed);
    let expires_ms = certificate.as_ref().map(|certificate| certificate.expires_ms);
    let conduit = Arc::new(TlsConduit::new(both, expires_ms));
    if let Some(book) = book.filter(|_| expires_ms.is_some())
        && !book.note(&conduit)
    {
        return Err(TlsError::Handshake("the files of certificates have changed meanwhile".to_owned()));
    }
    Ok(Secured { stream: Stream::through(conduit), certificate, is_resumed })
}

fn failed(error: &io::Error) -> TlsError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            TlsError::HungUp
        }
        _ => TlsError::Handshake(error.to_string()),
    }
}
