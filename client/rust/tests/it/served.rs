//! Locks whose queue the server keeps: what goes over the wire, who is granted, what is left behind.

use rowlock_proto::Request;
use std::time::Duration;

use rowlock_client::{Claim, Client, Error, Guard, PreferLeader};
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_state::command::Command;

use crate::fake::{Fake, Keeper};

pub const LOCK: &str = "/locks/l";

/// Starts to wait, and returns once the waiter stands in the queue.
pub async fn waiter(fake: &Fake, client: &Client) -> Task<Result<Guard, Error>> {
    let before = fake.world().queue(LOCK).len();
    let mutex = client.mutex("l");
    let task = task::spawn("waiter", async move { mutex.lock().await });
    fake.until("the waiter is in the queue", |world| world.contenders(LOCK) == before + 1).await;
    task
}

#[tokio::test]
async fn an_uncontended_acquire_and_release_is_two_frames_each_way_and_two_commits() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    client.sync("/").await.unwrap();
    let session = client.session_id();
    let before = |world: &Keeper| (world.log.len(), world.sent[&session], world.machine.last_zxid().0);
    let (asked, sent, zxid) = before(&fake.world());
    let guard = client.mutex("l").lock().await.unwrap();
    assert!(guard.is_held() && guard.valid_until().is_some());
    assert_eq!((guard.wait_stats().position, guard.wait_stats().wakeups), (0, 0));
    guard.release().await.unwrap();
    assert_eq!(before(&fake.world()), (asked + 2, sent + 2, zxid + 2));
    assert!(fake.world().queue(LOCK).is_empty());
}

#[tokio::test]
async fn one_release_sends_one_notice_with_a_thousand_waiters() {
    let fake = Fake::rowlock().await;
    // None asks for the way to the leader, whose answers would count.
    let client = || async { fake.config().prefer_leader(PreferLeader::Never).connect().await.unwrap() };
    let (holder, crowd) = (client().await, client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let first = waiter(&fake, &client().await).await;
    let waiters: Vec<_> = (0..999)
        .map(|_| {
            let mutex = crowd.mutex("l");
            task::spawn("waiter", async move { mutex.lock().await })
        })
        .collect();
    fake.until("all wait", |world| world.machine.lock_queue(LOCK).unwrap().waiter_count() == 1000).await;
    let counts = |world: &Keeper| (world.grants, world.sent.values().sum::<usize>());
    let (grants, sent) = counts(&fake.world());
    guard.release().await.unwrap();
    let granted = first.await.unwrap().unwrap();
    assert_eq!(counts(&fake.world()), (grants + 1, sent + 2), "the reply and the notice");
    assert_eq!((granted.wait_stats().position, granted.wait_stats().wakeups), (1, 1));
    waiters.iter().for_each(Task::abort);
    fake.until("the rest has left", |world| world.contenders(LOCK) == 1).await;
}

#[tokio::test]
async fn a_timeout_is_total_names_position_and_holder_and_leaves_the_queue() {
    let fake = Fake::rowlock().await;
    let (holder, client) = (fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let between = waiter(&fake, &fake.client().await).await;
    let started = time::now();
    let patience = Duration::from_secs(1);
    let error = client.mutex("l").lock_timeout(patience).await.unwrap_err();
    let name = guard.path().rsplit('/').next().unwrap().to_owned();
    assert_eq!(error, Error::Timeout { position: Some(2), holder: Some(name) });
    assert!(started.elapsed() >= patience);
    fake.until("the queue was left", |world| world.contenders(LOCK) == 2).await;
    between.abort();
}

#[tokio::test]
async fn a_reconnect_keeps_the_place_and_a_missed_grant_is_learnt() {
    let fake = Fake::rowlock().await;
    let (holder, client) = (fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &client).await;
    let ours = fake.world().queue(LOCK)[1].token;
    {
        // No client is connected when the grant is pushed.
        let mut world = fake.world();
        let claim = Claim { path: guard.path().into(), token: guard.token() };
        world.drop_connections();
        let session = holder.session_id();
        world.act(session, Command::Client(Request::Release([claim].into()))).unwrap();
    }
    let granted = task.await.unwrap().unwrap();
    assert_eq!(granted.token(), ours, "another place");
    assert_eq!(fake.world().queue(LOCK).len(), 1);
}
