//! Refusal of a folder or file.

use std::fmt;
use std::path::Path;

/// A folder or file that cannot be judged, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(pub(super) String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) fn unreadable(path: &Path, why: impl fmt::Display) -> Unreadable {
    Unreadable(format!("cannot judge {}: {why}", path.display()))
}
