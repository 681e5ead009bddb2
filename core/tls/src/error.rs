//! TLS errors, worded for the operator of the node.

use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates or keys is unusable.
    #[error("{}: {what}", .file.display())]
    File { file: PathBuf, what: String },
    #[error("{0}")]
    Settings(String),
    /// The peer hung up during the handshake: perhaps a peer without TLS.
    #[error("the other side hung up in the TLS handshake: it may not speak TLS")]
    HungUp,
    #[error("{0}")]
    Handshake(String),
    /// A valid certificate with the wrong names or purpose.
    #[error("{0}")]
    Identity(String),
}

impl TlsError {
    pub(crate) fn file(file: impl Into<PathBuf>, what: impl ToString) -> TlsError {
        TlsError::File { file: file.into(), what: what.to_string() }
    }
}
