//! [`Source`]: the parsed text of a `cluster.toml`, for the positions in errors. [`ConfigError`]: a mistake
//! in it.

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Parsed text, for the positions in errors.
pub(super) struct Source<'a> {
    text: &'a str,
    pub(super) path: &'a Path,
    values: DeValue<'a>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str, path: &'a Path, table: Spanned<DeTable<'a>>) -> Self {
        Source { text, path, values: DeValue::Table(table.into_inner()) }
    }

    /// Returns the start of a key's value, e.g. `raft.heartbeat_ms` or `node.0.client`, or `None` if the text
    /// lacks the key.
    pub(super) fn offset(&self, key: &str) -> Option<usize> {
        let (mut value, mut offset) = (&self.values, None);
        for part in key.split('.') {
            let inner = match part.parse::<usize>() {
                Ok(index) => value.get(index)?,
                Err(_) => value.get(part)?,
            };
            (value, offset) = (inner.get_ref(), Some(inner.span().start));
        }
        offset
    }

    pub(super) fn line(&self, offset: usize) -> usize {
        line(self.text, offset)
    }

    pub(super) fn error(&self, offset: Option<usize>, what: String, remedy: &str) -> ConfigError {
        error(self.text, self.path, offset, what, remedy)
    }

    /// Creates an error at the value of a key.
    pub(super) fn at(&self, key: &str, what: String, remedy: &str) -> ConfigError {
        self.error(self.offset(key), what, remedy)
    }
}

fn line(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|b| **b == b'\n').count()
}

pub(super) fn error(
    text: &str,
    path: &Path,
    offset: Option<usize>,
    what: String,
    remedy: &str,
) -> ConfigError {
    let line = offset.map(|offset| line(text, offset));
    ConfigError { file: path.to_owned(), line, what, remedy: remedy.to_owned() }
}

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
