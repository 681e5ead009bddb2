//! one-wake, and what a lock costs: frames, log entries and notices counted exactly, on three real nodes.

use std::time::Duration;

use rowlock_client::{Client, PreferLeader};
use rowlock_proto::lock::{Claim, Notice, NoticeEvent};
use rowlock_proto::{Request, Response};
use tokio::task::JoinSet;

use crate::support::cluster::{Cluster, SERVING};
use crate::support::eventually;
use rowlock_frames::raw::{RawClient, SESSION_MS, exclusive, held, waiting};

const WAITERS: usize = 1_000;
/// Waiters that connect at a time.
const ABREAST: usize = 50;
const RELEASES: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    log_entries: u64,
    frames_received: u64,
    frames_sent: u64,
    notices: u64,
    events: u64,
}

/// What has been spent so far, on all nodes together.
async fn spent(cluster: &Cluster) -> Cost {
    loop {
        // Nodes compare their digests now and then: no client causes these entries.
        let comparisons = cluster.metric_of_all("rowlock_comparison_batches_total").await;
        let cost = Cost {
            log_entries: cluster.metric_of_all("rowlock_batches_total").await - comparisons,
            frames_received: cluster.metric_of_all("rowlock_packets_received_total").await,
            frames_sent: cluster.metric_of_all("rowlock_packets_sent_total").await,
            notices: cluster.metric_of_all("rowlock_lock_notices_total").await,
            events: cluster.metric_of_all("rowlock_watch_fired_total").await,
        };
        if cluster.metric_of_all("rowlock_comparison_batches_total").await == comparisons {
            return cost;
        }
    }
}

impl Cost {
    fn exceeds(self, other: Cost) -> bool {
        self.log_entries > other.log_entries
            || self.frames_received > other.frames_received
            || self.frames_sent > other.frames_sent
            || self.notices > other.notices
            || self.events > other.events
    }

    fn since(self, before: Cost) -> Cost {
        Cost {
            log_entries: self.log_entries - before.log_entries,
            frames_received: self.frames_received - before.frames_received,
            frames_sent: self.frames_sent - before.frames_sent,
            notices: self.notices - before.notices,
            events: self.events - before.events,
        }
    }
}

/// Waits until exactly this has been spent since. A node counts a message right after sending it, so the
/// count may be too low for a moment; it never falls.
async fn has_cost(cluster: &Cluster, before: Cost, expected: Cost) {
    let exact = async || {
        let seen = spent(cluster).await.since(before);
        (seen == expected || seen.exceeds(expected)).then_some(seen)
    };
    let cost = eventually(&format!("{expected:?}"), SERVING, exact).await;
    assert_eq!(cost, expected);
}

#[tokio::test]
async fn an_uncontended_lock_costs_two_frames_each_way_and_two_log_entries() {
    let cluster = Cluster::start(3, "").await;
    for id in [cluster.leader().await, cluster.follower().await] {
        let mut raw = RawClient::attach(cluster.endpoint(id), SESSION_MS).await;
        let before = spent(&cluster).await;
        let claim = held(raw.acquire(exclusive("/locks/deep/down/a", "_c_1-lock-")).await);
        assert!(raw.release(&claim).await);
        assert_eq!((raw.frames_out, raw.frames_in), (2, 2));
        let cost = Cost { log_entries: 2, frames_received: 2, frames_sent: 2, notices: 0, events: 0 };
        has_cost(&cluster, before, cost).await;
    }
}

