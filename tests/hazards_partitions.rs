//! Failures of other lock services when parts of the network or the data were gone: stale leaders that grant,
//! sessions that end unnoticed, waiters that wait for ever, clients that never come back. Numbers as in
//! docs/testing.md.

use std::time::{Duration, Instant};

use rowlock_client::{Acl, Client, CreateMode, Error, LostReason, SessionState};
use rowlock_proto::lock::QueuePosition;
use rowlock_proto::{Request, Response};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::{eventually, secs};
use rowlock_frames::raw::{RawClient, SESSION_MS, exclusive, held};

/// Of clients that are to lose their sessions.
const SESSION: Duration = secs(4);
/// How late a busy machine may do what is due.
const SLACK: Duration = secs(10);

async fn client_of(endpoints: &str) -> Client {
    Client::builder().endpoints(endpoints).session_timeout(SESSION).connect().await.unwrap()
}

async fn queued(client: &Client, lock: &str, count: usize) {
    let so_many = || async {
        let queue = client.get_children(lock).await.ok()?.names;
        (queue.len() == count).then_some(())
    };
    eventually(&format!("{count} in the queue of {lock}"), secs(30), so_many).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hazards_2_9_21_a_minority_grants_and_answers_nothing_says_so_and_heals_without_a_restart() {
    let mut cluster = Cluster::start_on_network(3, FAST).await;
    let ids = cluster.ids();
    let old = cluster.leader().await;
    let majority: Vec<&str> = ids.iter().filter(|id| **id != old).map(|id| cluster.endpoint(*id)).collect();
    // However long the others take to elect: only sessions on the leader's side are to end.
    let inside = cluster.client_of(&majority.join(",")).await;
    let outside = client_of(cluster.endpoint(old)).await;
    // The holder of one lock and a waiter for another are on the leader's side, which will be the smaller
    // one.
    let first = outside.mutex("a").lock().await.unwrap();
    let other = inside.mutex("b").lock().await.unwrap();
    let next = tokio::spawn({
        let mutex = inside.mutex("a");
        async move { (mutex.lock().await.unwrap(), Instant::now()) }
    });
    let alone = client_of(cluster.endpoint(old)).await;
    let in_vain = tokio::spawn({
        let mutex = alone.mutex("b");
        async move { mutex.lock().await.map(|_| ()) }
    });
    queued(&inside, "/locks/a", 2).await;
    queued(&inside, "/locks/b", 2).await;
    let mut raw = RawClient::attach(cluster.endpoint(old), SESSION_MS).await;
    let mut idle = RawClient::attach(cluster.endpoint(old), SESSION_MS).await;

    cluster.network().isolate(old, &ids);
    let cut = Instant::now();
    let asked = raw.send(Request::Acquire([exclusive("/locks/free", "_c_1-lock-")].into())).await;
    let reason = first.lost().await;
    let lost = Instant::now();
    assert!(matches!(reason, LostReason::Unreachable | LostReason::Expired), "{reason:?}");
    assert_eq!(in_vain.await.unwrap(), Err(Error::SessionExpired), "a waiter ends with its session");
    assert!(cut.elapsed() < SESSION + SLACK, "{:?}", cut.elapsed());
    let (second, granted) = next.await.unwrap();
    assert!(lost < granted, "the holder knows before the next one is granted");
    assert!(second.token() > first.token());

    let stands_aside = || async { (cluster.status(old).await?["serving"] == false).then_some(()) };
    eventually("the smaller side says that it does not serve", secs(10), stands_aside).await;
    let ended = tokio::time::timeout(secs(10), idle.next_reply()).await;
    assert!(ended.expect("it lets its clients go").is_none());
    assert!(raw.answer(asked).await.is_none(), "a minority acknowledged an acquire");
    assert_eq!(alone.state(), SessionState::Expired);

    cluster.network().heal();
    cluster.wait_until_serving().await;
    assert!(cluster.is_running(old), "it heals without a restart");
    cluster.wait_for_equal_digests().await;
    queued(&inside, "/locks/a", 1).await;
    queued(&inside, "/locks/b", 1).await;
    let again = outside.renew().await.unwrap();
    let third = tokio::spawn({
        let mutex = again.mutex("a");
        async move { mutex.lock().await.unwrap() }
    });
    queued(&inside, "/locks/a", 2).await;
    let token = second.token();
    second.release().await.unwrap();
    assert!(third.await.unwrap().token() > token);
    other.release().await.unwrap();
    // The acquire that was never answered had no effect, or no place remains of it: its session may still
    // take the lock.
    let mut raw = eventually("the session goes on", SERVING, || raw.resume(cluster.endpoint(old))).await;
    held(raw.acquire(exclusive("/locks/free", "_c_1-lock-")).await);
    assert_eq!(raw.children("/locks/free").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hazard_20_a_client_outlives_the_loss_of_all_data_and_a_closed_one_says_so_at_once() {
    let mut cluster = Cluster::start(3, FAST).await;
    let client = cluster.client().await;
    // A position that the new cluster will not have reached when the client comes back.
    for _ in 0..20 {
        client.create("/x-", None, CreateMode::PersistentSequential, Acl::open()).await.unwrap();
    }
    let guard = client.mutex("a").lock().await.unwrap();
    cluster.kill_all();
    cluster.forget_everything();
    cluster.ids().into_iter().for_each(|id| cluster.start_node(id));
    cluster.wait_until_serving().await;

    guard.lost().await;
    assert!(matches!(client.mutex("a").lock().await.map(|_| ()), Err(Error::SessionExpired)));
    let fresh = client.renew().await.unwrap();
    fresh.mutex("a").lock().await.unwrap().release().await.unwrap();

    fresh.close().await.unwrap();
    let asked = Instant::now();
    assert!(matches!(fresh.mutex("a").lock().await.map(|_| ()), Err(Error::Closed)));
    assert!(asked.elapsed() < SLACK, "{:?}", asked.elapsed());
}

/// Longer than a leader may go on without its quorum, shorter than an election takes to begin.
const SILENCES_MS: [u64; 3] = [1_000, 1_300, 1_600];

#[tokio::test]
async fn hazard_21_writes_during_a_short_silence_of_the_quorum_are_answered_in_their_order() {
    let cluster = Cluster::start(3, "").await;
    for silence_ms in SILENCES_MS {
        let leader = cluster.leader().await;
        let mut raw = RawClient::attach(cluster.endpoint(leader), SESSION_MS).await;
        let others: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != leader).collect();
        others.iter().for_each(|id| signal(&cluster, *id, Signal::STOP));
        // The silence is the fault itself: nothing is waited for here.
        tokio::time::sleep(Duration::from_millis(silence_ms)).await;
        let write = |n| {
            Request::Acquire([exclusive(&format!("/locks/{silence_ms}"), &format!("_c_{n}-lock-"))].into())
        };
        let sent = [raw.send(write(1)).await, raw.send(write(2)).await, raw.send(write(3)).await];
        others.iter().for_each(|id| signal(&cluster, *id, Signal::CONT));
        let mut tokens = Vec::new();
        for sent in sent {
            // Or the connection ends, and the client asks again; but it never waits for nothing.
            let Some(answer) = raw.answer(sent).await else { break };
            let Ok(Response::QueuePositions(positions)) = answer else { panic!("{answer:?}") };
            let (QueuePosition::Held(claim) | QueuePosition::Waiting { claim, .. }) = &positions[0] else {
                panic!("{positions:?}")
            };
            tokens.push(claim.token);
        }
        assert!(tokens.is_sorted(), "{tokens:?}");
    }
    cluster.wait_for_equal_digests().await;
}

fn signal(cluster: &Cluster, node: u64, signal: Signal) {
    let pid = Pid::from_raw(cluster.pid(node) as i32).unwrap();
    kill_process(pid, signal).unwrap();
}
