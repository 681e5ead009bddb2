//! The whole storage on real files: survival, cuts, refusals, and their messages.

#![allow(clippy::disallowed_methods)] // the tests damage files behind env's back

mod crash;
mod early;
mod failing_disk;
mod identity;
mod model;
mod snapshots;
mod spoilt;

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_metrics::Metrics;
use rowlock_proto::NodeId;
use tempfile::TempDir;

use super::error::{DiskFailure, StorageError};
use super::identity::Identity;
use super::log::batch::Done;
use super::log::worker::Log;
use super::open::{Acknowledge, Opened, Storage};
use super::testing::entry;
use crate::entry::{Entry, Vote};

/// Small segments: a short test fills several.
const SMALL: u64 = 16 << 10;

fn identity() -> Identity {
    Identity { cluster: "test".to_owned(), node: NodeId(1) }
}

fn temp() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

async fn try_open(dir: &Path) -> Result<Opened, StorageError> {
    let unexpected = Arc::new(|failure: &DiskFailure| panic!("{failure}"));
    Storage::open_with(dir, identity(), unexpected, Arc::default(), (SMALL, Acknowledge::Flushed)).await
}

async fn open(dir: &Path) -> Opened {
    try_open(dir).await.expect("opens")
}

/// Opens a folder and collects its disk failures.
async fn open_recording(dir: &Path, metrics: Arc<Metrics>) -> (Opened, Arc<Mutex<Vec<DiskFailure>>>) {
    let failures = Arc::new(Mutex::new(Vec::new()));
    let collected = failures.clone();
    let on_fatal = Arc::new(move |failure: &DiskFailure| collected.lock().push(failure.clone()));
    let opened = Storage::open_with(dir, identity(), on_fatal, metrics, (SMALL, Acknowledge::Flushed))
        .await
        .expect("opens");
    (opened, failures)
}

#[tokio::test]
async fn a_folder_is_its_users_alone_and_a_looser_one_is_mended() {
    use std::os::unix::fs::PermissionsExt as _;
    let temp = temp();
    let dir = temp.path().join("data/node-1");
    let mode = |path: &Path| std::fs::metadata(path).expect("is there").permissions().mode() & 0o777;
    let all = |of: &Path| -> Vec<std::path::PathBuf> {
        let mut found = vec![of.to_owned()];
        let mut next = 0;
        while let Some(path) = found.get(next).cloned() {
            next += 1;
            if path.is_dir() {
                found.extend(
                    std::fs::read_dir(path).expect("is read").map(|entry| entry.expect("is read").path()),
                );
            }
        }
        found
    };
    let is_private = || all(&dir).iter().all(|path| mode(path) == if path.is_dir() { 0o700 } else { 0o600 });
    let opened = open(&dir).await;
    assert!(!opened.report.exposed && is_private());
    drop(opened);
    for path in all(&dir) {
        let loose = std::fs::Permissions::from_mode(if path.is_dir() { 0o755 } else { 0o644 });
        std::fs::set_permissions(&path, loose).expect("is ours");
    }
    // The former node's thread may still hold the folder.
    let opened = loop {
        match try_open(&dir).await {
            Err(StorageError::InUse(_)) => tokio::task::yield_now().await,
            opened => break opened.expect("opens"),
        }
    };
    assert!(opened.report.exposed && is_private());
}

/// Raft keeps the latest report only: a late older report would replace a newer report (openraft 1960).
#[tokio::test]
async fn appends_are_reported_in_their_order() {
    let dir = temp();
    let Opened { mut log, .. } = open(dir.path()).await;
    let reported = Arc::new(Mutex::new(Vec::new()));
    for index in 0..60 {
        let reports = reported.clone();
        let report = move |result: std::io::Result<()>| {
            result.expect("is written");
            reports.lock().push(index);
        };
        let entries = entries(1, index..index + 1, 10);
        log.append(entries, Done::Callback(Box::new(report))).await.expect("is queued");
    }
    flush_all(&mut log).await;
    assert_eq!(*reported.lock(), (0..60).collect::<Vec<u64>>());
}

/// Copies the files that a killed process would leave.
fn killed(dir: &Path) -> TempDir {
    let copy = temp();
    for sub in ["", "wal", "snapshots"] {
        std::fs::create_dir_all(copy.path().join(sub)).expect("creates");
        for file in std::fs::read_dir(dir.join(sub)).expect("lists") {
            let file = file.expect("lists");
            if file.file_type().expect("has a type").is_file() {
                std::fs::copy(file.path(), copy.path().join(sub).join(file.file_name())).expect("copies");
            }
        }
    }
    copy
}

async fn append(log: &mut Log, entries: impl IntoIterator<Item = Entry> + Send) {
    let entries: Vec<Entry> = entries.into_iter().collect();
    log.append_durably(entries).await.expect("appends");
}

/// Makes entries of a term, each with a payload of `bytes`.
fn entries(term: u64, range: std::ops::Range<u64>, bytes: usize) -> Vec<Entry> {
    range.map(|index| entry(term, index, &vec![index as u8; bytes])).collect()
}

async fn stored(log: &mut Log) -> Vec<Entry> {
    log.read().entries().cloned().collect()
}

async fn stored_vote(log: &mut Log) -> Option<Vote> {
    log.checkpoint().vote
}

async fn flush_all(log: &mut Log) {
    log.append_durably(Vec::new()).await.expect("flushes");
}

fn segments(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> =
        std::fs::read_dir(dir.join("wal")).expect("lists").map(|f| f.expect("lists").path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    found.sort();
    found
}
