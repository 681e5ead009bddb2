//! Dropping the future of `lock` at each of its steps, with faults in between: nothing stays in the queue.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use rowlock_client::Error;

use crate::fake::{Cut, Fake};
use crate::mutex::{LOCK, is_queue_create, watches_of};

/// Polls a future `times` times and then drops it, unless it is done before. The runtime does its other work
/// between two polls.
pub async fn poll_at_most<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops the future after 0, 1, 2... polls, until one gets as far as it can: to the lock or, when `others`
/// hold it, to watching the predecessor. Checks each time that only `others` remain in the queue.
async fn no_poll_count_leaves_a_node(fault: Option<Cut>, others: usize) {
    let fake = Fake::start().await;
    let (client, other) = (fake.client().await, fake.client().await);
    let mut held = Vec::new();
    for _ in 0..others {
        held.push(other.mutex("l").lock().await.unwrap());
    }
    let session = client.session_id();
    for polls in 0..100 {
        if let Some(fault) = fault {
            fake.fault(fault, is_queue_create);
        }
        let before = watches_of(&fake.world(), session);
        let mutex = client.mutex("l");
        let done = tokio::select! {
            biased;
            guard = poll_at_most(mutex.lock(), polls) => guard.is_some(),
            () = fake.until("it waits", |world| others > 0 && watches_of(world, session) > before) => true,
        };
        fake.world().faults.clear();
        // Behind this reply, or the broken connection, no create of ours is on its way any more.
        while let Err(error) = client.sync("/").await {
            assert_eq!(error, Error::ConnectionLoss);
        }
        fake.until("nothing of ours is left in the queue", |world| world.children(LOCK).len() == others)
            .await;
        if done {
            assert!(polls > 2 && held.iter().all(|guard| guard.is_held()));
            return;
        }
    }
    panic!("never got far");
}

#[tokio::test]
async fn a_lock_future_dropped_after_any_number_of_polls_leaves_no_node() {
    no_poll_count_leaves_a_node(None, 0).await;
}

#[tokio::test]
async fn a_waiting_lock_future_dropped_after_any_number_of_polls_leaves_no_node() {
    no_poll_count_leaves_a_node(None, 1).await;
}

#[tokio::test]
async fn a_lock_future_dropped_around_a_lost_create_leaves_no_node() {
    no_poll_count_leaves_a_node(Some(Cut::Before), 0).await;
    no_poll_count_leaves_a_node(Some(Cut::Before), 1).await;
}

#[tokio::test]
async fn a_lock_future_dropped_around_a_lost_create_reply_leaves_no_node() {
    no_poll_count_leaves_a_node(Some(Cut::AfterDone), 0).await;
    no_poll_count_leaves_a_node(Some(Cut::AfterDone), 1).await;
}