/// The client of an application that drops its guard and takes the next lock at once.
#[tokio::test]
async fn an_unwaited_release_and_the_next_acquire_are_one_log_entry() {
    let cluster = Cluster::start(3, "").await;
    for id in [cluster.leader().await, cluster.follower().await] {
        let client = Client::builder().endpoints(cluster.endpoint(id)).prefer_leader(PreferLeader::Never);
        let client = client.session_timeout(Duration::from_secs(600)).connect().await.unwrap();
        let guard = client.mutex("posted").lock().await.unwrap();
        let (before, token) = (spent(&cluster).await, guard.token());
        drop(guard);
        let guard = client.mutex("posted").try_lock().await.unwrap().expect("the release went first");
        assert!(guard.token() > token);
        let cost = Cost { log_entries: 1, frames_received: 2, frames_sent: 2, notices: 0, events: 0 };
        has_cost(&cluster, before, cost).await;
        guard.release().await.unwrap();
        client.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_contended_hand_over_is_one_log_entry_and_one_frame_to_the_next() {
    let cluster = Cluster::start(3, "").await;
    let mut holder = RawClient::attach(cluster.endpoint(cluster.leader().await), SESSION_MS).await;
    let mut next = RawClient::attach(cluster.endpoint(cluster.follower().await), SESSION_MS).await;
    let first = held(holder.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
    let (claim, ahead) = waiting(next.acquire(exclusive("/locks/a", "_c_2-lock-")).await);
    assert_eq!(ahead, 1);
    let before = spent(&cluster).await;
    assert!(holder.release(&first).await);
    assert_eq!(next.notice().await.1, Notice { claim: claim.clone(), event: NoticeEvent::Granted });
    let cost = Cost { log_entries: 1, frames_received: 1, frames_sent: 2, notices: 1, events: 0 };
    has_cost(&cluster, before, cost).await;
    assert!(next.verify(&claim).await);
    assert_eq!((next.frames_out, next.frames_in), (2, 3), "acquire, verify; their replies and the notice");
}

/// A session that waits, or the holder with its claim.
struct Queued {
    raw: RawClient,
    claim: Claim,
}

async fn enqueue(addr: String, n: usize) -> Queued {
    let mut raw = RawClient::attach(&addr, SESSION_MS).await;
    let (claim, _) = waiting(raw.acquire(exclusive("/locks/a", &format!("_c_{n}-lock-"))).await);
    Queued { raw, claim }
}

/// A thousand sessions on all nodes, in the order of the queue.
async fn thousand_waiters(cluster: &Cluster) -> Vec<Queued> {
    let mut queue = Vec::with_capacity(WAITERS);
    let ids = cluster.ids();
    for first in (0..WAITERS).step_by(ABREAST) {
        let mut joining = JoinSet::new();
        for n in first..first + ABREAST {
            joining.spawn(enqueue(cluster.endpoint(ids[n % ids.len()]).to_owned(), n));
        }
        queue.extend(joining.join_all().await);
    }
    queue.sort_by_key(|queued| queued.claim.token);
    queue
}

#[tokio::test]
async fn a_release_before_a_thousand_waiters_wakes_one_and_the_dead_in_between_cost_nothing() {
    let cluster = Cluster::start(3, "").await;
    let mut raw = RawClient::attach(cluster.endpoint(1), SESSION_MS).await;
    let claim = held(raw.acquire(exclusive("/locks/a", "_c_first-lock-")).await);
    let mut holder = Queued { raw, claim };
    let mut queue = thousand_waiters(&cluster).await.into_iter();

    let before = spent(&cluster).await;
    for _ in 0..RELEASES {
        let mut next = queue.next().unwrap();
        assert!(holder.raw.release(&holder.claim).await);
        assert_eq!(
            next.raw.notice().await.1,
            Notice { claim: next.claim.clone(), event: NoticeEvent::Granted }
        );
        assert!(next.claim.token > holder.claim.token);
        holder = next;
    }
    let releases = RELEASES as u64;
    let cost = Cost {
        log_entries: releases,
        frames_received: releases,
        frames_sent: 2 * releases,
        notices: releases,
        events: 0,
    };
    has_cost(&cluster, before, cost).await;

    // Half of the waiters leave, beginning with the next: no client is told.
    let (dead, mut alive): (Vec<_>, Vec<_>) = queue.enumerate().partition(|(n, _)| n % 2 == 0 || *n < 200);
    for (_, queued) in dead {
        queued.raw.close().await;
    }
    let before = spent(&cluster).await;
    assert!(holder.raw.release(&holder.claim).await);
    let (_, next) = &mut alive[0];
    assert_eq!(next.raw.notice().await.1, Notice { claim: next.claim.clone(), event: NoticeEvent::Granted });
    let cost = Cost { log_entries: 1, frames_received: 1, frames_sent: 2, notices: 1, events: 0 };
    has_cost(&cluster, before, cost).await;

    // The others were told nothing at all: the next frame of each is the answer to its question.
    for (_, queued) in alive.iter_mut().skip(1) {
        let verify = Request::Verify([queued.claim.clone()].into());
        assert_eq!(queued.raw.call(verify).await, Ok(Response::Held(vec![false].into())));
        assert_eq!(queued.raw.frames_in, 2);
    }
}
