//! TLS for HTTP: handshakes of one listener, with a bounded rate.
//!
//! Must never do: reveal to a client with a failed handshake more than a TLS alert or the need for TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use rowlock_env::net::Stream;
use rowlock_env::rate::{HandshakePace, LogLimiter};
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Metrics;
use rowlock_tls::{Hello, Keeper, Secured, TlsError, looks_like_tls};

use super::connection::Visitor;
use crate::limits::{HOSTS_COUNTED_MAX, HTTP_TLS_HANDSHAKES_PER_SECOND};

/// Response to a request without TLS.
const WITHOUT_TLS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
                             this port is for https\n";

pub(super) type Handshake = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// State shared by all connections of the listener.
pub(super) struct SecureHttp {
    keeper: Arc<Keeper>,
    shared: Arc<HandshakeContext>,
}

struct HandshakeContext {
    pace: HandshakePace,
    refusals_log: LogLimiter,
    metrics: Arc<Metrics>,
}

impl SecureHttp {
    pub(super) fn new(keeper: Arc<Keeper>, metrics: Arc<Metrics>) -> Self {
        let pace = HandshakePace::new(HTTP_TLS_HANDSHAKES_PER_SECOND, HOSTS_COUNTED_MAX);
        SecureHttp {
            keeper,
            shared: Arc::new(HandshakeContext { pace, refusals_log: LogLimiter::default(), metrics }),
        }
    }

    /// Runs the handshake and stores the certificate's subject in `visitor`. After `deadline` a handshake
    /// fails without starting.
    pub(super) fn handshake(&self, stream: Stream, visitor: Visitor, deadline: Instant) -> Handshake {
        let (keeper, shared) = (self.keeper.clone(), self.shared.clone());
        Box::pin(async move {
            match shared.accept(&keeper, stream, &visitor, deadline).await {
                Ok(Secured { stream, certificate, .. }) => {
                    if let Some(certificate) = certificate {
                        visitor.set_subject(certificate.subject);
                    }
                    Ok(stream)
                }
                Err(error) => {
                    shared.failed(&visitor, &error);
                    Err(io::Error::new(io::ErrorKind::ConnectionAborted, error))
                }
            }
        })
    }
}

impl HandshakeContext {
    async fn accept(
        &self,
        keeper: &Keeper,
        stream: Stream,
        visitor: &Visitor,
        deadline: Instant,
    ) -> Result<Secured, TlsError> {
        match stream.first_byte().await {
            Ok(Some(first)) if looks_like_tls(first) => {}
            Ok(Some(_)) => {
                // Reads the rest of the request: with unread bytes, closing the connection would discard the
                // response.
                let _ = stream.try_read(&mut [0; 1_024]);
                let _ = stream.try_write(WITHOUT_TLS);
                return Err(TlsError::Handshake("it does not speak TLS".to_owned()));
            }
            Ok(None) | Err(_) => return Err(TlsError::HungUp),
        }
        // A handshake takes its turn only after the complete hello, so clients with silent or partial hellos
        // take no turns.
        let hello = Hello::read(stream).await?;
        let now = time::now();
        let wait = self.pace.reserve(visitor.address.ip(), now, deadline.saturating_since(now));
        let wait = wait.ok_or_else(|| TlsError::Handshake("too many TLS handshakes at a time".to_owned()))?;
        time::sleep(wait).await;
        keeper.material().http.answer(hello).await
    }

    fn failed(&self, visitor: &Visitor, error: &TlsError) {
        if matches!(error, TlsError::HungUp) {
            return;
        }
        self.metrics.http_tls_handshakes_failed_total.inc();
        if let Some(suppressed) = self.refusals_log.admit() {
            tracing::info!(address = %visitor.address, %error, suppressed, "TLS handshake with an HTTP client failed");
        }
    }
}
