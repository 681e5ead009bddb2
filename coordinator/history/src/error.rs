//! What can go wrong with the history's files. Nobody outside `history` sees it: there it is a warning and a
//! gap.

use std::io;

/// Why the history's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// They are not as they were left.
    #[error("{0}")]
    Damaged(String),
    /// The disk refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// sled refuses.
    #[error("sled: {0}")]
    Sled(String),
}
