//! Names of locks and elections, and the paths of their znodes. All clients and the HTTP interface share this
//! rule.
//!
//! A name is a path below a folder: slashes separate its levels, and `ci/deploy` is `/locks/ci/deploy`.
//! Within a level ASCII letters, digits, `-`, `_`, `.` and `@` stay unchanged; every other byte of the UTF-8
//! form becomes `%XX`. So different names are different znodes, whatever their characters: `a b` is
//! `/locks/a%20b`, and `a%20b` is `/locks/a%2520b`.
//!
//! A lock's znode may have other locks below: `ci` and `ci/deploy` are two locks. So no level may look like a
//! queue znode of the parent lock to any client: no level ends in ten digits, or in a dash and nine digits.

use crate::path;

/// Folder of locks: used by HTTP, and the default of clients.
pub const LOCK_BASE: &str = "/locks";
/// Longest name, in bytes.
pub const MAX_BYTES: usize = 512;
/// Most levels of a name.
pub const MAX_LEVELS: usize = 32;

/// Digits of a sequential znode's number, `%010d`: the first digit may be a minus sign.
const DIGITS: usize = 10;

/// The rule that a name breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameRule {
    /// The name has no character.
    #[error("empty")]
    Empty,
    /// The name has more than [`MAX_BYTES`] bytes.
    #[error("{bytes} bytes, {MAX_BYTES} allowed")]
    TooLong {
        /// Length of the name, in bytes.
        bytes: usize,
    },
    /// The name has more than [`MAX_LEVELS`] levels.
    #[error("{levels} levels, {MAX_LEVELS} allowed")]
    TooDeep {
        /// Number of levels between slashes.
        levels: usize,
    },
    /// A slash begins or ends the name, or follows another slash.
    #[error("a level is empty: slashes separate the levels of a name")]
    EmptyLevel,
    /// A level is `.` or `..`.
    #[error("a level is `.` or `..`")]
    Relative,
    /// A level looks like a waiter's znode.
    #[error(
        "level `{0}` ends like a waiter's znode, with ten digits or a dash and nine digits; append \
         another character"
    )]
    QueueZnode(String),
}

/// Returns the path of the znode for `name` below `folder`.
///
/// # Errors
/// The errors of [`check`].
pub fn path_below(folder: &str, name: &str) -> Result<String, NameRule> {
    check(name)?;
    let path = name.split('/').fold(folder.to_owned(), |above, level| path::join(&above, &escape(level)));
    debug_assert_eq!(path::validate(&path), path::validate(folder), "{name:?} makes a bad path");
    Ok(path)
}

/// Returns the path of the znode for `text` directly below `folder`, with slashes escaped: for znodes whose
/// children or existence mean something other than a queue.
///
/// # Errors
/// [`NameRule::Empty`], [`NameRule::TooLong`].
pub fn path_of_one_level(folder: &str, text: &str) -> Result<String, NameRule> {
    check_size(text).map(|()| path::join(folder, &escape(text)))
}

/// Checks that `name` can name a lock.
///
/// # Errors
/// The first broken rule.
pub fn check(name: &str) -> Result<(), NameRule> {
    check_size(name)?;
    let levels = name.split('/').count();
    if levels > MAX_LEVELS {
        return Err(NameRule::TooDeep { levels });
    }
    name.split('/').try_for_each(check_level)
}

fn check_size(text: &str) -> Result<(), NameRule> {
    match text.len() {
        0 => Err(NameRule::Empty),
        bytes if bytes > MAX_BYTES => Err(NameRule::TooLong { bytes }),
        _ => Ok(()),
    }
}

fn check_level(level: &str) -> Result<(), NameRule> {
    match level {
        "" => Err(NameRule::EmptyLevel),
        "." | ".." => Err(NameRule::Relative),
        level if reads_as_queue_znode(level) => Err(NameRule::QueueZnode(level.to_owned())),
        _ => Ok(()),
    }
}

