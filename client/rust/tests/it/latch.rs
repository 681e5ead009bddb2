//! The count-down latch: opens after the exact count, whatever happens to replies and clients.

use std::time::Duration;

use rowlock_client::{Client, CountDownLatch, Error, ErrorCode};
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_proto::{OpCode, Request};

use crate::fake::{Cut, Fake};

const LATCH: &str = "/locks/@latches/l";

fn is_tick(request: &Request) -> bool {
    matches!(request, Request::Create2(create) if create.path.contains("tick-"))
}

/// Starts to wait, and returns once the waiter has its watch.
async fn waiter(fake: &Fake, latch: CountDownLatch, client: &Client) -> Task<Result<(), Error>> {
    let session = client.session_id();
    let task = task::spawn("waiter", async move { latch.wait().await });
    fake.until("the waiter watches", |world| {
        world.requests().any(|asked| asked == (session, OpCode::GetChildren2, LATCH.to_owned()))
    })
    .await;
    task
}

#[tokio::test]
async fn a_count_down_whose_reply_was_lost_counts_once() {
    let fake = Fake::start().await;
    let latch = fake.client().await.latch("l", 3);
    for (fault, left) in [(Cut::Before, 2), (Cut::AfterDone, 1)] {
        fake.fault(fault, is_tick);
        assert_eq!(latch.count_down().await, Ok(left), "{fault:?}");
    }
    assert_eq!(latch.wait_timeout(Duration::from_millis(1)).await, Ok(false));
}

#[tokio::test]
async fn a_count_stays_when_its_client_expires() {
    let fake = Fake::start().await;
    let (client, worker) = (fake.client().await, fake.client().await);
    worker.latch("l", 2).count_down().await.unwrap();
    fake.expire(&worker);
    assert_eq!(client.latch("l", 2).count().await, Ok(1));
}

#[tokio::test]
async fn a_waiter_cut_off_while_the_latch_opens_hears_of_it_after_the_reconnect() {
    let fake = Fake::start().await;
    let (client, other) = (fake.client().await, fake.client().await);
    let task = waiter(&fake, client.latch("l", 1), &client).await;
    fake.drop_connections();
    other.latch("l", 1).count_down().await.unwrap();
    assert_eq!(task.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_waiter_ends_early_when_its_own_session_ends() {
    let fake = Fake::start().await;
    let (expired, closed) = (fake.client().await, fake.client().await);
    let task = waiter(&fake, expired.latch("l", 1), &expired).await;
    fake.expire(&expired);
    assert_eq!(task.await.unwrap(), Err(Error::SessionExpired));
    let task = waiter(&fake, closed.latch("l", 1), &closed).await;
    closed.close().await.unwrap();
    assert_eq!(task.await.unwrap(), Err(Error::Closed));
    assert_eq!(closed.latch("l", 1).count_down().await, Err(Error::Closed));
}

#[tokio::test]
async fn the_total_timeout_is_not_restarted_by_each_count_down() {
    let fake = Fake::start().await;
    let (client, other) = (fake.client().await, fake.client().await);
    let latch = other.latch("l", 1_000);
    latch.count_down().await.unwrap();
    let patience = Duration::from_millis(400);
    let started = time::now();
    let waiting = client.latch("l", 1_000);
    let counting = async {
        for _ in 0..500 {
            latch.count_down().await.unwrap();
        }
        std::future::pending().await
    };
    let opened = tokio::select! {
        opened = waiting.wait_timeout(patience) => opened,
        () = counting => Ok(true),
    };
    assert_eq!(opened, Ok(false));
    assert!(fake.world().events[&client.session_id()] > 1, "it was never woken");
    assert!(started.elapsed() >= patience);
}

#[tokio::test]
async fn removing_a_latch_fails_its_waiters_and_begins_afresh() {
    let fake = Fake::start().await;
    let (client, other) = (fake.client().await, fake.client().await);
    other.latch("l", 2).count_down().await.unwrap();
    let task = waiter(&fake, client.latch("l", 2), &client).await;
    other.latch("l", 2).remove().await.unwrap();
    other.latch("l", 2).remove().await.unwrap();
    assert_eq!(task.await.unwrap(), Err(Error::Rejected(ErrorCode::NoNode)));
    assert_eq!(other.latch("l", 5).count().await, Ok(5));
}
