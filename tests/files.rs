//! Which of a node's files another user of the machine can read.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rowlock_proto::CreateMode;

use crate::support::cluster::{Cluster, FAST};
use rowlock_frames::raw::{RawClient, SESSION_MS};

/// The folder with everything below it.
fn all(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        if path.is_dir() {
            found.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_folder_is_its_users_alone_and_holds_no_password() {
    let mut cluster = Cluster::start(1, &format!("{FAST}snapshot_every = 50\n")).await;
    let addr = cluster.endpoint(1).to_owned();
    let session = RawClient::attach(&addr, SESSION_MS).await;
    let again = session.resume(&addr).await.expect("the password is right");
    let mut busy = RawClient::attach(&addr, SESSION_MS).await;
    for n in 0..200 {
        busy.create(&format!("/n-{n}"), "", CreateMode::Persistent).await.unwrap();
    }
    assert_eq!(again.opened.password, session.opened.password);
    let folder = cluster.data(1);
    // The snapshot and the history are written behind the answers.
    let written = || all(&folder).iter().filter(|path| path.is_file()).count();
    for _ in 0..600 {
        if written() > 4 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    cluster.kill(1);
    let mut files = 0;
    for path in all(&folder) {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        if path.is_file() {
            files += 1;
            let bytes = fs::read(&path).unwrap();
            let is_there = bytes.windows(16).any(|part| part == &session.opened.password[..]);
            assert!(!is_there, "{} holds the session's password", path.display());
        }
    }
    assert!(files > 4, "log, snapshot, identity and history: {files}");
}
