//! [`ConfigError`]: a mistake in a `cluster.toml`.

use std::path::PathBuf;

/// Error in a `cluster.toml`, printed as one line: location, mistake, remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {what}; {remedy}", .file.display(), .line.map(|l| format!(":{l}")).unwrap_or_default())]
pub struct ConfigError {
    /// File with the mistake.
    pub file: PathBuf,
    /// Line of the mistake, counted from 1.
    pub line: Option<usize>,
    /// Description of the mistake, with its key.
    pub what: String,
    /// Correction to propose to the user.
    pub remedy: String,
}
