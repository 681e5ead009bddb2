//! Crashes of a node without closing its history.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

/// Variable of the child process: folder of its history.
const CHILD: &str = "ROWLOCK_TEST_HISTORY";
/// Changes between the child's snapshots of its state.
const SNAPSHOT_EVERY: i64 = 500;

#[tokio::test]
async fn a_crash_after_a_snapshot_costs_nothing_after_the_replay() {
    let node = tempfile::tempdir().unwrap();
    let (history, sink) = start(node.path());
    (1..=40).for_each(|zxid| change(&*sink, zxid));
    sink.frozen(Zxid(40));
    // After the answer the thread has closed the earlier entries; the thread may close more if more entries
    // arrive.
    page(&history, Filter { limit: 1, ..all() }).await;
    (41..=60).for_each(|zxid| change(&*sink, zxid));
    assert_eq!(ranges(&page(&history, all()).await).0, expected(1..=60));
    drop((history, sink));

    let (history, sink) = start(node.path());
    sink.installed(Zxid(40), time_of(40));
    assert_eq!(ranges(&page(&history, all()).await), (expected(1..=40), Vec::new()));
    (41..=61).for_each(|zxid| change(&*sink, zxid));
    assert_eq!(ranges(&page(&history, all()).await), (expected(1..=61), Vec::new()));
}

#[tokio::test]
async fn a_crash_between_a_snapshot_and_its_checkpoint_leaves_a_gap() {
    let node = tempfile::tempdir().unwrap();
    let (history, sink) = start(node.path());
    (1..=40).for_each(|zxid| change(&*sink, zxid));
    sink.frozen(Zxid(40));
    // After the answer the thread has closed the earlier entries; the thread may close more if more entries
    // arrive.
    page(&history, Filter { limit: 1, ..all() }).await;
    (41..=60).for_each(|zxid| change(&*sink, zxid));
    assert_eq!(page(&history, all()).await.entries.len(), 180);
    drop((history, sink));

    let (history, sink) = start(node.path());
    sink.installed(Zxid(55), time_of(55));
    (56..=60).for_each(|zxid| change(&*sink, zxid));
    let (records, gaps) = ranges(&page(&history, all()).await);
    assert_eq!(gaps, [(40, 55)]);
    assert_eq!(records.len(), 3 * (40 + 5));
}

/// Runs only as the child process, to be killed.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(node) = std::env::var_os(CHILD) else { return };
    let (_history, sink) = start(Path::new(&node));
    for zxid in 1.. {
        change(&*sink, zxid);
        if zxid % SNAPSHOT_EVERY == 0 {
            sink.frozen(Zxid(zxid));
            println!("snapshot {zxid}");
        }
    }
}

/// Starts a child process writing into `node`, kills the child after `snapshots` snapshots, and returns the
/// number of changes at the last snapshot.
fn killed(node: &Path, snapshots: usize) -> i64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::crash::child_that_writes_until_it_is_killed", "--nocapture"])
        .env(CHILD, node)
        .env(BEGUN, time_of(0).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ranges = lines.filter_map(|line| line.strip_prefix("snapshot ")?.parse().ok());
    let last = ranges.take(snapshots).last().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    last
}

#[tokio::test]
async fn a_node_killed_while_writing_recovers_all_from_the_log() {
    for snapshots in [1, 2, 7, 20] {
        let node = tempfile::tempdir().unwrap();
        let last = killed(node.path(), snapshots);
        let (history, sink) = start(node.path());
        // The log starts at the beginning: no event is missing or duplicated.
        let end = last + 2 * SNAPSHOT_EVERY;
        (1..=end).for_each(|zxid| change(&*sink, zxid));
        let (records, gaps) = ranges(&everything(&history, all()).await);
        assert_eq!(gaps, []);
        assert_eq!(records, expected(1..=end));
        assert!(!node.path().join("history.damaged-1").exists());
    }
}
