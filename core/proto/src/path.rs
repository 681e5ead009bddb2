//! ZooKeeper's rules for paths (`PathUtils.java`), and functions that split a path into parent and name.
//!
//! The server answers a bad path with BadArguments; clients check a path before they send the request.
//! Decoding does not check paths.

/// Reasons why a path cannot name a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path has no character.
    #[error("path is empty")]
    Empty,
    /// The first character is not `/`.
    #[error("path does not start with /")]
    NotAbsolute,
    /// The path ends with `/` (only the root may).
    #[error("path ends with /")]
    TrailingSlash,
    /// Two slashes follow each other.
    #[error("path has an empty name at byte {at}")]
    EmptyName {
        /// Byte offset of the second slash.
        at: usize,
    },
    /// A name is `.` or `..`.
    #[error("path is relative at byte {at}")]
    Relative {
        /// Byte offset of the name.
        at: usize,
    },
    /// A control character, a private one, or one above U+FFFF.
    #[error("path has the forbidden character {character:?} at byte {at}")]
    Forbidden {
        /// The character that is not allowed.
        character: char,
        /// Byte offset of the character.
        at: usize,
    },
}

/// Longest path of a new znode on Rowlock in bytes, including its number. ZooKeeper has no such limit.
pub const MAX_BYTES: usize = 4 << 10;
/// Most [levels] of a new znode's path.
pub const MAX_LEVELS: usize = 255;

/// Returns the number of names in a path: 2 for `/a/b`.
pub fn levels(path: &str) -> usize {
    let (words, rest) = path.as_bytes().as_chunks();
    let in_words = words.iter().map(|word| slashes(u64::from_le_bytes(*word)).count_ones() as usize);
    in_words.sum::<usize>() + rest.iter().filter(|byte| **byte == b'/').count()
}

/// Returns a word with the highest bit set in every byte that is a slash.
fn slashes(word: u64) -> u64 {
    const LOW: u64 = all(0x7f);
    // A slash becomes 0: the only byte without its highest bit both before and after the addition.
    let word = word ^ all(b'/');
    !(((word & LOW) + LOW) | word | LOW)
}

/// Checks that `path` can be the full path of a znode.
pub fn validate(path: &str) -> Result<(), PathError> {
    check(path, false)
}

/// Checks that `prefix` can be the path of a sequential znode before the server appends the number: the last
/// name may be empty, `.` or `..`.
pub fn validate_sequential(prefix: &str) -> Result<(), PathError> {
    check(prefix, true)
}

fn check(path: &str, number_follows: bool) -> Result<(), PathError> {
    let is_plain = is_plain(path.as_bytes());
    debug_assert!(
        !is_plain || check_names(path, number_follows).is_ok(),
        "the fast check accepted the bad path {path}"
    );
    if is_plain { Ok(()) } else { check_names(path, number_follows) }
}

/// Returns true for nearly all good paths: those of visible ASCII characters only, without an empty name or a
/// name that begins with a dot. Checks all bytes without branches, eight at once.
fn is_plain(path: &[u8]) -> bool {
    let ([b'/', names @ ..], [before @ .., last]) = (path, path) else { return false };
    // Each byte is paired with the byte before.
    let ((bytes, rest), (fronts, rest_fronts)) = (names.as_chunks(), before.as_chunks());
    let mut bad = 0;
    for (front, byte) in fronts.iter().zip(bytes) {
        bad |= bad_in(*front, *byte);
    }
    match (before.last_chunk(), names.last_chunk()) {
        // The last chunk repeats some bytes of the previous chunk.
        (Some(front), Some(byte)) if !rest.is_empty() => bad |= bad_in(*front, *byte),
        (Some(_), Some(_)) => {}
        _ => bad |= bad_in(padded(rest_fronts), padded(rest)),
    }
    bad == 0 && *last != b'/'
}

