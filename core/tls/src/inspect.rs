//! Checks of certificate files for `rowlock tls check`, without a connection.

use std::path::Path;
use std::time::Duration;

use rowlock_env::time;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;

use crate::certificate::Certificate;
use crate::error::{self, TlsError};
use crate::{files, material, verify};

/// Reads the certificates of a file: a leaf with its intermediate certificates, or authorities. Blocks.
///
/// # Errors
/// The file is unreadable, or holds no certificates.
pub fn certificates(file: &Path) -> Result<Vec<Certificate>, TlsError> {
    let in_file = |error: TlsError| TlsError::file(file, error);
    chain(file)?.iter().map(|der| Certificate::of(der).map_err(in_file)).collect()
}

/// Checks a key against its certificate and the key's access rights. Blocks.
///
/// # Errors
/// The file, the problem, and the remedy.
pub fn key(key: &Path, cert: &Path) -> Result<(), TlsError> {
    let secret = files::key(key, &files::read_private(key)?)?;
    let pair = CertifiedKey::from_der(chain(cert)?, secret, &verify::provider());
    pair.map(|_| ()).map_err(|error| material::mismatch(key, cert, &error))
}

/// Verifies the certificate in `cert` against the authorities in `ca`, at the present time: as the
/// certificate of a connecting node or client, and, if the certificate names hosts, as a server's
/// certificate. Blocks.
///
/// # Errors
/// The reason for a peer's refusal.
pub fn chains_to(cert: &Path, ca: &Path) -> Result<(), TlsError> {
    let shown = chain(cert)?;
    let (leaf, between) = shown.split_first().expect("Invariant: a file without certificates was refused");
    let roots = material::roots(ca, &files::read(ca)?)?;
    let now_ms = u64::try_from(time::wall_ms()).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(Duration::from_millis(now_ms));
    let in_file = |error: rustls::Error| TlsError::file(cert, error::reason(&error));
    let as_client = verify::of_clients(roots.clone(), Vec::new(), false)?;
    as_client.verify_client_cert(leaf, between, now).map_err(in_file)?;
    let own = Certificate::of(leaf)?;
    let Some(host) = own.hosts.first() else { return Ok(()) };
    let as_server = WebPkiServerVerifier::builder_with_provider(roots.into(), verify::provider()).build();
    let as_server = as_server.map_err(|error| TlsError::file(ca, error))?;
    let host = ServerName::try_from(host.strip_prefix("*.").unwrap_or(host).to_owned());
    match host.map(|host| as_server.verify_server_cert(leaf, between, &host, &[], now)) {
        // Ignores the host name, because the certificate has a wildcard pattern.
        Ok(Err(rustls::Error::InvalidCertificate(
            rustls::CertificateError::NotValidForName
            | rustls::CertificateError::NotValidForNameContext { .. },
        ))) => Ok(()),
        Ok(Err(error)) => Err(in_file(error)),
        Ok(Ok(_)) => Ok(()),
        Err(_) => Err(TlsError::file(cert, "names a host that is no name of a host")),
    }
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    files::certificates(file, &files::read(file)?)
}
