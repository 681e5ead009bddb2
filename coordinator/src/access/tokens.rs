//! Tokens that authenticate HTTP clients. The token file has one line per token: name, SHA-256 of the text,
//! roles, and end. `rowlock token new` prints the text once.
//!
//! ```text
//! # name       SHA-256   roles          ends
//! prometheus   9f86..    read           2027-02-21T14:03:00.000Z
//! deploy       60303..   operator       never
//! ci           fd61..    lock:/locks/ci/*,read  never
//! ```
//!
//! Must never do: store or print the text of a token.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::limits::{TOKEN_FILE_MAX_BYTES, TOKENS_MAX};
use rowlock_env::busy::{self, Work};
use rowlock_env::disk::Dir;
use rowlock_env::reload::Reloadable;
use rowlock_env::{decides, rng};
use rowlock_state::rules::Pattern;
use sha2::{Digest as _, Sha256};

use crate::access::report::question::Scope;
use crate::node::moment;

/// Prefix of a token's text, for secret scanners.
const PREFIX: &str = "rowlock_";
const SECRET_BYTES: usize = 32;
const NAME_MAX: usize = 64;
/// End of a token without an expiry time.
const NEVER: &str = "never";
const COMMENT: char = '#';

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Metrics, status, and reports on publicly readable data.
    Read,
    /// All of `read`, reports on all data, all locks, and all znodes.
    Operator,
    /// Lock of this path; a pattern with the end `/*` covers all locks below.
    Lock(Pattern),
    /// Znode of this path; a pattern with the end `/*` covers all znodes below.
    Znode(Pattern),
}

/// SHA-256 of a token's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash([u8; 32]);

/// Line of the token file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Name of the owner, for people and logs.
    pub name: String,
    pub hash: Hash,
    /// At least one role.
    pub roles: BTreeSet<Role>,
    /// End in milliseconds since 1970. `None`: the token never ends.
    pub expires_ms: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<Token>);

impl Role {
    /// Returns the role for this lock alone.
    pub fn lock(path: &str) -> Role {
        Role::Lock(Pattern::exactly(path))
    }

    /// Returns the role for this znode alone.
    pub fn znode(path: &str) -> Role {
        Role::Znode(Pattern::exactly(path))
    }

    /// Returns whether this role includes the permissions of `wanted`.
    pub fn covers(&self, wanted: &Role) -> bool {
        match (self, wanted) {
            (Role::Operator, _) => true,
            (Role::Lock(pattern), Role::Lock(path)) | (Role::Znode(pattern), Role::Znode(path)) => {
                pattern.covers(path)
            }
            _ => self == wanted,
        }
    }

    /// Returns whether this role permits all locks of a report's scope.
    pub fn covers_scope(&self, scope: &Scope) -> bool {
        match (self, scope) {
            (role, Scope::Lock(path)) => role.covers(&Role::lock(path)),
            (Role::Lock(pattern), Scope::Prefix(prefix)) => pattern.names_all_from(prefix),
            (role, _) => *role == Role::Operator,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Read => f.write_str("read"),
            Role::Operator => f.write_str("operator"),
            Role::Lock(path) => write!(f, "lock:{path}"),
            Role::Znode(path) => write!(f, "znode:{path}"),
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "read" => return Ok(Role::Read),
            "operator" => return Ok(Role::Operator),
            _ => {}
        }
        let wrong = || format!("{text:?} is not a role: use read, operator, lock:/PATH, or znode:/PATH");
        let (kind, path) = text.split_once(':').ok_or_else(wrong)?;
        let role = match kind {
            "lock" => Role::Lock,
            "znode" => Role::Znode,
            _ => return Err(wrong()),
        };
        path.parse().map(role).map_err(|_| wrong())
    }
}

impl Hash {
    pub fn of(text: &str) -> Hash {
        busy::spend(Work::Hash, 1);
        Hash(Sha256::digest(text.as_bytes()).into())
    }

