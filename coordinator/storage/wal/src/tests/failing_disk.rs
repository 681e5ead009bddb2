//! A failing disk: the log acknowledges nothing more, notifies the node once, and the message has the next
//! step.

use rowlock_env::disk::{Dir, File};
use tokio::sync::oneshot;

use super::*;
use crate::testing::{log_id, vote};

/// `/dev/full` fails every write for lack of space, `/dev/null` every flush.
fn device(name: &str) -> File {
    Dir::open(Path::new("/dev")).and_then(|dev| dev.open_file(name)).expect("every Linux has it")
}

#[tokio::test]
async fn writes_wait_on_a_full_disk_and_keep_their_order() {
    let dir = temp();
    let metrics = Arc::new(Metrics::default());
    let (Opened { mut log, .. }, failures) = open_recording(dir.path(), metrics.clone()).await;
    append(&mut log, entries(1, 0..3, 10)).await;
    log.replace_file(device("full")).await;

    let mut waiting = Vec::new();
    for index in 3..20 {
        let (done, result) = oneshot::channel();
        log.append(entries(1, index..index + 1, 1_000), Done::Waiter(done)).await.expect("is queued");
        waiting.push(result);
    }
    let voting = tokio::spawn({
        let log = log.clone();
        async move { log.save_vote(vote(9, 1)).await }
    });
    while metrics.wal_waits_for_room.get() == 0 {
        tokio::task::yield_now().await;
    }
    let Opened { log: mut other, .. } = open(killed(dir.path()).path()).await;
    assert_eq!(stored(&mut other).await, entries(1, 0..3, 10), "nothing more was flushed");
    assert!(waiting.iter_mut().all(|waiter| waiter.try_recv().is_err()), "no waiter is notified");

    let segment = segments(dir.path()).pop().expect("is there");
    let (name, place) = (segment.file_name().expect("has a name"), segment.parent().expect("is in a folder"));
    let place = Dir::open(place).expect("opens");
    log.replace_file(place.open_file(&name.to_string_lossy()).expect("opens")).await;
    for result in waiting {
        result.await.expect("is notified").expect("is written");
    }
    voting.await.expect("ends").expect("is written");
    assert_eq!((failures.lock().len(), metrics.wal_waits_for_room.get()), (0, 0));
    let expected: Vec<Entry> = entries(1, 0..3, 10).into_iter().chain(entries(1, 3..20, 1_000)).collect();
    let Opened { mut log, .. } = open(killed(dir.path()).path()).await;
    assert_eq!(stored(&mut log).await, expected);
    assert_eq!(stored_vote(&mut log).await, Some(vote(9, 1)));
}

#[tokio::test]
async fn a_log_without_space_closes_at_once_without_acknowledging() {
    let dir = temp();
    let (Opened { log, .. }, failures) = open_recording(dir.path(), Arc::default()).await;
    log.replace_file(device("full")).await;
    let (done, result) = oneshot::channel();
    log.append(entries(1, 0..1, 10), Done::Waiter(done)).await.expect("is queued");
    log.close().await;
    let error = result.await.expect("is notified").expect_err("is not acknowledged");
    assert!(error.to_string().contains("free space"), "{error}");
    assert!(failures.lock().is_empty(), "the node does not stop over it");
    assert_eq!(stored(&mut open(dir.path()).await.log).await, Vec::new());
}

#[tokio::test]
async fn a_failed_flush_is_never_tried_again() {
    let dir = temp();
    let metrics = Arc::new(Metrics::default());
    let (Opened { log, .. }, failures) = open_recording(dir.path(), metrics.clone()).await;
    log.replace_file(device("null")).await;

    let error = log.save_vote(vote(2, 1)).await.expect_err("is not durable");
    assert!(error.to_string().contains("the content of the disk is unknown"), "{error}");
    log.save_vote(vote(2, 1)).await.expect_err("is not durable");
    assert_eq!((failures.lock().len(), metrics.fsync_errors_total.get()), (1, 1));
}

#[tokio::test]
async fn every_waiter_of_a_failed_batch_is_notified() {
    let dir = temp();
    let (Opened { log, .. }, _failures) = open_recording(dir.path(), Arc::default()).await;
    log.replace_file(device("null")).await;
    let mut waiting = Vec::new();
    for index in 0..20 {
        let (done, result) = oneshot::channel();
        let waiter = Done::Waiter(done);
        log.append(entries(1, index..index + 1, 10), waiter).await.expect("is queued");
        waiting.push(result);
    }
    for result in waiting {
        result.await.expect("is notified").expect_err("is not acknowledged");
    }
}

#[tokio::test]
async fn a_closed_log_refuses_writes() {
    let dir = temp();
    let log = open(dir.path()).await.log;
    log.close().await;
    log.save_vote(vote(1, 1)).await.expect_err("is closed");
    log.purge(log_id(1, 1)).await.expect("no waiter");
    log.close().await;
}
