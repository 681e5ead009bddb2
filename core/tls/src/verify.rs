//! Verifiers of certificates, with rustls' own rules for chains and revocation.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::error::TlsError;

/// The arithmetic under TLS.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Verifies those who connect against `roots`. Without a certificate a client is let in where `optional`.
///
/// The list of revoked certificates may be of one authority only: of the others all certificates count. The
/// other side is not told which authorities are believed.
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

/// Verifies the node that was dialed by the rules for those who connect: its certificate names it by a URI,
/// which the dialing side compares, and by no host.
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
