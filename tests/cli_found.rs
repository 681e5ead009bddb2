//! Files that a command finds in the current folder without being asked to use them: those that another user
//! can have put there get no credential, and start nothing.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::thread;

use crate::support::command::{Said, finish, rowlock};

const CONFIG: i32 = 78;
/// A user that is neither root nor ours.
const STRANGER: u32 = 65_534;

/// A port of this machine that another user may have opened, and a file that names it.
struct Trap {
    folder: tempfile::TempDir,
    listeners: [TcpListener; 2],
}

impl Trap {
    fn new() -> Trap {
        let listeners = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        listeners.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        Trap { folder: tempfile::tempdir().unwrap(), listeners }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn lay(&self, name: &str) {
        let [client, http] = self.listeners.each_ref().map(|it| it.local_addr().unwrap());
        let text =
            format!("[[node]]\nid = 1\nclient = \"{client}\"\npeer = \"127.0.0.1:1\"\nhttp = \"{http}\"\n");
        let file = self.path(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let mut command = rowlock(self.folder.path(), arguments);
        command.env("ROWLOCK_AUTH", "digest:super:hunter2").env("ROWLOCK_TOKEN", "hunter2");
        command.env("ROWLOCK_CONNECT_TIMEOUT", "500ms");
        finish(command.spawn().unwrap())
    }

    /// Whether a command connected to a port since the last call.
    fn was_reached(&self) -> bool {
        self.listeners
            .iter()
            .map(|listener| std::iter::from_fn(|| listener.accept().ok()).count())
            .sum::<usize>()
            > 0
    }

    /// Every command that finds a cluster by itself refuses to use what is here, and says why and what to do.
    fn is_refused(&self, why: &str) {
        for arguments in [
            &["ls", "/"][..],
            &["lock", "-n", "x", "true"],
            &["status"],
            &["doctor"],
            &["serve", "--node", "1"],
            &["recover", "--node", "1"],
            &["backup", "restore", "x", "--all"],
            &["token", "ls"],
            &["tls", "init"],
        ] {
            let said = self.run(arguments);
            assert!(!self.was_reached(), "{arguments:?} connected: {} {}", said.out, said.err);
            assert_eq!(said.code, CONFIG, "{arguments:?}: {} {}", said.out, said.err);
            assert!(said.err.contains(why) && said.err.contains("--config"), "{arguments:?}: {}", said.err);
            assert_eq!(said.err.lines().count(), 1, "{arguments:?}: {}", said.err);
        }
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn file_of_our_own_is_used_without_being_named() {
    for name in ["cluster.toml", ".rowlock/cluster.toml", "data/up/cluster.toml"] {
        let trap = Trap::new();
        trap.lay(name);
        let said = trap.run(&["ls", "/"]);
        assert!(trap.was_reached(), "{name}: {}", said.err);
    }
}

#[test]
fn file_that_others_can_write_gets_no_credential() {
    for name in ["cluster.toml", ".rowlock/cluster.toml", "data/up/cluster.toml"] {
        let trap = Trap::new();
        trap.lay(name);
        mode(&trap.path(name), 0o666);
        let said = trap.run(&["ls", "/"]);
        assert!(!trap.was_reached(), "{name}: {}", said.err);
        assert!(said.err.contains("writable by other users"), "{}", said.err);
    }
    let trap = Trap::new();
    trap.lay("cluster.toml");
    mode(&trap.path("cluster.toml"), 0o646);
    trap.is_refused("writable by other users");
}

#[test]
fn file_in_a_folder_that_others_can_write_gets_no_credential_unless_the_folder_is_sticky() {
    let trap = Trap::new();
    trap.lay("cluster.toml");
    mode(trap.folder.path(), 0o777);
    trap.is_refused("writable by other users");
    mode(trap.folder.path(), 0o1777);
    let said = trap.run(&["ls", "/"]);
    assert!(trap.was_reached(), "{}", said.err);

    let trap = Trap::new();
    trap.lay("data/up/cluster.toml");
    mode(&trap.path("data"), 0o777);
    let said = trap.run(&["ls", "/"]);
    assert!(!trap.was_reached(), "{}", said.err);
}

#[test]
fn file_of_another_user_gets_no_credential() {
    if !is_root() {
        return;
    }
    let trap = Trap::new();
    trap.lay("cluster.toml");
    chown(trap.path("cluster.toml"), Some(STRANGER), None).unwrap();
    mode(trap.folder.path(), 0o1777);
    trap.is_refused("belongs to");
    // Named, it is the user's own word.
    let said = trap.run(&["ls", "/", "--config", "cluster.toml"]);
    assert!(trap.was_reached(), "{}", said.err);

    for (name, of_stranger) in [
        (".rowlock/cluster.toml", ".rowlock"),
        ("data/up/cluster.toml", "data"),
        ("data/up/cluster.toml", "data/up"),
        ("cluster.toml", "."),
    ] {
        let trap = Trap::new();
        trap.lay(name);
        chown(trap.path(of_stranger), Some(STRANGER), None).unwrap();
        let said = trap.run(&["ls", "/"]);
        assert!(!trap.was_reached(), "{of_stranger}: {}", said.err);
    }
}

#[test]
fn link_of_another_user_is_not_followed_and_our_own_is() {
    let trap = Trap::new();
    trap.lay("elsewhere/cluster.toml");
    symlink("elsewhere/cluster.toml", trap.path("cluster.toml")).unwrap();
    let said = trap.run(&["ls", "/"]);
    assert!(trap.was_reached(), "{}", said.err);
    if is_root() {
        lchown(trap.path("cluster.toml"), Some(STRANGER), None).unwrap();
        let said = trap.run(&["ls", "/"]);
        assert!(!trap.was_reached(), "{}", said.err);
    }
}

#[test]
fn default_addresses_get_no_credential() {
    let trap = Trap::new();
    let said = trap.run(&["ls", "/"]);
    assert_eq!(said.code, CONFIG, "{}", said.err);
    assert!(said.err.contains("ROWLOCK_AUTH") && said.err.contains("--endpoints"), "{}", said.err);
}

#[test]
fn foreign_folder_is_not_taken_over_by_dev_or_up() {
    for (arguments, folder) in [(&["dev"][..], ".rowlock"), (&["up", "--no-demo"], "data/up")] {
        let trap = Trap::new();
        fs::create_dir_all(trap.path(folder)).unwrap();
        mode(&trap.path(folder), 0o777);
        let mut child = rowlock(trap.folder.path(), arguments).spawn().unwrap();
        let begun = std::time::Instant::now();
        while child.try_wait().unwrap().is_none() && begun.elapsed().as_secs() < 10 {
            thread::sleep(std::time::Duration::from_millis(20));
        }
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::TERM,
        )
        .unwrap_or_default();
        let said = finish(child);
        assert_eq!(said.code, CONFIG, "{arguments:?}: {} {}", said.out, said.err);
        assert!(said.err.contains("writable by other users") && said.err.contains("--data"), "{}", said.err);
        assert!(!trap.path(folder).join("superuser").exists(), "{arguments:?}");
    }
}