    /// Compares in constant time.
    fn equals(&self, other: &Hash) -> bool {
        let different = self.0.iter().zip(other.0).fold(0, |sum, (a, b)| sum | std::hint::black_box(a ^ b));
        different == 0
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Hash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "the second word is not a SHA-256 (64 hexadecimal digits)".to_owned();
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Hash(hash))
    }
}

impl Token {
    /// Generates a token and returns its text; no other copy of the text exists.
    pub fn new(name: String, roles: BTreeSet<Role>, expires_ms: Option<i64>) -> (Token, String) {
        let mut secret = [0; SECRET_BYTES];
        rng::fill(&mut secret);
        let text = secret.iter().fold(PREFIX.to_owned(), |text, byte| text + &format!("{byte:02x}"));
        (Token { name, hash: Hash::of(&text), roles, expires_ms }, text)
    }

    pub fn is_name(text: &str) -> bool {
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        (1..=NAME_MAX).contains(&text.len()) && text.chars().all(fits)
    }

    /// Returns whether the token has expired at `now_ms`.
    pub fn is_over(&self, now_ms: i64) -> bool {
        self.expires_ms.is_some_and(|end| end <= now_ms)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roles: Vec<String> = self.roles.iter().map(Role::to_string).collect();
        let ends = self.expires_ms.map_or(NEVER.to_owned(), moment::rfc3339);
        write!(f, "{} {} {} {ends}", self.name, self.hash, roles.join(","))
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, hash, roles, ends] = words[..] else {
            return Err("the line must have four words: name, SHA-256, roles, end".to_owned());
        };
        if !Token::is_name(name) {
            return Err(format!(
                "{name:?} is not a name: use at most {NAME_MAX} letters, digits and . _ - @"
            ));
        }
        let roles: Result<BTreeSet<Role>, String> = roles.split(',').map(Role::from_str).collect();
        let expires_ms = match ends {
            NEVER => None,
            at => Some(moment::parse_rfc3339(at).ok_or_else(|| {
                format!("{at:?} is not a time: use {NEVER}, or a time like 2027-02-21T00:00:00Z")
            })?),
        };
        Ok(Token { name: name.to_owned(), hash: hash.parse()?, roles: roles?, expires_ms })
    }
}

impl Tokens {
    /// Parses the text of a token file.
    ///
    /// # Errors
    /// Line number and mistake; never a part of a token's text or hash.
    pub fn parse(text: &str) -> Result<Tokens, String> {
        let mut tokens: Vec<Token> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() || line.trim_start().starts_with(COMMENT) {
                continue;
            }
            let token: Token = line.parse().map_err(|why| format!("line {number}: {why}"))?;
            if tokens.iter().any(|other| other.name == token.name) {
                return Err(format!("line {number}: there are two tokens {}", token.name));
            }
            tokens.push(token);
        }
        if tokens.len() > TOKENS_MAX {
            return Err(format!("there are more than {TOKENS_MAX} tokens"));
        }
        Ok(Tokens(tokens))
    }

    /// Returns the tokens in the order of the file.
    pub fn all(&self) -> &[Token] {
        &self.0
    }

    /// Finds the unexpired token with this text, in constant time.
    pub fn find(&self, text: &str, now_ms: i64) -> Option<&Token> {
        let hash = Hash::of(text);
        let mut found = None;
        for token in &self.0 {
            if decides!("token-hash-fits", token.hash.equals(&hash)) {
                found = Some(token);
            }
        }
        found.filter(|token| decides!("token-is-valid", !token.is_over(now_ms)))
    }
}

/// Keeps a node's tokens up to date with the token file.
pub type TokenKeeper = Reloadable<String, Tokens, String>;

/// Reads the file for the first time. Blocking.
///
/// # Errors
/// Path, mistake, and remedy.
pub fn open(path: PathBuf) -> Result<TokenKeeper, String> {
    let file = path.clone();
    Reloadable::open(move || read(&file), move |text| parse(&path, text))
}

fn parse(path: &Path, text: &str) -> Result<Tokens, String> {
    Tokens::parse(text).map_err(|why| format!("{}: {why}", path.display()))
}