/// Returns true if a path stays valid with `name`, or any name that begins with `name`, below. Returns false
/// for invalid names, and for valid names with characters other than visible ASCII.
pub fn is_plain_name(name: &str) -> bool {
    let is_bad = |byte: u8| !matches!(byte, b' '..=b'~') | (byte == b'/');
    let (chunks, rest) = name.as_bytes().as_chunks::<16>();
    let mut bad = [false; 16];
    // The last chunk repeats some bytes of the previous chunk.
    for chunk in chunks.iter().chain(name.as_bytes().last_chunk()) {
        for (bad, byte) in bad.iter_mut().zip(chunk) {
            *bad |= is_bad(*byte);
        }
    }
    let is_short = chunks.is_empty() && rest.iter().any(|byte| is_bad(*byte));
    !(name.is_empty() || name.starts_with('.') || bad != [false; 16] || is_short)
}

/// Pads fewer than eight bytes with valid bytes.
fn padded(rest: &[u8]) -> [u8; 8] {
    let mut all = [b'a'; 8];
    all.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
    all
}

/// Returns 0 if a path may contain all of `bytes`, each after its byte of `fronts`; otherwise the caller must
/// check the path name by name. Eight bytes share one word because release builds optimize for size, and the
/// compiler then does not vectorize loops.
fn bad_in(fronts: [u8; 8], bytes: [u8; 8]) -> u64 {
    const HIGH: u64 = all(0x80);
    const LOW: u64 = all(0x7f);
    let (front, byte) = (u64::from_le_bytes(fronts), u64::from_le_bytes(bytes));
    // The result is in the highest bit of each byte: adding to the lower bits carries into that bit at most.
    let is_visible = (byte & LOW) + all(0x80 - 0x20);
    let is_delete = (byte & LOW) + all(1);
    let is_other = |byte: u64, than: u8| {
        let differs = byte ^ all(than);
        ((differs & LOW) + LOW) | differs
    };
    // A dot is the character before the slash in ASCII.
    let begins_well = is_other(front, b'/') | is_other(byte | all(1), b'/');
    (byte | is_delete | !is_visible | !begins_well) & HIGH
}

