//! ZooKeeper's rules for paths (`PathUtils.java`), and cutting them into parent and name.
//!
//! Used by the server, which answers a bad path with BadArguments, and by clients before they send one.
//! Decoding does not check paths.

/// Why a path cannot name a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path has no character.
    #[error("path is empty")]
    Empty,
    /// The first character is not `/`.
    #[error("path does not start with /")]
    NotAbsolute,
    /// `/` at the end (only the root may).
    #[error("path ends with /")]
    TrailingSlash,
    /// Two slashes follow each other.
    #[error("path has an empty name at byte {at}")]
    EmptyName {
        /// Byte offset of the second slash.
        at: usize,
    },
    /// `.` or `..` as a name.
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

/// Longest path of a new znode on Rowlock, in bytes, with its number. ZooKeeper has no such limit.
pub const MAX_BYTES: usize = 4 << 10;
/// Most [levels] of it.
pub const MAX_LEVELS: usize = 255;

/// How many names a path has: `/a/b` two.
pub fn levels(path: &str) -> usize {
    let (words, rest) = path.as_bytes().as_chunks();
    let in_words = words.iter().map(|word| slashes(u64::from_le_bytes(*word)).count_ones() as usize);
    in_words.sum::<usize>() + rest.iter().filter(|byte| **byte == b'/').count()
}

/// The highest bit of every byte that is a slash.
fn slashes(word: u64) -> u64 {
    const LOW: u64 = all(0x7f);
    // A slash becomes 0, which is what has neither its highest bit nor, after the addition, a carry into it.
    let word = word ^ all(b'/');
    !(((word & LOW) + LOW) | word | LOW)
}

/// Whether `path` can be the full path of a znode.
pub fn validate(path: &str) -> Result<(), PathError> {
    check(path, false)
}

/// Whether `prefix` can be the path of a sequential znode before the server appends the number: the last name
/// may be empty, `.` or `..`.
pub fn validate_sequential(prefix: &str) -> Result<(), PathError> {
    check(prefix, true)
}

fn check(path: &str, number_follows: bool) -> Result<(), PathError> {
    let is_plain = is_plain(path.as_bytes());
    debug_assert!(!is_plain || check_names(path, number_follows).is_ok(), "{path} is bad and looks plain");
    if is_plain { Ok(()) } else { check_names(path, number_follows) }
}

/// Whether the path is one of those that nearly all are, and so is good: of visible ASCII characters only,
/// and without a name that is empty or begins with a dot. Looks at all bytes without a branch in between,
/// eight at once.
fn is_plain(path: &[u8]) -> bool {
    let ([b'/', names @ ..], [before @ .., last]) = (path, path) else { return false };
    // The bytes and, at the same places, those in front of them.
    let ((bytes, rest), (fronts, rest_fronts)) = (names.as_chunks(), before.as_chunks());
    let mut bad = 0;
    for (front, byte) in fronts.iter().zip(bytes) {
        bad |= bad_in(*front, *byte);
    }
    match (before.last_chunk(), names.last_chunk()) {
        // The rest with bytes of before, which may be looked at twice.
        (Some(front), Some(byte)) if !rest.is_empty() => bad |= bad_in(*front, *byte),
        (Some(_), Some(_)) => {}
        _ => bad |= bad_in(filled_up(rest_fronts), filled_up(rest)),
    }
    bad == 0 && *last != b'/'
}

/// Whether a path stays good with this name, or one that begins so, below it. False for names that are bad or
/// merely not of visible ASCII characters.
pub fn is_plain_name(name: &str) -> bool {
    let is_bad = |byte: u8| !matches!(byte, b' '..=b'~') | (byte == b'/');
    let (chunks, rest) = name.as_bytes().as_chunks::<16>();
    let mut bad = [false; 16];
    // The rest with bytes of before, which are looked at twice.
    for chunk in chunks.iter().chain(name.as_bytes().last_chunk()) {
        for (bad, byte) in bad.iter_mut().zip(chunk) {
            *bad |= is_bad(*byte);
        }
    }
    let is_short = chunks.is_empty() && rest.iter().any(|byte| is_bad(*byte));
    !(name.is_empty() || name.starts_with('.') || bad != [false; 16] || is_short)
}

/// Fewer than eight bytes, with others behind them that are good.
fn filled_up(rest: &[u8]) -> [u8; 8] {
    let mut all = [b'a'; 8];
    all.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
    all
}

/// Not 0 if one of the bytes, behind those in front of them, makes a path one that is looked at name by name.
/// (All eight in one number: a node's program is compiled for size, and its compiler makes no loops of
/// vectors then.)
fn bad_in(fronts: [u8; 8], bytes: [u8; 8]) -> u64 {
    const HIGH: u64 = all(0x80);
    const LOW: u64 = all(0x7f);
    let (front, byte) = (u64::from_le_bytes(fronts), u64::from_le_bytes(bytes));
    // The highest bit of each byte: an addition to the others carries into it, and no further.
    let is_visible = (byte & LOW) + all(0x80 - 0x20);
    let is_delete = (byte & LOW) + all(1);
    let is_other = |byte: u64, than: u8| {
        let differs = byte ^ all(than);
        ((differs & LOW) + LOW) | differs
    };
    // A dot is the character before the slash.
    let begins_well = is_other(front, b'/') | is_other(byte | all(1), b'/');
    (byte | is_delete | !is_visible | !begins_well) & HIGH
}

/// Eight times this byte.
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

/// Java looks at UTF-16 units, so every character above U+FFFF is two surrogates (U+D800..U+DFFF) to it:
/// forbidden.
fn is_forbidden(character: char) -> bool {
    matches!(
        u32::from(character),
        0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..=0xffff | 0x1_0000..
    )
}

/// Path of the parent; `None` for the root and for what has no `/`.
pub fn parent(path: &str) -> Option<&str> {
    let parent = match path.rsplit_once('/')? {
        (_, "") if path == "/" => None,
        ("", _) => Some("/"),
        (parent, _) => Some(parent),
    };
    debug_assert!(
        parent.is_none_or(|parent| validate(path).is_err() || join(parent, name(path)) == path),
        "the parent of {path} and its name are another path"
    );
    parent
}

/// The last name; empty for the root.
pub fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Path of the child `name` of `parent`.
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
    fn what_is_taken_for_plain_is_good_when_looked_at_name_by_name() {
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
            // At every place of those that are looked at together.
            for (front, back) in (0..40).flat_map(|front| [(front, 0), (front, 17)]).filter(|_| length == 3) {
                let (front, back) = ("b".repeat(front), "c".repeat(back));
                paths.iter().for_each(|path| check(&format!("/{front}{path}{back}")));
            }
        }
        // What nearly all paths are like is seen at once, however long they are.
        for length in 1..100 {
            assert!(is_plain(format!("/{}", "a/".repeat(length / 2) + "b").as_bytes()), "{length}");
            assert!(is_plain(format!("/{}", "~".repeat(length)).as_bytes()), "{length}");
        }
        assert!(plain > 100, "{plain}");
    }

    #[test]
    fn forbidden_characters_are_found_at_their_place() {
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
    fn a_sequential_prefix_may_end_anyhow() {
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
    fn a_path_is_its_parent_and_its_name() {
        for (path, up, last) in [("/a", "/", "a"), ("/a/b", "/a", "b"), ("/a/", "/a", "")] {
            assert_eq!((parent(path), name(path)), (Some(up), last));
            assert_eq!(join(up, last), path);
        }
        assert_eq!((parent("/"), name("/")), (None, ""));
        assert_eq!((parent("x"), parent("")), (None, None));
    }
}
