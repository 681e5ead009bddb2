//! Files of certificates as `rowlock tls check` looks at them, without a connection.

use std::path::Path;
use std::time::Duration;

use rowlock_env::time;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;

use crate::certificate::Certificate;
use crate::error::TlsError;
use crate::{files, material, verify, words};

/// The certificates of a file: its owner's, then those between it and its authority; or authorities. Blocks.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn certificates(file: &Path) -> Result<Vec<Certificate>, TlsError> {
    let told = |error: TlsError| TlsError::file(file, error);
    chain(file)?.iter().map(|der| Certificate::of(der).map_err(told)).collect()
}

/// Checks that a key belongs to a file's certificate and that only its owner may read it. Blocks.
///
/// # Errors
/// The file, what is wrong with it, and what to do.
pub fn key(key: &Path, cert: &Path) -> Result<(), TlsError> {
    let secret = files::key(key, &files::read_private(key)?)?;
    let pair = CertifiedKey::from_der(chain(cert)?, secret, &verify::provider());
    pair.map(|_| ()).map_err(|error| material::mismatch(key, cert, &error))
}

/// Whether those who believe in the authorities of the file `ca` believe the certificate of the file `cert`
/// now: as that of a node or of a client who connects, and, if it is for hosts, as that of a server. Blocks.
///
/// # Errors
/// What they have against it.
pub fn chains_to(cert: &Path, ca: &Path) -> Result<(), TlsError> {
    let shown = chain(cert)?;
    let (leaf, between) = shown.split_first().expect("Invariant: a file without certificates was refused");
    let roots = material::roots(ca, &files::read(ca)?)?;
    let now_ms = u64::try_from(time::wall_ms()).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(Duration::from_millis(now_ms));
    let told = |error: rustls::Error| TlsError::file(cert, words::reason(&error));
    let as_client = verify::of_clients(roots.clone(), Vec::new(), false)?;
    as_client.verify_client_cert(leaf, between, now).map_err(told)?;
    let own = Certificate::of(leaf)?;
    let Some(host) = own.hosts.first() else { return Ok(()) };
    let as_server = WebPkiServerVerifier::builder_with_provider(roots.into(), verify::provider()).build();
    let as_server = as_server.map_err(|error| TlsError::file(ca, error))?;
    let host = ServerName::try_from(host.strip_prefix("*.").unwrap_or(host).to_owned());
    match host.map(|host| as_server.verify_server_cert(leaf, between, &host, &[], now)) {
        // A pattern of names is not one of them: only the rest was to be judged.
        Ok(Err(rustls::Error::InvalidCertificate(
            rustls::CertificateError::NotValidForName
            | rustls::CertificateError::NotValidForNameContext { .. },
        ))) => Ok(()),
        Ok(Err(error)) => Err(told(error)),
        Ok(Ok(_)) => Ok(()),
        Err(_) => Err(TlsError::file(cert, "names a host that is no name of a host")),
    }
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    files::certificates(file, &files::read(file)?)
}