const fn all(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

fn check_names(path: &str, number_follows: bool) -> Result<(), PathError> {
    let Some(first) = path.chars().next() else { return Err(PathError::Empty) };
    if first != '/' {
        return Err(PathError::NotAbsolute);
    }
    if path == "/" {
        return Ok(());
    }
    if path.ends_with('/') && !number_follows {
        return Err(PathError::TrailingSlash);
    }
    let mut at = 1;
    let mut names = path[1..].split('/').peekable();
    while let Some(name) = names.next() {
        if names.peek().is_some() || !number_follows {
            match name {
                "" => return Err(PathError::EmptyName { at }),
                "." | ".." => return Err(PathError::Relative { at }),
                _ => {}
            }
        }
        if let Some((offset, character)) = name.char_indices().find(|(_, c)| is_forbidden(*c)) {
            return Err(PathError::Forbidden { character, at: at + offset });
        }
        at += name.len() + 1;
    }
    Ok(())
}

/// Returns true for characters that Java forbids. Java checks UTF-16 units, so every character above U+FFFF
/// is two forbidden surrogates (U+D800..U+DFFF).
fn is_forbidden(character: char) -> bool {
    matches!(
        u32::from(character),
        0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..=0xffff | 0x1_0000..
    )
}

/// Returns the path of the parent; `None` for the root and for a text without `/`.
pub fn parent(path: &str) -> Option<&str> {
    let parent = match path.rsplit_once('/')? {
        (_, "") if path == "/" => None,
        ("", _) => Some("/"),
        (parent, _) => Some(parent),
    };
    debug_assert!(
        parent.is_none_or(|parent| validate(path).is_err() || join(parent, name(path)) == path),
        "joining the parent and the name of {path} gives another path"
    );
    parent
}

/// Returns the last name; empty for the root.
pub fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Returns the path of the child `name` of `parent`.
pub fn join(parent: &str, name: &str) -> String {
    let parent = if parent == "/" { "" } else { parent };
    let mut path = String::with_capacity(parent.len() + 1 + name.len());
    path.push_str(parent);
    path.push('/');
    path.push_str(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_zookeepers_rules() {
        for good in
            ["/", "/a", "/a/b", "/a.b", "/..a", "/a..", "/...", "/ä/\u{d7ff}", "/\u{f900}\u{ffef}", "/a b"]
        {
            assert_eq!(validate(good), Ok(()), "{good}");
        }
        assert_eq!(validate(""), Err(PathError::Empty));
        assert_eq!(validate("a"), Err(PathError::NotAbsolute));
        assert_eq!(validate("/a/"), Err(PathError::TrailingSlash));
        assert_eq!(validate("/a//b"), Err(PathError::EmptyName { at: 3 }));
        assert_eq!(validate("//a"), Err(PathError::EmptyName { at: 1 }));
        for relative in ["/.", "/..", "/./a", "/../a"] {
            assert_eq!(validate(relative), Err(PathError::Relative { at: 1 }), "{relative}");
        }
        assert_eq!(validate("/a/.."), Err(PathError::Relative { at: 3 }));
    }

    #[test]
    fn the_fast_check_accepts_only_paths_with_good_names() {
        let characters = ['/', '.', 'a', '~', ' ', '\0', '\u{1f}', '\u{7f}', 'ä'];
        let mut paths = vec![String::new()];
        let mut plain = 0;
        let mut check = |path: &str| {
            if is_plain(path.as_bytes()) {
                plain += 1;
                assert_eq!(check_names(path, false), Ok(()), "{path:?}");
                assert_eq!(check_names(path, true), Ok(()), "{path:?}");
            }
        };
        for length in 1..=5 {
            let longer = |path: &String| characters.map(|character| format!("{path}{character}"));
            paths = paths.iter().flat_map(longer).collect();
            paths.iter().for_each(|path| check(path));
            // At every offset within the eight bytes that are checked together.
            for (front, back) in (0..40).flat_map(|front| [(front, 0), (front, 17)]).filter(|_| length == 3) {
                let (front, back) = ("b".repeat(front), "c".repeat(back));
                paths.iter().for_each(|path| check(&format!("/{front}{path}{back}")));
            }
        }
        // The fast check accepts the usual paths at every length.
        for length in 1..100 {
            assert!(is_plain(format!("/{}", "a/".repeat(length / 2) + "b").as_bytes()), "{length}");
            assert!(is_plain(format!("/{}", "~".repeat(length)).as_bytes()), "{length}");
        }
        assert!(plain > 100, "{plain}");
    }

    #[test]
    fn an_error_names_the_offset_of_a_forbidden_character() {
        let edges = [
            '\0', '\u{1}', '\u{1f}', '\u{7f}', '\u{9f}', '\u{e000}', '\u{f8ff}', '\u{fff0}', '\u{ffff}', '😀',
        ];
        for character in edges {
            let at = 3;
            assert_eq!(validate(&format!("/a/{character}")), Err(PathError::Forbidden { character, at }));
            assert_eq!(
                validate_sequential(&format!("/a/{character}")),
                Err(PathError::Forbidden { character, at })
            );
        }
    }

    #[test]
    fn a_sequential_prefix_may_end_with_any_name() {
        for good in ["/", "/a", "/a/", "/.", "/..", "/a/."] {
            assert_eq!(validate_sequential(good), Ok(()), "{good}");
        }
        assert_eq!(validate_sequential(""), Err(PathError::Empty));
        assert_eq!(validate_sequential("a"), Err(PathError::NotAbsolute));
        assert_eq!(validate_sequential("//"), Err(PathError::EmptyName { at: 1 }));
        assert_eq!(validate_sequential("/a//"), Err(PathError::EmptyName { at: 3 }));
        assert_eq!(validate_sequential("/./"), Err(PathError::Relative { at: 1 }));
    }

    #[test]
    fn parent_and_name_join_to_the_path() {
        for (path, up, last) in [("/a", "/", "a"), ("/a/b", "/a", "b"), ("/a/", "/a", "")] {
            assert_eq!((parent(path), name(path)), (Some(up), last));
            assert_eq!(join(up, last), path);
        }
        assert_eq!((parent("/"), name("/")), (None, ""));
        assert_eq!((parent("x"), parent("")), (None, None));
    }
}
