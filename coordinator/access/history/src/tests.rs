//! The history over real files and real threads.

mod crash;
mod files;
mod overload;

use std::path::Path;
use std::sync::Arc;

use rowlock_proto::acl::Acl;
use rowlock_proto::lock::Mode;
use rowlock_proto::lock_event::{Gap, GapReason, HistoryEvent};
use rowlock_proto::{FencingToken, SessionId, Zxid};
use rowlock_state::outcome::{EndReason, EventContext, LockEvent, LockEventKind, PositionEnd};

use super::*;

const RETENTION: Retention = Retention { max_age_ms: 86_400_000, max_bytes: 64 << 20 };

fn all() -> Filter {
    Filter { lock: None, session: None, since_ms: 0, before: Key::MAX, limit: 1_000_000 }
}

fn start(node: &Path) -> (History, Arc<dyn HistorySink>) {
    History::start(node, RETENTION, Arc::new(Metrics::default()))
}

/// Passes the events of change `zxid` in the order of apply: a client requests a lock, gets it and releases
/// it.
fn change(sink: &dyn HistorySink, zxid: i64) {
    let (lock, path) = (format!("/locks/{}", zxid % 3), format!("/locks/{}/n-{zxid:010}", zxid % 3));
    let event = |kind| LockEvent {
        kind,
        lock: lock.as_str(),
        path: path.as_str(),
        token: FencingToken(zxid),
        session: SessionId(zxid % 2 + 1),
        label: "worker",
        address: Some("10.0.0.1:5000"),
        mode: Mode::Exclusive,
        acquired: true,
    };
    let end = PositionEnd { reason: EndReason::Released, waited_ms: 0, held_ms: Some(1), by: None };
    let context = context(zxid);
    sink.lock(&event(LockEventKind::Requested { ahead: 0 }), &context);
    sink.lock(&event(LockEventKind::Granted { waited_ms: 0 }), &context);
    sink.lock(&event(LockEventKind::Released(end)), &context);
    sink.applied();
}

fn context(zxid: i64) -> EventContext<'static> {
    let acl = Acl::open_entries();
    EventContext { zxid: Zxid(zxid), time_ms: time_of(zxid), acl, lock_acl: acl }
}

/// Passes the start time of the test's clock to a child process. A replayed log has the same times.
const BEGUN: &str = "ROWLOCK_TEST_HISTORY_BEGUN";

/// Returns the time of a change: a tick per change, ending at about the present.
fn time_of(zxid: i64) -> i64 {
    static BEGUN_MS: std::sync::OnceLock<i64> = std::sync::OnceLock::new();
    let given = || std::env::var(BEGUN).ok().map(|ms| ms.parse().unwrap());
    BEGUN_MS.get_or_init(|| given().unwrap_or_else(|| time::wall_ms() - 1_000_000)) + zxid
}

fn soon() -> Instant {
    time::now() + Duration::from_secs(5)
}

/// Reads a page, without a tight deadline on a busy machine.
async fn page(history: &History, filter: Filter) -> Page {
    loop {
        match history.page(filter.clone(), soon()).await {
            Ok(page) => return page,
            Err(unavailable) => assert_eq!(unavailable, Unavailable::NotNow),
        }
    }
}

async fn everything(history: &History, filter: Filter) -> Page {
    let (mut whole, mut before) = (Page::default(), Some(filter.before));
    while let Some(key) = before {
        let part = page(history, Filter { before: key, limit: 5_000, ..filter.clone() }).await;
        whole.entries.extend(part.entries);
        before = part.more_before;
    }
    whole
}

/// Returns the (zxid, ordinal) of records, newest first; for a gap the zxids of both ends.
type Ranges = (Vec<(i64, u32)>, Vec<(i64, i64)>);

fn ranges(page: &Page) -> Ranges {
    let (mut records, mut gaps) = (Vec::new(), Vec::new());
    for (key, entry) in &page.entries {
        match &entry.event {
            HistoryEvent::Gap(gap) => gaps.push((gap.from_zxid.0, key.zxid.0)),
            _ => records.push((key.zxid.0, key.ordinal)),
        }
    }
    (records, gaps)
}

