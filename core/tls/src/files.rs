//! Paths and contents of the `[tls]` files.

use std::path::{Path, PathBuf};

use rowlock_env::disk::Dir;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};

use crate::error::TlsError;

const FILE_MAX_BYTES: u64 = 4 << 20;

/// Paths of a node's certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// Certificate of the node, followed by the intermediate certificates (PEM).
    pub cert: PathBuf,
    /// Private key of the certificate (PEM, mode 0600).
    pub key: PathBuf,
    /// Authorities whose certificates are accepted from nodes.
    pub peer_ca: Option<PathBuf>,
    /// Authorities whose certificates identify clients.
    pub client_ca: Option<PathBuf>,
    /// Lists of revoked certificates.
    pub crl: Option<PathBuf>,
}

/// Bytes of the files, compared to detect a change.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) cert: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) peer_ca: Option<Vec<u8>>,
    pub(crate) client_ca: Option<Vec<u8>>,
    pub(crate) crl: Option<Vec<u8>>,
}

impl Files {
    /// Keys of `[tls]`, in the order of [`Files::all`].
    pub const KEYS: [&str; 5] = ["cert", "key", "peer_ca", "client_ca", "crl"];

    pub fn all(&self) -> [Option<&Path>; Self::KEYS.len()] {
        let Files { cert, key, peer_ca, client_ca, crl } = self;
        [Some(cert), Some(key), peer_ca.as_ref(), client_ca.as_ref(), crl.as_ref()]
            .map(|path| path.map(PathBuf::as_path))
    }

    #[must_use]
    pub fn map(&self, change: impl Fn(&Path) -> PathBuf) -> Files {
        let maybe = |path: &Option<PathBuf>| path.as_deref().map(&change);
        Files {
            cert: change(&self.cert),
            key: change(&self.key),
            peer_ca: maybe(&self.peer_ca),
            client_ca: maybe(&self.client_ca),
            crl: maybe(&self.crl),
        }
    }

    /// Reads all files. Blocks.
    pub(crate) fn read(&self) -> Result<Contents, TlsError> {
        let maybe = |path: &Option<PathBuf>| path.as_deref().map(read).transpose();
        Ok(Contents {
            cert: read(&self.cert)?,
            key: read_private(&self.key)?,
            peer_ca: maybe(&self.peer_ca)?,
            client_ca: maybe(&self.client_ca)?,
            crl: maybe(&self.crl)?,
        })
    }
}

/// Reads a file. Blocks.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let (dir, name) = split_path(path)?;
    let cannot = |error: std::io::Error| TlsError::file(path, format!("cannot be read: {error}"));
    dir.read_at_most(name, FILE_MAX_BYTES).map_err(cannot)
}

/// Reads a file and refuses access rights of other users. Blocks.
pub(crate) fn read_private(path: &Path) -> Result<Vec<u8>, TlsError> {
    let (dir, name) = split_path(path)?;
    let is_open = dir.is_open_to_others(name);
    if is_open.map_err(|error| TlsError::file(path, format!("cannot be read: {error}")))? {
        let what = format!(
            "has a key, and can be read or written by other users of this machine; chmod 600 {}",
            path.display()
        );
        return Err(TlsError::file(path, what));
    }
    read(path)
}

fn split_path(path: &Path) -> Result<(Dir, &str), TlsError> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| TlsError::file(path, "is not the name of a file"))?;
    let dir = Dir::open(folder);
    Ok((dir.map_err(|error| TlsError::file(path, format!("cannot be read: {error}")))?, name))
}

/// Parses the certificates of a PEM file; at least one is required.
pub(crate) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    all(path, pem, "certificate")
}

pub(crate) fn key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| TlsError::file(path, format!("has no key that can be read: {error}")))
}

/// Parses the lists of revoked certificates in a PEM file; at least one is required.
pub(crate) fn crls(path: &Path, pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    all(path, pem, "list of revoked certificates")
}

fn all<T: PemObject>(path: &Path, pem: &[u8], what: &str) -> Result<Vec<T>, TlsError> {
    let found: Result<Vec<T>, _> = T::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| TlsError::file(path, format!("is not a PEM file: {error}")))?;
    if found.is_empty() { Err(TlsError::file(path, format!("has no {what}"))) } else { Ok(found) }
}
