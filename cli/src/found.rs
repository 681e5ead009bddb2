//! Files and folders that a command finds in the current folder although no option names them.
//!
//! Invariant: a command uses one only if no user but ours and root can have put it there or can replace it.
//! Otherwise another user of the folder chooses the address that gets our credential, as with `.git` and
//! `.ssh`. A path that an option or a variable names is the user's own word, and is not checked.

use std::path::{Path, PathBuf};

use rowlock_coordinator::config::ClusterConfig;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::exit::{CONFIG, Failure};

/// The cluster's file in the current folder.
pub const CLUSTER_FILE: &str = "cluster.toml";

/// Permission of a group and of all others to write, and the bit that keeps them from replacing what is not
/// theirs in a folder.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Returns the path that an option names, else that of `cluster.toml` in the current folder.
pub fn cluster_path(named: Option<&Path>) -> &Path {
    named.unwrap_or(Path::new(CLUSTER_FILE))
}

/// Loads the file at [`cluster_path`].
pub fn cluster_file(named: Option<&Path>) -> Result<ClusterConfig, Failure> {
    if named.is_none() {
        check(Path::new(CLUSTER_FILE), "--config")?;
    }
    load(cluster_path(named))
}

/// The same. `None`: no file is named, and the current folder has none.
pub fn cluster_file_if_any(named: Option<&Path>) -> Result<Option<ClusterConfig>, Failure> {
    let exists = named.is_some() || Path::new(CLUSTER_FILE).exists();
    exists.then(|| cluster_file(named)).transpose()
}

/// Loads a file that must exist.
pub fn load(path: &Path) -> Result<ClusterConfig, Failure> {
    ClusterConfig::load(path).map_err(|e| Failure::new(CONFIG, e))
}

/// Refuses to use `path`, relative to the current folder, if another user can have put it there. One that
/// does not exist passes if no other user could put one there. `option` names it explicitly.
///
/// A caller may open the path again afterwards: after this no other user can exchange any part of it.
pub fn check(path: &Path, option: &str) -> Result<(), Failure> {
    let shown = path.display();
    let refused = |why: String| {
        let remedy = format!("if you trust it, name it: {option} {shown}");
        Failure::new(CONFIG, format!("{shown} of the current folder is not used: {why}; {remedy}"))
    };
    match distrusted(path) {
        Ok(Some(why)) => Err(refused(why)),
        Ok(None) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(refused(format!("it cannot be checked: {}", std::io::Error::from(e)))),
    }
}

/// Why another user may be behind the path. Each part is opened in the folder that was checked before it.
fn distrusted(path: &Path) -> Result<Option<String>, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut at = openat(CWD, ".", flags | OFlags::DIRECTORY, Mode::empty())?;
    if let Some(why) = stranger_of(&fstat(&at)?) {
        return Ok(Some(format!("the current folder {why}")));
    }
    let mut shown = PathBuf::new();
    for part in path.components() {
        shown.push(part);
        let entry = openat(&at, part.as_os_str(), flags | OFlags::NOFOLLOW, Mode::empty())?;
        let folder = std::mem::replace(&mut at, entry);
        let found = fstat(&at)?;
        if let Some(why) = stranger_of(&found) {
            return Ok(Some(format!("{} {why}", shown.display())));
        }
        if FileType::from_raw_mode(found.st_mode).is_symlink() {
            // Ours or root's, in a folder where no other user can replace it: we or root chose its target.
            at = openat(&folder, part.as_os_str(), flags, Mode::empty())?;
            if let Some(why) = stranger_of(&fstat(&at)?) {
                return Ok(Some(format!("the target of the link {} {why}", shown.display())));
            }
        }
    }
    Ok(None)
}

/// Who besides us and root rules over a file, a folder or a link. A group that has the number of our user is
/// ours alone by convention (`USERGROUPS_ENAB`): its members may write.
fn stranger_of(found: &Stat) -> Option<String> {
    let (mode, kind) = (found.st_mode, FileType::from_raw_mode(found.st_mode));
    if found.st_uid != geteuid().as_raw() && found.st_uid != 0 {
        return Some(format!("belongs to user {}, neither to you nor to root", found.st_uid));
    }
    let is_own_group = found.st_gid == getegid().as_raw() && found.st_gid == geteuid().as_raw();
    let group_writes = mode & GROUP_WRITES != 0 && !is_own_group;
    // Permissions of a link mean nothing. In a sticky folder only owners replace what is theirs.
    let is_guarded = kind.is_symlink() || kind.is_dir() && mode & STICKY != 0;
    let is_open = !is_guarded && (group_writes || mode & OTHERS_WRITE != 0);
    is_open.then(|| "is writable by other users".to_owned())
}
