//! The tokens of now. A file that has changed is read again; a bad one leaves the tokens as they were.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rowlock_env::disk::Dir;
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::{time, worker};
use rowlock_types::limits::TOKEN_FILE_MAX_BYTES;

use super::Tokens;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What became of a look at the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is as it was.
    Same,
    /// Its tokens count from now on.
    New,
    /// It cannot be used; the old tokens count.
    Failed(String),
}

/// Keeps the tokens of a node up to date with their file.
pub struct TokenKeeper {
    path: PathBuf,
    current: RwLock<Arc<Tokens>>,
    /// What the last look has found.
    seen: Mutex<Result<String, String>>,
    ask: watch::Sender<u64>,
}

impl TokenKeeper {
    /// Reads the file for the first time. Blocks.
    ///
    /// # Errors
    /// The file, what is wrong with it, and what to do.
    pub fn open(path: PathBuf) -> Result<TokenKeeper, String> {
        let text = read(&path)?;
        let tokens = parse(&path, &text)?;
        Ok(TokenKeeper {
            path,
            current: RwLock::new(Arc::new(tokens)),
            seen: Mutex::new(Ok(text)),
            ask: watch::channel(0).0,
        })
    }

    /// The tokens of now.
    pub fn tokens(&self) -> Arc<Tokens> {
        self.current.read().clone()
    }

    /// Has the file looked at soon, by [`TokenKeeper::run`].
    pub fn look_soon(&self) {
        self.ask.modify(|asked| *asked = asked.wrapping_add(1));
    }

    /// Looks at the file; takes new tokens if it is good. A failure is told once for each change. Blocks.
    pub fn look(&self) -> Look {
        let mut seen = self.seen.lock();
        let now = read(&self.path);
        if *seen == now {
            return Look::Same;
        }
        let tokens = now.as_ref().map_err(Clone::clone).and_then(|text| parse(&self.path, text));
        *seen = now;
        match tokens {
            Ok(tokens) => {
                *self.current.write() = Arc::new(tokens);
                Look::New
            }
            Err(error) => Look::Failed(error),
        }
    }

    /// Looks at the file again and again until `shutdown`, and tells `told` what became of each look.
    pub async fn run(self: Arc<Self>, told: impl Fn(&Look), shutdown: Shutdown) {
        let mut asked = self.ask.subscribe();
        loop {
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                _ = asked.changed() => {}
                () = time::sleep(LOOK_EVERY) => {}
            }
            let keeper = self.clone();
            told(&worker::run_blocking("token-file", move || keeper.look()).await);
        }
    }
}

fn parse(path: &Path, text: &str) -> Result<Tokens, String> {
    Tokens::parse(text).map_err(|why| format!("{}: {why}", path.display()))
}

/// The text of a file that nobody but its owner may read. Blocks.
fn read(path: &Path) -> Result<String, String> {
    let cannot = |e: std::io::Error| format!("{} cannot be read: {e}", path.display());
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| format!("{} is not the name of a file", path.display()))?;
    let dir = Dir::open(folder).map_err(cannot)?;
    if dir.is_open_to_others(name).map_err(cannot)? {
        let path = path.display();
        return Err(format!(
            "{path} has tokens, and can be read or written by other users of this machine; chmod 600 {path}"
        ));
    }
    let len = dir.open_to_read(name).and_then(|file| file.len()).map_err(cannot)?;
    if len > TOKEN_FILE_MAX_BYTES {
        return Err(format!("{} is too large for a file of tokens", path.display()));
    }
    let bytes = dir.read(name).map_err(cannot)?;
    String::from_utf8(bytes).map_err(|_| format!("{} is not a text file in UTF-8", path.display()))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the file of the test
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::tokens::{Role, Token};

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_new_file_counts_and_a_bad_one_leaves_the_old_tokens_and_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        // Else the folder would keep others out.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("tokens");
        let (one, first) = Token::new("one".to_owned(), [Role::Read].into(), None);
        let (two, second) = Token::new("two".to_owned(), [Role::Operator].into(), None);
        let said = TokenKeeper::open(path.clone()).err().unwrap();
        assert!(said.contains("cannot be read"), "{said}");
        write(&path, &format!("{one}\n"), 0o644);
        let said = TokenKeeper::open(path.clone()).err().unwrap();
        assert!(said.contains("; chmod 600 "), "{said}");
        write(&path, &format!("{one}\n"), 0o600);
        let keeper = TokenKeeper::open(path.clone()).unwrap();
        let has = |text: &str| keeper.tokens().find(text, 0).is_some();
        assert_eq!((keeper.look(), has(&first), has(&second)), (Look::Same, true, false));
        for (text, mode) in [("nonsense\n".to_owned(), 0o600), (format!("{two}\n"), 0o640)] {
            write(&path, &text, mode);
            assert!(matches!(keeper.look(), Look::Failed(_)));
            assert_eq!((keeper.look(), has(&first), has(&second)), (Look::Same, true, false));
        }
        write(&path, &format!("{two}\n"), 0o600);
        assert_eq!((keeper.look(), has(&first), has(&second)), (Look::New, false, true));
        fs::remove_file(&path).unwrap();
        assert!(matches!(keeper.look(), Look::Failed(_)));
        assert!(has(&second));
    }
}
