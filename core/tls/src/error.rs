//! TLS errors, worded for the operator of the node.

use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates or keys cannot be used.
    #[error("{}: {what}", .file.display())]
    File {
        file: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
    /// What the files say does not go together.
    #[error("{0}")]
    Settings(String),
    /// The other side hung up in the handshake: it may not speak TLS.
    #[error("the other side hung up in the TLS handshake: it may not speak TLS")]
    HungUp,
    /// The handshake failed: one side refuses the other.
    #[error("{0}")]
    Handshake(String),
    /// A certificate that is well signed and of no use here.
    #[error("{0}")]
    Identity(String),
}

impl TlsError {
    pub(crate) fn file(file: impl Into<PathBuf>, what: impl ToString) -> TlsError {
        TlsError::File { file: file.into(), what: what.to_string() }
    }
}
