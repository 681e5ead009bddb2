//! Streams of lock events.

use rowlock_proto::Zxid;
use rowlock_proto::report::{Gap, GapReason, HistoryEntry, HistoryEvent, LockEvent, LockEventKind};

use super::*;
use crate::access::lock_feed::FeedEntry;
use crate::access::report::question::{Scope, WatchQuestion};
use crate::limits::LOCK_FEED_MAX;

fn all(after: Option<Zxid>) -> WatchQuestion {
    WatchQuestion { scope: Scope::All, after }
}

/// Reads a stream up to this number of entries.
async fn entries(watch: &mut Watch, count: usize) -> Vec<Arc<FeedEntry>> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(watch.next().await.expect("the node serves").entries);
    }
    all
}

fn what(entry: &HistoryEntry) -> (&'static str, &str) {
    match &entry.event {
        HistoryEvent::Lock(LockEvent { kind: LockEventKind::Lost(end), .. }) => ("lost", end.reason.name()),
        HistoryEvent::Lock(event) => (event.kind.name(), &event.lock),
        HistoryEvent::Gap(Gap { reason: GapReason::TooSlow, .. }) => ("gap", "too-slow"),
        HistoryEvent::Gap(Gap { reason: GapReason::NoHistory, .. }) => ("gap", "no-history"),
        other => panic!("{other:?}"),
    }
}

async fn take_and_give_back(api: &Api, secret: &Secret, lock: &LockName, id: &str) {
    let acquired = api.acquire(&caller(), &[Part::exclusive(lock)], wanted(secret, id, 0)).await.unwrap();
    let QueuePosition::Held(claim) = only(acquired) else { panic!("it is free") };
    assert_eq!(api.release(&caller(), lock, (secret, &Which::Token(claim.token))).await, Ok(true));
}

#[tokio::test]
async fn slow_client_and_missing_history_get_a_gap() {
    let node = Node::start().await;
    let api = node.api();
    let secret = open(&api).await;
    let mut slow = api.watch(&caller(), all(None)).await.unwrap();
    let begin = slow.next().await.unwrap().checkpoint.unwrap();
    for round in 0..LOCK_FEED_MAX / 3 + 2 {
        take_and_give_back(&api, &secret, &lock(), &round.to_string()).await;
    }
    let told = slow.next().await.unwrap();
    assert_eq!(what(&told.entries[0]), ("gap", "too-slow"));
    assert!(
        told.entries[0].zxid > begin && told.entries[0].zxid <= told.entries[1].zxid,
        "{:?}",
        told.entries[0]
    );
    // This node records no history.
    let mut late = api.watch(&caller(), all(Some(begin))).await.unwrap();
    let told = late.next().await.unwrap();
    assert_eq!(told.entries.iter().map(|entry| what(entry)).collect::<Vec<_>>(), [("gap", "no-history")]);
    let checkpoint = told.checkpoint.unwrap();
    assert_eq!(told.entries[0].zxid, checkpoint, "all of the past is missing");
    let mut same = api.watch(&caller(), all(Some(checkpoint))).await.unwrap();
    assert!(same.next().await.unwrap().entries.is_empty(), "nothing has happened since");
    let ahead = Zxid(checkpoint.0 + 1_000);
    assert!(matches!(api.watch(&caller(), all(Some(ahead))).await.err(), Some(Refusal::Bad(_))));
    drop((slow, late, same, api));
    node.stop().await;
}

#[tokio::test]
async fn event_is_encoded_once_and_many_streams_batch_events() {
    let node = Node::start().await;
    let api = node.api();
    let secret = open(&api).await;
    let mut streams = Vec::new();
    for _ in 0..200 {
        let mut stream = api.watch(&caller(), all(None)).await.unwrap();
        stream.next().await.expect("its beginning");
        streams.push(stream);
    }
    take_and_give_back(&api, &secret, &lock(), "1").await;
    let first = entries(&mut streams[0], 3).await;
    for stream in &mut streams[1..] {
        let told = stream.next().await.expect("the node serves").entries;
        assert_eq!(told.len(), 3, "all that has happened meanwhile comes at once");
        assert!(told.iter().zip(&first).all(|(one, other)| Arc::ptr_eq(one, other)));
    }
    drop((streams, api));
    node.stop().await;
}
