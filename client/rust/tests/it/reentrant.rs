//! The reentrant mutex: an owner has one place and counts its guards; strangers queue.

use std::time::Duration;

use rowlock_client::{Client, Error, LostReason, Owner, ReentrantGuard, ReleaseError};
use rowlock_env::task::{self, Task};
use rowlock_proto::OpCode;

use crate::cancel::poll_at_most;
use crate::fake::Fake;
use crate::mutex::LOCK;

const A: Owner = Owner::named("a");
const B: Owner = Owner::named("b");

/// Starts to wait, and returns once the queue has this length.
async fn waiter(
    fake: &Fake,
    client: &Client,
    owner: Owner,
    queue: usize,
) -> Task<Result<ReentrantGuard, Error>> {
    let mutex = client.reentrant_mutex("l");
    let task = task::spawn("waiter", async move { mutex.lock(owner).await });
    fake.until("the waiter stands in the queue", |world| world.children(LOCK).len() == queue).await;
    task
}

#[tokio::test]
async fn an_owner_takes_its_lock_again_without_traffic_and_the_last_release_frees_it() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let mutex = client.reentrant_mutex("l");
    let first = mutex.lock(A).await.unwrap();
    let requests = fake.world().log.len();
    // Another handle of the same session counts as the same lock.
    let second = client.clone().reentrant_mutex("l").lock(A).await.unwrap();
    let third = mutex.try_lock(A).await.unwrap().unwrap();
    let fourth = mutex.lock_timeout(A, Duration::ZERO).await.unwrap();
    assert_eq!(fake.world().log.len(), requests, "a share was asked of the server");
    assert_eq!((first.shares(), fourth.shares(), second.token()), (4, 4, first.token()));
    assert_eq!(fake.world().children(LOCK).len(), 1);
    first.release().await.unwrap();
    drop(second);
    third.release().await.unwrap();
    assert!(fourth.is_held() && fourth.shares() == 1 && fourth.owner() == A);
    assert_eq!(fake.world().children(LOCK).len(), 1);
    fourth.release().await.unwrap();
    assert!(fake.world().children(LOCK).is_empty());
}

#[tokio::test]
async fn a_second_owner_of_the_same_client_queues_like_a_stranger() {
    let fake = Fake::start().await;
    let (client, stranger) = (fake.client().await, fake.client().await);
    let held = client.reentrant_mutex("l").lock(A).await.unwrap();
    let other_owner = waiter(&fake, &client, B, 2).await;
    let same_name_elsewhere = waiter(&fake, &stranger, A, 3).await;
    let plain = stranger.mutex("l");
    assert!(plain.try_lock().await.unwrap().is_none());
    assert!(client.reentrant_mutex("l").try_lock(Owner::Session).await.unwrap().is_none());
    assert!(client.reentrant_mutex("l").lock(A).await.unwrap().is_held());
    assert!(!other_owner.is_finished() && !same_name_elsewhere.is_finished());
    let token = held.token();
    held.release().await.unwrap();
    let next = other_owner.await.unwrap().unwrap();
    assert!(next.token() > token && !same_name_elsewhere.is_finished());
    drop(next);
    assert!(same_name_elsewhere.await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn owners_without_a_name_are_not_reentrant() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let mutex = client.reentrant_mutex("l");
    let _held = mutex.lock(Owner::Unnamed).await.unwrap();
    assert!(mutex.try_lock(Owner::Unnamed).await.unwrap().is_none());
    assert_ne!(client.new_owner(), client.new_owner());
    assert_eq!(Owner::named("a"), A);
    assert_ne!(A, B);
}

#[tokio::test]
async fn a_loss_is_reported_to_all_guards_of_the_hold_and_the_owner_may_ask_anew() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let mutex = client.reentrant_mutex("l");
    let (first, second) = (mutex.lock(A).await.unwrap(), mutex.lock(A).await.unwrap());
    let third = second.clone();
    fake.world().delete(first.path()).unwrap();
    assert_eq!(first.lost().await, LostReason::Deleted);
    assert_eq!(second.lost().await, LostReason::Deleted);
    assert!(!third.is_held() && third.valid_until().is_none());
    let fresh = mutex.lock(A).await.unwrap();
    assert!(fresh.is_held() && fresh.token() > first.token());
    assert_eq!(first.release().await, Err(ReleaseError::NotHeld));
    assert_eq!(second.release().await, Err(ReleaseError::NotHeld));
    drop(third);
    assert!(mutex.lock(A).await.unwrap().shares() == 2, "the old guards took the new hold with them");
    assert!(fresh.is_held());
    fake.expire(&client);
    assert_eq!(fresh.lost().await, LostReason::Expired);
    assert_eq!(mutex.lock(A).await.unwrap_err(), Error::SessionExpired);
}