/// Returns true if clients that go by names would take a child of this name for a queue znode. Includes
/// numbers that no server has assigned.
pub fn reads_as_queue_znode(level: &str) -> bool {
    let before = level.trim_end_matches(|character: char| character.is_ascii_digit());
    let digits = level.len() - before.len();
    digits >= DIGITS || (digits == DIGITS - 1 && before.ends_with('-'))
}

/// Returns `text` as one path component: percent-encoded as described above, slashes included, with `.` and
/// `..` as `%2E` and `%2E%2E`. Different texts have different components.
pub fn escape(text: &str) -> String {
    if matches!(text, "." | "..") {
        return "%2E".repeat(text.len());
    }
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'@' => {
                escaped.push(char::from(byte));
            }
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_level_of_a_name_is_percent_encoded() {
        for (name, path) in [
            ("nightly", "/locks/nightly"),
            ("ci/deploy", "/locks/ci/deploy"),
            ("@elections/scheduler", "/locks/@elections/scheduler"),
            ("a:b", "/locks/a%3Ab"),
            ("a b", "/locks/a%20b"),
            ("é", "/locks/%C3%A9"),
            ("job 🔒", "/locks/job%20%F0%9F%94%92"),
            ("a%20b", "/locks/a%2520b"),
            ("a\0/\u{7f}", "/locks/a%00/%7F"),
            ("...", "/locks/..."),
            ("lock-12345678", "/locks/lock-12345678"),
            ("1234567890x", "/locks/1234567890x"),
            ("123456789", "/locks/123456789"),
        ] {
            assert_eq!(path_below("/locks", name).as_deref(), Ok(path));
        }
        assert_eq!(path_below("/", "a/b").as_deref(), Ok("/a/b"), "the base may be the root");
    }

    #[test]
    fn different_names_have_different_paths() {
        let names = [
            "1", "10", "a/b", "a%2Fb", "a", "ü", "u", "...", "%2E", "a b", "a%20b", "a:b", "a\u{0}b", "@a/b",
            "A/b", "a/B",
        ];
        let paths: BTreeSet<_> = names.iter().map(|name| path_below("/locks", name).unwrap()).collect();
        assert_eq!(paths.len(), names.len());
        for path in &paths {
            assert_eq!(path::validate(path), Ok(()), "{path}");
        }
        assert_ne!(escape("."), escape("%2E"));
    }

    #[test]
    fn names_that_look_like_queue_znodes_are_refused() {
        let queue_znode = |level: &str| NameRule::QueueZnode(level.to_owned());
        for (name, error) in [
            ("", NameRule::Empty),
            ("/", NameRule::EmptyLevel),
            ("/locks/a", NameRule::EmptyLevel),
            ("a/", NameRule::EmptyLevel),
            ("a//b", NameRule::EmptyLevel),
            (".", NameRule::Relative),
            ("a/../b", NameRule::Relative),
            ("order-1732600000", queue_znode("order-1732600000")),
            ("a/_c_9f0e6d52-lock-0000000007/b", queue_znode("_c_9f0e6d52-lock-0000000007")),
            ("x-9999999999", queue_znode("x-9999999999")),
            ("12345678901", queue_znode("12345678901")),
            ("x-000000005", queue_znode("x-000000005")),
        ] {
            assert_eq!(path_below("/locks", name), Err(error), "{name:?}");
        }
        assert_eq!(check(&"x".repeat(MAX_BYTES)), Ok(()));
        let bytes = MAX_BYTES + 1;
        assert_eq!(check(&"x".repeat(bytes)), Err(NameRule::TooLong { bytes }));
        let deep = |levels: usize| vec!["x"; levels].join("/");
        assert_eq!(check(&deep(MAX_LEVELS)), Ok(()));
        assert_eq!(check(&deep(MAX_LEVELS + 1)), Err(NameRule::TooDeep { levels: MAX_LEVELS + 1 }));
    }
}
