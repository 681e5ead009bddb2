//! Snapshot files: kept, sent, damaged, replaced by older files.

use std::io::{Read, Write};

use rowlock_state::Machine;

use super::*;
use crate::entry::{LogId, SnapshotMeta};
use crate::snapshot::{SnapshotFile, SnapshotStore};
use crate::testing::{log_id, snapshot_meta};

/// Writes a snapshot up to `index`, with the index as its content.
pub fn write(store: &SnapshotStore, term: u64, index: u64) -> SnapshotFile {
    let body = |out: &mut dyn Write| out.write_all(content(index).as_bytes());
    store.write(snapshot_meta(term, index), body, |_| Ok(())).expect("writes")
}

/// Writes a snapshot of an empty state.
pub fn write_small(store: &SnapshotStore, last: LogId) {
    let meta = SnapshotMeta { last_log_id: Some(last), ..SnapshotMeta::default() };
    let state = |mut out: &mut dyn Write| Machine::new().freeze().encode(&mut out);
    store.write(meta, state, |_| Ok(())).expect("writes");
}

fn content(index: u64) -> String {
    format!("the state at {index}; ").repeat(30_000)
}

fn read(snapshot: &SnapshotFile) -> String {
    let mut text = String::new();
    snapshot.body().read_to_string(&mut text).expect("reads");
    text
}

fn files(dir: &Path) -> Vec<String> {
    let list = std::fs::read_dir(dir.join("snapshots")).expect("lists");
    let mut names: Vec<_> =
        list.map(|f| f.expect("lists").file_name().into_string().expect("is UTF-8")).collect();
    names.sort();
    names
}

fn damage(dir: &Path, name: &str) {
    let path = dir.join("snapshots").join(name);
    let mut bytes = std::fs::read(&path).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).expect("writes");
}

#[tokio::test]
async fn the_newest_snapshot_is_found_again_and_older_ones_are_gone() {
    let dir = temp();
    let opened = open(dir.path()).await;
    write(&opened.snapshots, 1, 10);
    write(&opened.snapshots, 2, 20);
    assert_eq!(files(dir.path()), ["0000000000000014-2-1.snapshot"]);

    let opened = open(killed(dir.path()).path()).await;
    let newest = opened.snapshots.current().expect("is there");
    assert_eq!((newest.meta(), read(&newest)), (&snapshot_meta(2, 20), content(20)));
    assert_eq!(opened.report.snapshot, Some(log_id(2, 20)));
}

#[tokio::test]
async fn a_snapshot_travels_in_chunks_and_is_installed() {
    let (here, there) = (temp(), temp());
    let sent = write(&open(here.path()).await.snapshots, 1, 10);
    let store = open(there.path()).await.snapshots;
    let mut incoming = store.begin_receive().expect("begins");
    while incoming.len() < sent.len() {
        let chunk = sent.read_at(incoming.len(), 100_000).expect("reads");
        incoming.write(&chunk).expect("writes");
    }
    let received = incoming.finish().expect("is whole");
    assert!(store.current().is_none(), "not before it is installed");
    store.keep(received).expect("keeps");
    assert_eq!(read(&store.current().expect("is there")), content(10));
    assert_eq!(files(there.path()), ["000000000000000a-1-1.snapshot"]);
}

#[tokio::test]
async fn a_bad_transfer_is_refused_and_leaves_nothing() {
    let (here, there) = (temp(), temp());
    let sent = write(&open(here.path()).await.snapshots, 1, 10);
    let whole = sent.read_at(0, sent.len() as usize).expect("reads");
    let store = open(there.path()).await.snapshots;
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for bytes in [&flipped, &whole[..whole.len() - 1].to_vec(), &Vec::new(), &vec![0; 200]] {
        let mut incoming = store.begin_receive().expect("begins");
        incoming.write(bytes).expect("writes");
        incoming.finish().expect_err("is not whole");
        assert_eq!(files(there.path()), [] as [&str; 0]);
    }
    drop(store.begin_receive().expect("begins"));
    assert_eq!(files(there.path()), [] as [&str; 0]);

    let elsewhere = temp();
    let identity = Identity { cluster: "other".to_owned(), node: NodeId(1) };
    let other =
        Storage::open(elsewhere.path(), identity, Arc::new(|_| {}), Arc::default()).await.expect("opens");
    let mut incoming = other.snapshots.begin_receive().expect("begins");
    incoming.write(&whole).expect("writes");
    assert!(incoming.finish().expect_err("is foreign").to_string().contains("another cluster"));
}

