//! Verifiers of certificates, by rustls' rules for chains and revocation.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

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
