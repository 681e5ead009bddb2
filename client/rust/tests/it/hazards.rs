//! What went wrong in other lock services, on the client's side; each test is named after what must not
//! happen. (More of them stand where the thing is tested anyway: `exactly_once`, `served_cancel`,
//! `served_guard`, `mutex`.)

use std::time::Duration;

use rowlock_client::{Acl, CreateMode, Error, Owner, SessionState, Version};
use rowlock_env::task;
use rowlock_env::time;
use rowlock_proto::Request;
use rowlock_proto::lock::Acquire;
use rowlock_state::Machine;
use rowlock_state::command::Command;

use crate::fake::{Cut, Fake, SHORT};
use crate::served::{LOCK, waiter};

#[tokio::test]
async fn dead_waiters_in_the_middle_cost_neither_notices_nor_delay() {
    let fake = Fake::rowlock().await;
    let guard = fake.client().await.mutex("l").lock().await.unwrap();
    let mut dying = Vec::new();
    for _ in 0..20 {
        let client = fake.client().await;
        dying.push((waiter(&fake, &client).await, client));
    }
    let last = waiter(&fake, &fake.client().await).await;
    for (task, client) in dying {
        fake.expire(&client);
        assert_eq!(task.await.unwrap().unwrap_err(), Error::SessionExpired);
    }
    assert!(!last.is_finished(), "granted by the death of a waiter");
    let before = fake.world().grants;
    guard.release().await.unwrap();
    let granted = last.await.unwrap().unwrap();
    assert_eq!((granted.wait_stats().wakeups, fake.world().grants - before), (1, 1));
}

#[tokio::test]
async fn a_grant_that_comes_after_the_local_deadline_is_an_error_and_not_a_lock() {
    let fake = Fake::rowlock().await;
    let holder = fake.client().await;
    let client = fake.config().session_timeout(SHORT).connect().await.unwrap();
    let guard = holder.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &client).await;
    fake.silence();
    assert_eq!(task.await.unwrap().unwrap_err(), Error::SessionExpired);
    assert!(time::now() < guard.valid_until().unwrap());
}

#[tokio::test]
async fn a_cluster_whose_data_are_wiped_ends_the_session_and_a_fresh_one_works() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let guard = client.mutex("l").lock().await.unwrap();
    {
        let mut world = fake.world();
        world.drop_connections();
        world.machine = Machine::new();
        // Sessions are numbered by position: the old number must not stand for another session by chance.
        for _ in 0..20 {
            world.propose(rowlock_state::command::Command::Reap { path: "/none".to_owned() }).unwrap_err();
        }
    }
    let mut states = client.states();
    states.wait_for(|state| *state == SessionState::Expired).await.unwrap();
    assert!(!guard.is_held());
    let fresh = client.renew().await.unwrap();
    assert!(fresh.mutex("l").lock().await.unwrap().check().await.unwrap());
}

