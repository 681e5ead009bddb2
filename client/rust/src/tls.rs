//! Connections by TLS: the application's settings ([`Tls`]), and the handshake before the first request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::net::Stream;
use rowlock_env::{time, worker};
use rowlock_tls::{ClientKeeper, ClientTls, Pem};

use crate::connect_error::ConfigError;

/// Trusted authorities and the client's certificate: [`ClientBuilder::tls`](crate::ClientBuilder::tls).
///
/// A server's certificate must come from a trusted authority, for the name or IP address of the endpoint (or
/// for [`Tls::server_name`]). The client speaks TLS 1.2 and 1.3.
///
/// The client checks the files before each connection: a new certificate applies from the next connection on,
/// without a restart. Unusable files leave the previous files in use, with a warning in the log.
///
/// ```no_run
/// use rowlock_client::{Client, Pem, Tls};
///
/// # async fn demo() -> Result<(), rowlock_client::ConnectError> {
/// let tls = Tls::new(Pem::File("tls/peers-ca.pem".into()))
///     .identity(Pem::File("tls/client-alice.pem".into()), Pem::File("tls/client-alice.key".into()));
/// let client = Client::builder().endpoints("db1.example:2281,db2.example:2281").tls(tls).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    of: ClientTls,
    server_name: Option<String>,
}

impl Tls {
    /// Trusts the authorities in `ca` (PEM). `rowlock tls init` writes the authority of a cluster to
    /// `peers-ca.pem`.
    pub fn new(ca: Pem) -> Tls {
        Tls { of: ClientTls { ca, identity: None }, server_name: None }
    }

    /// Sets the client's certificate, followed by the intermediate certificates, and the key (default: none).
    /// Only the owner may have read access to a file with a key.
    #[must_use]
    pub fn identity(mut self, cert: Pem, key: Pem) -> Tls {
        self.of.identity = Some((cert, key));
        self
    }

    /// Expects this name in all servers' certificates, independent of the endpoints: for servers behind a
    /// tunnel or with addresses of a private network.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }
}

#[derive(Clone)]
pub(crate) struct Dialer {
    keeper: Arc<ClientKeeper>,
    server_name: Option<String>,
}

impl Dialer {
    /// Reads the files, on a blocking thread.
    pub(crate) async fn open(tls: Tls) -> Result<Dialer, ConfigError> {
        let Tls { of, server_name } = tls;
        let keeper = worker::run_blocking("tls-files", move || ClientKeeper::open(of)).await;
        let keeper = keeper.map_err(|error| ConfigError::Tls { what: error.to_string() })?;
        Ok(Dialer { keeper, server_name })
    }

    /// Encrypts a connection to the server at `endpoint` within `timeout`.
    pub(crate) async fn secure(
        &self,
        stream: Stream,
        endpoint: &str,
        timeout: Duration,
    ) -> io::Result<Stream> {
        let keeper = self.keeper.clone();
        let host = self.server_name.clone().unwrap_or_else(|| host_of(endpoint).to_owned());
        let handshake = async {
            let connector = worker::run_blocking("tls-files", move || keeper.connector()).await;
            connector.connect(stream, &host).await.map_err(io::Error::other)
        };
        time::timeout(timeout, handshake).await.unwrap_or_else(|time::Elapsed| {
            let what = format!("no TLS handshake within {timeout:?}: it may not speak TLS");
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        })
    }
}

/// Host of `host:port`, without the brackets of an IPv6 address.
fn host_of(endpoint: &str) -> &str {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_the_host_of_its_endpoint() {
        assert_eq!(
            ["a.example:2281", "10.0.0.1:1", "[::1]:2"].map(host_of),
            ["a.example", "10.0.0.1", "::1"]
        );
    }

    #[test]
    fn a_key_is_never_printed() {
        let tls = Tls::new(Pem::Text(b"authority".to_vec()))
            .identity(Pem::Text(b"certificate".to_vec()), Pem::Text(b"hush".to_vec()));
        let shown = format!("{tls:?}");
        assert!(!shown.contains("hush") && !shown.contains("104"), "{shown}");
    }
}
