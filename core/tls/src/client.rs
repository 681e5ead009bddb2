//! What a client needs for handshakes: the authorities of the servers, and maybe a certificate of its own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rowlock_env::reload::{Reloadable, Reloaded};
use rustls::ClientConfig;

use crate::error::TlsError;
use crate::handshake::Connector;
use crate::material::{self, CLIENT_VERSIONS};
use crate::{files, verify};

/// Certificates or a key in PEM: where they are, or they themselves.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// A file. It is looked at again before each connection, so that a new one counts without a restart.
    File(PathBuf),
    Text(Vec<u8>),
}

/// A text may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => f.debug_tuple("File").field(path).finish(),
            Pem::Text(_) => f.write_str("Text(..)"),
        }
    }
}

/// How a client knows servers, and how they know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// The authorities of the servers' certificates.
    pub ca: Pem,
    /// The client's certificate, followed by those between it and its authority; and its key. A file with a
    /// key is refused if others than its owner may read it.
    pub identity: Option<(Pem, Pem)>,
}

/// Keeps what a client needs up to date with its files.
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
    /// The file, what is wrong with it, and what to do.
    pub fn open(of: ClientTls) -> Result<Arc<ClientKeeper>, TlsError> {
        let build = {
            let of = of.clone();
            move |contents: &Contents| of.connector(contents)
        };
        Ok(Arc::new(ClientKeeper(Reloadable::open(move || of.read(), build)?)))
    }

    /// For the next connection. Files that have changed count from now on, all together; those that cannot be
    /// used leave everything as it was, with a warning in the log. Blocks.
    pub fn connector(&self) -> Connector {
        if let Reloaded::Failed(error) = self.0.look() {
            tracing::warn!(%error, "cannot load new TLS files; still using the previous ones");
        }
        Connector::clone(&self.0.current())
    }
}
