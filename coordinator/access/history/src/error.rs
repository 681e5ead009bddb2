//! Errors of the history's files. They do not leave `history`: outside they are a warning and a
//! gap.

use std::io;

/// Why the history's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// They are not as they were left.
    #[error("{0}")]
    Damaged(String),
    /// They may be whole, and are in the bytes of another build or release.
    #[error("it was written by another build or release, which can read it")]
    OtherBuild,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("sled: {0}")]
    Sled(String),
}