/// Returns the three records of each change in `zxids`, newest first.
fn expected(zxids: std::ops::RangeInclusive<i64>) -> Vec<(i64, u32)> {
    zxids.rev().flat_map(|zxid| [(zxid, 2), (zxid, 1), (zxid, 0)]).collect()
}

#[tokio::test]
async fn events_of_a_lock_or_a_session_are_found_newest_first() {
    let node = tempfile::tempdir().unwrap();
    let (history, sink) = start(node.path());
    (1..=60).for_each(|zxid| change(&*sink, zxid));
    assert_eq!(ranges(&page(&history, all()).await), (expected(1..=60), Vec::new()));

    let of_lock = Filter { lock: Some("/locks/1".to_owned()), limit: 5, ..all() };
    let newest = page(&history, of_lock.clone()).await;
    assert_eq!(ranges(&newest).0, [(58, 2), (58, 1), (58, 0), (55, 2), (55, 1)]);
    let before = newest.more_before.expect("there is more");
    assert_eq!(ranges(&page(&history, Filter { before, ..of_lock.clone() }).await).0[0], (55, 0));

    let both = Filter { session: Some(SessionId(1)), limit: 4, ..of_lock };
    assert_eq!(ranges(&page(&history, both).await).0, [(58, 2), (58, 1), (58, 0), (52, 2)]);
    let of_session = Filter { session: Some(SessionId(2)), since_ms: time_of(58), ..all() };
    let found = page(&history, of_session).await;
    assert_eq!(ranges(&found).0, [(59, 2), (59, 1), (59, 0)]);
    let event = found.entries[0].1.event.lock().expect("it is no gap");
    assert_eq!((event.path.as_str(), event.label.as_str()), ("/locks/2/n-0000000059", "worker"));
    let nothing = page(&history, Filter { lock: Some("/locks".to_owned()), ..all() }).await;
    let whole = Page { complete_from_ms: i64::MIN, ..Page::default() };
    assert_eq!(nothing, whole, "all is kept, and nothing is of that lock");
}

#[tokio::test]
async fn a_replayed_log_adds_nothing() {
    let node = tempfile::tempdir().unwrap();
    let (history, sink) = start(node.path());
    (1..=50).for_each(|zxid| change(&*sink, zxid));
    history.close().await;
    drop((history, sink));
    for round in 1..=3 {
        let (history, sink) = start(node.path());
        let end = 50 + round;
        (1..=end).for_each(|zxid| change(&*sink, zxid));
        assert_eq!(ranges(&page(&history, all()).await), (expected(1..=end), Vec::new()));
        let of_lock = Filter { lock: Some("/locks/0".to_owned()), ..all() };
        assert_eq!(page(&history, of_lock).await.entries.len(), usize::try_from(end / 3 * 3).unwrap());
        history.close().await;
    }
}

#[tokio::test]
async fn a_snapshot_leaves_a_gap_only_for_skipped_events() {
    let node = tempfile::tempdir().unwrap();
    let (history, sink) = start(node.path());
    (1..=10).for_each(|zxid| change(&*sink, zxid));
    sink.installed(Zxid(10), time_of(10));
    assert_eq!(ranges(&page(&history, all()).await).1, []);
    sink.installed(Zxid(25), time_of(25));
    change(&*sink, 26);
    let entries = page(&history, Filter { lock: Some("/locks/2".to_owned()), ..all() }).await.entries;
    assert_eq!((entries[3].0.zxid, entries[3].0.ordinal), (Zxid(25), u32::MAX), "every filter returns gaps");
    let gap = Gap { from_zxid: Zxid(10), missing: None, reason: GapReason::Snapshot };
    assert_eq!(entries[3].1, Entry::<String>::from(gap));
}

#[tokio::test]
async fn a_node_without_a_history_reports_it() {
    let (history, sink) = History::off();
    change(&*sink, 1);
    assert_eq!(history.page(all(), soon()).await, Err(Unavailable::Off));
    history.close().await;
}
