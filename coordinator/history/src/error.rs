//! Errors of the history's files. They do not leave `history`: outside they are a warning and a
//! gap.

use std::io;

/// Why the history's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// They are not as they were left.
    #[error("{0}")]
    Damaged(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("sled: {0}")]
    Sled(String),
}
