//! Verifiers of certificates, by rustls' rules for chains and revocation.
//!
//! Closes open connections once the peer's certificate becomes invalid: by expiry, by revocation, or by new
//! files without its authority.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::conduit::TlsConduit;
use crate::error::TlsError;

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Makes a verifier of connecting peers against `roots`. With `optional`, a client without a certificate
/// passes.
///
/// A list of revoked certificates may cover a single authority: certificates of the remaining authorities
/// pass without a list. The handshake does not disclose the names of the authorities.
pub(crate) fn of_clients(
    roots: RootCertStore,
    crls: Vec<CertificateRevocationListDer<'static>>,
    optional: bool,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .with_crls(crls)
        .allow_unknown_revocation_status()
        .clear_root_hint_subjects();
    if optional {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| TlsError::Settings(format!("the authorities cannot be used: {error}")))
}

/// Verifies a dialed node by the rules for connecting peers: a node's certificate has no host, but a URI, and
/// the dialing side compares the URI.
#[derive(Debug)]
pub(crate) struct NodeVerifier(pub(crate) Arc<dyn ClientCertVerifier>);

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Least number of entries for a sweep of closed connections. A sweep also needs twice the entries left by
/// the previous sweep.
const FORGET_MIN: usize = 64;

/// Connections of a kind (nodes or clients), over all materials of a keeper.
#[derive(Default)]
pub(crate) struct Watched(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    all: Vec<Weak<TlsConduit>>,
    forget_at: usize,
}

/// Registry of connections for the handshakes of a material.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    watched: Arc<Watched>,
    /// True after newer material has replaced this material.
    is_old: Arc<AtomicBool>,
}

impl Registry {
    pub(crate) fn of(watched: Arc<Watched>) -> Self {
        Registry { watched, is_old: Arc::default() }
    }

    /// Fails later ends of handshakes: their verification may be outdated.
    pub(crate) fn close(&self) {
        self.is_old.store(true, Ordering::SeqCst);
    }

    /// Registers a connection. Returns false for old material: the caller must not use the connection.
    pub(crate) fn register(&self, connection: &Arc<TlsConduit>) -> bool {
        self.watched.add(connection);
        // Read after the registration: a later `close` finds the connection in the list.
        !self.is_old.load(Ordering::SeqCst)
    }
}

impl Watched {
    fn add(&self, connection: &Arc<TlsConduit>) {
        let inner = &mut *self.0.lock();
        if inner.all.len() >= inner.forget_at.max(FORGET_MIN) {
            inner.all.retain(|one| one.strong_count() > 0);
            inner.forget_at = 2 * inner.all.len();
        }
        inner.all.push(Arc::downgrade(connection));
    }

    fn open(&self) -> Vec<Arc<TlsConduit>> {
        self.0.lock().all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Closes the connections with expired certificates; returns their number.
    pub(crate) fn close_expired(&self) -> usize {
        let now_ms = time::wall_ms();
        self.open().iter().filter(|one| one.expires_ms() <= now_ms && one.end()).count()
    }

    /// Closes the connections with certificates refused by `verifier`; returns their number. `None` refuses
    /// every certificate.
    pub(crate) fn close_refused(&self, verifier: Option<&dyn ClientCertVerifier>) -> usize {
        let now = Duration::from_millis(u64::try_from(time::wall_ms()).unwrap_or(0));
        let now = UnixTime::since_unix_epoch(now);
        // Caches the results: clients share certificates, and a verification takes a tenth of a millisecond.
        let mut known: BTreeMap<Vec<Vec<u8>>, bool> = BTreeMap::new();
        let mut counts = |chain: Vec<CertificateDer<'static>>| {
            let key = chain.iter().map(|one| one.to_vec()).collect();
            *known.entry(key).or_insert_with(|| match (verifier, chain.split_first()) {
                (Some(verifier), Some((leaf, rest))) => verifier.verify_client_cert(leaf, rest, now).is_ok(),
                _ => false,
            })
        };
        self.open().iter().filter(|one| !counts(one.chain()) && one.end()).count()
    }
}
