//! Errors of the history's files. Outside `history` an error appears as a warning and a gap.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The files differ from the written files.
    #[error("{0}")]
    Damaged(String),
    /// Another build or release wrote the files; the content may be intact.
    #[error("it was written by another build or release, which can read it")]
    OtherBuild,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("sled: {0}")]
    Sled(String),
}
