//! Patterns of paths: `/locks/a` names this path, `/locks/ci/*` everything below, `/*` everything. Rules and
//! the roles of tokens use the same patterns.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use rowlock_proto::path as paths;

/// A pattern of paths. Stored without the star, so that a pattern of a folder ends in a slash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

impl Pattern {
    /// Makes the pattern of this path alone.
    pub fn exactly(path: &str) -> Pattern {
        Pattern(path.to_owned())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text that the [`mutant`](crate::mutant) `prefix-without-boundary` compares.
    pub(super) fn without_boundary(&self) -> &str {
        self.0.trim_end_matches('/')
    }

    fn is_folder(&self) -> bool {
        self.0.ends_with('/')
    }

    /// Returns whether this pattern names every path that `other` names.
    pub fn covers(&self, other: &Pattern) -> bool {
        self == other || self.is_folder() && other.0.starts_with(&self.0)
    }

    /// Returns whether this pattern names every path that begins with `prefix`.
    pub fn names_all_from(&self, prefix: &str) -> bool {
        self.is_folder() && prefix.starts_with(&self.0)
    }

    pub(super) fn levels(&self) -> usize {
        paths::levels(&self.0)
    }
}

/// Iterates over the patterns of at most this many levels that name `path`, the longest first.
pub(super) fn longest_first(path: &str, levels: usize) -> impl Iterator<Item = &str> {
    let slashes = path.match_indices('/').map(|(at, _)| at).take(levels.saturating_add(1));
    let folders = slashes.map(move |at| &path[..=at]).filter(move |folder| folder.len() < path.len());
    // A path has at most `paths::MAX_LEVELS` folders.
    let folders: smallvec::SmallVec<[&str; 16]> = folders.collect();
    debug_assert!(folders.is_sorted_by_key(|folder| folder.len()), "folders go down the path");
    let itself = std::iter::once(path).filter(|path| !path.ends_with('/'));
    itself.chain(folders.into_iter().rev())
}

impl Borrow<str> for Pattern {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, if self.is_folder() { "*" } else { "" })
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no path of locks: use /PATH, or /PATH/* for every lock below");
        let folder = text.strip_suffix("/*").unwrap_or(text);
        let fits = text.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != ',');
        let is_path = text == "/*" || folder != "/" && paths::validate(folder).is_ok();
        let is_star_free = !folder.contains('*');
        match fits && is_path && is_star_free {
            true => {
                debug_assert!(text.starts_with('/'), "a pattern begins with a slash");
                Ok(Pattern(text.strip_suffix('*').unwrap_or(text).to_owned()))
            }
            false => Err(wrong()),
        }
    }
}