#[tokio::test]
async fn a_failed_heartbeat_is_survived() {
    let fake = Fake::rowlock().await;
    let timeout = 2 * SHORT;
    let client = fake.config().session_timeout(timeout).connect().await.unwrap();
    let guard = client.mutex("l").lock().await.unwrap();
    let began = time::now();
    while began.elapsed() < timeout * 3 / 2 {
        // Each connection dies before its first heartbeat is due or soon after.
        fake.drop_connections();
        time::sleep(timeout / 3 + Duration::from_millis(20)).await;
        assert!(guard.is_held());
    }
    assert!(guard.check().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_go_on_while_a_caller_keeps_its_thread_busy() {
    let fake = Fake::rowlock().await;
    let timeout = 2 * SHORT;
    let client = fake.config().session_timeout(timeout).connect().await.unwrap();
    let guard = client.mutex("l").lock().await.unwrap();
    let busy = task::spawn("busy", async move {
        let began = time::now();
        while began.elapsed() < timeout * 3 / 2 {
            std::hint::spin_loop();
        }
    });
    busy.await.unwrap();
    assert!(guard.is_held() && guard.check().await.unwrap());
}

#[tokio::test]
async fn a_place_is_never_taken_twice_by_a_wait_over_many_reconnects() {
    let fake = Fake::rowlock().await;
    let (holder, client) = (fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &client).await;
    let ours = fake.world().queue(LOCK)[1].token;
    for round in 0..10 {
        let session = client.session_id();
        fake.drop_connections();
        fake.until("the waiter asked again", |world| {
            world.asked(session, |request| matches!(request, Request::Acquire(_))) > round + 1
        })
        .await;
    }
    client.sync("/").await.unwrap();
    assert_eq!(fake.world().queue(LOCK)[1].token, ours);
    assert_eq!(fake.world().contenders(LOCK), 2);
    guard.release().await.unwrap();
    assert_eq!(task.await.unwrap().unwrap().token(), ours);
}

#[tokio::test]
async fn a_multi_lock_of_which_one_place_was_taken_away_unseen_leaves_no_other_behind() {
    let fake = Fake::rowlock().await;
    let (client, admin) = (fake.client().await, fake.client().await);
    client.sync("/").await.unwrap();
    fake.world().cut = Some((0, Cut::AfterDone));
    let all = client.clone();
    // The reply of the acquire is lost, and before the client is back another one removes one of the places.
    fake.world().silent_on_attach = true;
    let task = task::spawn("all", async move { all.lock_all(["a", "b"]).await });
    fake.until("acquired", |world| world.contenders("/locks/a") == 1).await;
    let path = fake.world().queue("/locks/a")[0].path.clone();
    admin.delete(&path, None).await.unwrap();
    fake.world().silent_on_attach = false;
    match task.await.unwrap() {
        // Either it takes the place again or says that it was lost.
        Ok(guard) => assert_eq!(guard.release().await, Ok(())),
        Err(error) => assert_eq!(error, Error::PlaceLost),
    }
    fake.until("nothing is left", |world| world.contenders("/locks/a") + world.contenders("/locks/b") == 0)
        .await;
}

/// A re-ask that is refused must name the places that are still there: who is told that they are absent
/// forgets them.
#[tokio::test]
async fn a_multi_lock_that_is_refused_when_it_asks_again_leaves_the_places_it_had() {
    let fake = Fake::rowlock().await;
    let (client, other) = (fake.client().await, fake.client().await);
    let blocking = other.mutex("y").request().owner(Owner::Session).lock().await.unwrap();
    let both = client.multi(["x", "y"]).request().owner(Owner::Session);
    let task = task::spawn("both", async move { both.lock().await });
    fake.until("x is held", |world| world.holders("/locks/x") + world.contenders("/locks/y") == 3).await;
    fake.world().silent_on_attach = true;
    fake.drop_connections();
    {
        // While both are cut off, the place that waited is removed, and its holder comes to wait for the
        // other.
        let mut world = fake.world();
        let waiting = world.queue("/locks/y")[1].path.clone();
        let delete = Command::Client(Request::Delete { path: waiting, version: Version::ANY });
        world.act(client.session_id(), delete).unwrap();
        let acquire = Acquire { owner: Owner::Session, ..Acquire::exclusive("/locks/x", "then-") };
        world.act(other.session_id(), Command::Client(Request::Acquire([acquire].into()))).unwrap();
        world.silent_on_attach = false;
    }
    let refused = task.await.unwrap().unwrap_err();
    assert!(matches!(refused, Error::Deadlock { .. }), "{refused}");
    fake.until("x was left", |world| {
        world.queue("/locks/x").iter().all(|at| at.session == other.session_id())
    })
    .await;
    assert_eq!(fake.world().holders("/locks/x"), 1, "the next one was granted");
    assert_eq!(fake.world().contenders("/locks/y"), 1, "nothing is left behind");
    blocking.release().await.unwrap();
}

#[tokio::test]
async fn plain_clients_and_this_one_are_granted_in_one_queue() {
    let fake = Fake::rowlock().await;
    let (client, other) = (fake.client().await, fake.client().await);
    let guard = client.mutex("l").lock().await.unwrap();
    let plain = |name: &'static str| {
        let other = other.clone();
        let path = format!("{LOCK}/{name}");
        async move { other.create(&path, None, CreateMode::EphemeralSequential, Acl::open()).await.unwrap().path }
    };
    let kazoo = plain("8f14e45fceea167a5a36dedd4bea2543__lock__").await;
    let task = waiter(&fake, &client).await;
    let curator = plain("_c_9f0e6d52-3a55-4d4c-9d2e-1b2c3d4e5f60-lock-").await;
    guard.release().await.unwrap();
    assert!(!task.is_finished(), "a plain client was overtaken");
    other.delete(&kazoo, None).await.unwrap();
    let granted = task.await.unwrap().unwrap();
    granted.release().await.unwrap();
    assert_eq!(fake.world().queue(LOCK)[0].path, curator);
    assert_eq!(fake.world().holders(LOCK), 1);
}