#[tokio::test]
async fn tasks_of_one_owner_that_ask_at_once_share_one_place() {
    let fake = Fake::start().await;
    let (client, stranger) = (fake.client().await, fake.client().await);
    let held = stranger.mutex("l").lock().await.unwrap();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let mutex = client.reentrant_mutex("l");
            task::spawn("waiter", async move { mutex.lock(A).await })
        })
        .collect();
    fake.until("one of them waits", |world| world.children(LOCK).len() == 2).await;
    let creates = |wanted| fake.world().requests().filter(|(_, op, _)| *op == wanted).count();
    let before = creates(OpCode::Create2);
    held.release().await.unwrap();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap().unwrap());
    }
    assert_eq!((guards[0].shares(), creates(OpCode::Create2)), (10, before));
    drop(guards);
    fake.until("released", |world| world.children(LOCK).is_empty()).await;
}

#[tokio::test]
async fn when_the_task_that_waits_gives_up_another_of_its_owner_goes_on() {
    let fake = Fake::start().await;
    let (client, stranger) = (fake.client().await, fake.client().await);
    let held = stranger.mutex("l").lock().await.unwrap();
    let gives_up = waiter(&fake, &client, A, 2).await;
    let mutex = client.reentrant_mutex("l");
    assert!(mutex.try_lock(A).await.unwrap().is_none(), "another task of the owner is at it");
    let timed_out = mutex.lock_timeout(A, Duration::from_millis(1)).await;
    assert!(matches!(timed_out, Err(Error::Timeout { .. })));
    let goes_on = task::spawn("waiter", async move { mutex.lock(A).await });
    gives_up.abort();
    held.release().await.unwrap();
    assert!(goes_on.await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn guards_given_back_by_many_tasks_at_once_free_the_lock_once_all_have() {
    let fake = Fake::start().await;
    let (client, stranger) = (fake.client().await, fake.client().await);
    for round in 0..10 {
        let first = client.reentrant_mutex("l").lock(A).await.unwrap();
        let guards: Vec<_> = (0..8).map(|_| first.clone()).collect();
        let releases: Vec<_> = guards
            .into_iter()
            .enumerate()
            .map(|(number, guard)| {
                task::spawn("release", async move {
                    if (number + round) % 2 == 0 {
                        return guard.release().await;
                    }
                    drop(guard);
                    Ok(())
                })
            })
            .collect();
        for release in releases {
            release.await.unwrap().unwrap();
        }
        assert!(first.is_held());
        assert!(stranger.mutex("l").try_lock().await.unwrap().is_none());
        first.release().await.unwrap();
        assert!(stranger.mutex("l").try_lock().await.unwrap().is_some());
        fake.until("released", |world| world.children(LOCK).is_empty()).await;
    }
}

#[tokio::test]
async fn a_reentrant_lock_given_up_after_any_number_of_polls_leaves_no_node() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let mutex = client.reentrant_mutex("l");
    for polls in 0..100 {
        let held = poll_at_most(mutex.lock(A), polls).await.is_some();
        client.sync("/").await.unwrap();
        fake.until("nothing is left", |world| world.children(LOCK).is_empty()).await;
        if held {
            assert!(polls > 2);
            return;
        }
    }
    panic!("never got far");
}

#[test]
fn a_reentrant_guard_may_be_dropped_outside_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (fake, guard) = runtime.block_on(async {
        let fake = Fake::start().await;
        let guard = fake.client().await.reentrant_mutex("l").lock(A).await.unwrap();
        (fake, guard)
    });
    drop(guard);
    runtime.block_on(fake.until("released", |world| world.children(LOCK).is_empty()));
}
