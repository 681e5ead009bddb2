//! Token file, reloaded after a change. A bad file leaves the previous tokens valid.

use std::path::{Path, PathBuf};

use rowlock_env::disk::Dir;
use rowlock_env::reload::Reloadable;

use super::Tokens;
use crate::limits::TOKEN_FILE_MAX_BYTES;

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
    let cannot = |e: std::io::Error| format!("{} cannot be read: {e}", path.display());
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