/// Reads a file and refuses permissions for other users. Blocking.
fn read(path: &Path) -> Result<String, String> {
    let cannot = |e: std::io::Error| {
        let new = "make it with `rowlock token new`, or copy it here";
        format!("{} cannot be read: {e}; {new}", path.display())
    };
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| format!("{} is not the name of a file", path.display()))?;
    let dir = Dir::open(folder).map_err(cannot)?;
    if dir.is_open_to_others(name).map_err(cannot)? {
        let path = path.display();
        return Err(format!(
            "{path} contains tokens and is open to other users of this machine; chmod 600 {path}"
        ));
    }
    let bytes = dir.read_at_most(name, TOKEN_FILE_MAX_BYTES).map_err(cannot)?;
    String::from_utf8(bytes).map_err(|_| format!("{} is not a text file in UTF-8", path.display()))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the file of the test
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use rowlock_env::reload::Reloaded;

    use super::*;
    use crate::access::tokens::{Role, Token};

    fn new(name: &str, roles: &[&str], expires_ms: Option<i64>) -> (Token, String) {
        Token::new(name.to_owned(), roles.iter().map(|role| role.parse().unwrap()).collect(), expires_ms)
    }

    #[test]
    fn token_is_found_until_expiry_and_the_file_lacks_its_text() {
        let (reader, text) = new("prometheus", &["read"], Some(1_800_000_000_000));
        let (operator, other) = new("deploy@host", &["operator", "lock:/locks/ci/*"], None);
        let file = format!("# ours\n\n{reader}\n  {operator}  \n");
        assert!(!file.contains(&text[PREFIX.len()..]));
        let tokens = Tokens::parse(&file).unwrap();
        assert_eq!(tokens.all(), [reader.clone(), operator.clone()]);
        assert_eq!(tokens.find(&text, 1_799_999_999_999), Some(&reader));
        assert_eq!(tokens.find(&text, 1_800_000_000_000), None, "it has ended");
        assert_eq!(tokens.find(&other, i64::MAX), Some(&operator));
        for wrong in ["", "rowlock_", &text[..text.len() - 1], &reader.hash.to_string()] {
            assert_eq!(tokens.find(wrong, 0), None, "{wrong}");
        }
        assert_ne!(text, other);
    }

    #[test]
    fn role_for_locks_permits_reports_on_these_locks_only() {
        let role = |text: &str| text.parse::<Role>().unwrap();
        let (one, below) = (role("lock:/locks/a"), role("lock:/locks/ci/*"));
        let (lock, prefix) =
            (|path: &str| Scope::Lock(path.to_owned()), |path: &str| Scope::Prefix(path.to_owned()));
        assert!(one.covers_scope(&lock("/locks/a")) && below.covers_scope(&lock("/locks/ci/x")));
        assert!(below.covers_scope(&prefix("/locks/ci/")) && below.covers_scope(&prefix("/locks/ci/x")));
        for (role, scope) in [
            (&one, lock("/locks/ab")),
            (&one, prefix("/locks/a")),
            (&below, prefix("/locks/ci")),
            (&below, lock("/locks/ci")),
            (&below, Scope::All),
        ] {
            assert!(!role.covers_scope(&scope), "{role} {scope:?}");
        }
        assert!(role("operator").covers_scope(&Scope::All));
    }

    #[test]
    fn operator_may_read_and_role_for_locks_permits_only_locks() {
        let role = |text: &str| text.parse::<Role>().unwrap();
        assert!(role("operator").covers(&Role::Read) && role("read").covers(&Role::Read));
        assert!(!role("read").covers(&Role::Operator) && !role("lock:/*").covers(&Role::Read));
        let locks = role("lock:/locks/ci/*");
        assert!(locks.covers(&role("lock:/locks/ci/a")) && locks.covers(&role("lock:/locks/ci/a/b")));
        assert!(role("operator").covers(&role("lock:/x")) && role("lock:/x").covers(&role("lock:/x")));
        for other in ["lock:/locks/ci", "lock:/locks/cd/a", "lock:/locks/cia", "operator", "read"] {
            assert!(!locks.covers(&role(other)), "{other}");
        }
        let znodes = role("znode:/ci/*");
        assert!(znodes.covers(&role("znode:/ci/a")) && role("operator").covers(&znodes));
        for other in ["znode:/ci", "lock:/ci/a", "read", "operator"] {
            assert!(!znodes.covers(&role(other)), "{other}");
        }
        assert!(!role("lock:/*").covers(&role("znode:/a")) && !role("read").covers(&role("znode:/a")));
        for wrong in
            ["", "Read", "lock:", "lock:a", "lock:/a/", "lock:/a//*", "lock:/a b", "write", "znode:a", "x:/a"]
        {
            assert!(wrong.parse::<Role>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn parse_error_names_the_line_and_no_secret() {
        let hash = Hash::of("x");
        for (line, why) in [
            ("a".to_owned(), "four words"),
            (format!("a {hash} read"), "four words"),
            (format!("a/b {hash} read never"), "is not a name"),
            (format!("a {} read never", &hash.to_string()[1..]), "not a SHA-256"),
            (format!("a {}+ read never", &hash.to_string()[1..]), "not a SHA-256"),
            (format!("a {hash} write never"), "is not a role"),
            (format!("a {hash} read, never"), "is not a role"),
            (format!("a {hash} read soon"), "is not a time"),
            (format!("b {hash} read never"), "two tokens b"),
        ] {
            let said = Tokens::parse(&format!("b {hash} read never\n{line}\n")).unwrap_err();
            assert!(said.starts_with("line 2: ") && said.contains(why), "{line}: {said}");
            assert!(!said.contains(&hash.to_string()[1..20]), "{said}");
        }
        let many: String = (0..=TOKENS_MAX).map(|n| format!("t{n} {hash} read never\n")).collect();
        assert!(Tokens::parse(&many).unwrap_err().contains("more than"));
    }

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn bad_token_file_keeps_the_old_tokens_and_fails_once() {
        let folder = tempfile::tempdir().unwrap();
        // Without this mode the folder would exclude other users.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("tokens");
        let (one, first) = Token::new("one".to_owned(), [Role::Read].into(), None);
        let (two, second) = Token::new("two".to_owned(), [Role::Operator].into(), None);
        let said = open(path.clone()).err().unwrap();
        assert!(said.contains("cannot be read"), "{said}");
        write(&path, &format!("{one}\n"), 0o644);
        let said = open(path.clone()).err().unwrap();
        assert!(said.contains("; chmod 600 "), "{said}");
        write(&path, &format!("{one}\n"), 0o600);
        let keeper = open(path.clone()).unwrap();
        let has = |text: &str| keeper.current().find(text, 0).is_some();
        assert_eq!((keeper.reload(), has(&first), has(&second)), (Reloaded::Same, true, false));
        for (text, mode) in [("nonsense\n".to_owned(), 0o600), (format!("{two}\n"), 0o640)] {
            write(&path, &text, mode);
            assert!(matches!(keeper.reload(), Reloaded::Failed(_)));
            assert_eq!((keeper.reload(), has(&first), has(&second)), (Reloaded::Same, true, false));
        }
        write(&path, &format!("{two}\n"), 0o600);
        assert_eq!((keeper.reload(), has(&first), has(&second)), (Reloaded::New, false, true));
        assert_eq!(keeper.failure(), None);
        for bad in [Some("/dev/zero"), None] {
            fs::remove_file(&path).unwrap();
            if let Some(bad) = bad {
                std::os::unix::fs::symlink(bad, &path).unwrap();
            }
            assert!(matches!(keeper.reload(), Reloaded::Failed(_)), "{bad:?}");
            assert!(keeper.failure().is_some() && has(&second), "{bad:?}");
            if bad.is_none() {
                write(&path, &format!("{two}\n#{}\n", "x".repeat(TOKEN_FILE_MAX_BYTES as usize)), 0o600);
                assert!(matches!(keeper.reload(), Reloaded::Failed(_)) && has(&second));
            }
        }
        write(&path, &format!("{one}\n"), 0o600);
        assert_eq!((keeper.reload(), keeper.failure(), has(&second)), (Reloaded::New, None, false));
    }
}
