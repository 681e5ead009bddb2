//! Files and folders that a command finds in the current folder without an option that names them.
//!
//! Invariant: a command uses a found file only if no user except the calling user and root can have created
//! or can replace the file. Otherwise another user of the folder would choose the address that receives the
//! credential, as with `.git` and `.ssh`. A path in an option or a variable is the user's own choice and
//! passes unchecked.

use std::path::{Path, PathBuf};

use rowlock_coordinator::config::ClusterConfig;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::exit::{CONFIG, Failure};

pub const CLUSTER_FILE: &str = "cluster.toml";

/// Permission bits: a group may write, everyone may write, and only owners replace entries of a folder.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Returns the path that an option names, else that of `cluster.toml` in the current folder.
pub fn cluster_path(named: Option<&Path>) -> &Path {
    named.unwrap_or(Path::new(CLUSTER_FILE))
}

pub fn cluster_file(named: Option<&Path>) -> Result<ClusterConfig, Failure> {
    if named.is_none() {
        check(Path::new(CLUSTER_FILE), "--config")?;
    }
    load(cluster_path(named))
}

/// Same as [`cluster_file`], but returns `None` if no file is named and the current folder has none.
pub fn cluster_file_if_any(named: Option<&Path>) -> Result<Option<ClusterConfig>, Failure> {
    let exists = named.is_some() || Path::new(CLUSTER_FILE).exists();
    exists.then(|| cluster_file(named)).transpose()
}

pub fn load(path: &Path) -> Result<ClusterConfig, Failure> {
    ClusterConfig::load(path).map_err(|e| Failure::new(CONFIG, e))
}

/// Refuses `path`, relative to the current folder, if another user can have placed a file there. A missing
/// file passes if no other user could create one. `option` names the path explicitly.
///
/// A caller may open the path again afterwards: no other user can exchange any part of a checked path.
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

/// Returns the reason to distrust the path. Opens each part relative to the folder checked before.
fn distrusted(path: &Path) -> Result<Option<String>, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut at = openat(CWD, ".", flags | OFlags::DIRECTORY, Mode::empty())?;
    if let Some(why) = distrusted_entry(&fstat(&at)?) {
        return Ok(Some(format!("the current folder {why}")));
    }
    let mut shown = PathBuf::new();
    for part in path.components() {
        shown.push(part);
        let entry = openat(&at, part.as_os_str(), flags | OFlags::NOFOLLOW, Mode::empty())?;
        let folder = std::mem::replace(&mut at, entry);
        let found = fstat(&at)?;
        if let Some(why) = distrusted_entry(&found) {
            return Ok(Some(format!("{} {why}", shown.display())));
        }
        if FileType::from_raw_mode(found.st_mode).is_symlink() {
            // The link is ours or root's, in a folder where no other user can replace links: a trusted user
            // chose the target.
            at = openat(&folder, part.as_os_str(), flags, Mode::empty())?;
            if let Some(why) = distrusted_entry(&fstat(&at)?) {
                return Ok(Some(format!("the target of the link {} {why}", shown.display())));
            }
        }
    }
    Ok(None)
}

/// Returns the reason if another user owns or may write a file, folder or link. By convention
/// (`USERGROUPS_ENAB`) a group with our user's number has no further members: the group may write.
fn distrusted_entry(found: &Stat) -> Option<String> {
    let (mode, kind) = (found.st_mode, FileType::from_raw_mode(found.st_mode));
    if found.st_uid != geteuid().as_raw() && found.st_uid != 0 {
        return Some(format!("belongs to user {}, neither to you nor to root", found.st_uid));
    }
    let is_own_group = found.st_gid == getegid().as_raw() && found.st_gid == geteuid().as_raw();
    let group_writes = mode & GROUP_WRITES != 0 && !is_own_group;
    // Permissions of a link have no effect. In a sticky folder only owners replace entries.
    let is_guarded = kind.is_symlink() || kind.is_dir() && mode & STICKY != 0;
    let is_open = !is_guarded && (group_writes || mode & OTHERS_WRITE != 0);
    is_open.then(|| "is writable by other users".to_owned())
}
