//! A disk that fails: nothing is acknowledged any more, the node is told once, the message says what to do.

use rowlock_env::disk::{Dir, File};
use tokio::sync::oneshot;

use super::*;
use crate::testing::{log_id, vote};

/// `/dev/full` fails every write for lack of space, `/dev/null` every flush.
fn device(name: &str) -> File {
    Dir::open(Path::new("/dev")).and_then(|dev| dev.open_file(name)).expect("every Linux has it")
}

#[tokio::test]
async fn a_full_disk_stops_acknowledging_and_advises_to_free_space() {
    let dir = temp();
    let (Opened { mut log, .. }, failures) = open_noting(dir.path(), Arc::default()).await;
    append(&mut log, entries(1, 0..3, 10)).await;
    log.replace_file(device("full")).await;

    let error = log.append_durably(entries(1, 3..4, 10)).await.expect_err("is not acknowledged");
    assert!(error.to_string().contains("free space"), "{error}");
    assert_eq!(failures.lock().len(), 1);
    assert_eq!(failures.lock()[0].kind, std::io::ErrorKind::StorageFull);

    // The disk has room again: still nothing is acknowledged, and nobody is told twice.
    log.append_durably(entries(1, 4..5, 10)).await.expect_err("is not acknowledged");
    log.save_vote(vote(9, 1)).await.expect_err("is not acknowledged");
    assert_eq!(failures.lock().len(), 1);

    let Opened { mut log, .. } = open(killed(dir.path()).path()).await;
    assert_eq!(stored(&mut log).await, entries(1, 0..3, 10));
    assert_eq!(stored_vote(&mut log).await, None);
}

#[tokio::test]
async fn a_failed_flush_is_never_tried_again() {
    let dir = temp();
    let metrics = Arc::new(Metrics::default());
    let (Opened { log, .. }, failures) = open_noting(dir.path(), metrics.clone()).await;
    log.replace_file(device("null")).await;

    let error = log.save_vote(vote(2, 1)).await.expect_err("is not durable");
    assert!(error.to_string().contains("nobody knows what is on the disk"), "{error}");
    log.save_vote(vote(2, 1)).await.expect_err("is not durable");
    assert_eq!((failures.lock().len(), metrics.fsync_errors_total.get()), (1, 1));
}

#[tokio::test]
async fn everybody_who_waits_for_the_failed_batch_is_told() {
    let dir = temp();
    let (Opened { log, .. }, _failures) = open_noting(dir.path(), Arc::default()).await;
    log.replace_file(device("full")).await;
    let mut waiting = Vec::new();
    for index in 0..20 {
        let (done, told) = oneshot::channel();
        let waiter = Done::Waiter(done);
        log.append(entries(1, index..index + 1, 10), false, waiter).await.expect("is queued");
        waiting.push(told);
    }
    for told in waiting {
        told.await.expect("is told").expect_err("is not acknowledged");
    }
}

#[tokio::test]
async fn a_closed_log_refuses_writes() {
    let dir = temp();
    let log = open(dir.path()).await.log;
    log.close().await;
    log.save_vote(vote(1, 1)).await.expect_err("is closed");
    log.purge(log_id(1, 1)).await.expect("nobody waits for it");
    log.close().await;
}
