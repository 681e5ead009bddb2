//! Overload of the history.

use std::sync::mpsc;

use crate::limits::HISTORY_QUEUE_MAX_RECORDS;

use super::*;
use crate::block::entries;
use crate::queue::Buffer;

#[tokio::test]
async fn events_beyond_the_queue_are_dropped_at_once_and_leave_a_gap() {
    let node = tempfile::tempdir().unwrap();
    let metrics = Arc::new(Metrics::default());
    let backlog = Arc::new(Backlog::behind(Zxid(0)));
    let bounds = Bounds { max_age_ms: 86_400_000, max_bytes: 512 << 20, free_min_bytes: 0 };
    let found = Found::scan(node.path()).unwrap();
    let mut keeper = Keeper::new(node.path().to_owned(), found, bounds, backlog.clone(), metrics.clone());
    // The thread is blocked until its release.
    let (go, word) = mpsc::channel::<()>();
    let work = move |jobs: &mut Vec<Job>| {
        let _ = word.recv();
        keeper.handle(jobs);
    };
    let worker = threads::spawn_in_background("history", HISTORY_QUEUE_MAX_JOBS, HISTORY_DELAY_MAX, work);
    let history = History { worker: Some(worker.clone()) };
    let sink = Recorder::new(worker, backlog, metrics.clone());

    let (room, changes) = (i64::try_from(HISTORY_QUEUE_MAX_RECORDS).unwrap() / 3, 100_000);
    (1..=changes).for_each(|zxid| change(&sink, zxid));
    let dropped = metrics.history_dropped_total.get();
    assert!(dropped >= u64::try_from(3 * (changes - room - 1)).unwrap(), "{dropped}");
    drop(go);

    // After the query the thread has recorded the missing events.
    page(&history, Filter { limit: 1, ..all() }).await;
    change(&sink, changes + 1);
    let (records, gaps) = ranges(&everything(&history, all()).await);
    let records = records.len() as u64;
    assert_eq!(records + dropped, u64::try_from(3 * (changes + 1)).unwrap());
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(gaps[0].1, changes);
    assert!((room - 1..=room + 1).contains(&gaps[0].0), "{gaps:?}");
    assert_eq!(metrics.history_records_total.get(), records);
}

/// Starts a history on a disk without enough space.
fn start_without_room(node: &Path, metrics: Arc<Metrics>) -> (History, Recorder) {
    let bounds = Bounds { max_age_ms: 86_400_000, max_bytes: 64 << 20, free_min_bytes: u64::MAX };
    let found = Found::scan(node).unwrap();
    let backlog = Arc::new(Backlog::behind(found.covered));
    let mut keeper = Keeper::new(node.to_owned(), found, bounds, backlog.clone(), metrics.clone());
    let work = move |jobs: &mut Vec<Job>| keeper.handle(jobs);
    let worker = threads::spawn_in_background("history", HISTORY_QUEUE_MAX_JOBS, HISTORY_DELAY_MAX, work);
    (History { worker: Some(worker.clone()) }, Recorder::new(worker, backlog, metrics))
}

#[tokio::test]
async fn recording_pauses_while_the_disk_is_nearly_full() {
    let node = tempfile::tempdir().unwrap();
    let (history, sink) = start(node.path());
    (1..=3).for_each(|zxid| change(&*sink, zxid));
    history.close().await;
    drop((history, sink));

    let metrics = Arc::new(Metrics::default());
    let (history, sink) = start_without_room(node.path(), metrics.clone());
    (1..=8).for_each(|zxid| change(&sink, zxid));
    assert_eq!(
        ranges(&page(&history, all()).await),
        (expected(1..=3), vec![(3, 8)]),
        "it says what it lacks"
    );
    assert_eq!(metrics.history_dropped_total.get(), 15);
    history.close().await;
    drop((history, sink));

    // Once the disk has space, events still in the log are recorded after all.
    let (history, sink) = start(node.path());
    (1..=9).for_each(|zxid| change(&*sink, zxid));
    assert_eq!(ranges(&page(&history, all()).await), (expected(1..=9), Vec::new()));
}

fn read(buffer: &Buffer) -> Vec<(Key, Entry)> {
    let items = entries(&buffer.bytes).map(|item| item.unwrap());
    items.map(|item| (item.key, item.entry().unwrap())).collect()
}

#[test]
fn a_gap_starts_at_the_first_dropped_event() {
    let worker =
        threads::spawn_in_background("history", HISTORY_QUEUE_MAX_JOBS, HISTORY_DELAY_MAX, Vec::<Job>::clear);
    let backlog = Arc::new(Backlog::behind(Zxid(0)));
    let sink = Recorder::new(worker, backlog.clone(), Arc::new(Metrics::default()));
    // The buffer has space for a single event of this change.
    let full = i64::try_from(HISTORY_QUEUE_MAX_RECORDS).unwrap() / 3 + 1;
    (1..=full + 2).for_each(|zxid| change(&sink, zxid));
    let gap = |from: i64, missing: i64| {
        let missing = Some(missing.cast_unsigned());
        Entry::<String>::from(Gap { from_zxid: Zxid(from), missing, reason: GapReason::TooFast })
    };
    let key = |zxid, ordinal| Key { time_ms: time_of(zxid), zxid: Zxid(zxid), ordinal };
    let mut taken = Buffer::default();
    backlog.take(&mut taken);
    let found = read(&taken);
    assert_eq!(found.len(), HISTORY_QUEUE_MAX_RECORDS + 1);
    assert_eq!(found.last().unwrap(), &(key(full + 2, 2), gap(full - 1, 2 + 3 + 3)));

    // The buffer is full while the thread writes the entries.
    (full + 3..=full + 5).for_each(|zxid| change(&sink, zxid));
    backlog.done(&mut taken);
    change(&sink, full + 6);
    backlog.take(&mut taken);
    let found = read(&taken);
    assert_eq!(found[0], (key(full + 5, 2), gap(full + 2, 9)));
    let records: Vec<Key> = found[1..].iter().map(|(key, _)| *key).collect();
    assert_eq!(records, [0, 1, 2].map(|ordinal| key(full + 6, ordinal)));
}

#[tokio::test]
async fn a_gap_lost_in_a_crash_is_declared_by_the_next_start() {
    let node = tempfile::tempdir().unwrap();
    let (history, sink) = start_without_room(node.path(), Arc::default());
    (1..=8).for_each(|zxid| change(&sink, zxid));
    sink.frozen(Zxid(8));
    assert_eq!(ranges(&page(&history, all()).await).1, [(0, 8)]);
    drop((history, sink));

    let (history, sink) = start(node.path());
    sink.installed(Zxid(8), time_of(8));
    assert_eq!(ranges(&page(&history, all()).await).1, [(0, 8)]);
}
