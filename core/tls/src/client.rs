//! Client side of TLS: the servers' authorities, and an optional client certificate.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rowlock_env::reload::{Reloadable, Reloaded};
use rustls::ClientConfig;

use crate::error::TlsError;
use crate::handshake::Connector;
use crate::material::{self, CLIENT_VERSIONS};
use crate::{files, verify};

/// Certificates or a key in PEM form.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// A file, read again before each connection: a new file takes effect without a restart.
    File(PathBuf),
    Text(Vec<u8>),
}

/// Hides the text, because a text may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => f.debug_tuple("File").field(path).finish(),
            Pem::Text(_) => f.write_str("Text(..)"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    pub ca: Pem,
    /// The client's certificate with the intermediate certificates, and its key. A key file with access for
    /// other users is refused.
    pub identity: Option<(Pem, Pem)>,
}

/// Connector of a client, reloaded when the files change.
pub struct ClientKeeper(Reloadable<Contents, Connector, TlsError>);

#[derive(PartialEq, Eq)]
struct Contents {
    ca: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Pem {
    fn read(&self) -> Result<Vec<u8>, TlsError> {
        match self {
            Pem::File(path) => files::read(path),
            Pem::Text(text) => Ok(text.clone()),
        }
    }

    fn read_key(&self) -> Result<Vec<u8>, TlsError> {
        match self {
            Pem::File(path) => files::read_private(path),
            Pem::Text(text) => Ok(text.clone()),
        }
    }

    fn name<'a>(&'a self, what: &'a str) -> &'a Path {
        match self {
            Pem::File(path) => path,
            Pem::Text(_) => Path::new(what),
        }
    }
}

impl ClientTls {
    fn read(&self) -> Result<Contents, TlsError> {
        let both = |(cert, key): &(Pem, Pem)| Ok((cert.read()?, key.read_key()?));
        Ok(Contents { ca: self.ca.read()?, identity: self.identity.as_ref().map(both).transpose()? })
    }

    fn connector(&self, contents: &Contents) -> Result<Connector, TlsError> {
        let roots = material::roots(self.ca.name("the authorities"), &contents.ca)?;
        let builder = ClientConfig::builder_with_provider(verify::provider())
            .with_protocol_versions(CLIENT_VERSIONS)
            .map_err(|error| TlsError::Settings(error.to_string()))?
            .with_root_certificates(roots);
        let config = match (&self.identity, &contents.identity) {
            (Some((cert, key)), Some((cert_pem, key_pem))) => {
                let (cert, key) = (cert.name("the certificate"), key.name("the key"));
                let chain = files::certificates(cert, cert_pem)?;
                let secret = files::key(key, key_pem)?;
                let pair = builder.with_client_auth_cert(chain, secret);
                pair.map_err(|error| material::mismatch(key, cert, &error))?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Connector::new(config))
    }
}

impl ClientKeeper {
    /// Reads the files for the first time. Blocks.
    ///
    /// # Errors
    /// The file, the problem, and the remedy.
    pub fn open(of: ClientTls) -> Result<Arc<ClientKeeper>, TlsError> {
        let build = {
            let of = of.clone();
            move |contents: &Contents| of.connector(contents)
        };
        Ok(Arc::new(ClientKeeper(Reloadable::open(move || of.read(), build)?)))
    }

    /// Returns the connector for the next connection. Reloads changed files, all together; on a failure logs
    /// a warning and keeps the previous connector. Blocks.
    pub fn connector(&self) -> Connector {
        if let Reloaded::Failed(error) = self.0.reload() {
            tracing::warn!(%error, "cannot load new TLS files; still using the previous ones");
        }
        Connector::clone(&self.0.current())
    }
}
