//! Writes a file under a fencing token: `FILE.fence` ([`FenceFile`]) has the largest token so far, and a
//! later holder's token refuses the write of an earlier one. The same check as `rowlock fence check`, so both
//! may guard one file.

use std::fs::File;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rowlock_env::{rng, time};
use rustix::fs::{Mode, OFlags, open, rename, unlink};

use crate::fence::FenceFile;

/// Longest wait for another process that writes the same file.
const BUSY_MAX: Duration = Duration::from_secs(10);
const BUSY_POLL: Duration = Duration::from_millis(20);

/// Returns the path of a file within `root`, which is canonical. The folder of the file must exist.
pub fn within(root: &Path, path: &str) -> Result<PathBuf, String> {
    let refused = |why: String| Err(format!("{path:?} cannot be written: {why}"));
    let asked = root.join(path);
    let (Some(folder), Some(Component::Normal(name))) = (asked.parent(), asked.components().next_back())
    else {
        return refused("it names no file".to_owned());
    };
    if path.ends_with('/') || name.to_string_lossy().ends_with(".fence") {
        return refused("it names a folder, or the file of a fence".to_owned());
    }
    // Follows links: a link must not lead out of the root.
    let folder = match std::fs::canonicalize(folder) {
        Ok(folder) if folder.starts_with(root) => folder,
        Ok(_) => return refused(format!("it is outside of the root folder {}", root.display())),
        Err(e) => return refused(format!("its folder cannot be opened: {e}")),
    };
    let file = folder.join(name);
    match std::fs::symlink_metadata(&file) {
        Ok(found) if !found.is_file() => refused("it is a link or a folder".to_owned()),
        _ => Ok(file),
    }
}

/// Replaces the file with `content` unless a later holder has written: compares and writes in one step.
pub async fn fenced(file: &Path, token: i64, content: &[u8]) -> Result<(), String> {
    let token = u64::try_from(token).map_err(|_| "the token is negative".to_owned())?;
    let fence = FenceFile::open(file).map_err(|e| e.message)?;
    let until = time::now() + BUSY_MAX;
    while !fence.try_lock().map_err(|e| e.message)? {
        if time::now() >= until {
            return Err(format!(
                "{}: another process has been writing it for 10 s; try again",
                file.display()
            ));
        }
        time::sleep(BUSY_POLL).await;
    }
    fence.admit(token).map_err(|e| e.message)?;
    replace(file, content).map_err(|e| format!("{} cannot be written: {e}", file.display()))
}

/// Replaces a file as a whole; a new one gets the rights that the umask leaves.
fn replace(file: &Path, content: &[u8]) -> std::io::Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let temporary = file.with_file_name(format!(".{name}.{:016x}", rng::u64()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut written = File::from(open(&temporary, flags, Mode::from_raw_mode(0o666))?);
    let done = (|| {
        if let Ok(before) = std::fs::metadata(file) {
            written.set_permissions(before.permissions())?;
        }
        written.write_all(content)?;
        written.sync_all()?;
        Ok(rename(&temporary, file)?)
    })();
    if done.is_err() {
        // The error of the write is the one to report.
        let _ = unlink(&temporary);
    }
    done
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the real disk
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_path_stays_within_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(root.join("src")).unwrap();
        symlink("/tmp", root.join("out")).unwrap();
        symlink("/etc/passwd", root.join("link")).unwrap();
        assert_eq!(within(&root, "src/a.rs"), Ok(root.join("src/a.rs")));
        assert_eq!(within(&root, "src/../b"), Ok(root.join("b")));
        assert_eq!(within(&root, root.join("c").to_str().unwrap()), Ok(root.join("c")));
        for wrong in ["../x", "/etc/x", "out/x", "link", "src", "src/", "none/x", "..", "/", "a.fence"] {
            assert!(within(&root, wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_later_token_refuses_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        fenced(&file, 7, b"seven").await.unwrap();
        fenced(&file, 7, b"seven again").await.unwrap();
        fenced(&file, 9, b"nine").await.unwrap();
        let late = fenced(&file, 8, b"eight").await.unwrap_err();
        assert!(late.contains("stale token 8") && late.contains("nothing was changed"), "{late}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "nine");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "a temporary file is left");
    }
}