#[tokio::test]
async fn a_sent_snapshot_stays_readable_while_a_newer_one_replaces_it() {
    let dir = temp();
    let opened = open(dir.path()).await;
    let old = write(&opened.snapshots, 1, 10);
    write(&opened.snapshots, 1, 20);
    assert_eq!(read(&old), content(10));
}

#[tokio::test]
async fn an_older_snapshot_does_not_replace_a_newer_one() {
    let dir = temp();
    let opened = open(dir.path()).await;
    write(&opened.snapshots, 1, 20);
    write(&opened.snapshots, 1, 10);
    let newest = opened.snapshots.current().expect("is there");
    assert_eq!(newest.meta(), &snapshot_meta(1, 20));
    assert_eq!(files(dir.path()).len(), 1);
}

#[tokio::test]
async fn a_kill_before_the_rename_leaves_the_older_snapshot_in_force() {
    let dir = temp();
    let opened = open(dir.path()).await;
    write(&opened.snapshots, 1, 10);
    let copy = killed(dir.path());
    std::fs::write(copy.path().join("snapshots/7.tmp"), b"half a snapshot").expect("writes");
    let opened = open(copy.path()).await;
    assert_eq!(read(&opened.snapshots.current().expect("is there")), content(10));
    assert_eq!(files(copy.path()), ["000000000000000a-1-1.snapshot"]);
}

#[tokio::test]
async fn a_stopped_node_leaves_the_next_nodes_snapshots_alone() {
    let dir = temp();
    let before = open(dir.path()).await;
    let late = before.snapshots.begin_receive().expect("begins");
    before.snapshots.close();
    before.log.close().await;
    let after = open(dir.path()).await;
    let mut state = String::new();
    let body = |out: &mut dyn Write| {
        state = files(dir.path()).join(" ");
        drop(late);
        out.write_all(content(10).as_bytes())
    };
    let written = after.snapshots.write(snapshot_meta(1, 10), body, |_| Ok(())).expect("writes");
    assert_eq!((read(&written), files(dir.path()).len()), (content(10), 1), "beside {state}");
}

#[tokio::test]
async fn an_older_snapshot_replaces_a_damaged_one_if_the_log_reaches() {
    let (dir, other) = (temp(), temp());
    let mut opened = open(dir.path()).await;
    append(&mut opened.log, entries(1, 0..30, 10)).await;
    write(&opened.snapshots, 1, 10);
    opened.log.purge(log_id(1, 10)).await.expect("purges");
    flush_all(&mut opened.log).await;
    // A kill between the renaming of the newer file and the removal of the older file leaves both.
    let copy = killed(dir.path());
    write(&open(other.path()).await.snapshots, 1, 20);
    let newer = "0000000000000014-1-1.snapshot";
    std::fs::copy(other.path().join("snapshots").join(newer), copy.path().join("snapshots").join(newer))
        .expect("copies");
    let both = killed(copy.path());
    assert_eq!(open(both.path()).await.report.snapshot, Some(log_id(1, 20)));

    damage(copy.path(), newer);
    let report = open(copy.path()).await.report;
    assert_eq!((report.snapshot, report.damaged_snapshots), (Some(log_id(1, 10)), vec![newer.to_owned()]));
    assert!(files(copy.path()).contains(&"0000000000000014-1-1.damaged".to_owned()));
}

