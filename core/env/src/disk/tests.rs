//! Tries files, folders and their rights on a real disk.

use super::*;

#[test]
fn files_are_written_read_renamed_and_listed_in_order() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let dir = Dir::create(&temp.path().join("a/b")).expect("creates parents");
    let file = dir.create_new("two").expect("new file");
    assert!(dir.create_new("two").is_err());
    file.allocate(8192).expect("allocates");
    assert_eq!(file.len().expect("len"), 8192);
    file.write_all_at(b"hello", 100).expect("writes");
    file.sync_data().expect("flushes");
    let mut buf = [0; 5];
    dir.open_file("two").expect("opens").read_exact_at(&mut buf, 100).expect("reads");
    assert_eq!(&buf, b"hello");
    dir.write_atomic("one", b"1").expect("writes");
    dir.write_atomic("one", b"2").expect("replaces");
    assert_eq!(dir.read("one").expect("reads"), b"2");
    dir.rename("two", "three").expect("renames");
    assert_eq!(dir.list().expect("lists"), ["one", "three"]);
}

#[test]
fn a_pipe_is_refused_without_waiting_for_its_writer() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let dir = Dir::create(&temp.path().join("a")).expect("creates it");
    let made = std::process::Command::new("mkfifo").arg(temp.path().join("a/pipe")).status();
    assert!(made.expect("it runs").success());
    assert!(dir.open_to_read("pipe").is_err(), "it has no end");
}

#[test]
fn new_files_are_private_and_looser_permissions_are_removed() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let dir = Dir::create(&temp.path().join("a/b")).expect("creates parents");
    dir.create_new("new").expect("new file");
    dir.write_atomic("atomic", b"1").expect("writes");
    let _lock = dir.lock("LOCK").expect("free");
    let mode = |name: &str| fs::metadata(temp.path().join(name)).expect("is there").mode() & 0o777;
    let all = ["a", "a/b", "a/b/new", "a/b/atomic", "a/b/LOCK"];
    assert_eq!(all.map(mode), [0o700, 0o700, 0o600, 0o600, 0o600]);
    assert!(!dir.make_private().expect("nothing to do") && !dir.is_open_to_others("new").expect("is there"));
    let loosen =
        |name: &str, mode| fs::set_permissions(temp.path().join(name), fs::Permissions::from_mode(mode));
    loosen("a/b/new", 0o640).expect("is ours");
    assert!(!dir.is_open_to_others("new").expect("is there"), "no other user reaches it");
    for directory in ["", "a", "a/b"] {
        loosen(directory, 0o755).expect("is ours");
    }
    assert!(dir.is_open_to_others("new").expect("is there"));
    loosen("a", 0o700).expect("is ours");
    assert!(dir.make_private().expect("is ours"));
    assert_eq!(all.map(mode), [0o700, 0o700, 0o600, 0o600, 0o600]);
}

#[test]
fn a_locked_directory_cannot_be_locked_again_until_released() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let dir = Dir::open(temp.path()).expect("opens");
    let lock = dir.lock("LOCK").expect("free");
    assert_eq!(dir.lock("LOCK").expect_err("taken").kind(), io::ErrorKind::WouldBlock);
    drop(lock);
    assert!(dir.lock("LOCK").is_ok());
}