#[tokio::test]
async fn a_damaged_only_snapshot_is_refused_only_after_a_purge() {
    let dir = temp();
    let mut opened = open(dir.path()).await;
    append(&mut opened.log, entries(1, 0..30, 10)).await;
    write(&opened.snapshots, 1, 10);
    let whole_log = killed(dir.path());
    damage(whole_log.path(), &files(whole_log.path())[0]);
    assert_eq!(open(whole_log.path()).await.report.damaged_snapshots.len(), 1);

    opened.log.purge(log_id(1, 10)).await.expect("purges");
    flush_all(&mut opened.log).await;
    let purged = killed(dir.path());
    damage(purged.path(), &files(purged.path())[0]);
    let text = try_open(purged.path()).await.err().expect("is refused").to_string();
    assert!(text.contains("no usable snapshot") && text.contains("Keep this folder"), "{text}");
    assert_eq!(files(purged.path()), files(dir.path()), "nothing was changed");
}

/// Before the fix, the store renamed the snapshot as damaged and advised to empty the folder.
#[tokio::test]
async fn another_builds_snapshot_or_segment_is_refused_unchanged() {
    let dir = temp();
    let opened = open(dir.path()).await;
    let mut log = opened.log;
    append(&mut log, entries(1, 0..20, 10)).await;
    write(&opened.snapshots, 1, 10);
    let (snapshot, segment) = (killed(dir.path()), killed(dir.path()));
    let path = snapshot.path().join("snapshots").join(&files(dir.path())[0]);
    let mut bytes = std::fs::read(&path).expect("reads");
    bytes[48] ^= 1;
    std::fs::write(path, bytes).expect("writes");
    let path = segment.path().join("wal/0000000000000001.wal");
    let mut bytes = std::fs::read(&path).expect("reads");
    bytes[52] ^= 1;
    bytes[12..16].fill(0);
    let crc = crc32fast::hash(&bytes[..128]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(path, bytes).expect("writes");
    for other in [&snapshot, &segment] {
        let error = try_open(other.path()).await.err().expect("is refused");
        let text = error.to_string();
        assert!(matches!(error, StorageError::OtherBuild { .. }), "{text}");
        assert!(text.contains("another build of release") && text.contains("not damaged"), "{text}");
        assert_eq!(files(other.path()), files(dir.path()), "nothing was changed");
        assert!(matches!(crate::verify(other.path()), Err(StorageError::OtherBuild { .. })));
    }
}

#[tokio::test]
async fn a_snapshot_replaces_the_end_of_a_conflicting_log() {
    let dir = temp();
    let opened = open(dir.path()).await;
    let mut log = opened.log;
    append(&mut log, entries(1, 0..10, 10)).await;
    // Another leader's snapshot has its final name; the kill comes before the cut of the log.
    write_small(&opened.snapshots, log_id(2, 5));
    let copy = killed(dir.path());
    for cut in [Some(Some(log_id(1, 4))), None] {
        let Opened { mut log, report, .. } = open(copy.path()).await;
        assert_eq!(report.cut_behind, cut);
        assert_eq!((report.last, report.purged), (Some(log_id(2, 5)), Some(log_id(2, 5))));
        let state = log.checkpoint();
        assert_eq!((state.last, state.purged), (Some(log_id(2, 5)), Some(log_id(2, 5))));
        assert_eq!(stored(&mut log).await, []);
        log.close().await;
    }
    // A snapshot of this log leaves the entries behind its position.
    let opened = open(dir.path().join("other").as_path()).await;
    let mut log = opened.log;
    append(&mut log, entries(1, 0..10, 10)).await;
    write_small(&opened.snapshots, log_id(1, 5));
    let report = open(killed(&dir.path().join("other")).path()).await.report;
    assert_eq!((report.last, report.purged), (Some(log_id(1, 9)), None));
}
