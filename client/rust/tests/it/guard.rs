//! Holding a lock: how its loss is told, and how it is given back.

use rowlock_client::{Error, LockLost, LostReason, ReleaseError};
use rowlock_env::{task, time};
use rowlock_proto::Request;

use crate::fake::{Cut, Fake, SHORT};
use crate::mutex::{LOCK, waiter};

fn is_delete(request: &Request) -> bool {
    matches!(request, Request::Delete { .. })
}

#[tokio::test]
async fn lost_is_declared_before_the_server_expires_the_session() {
    let fake = Fake::start().await;
    let client = fake.config().session_timeout(2 * SHORT).connect().await.unwrap();
    let guard = client.mutex("l").lock().await.unwrap();
    let promised = guard.valid_until().unwrap();
    fake.silence();
    let reason = guard.lost().await;
    let now = time::now();
    assert_eq!(reason, LostReason::Unreachable);
    assert!(now >= promised, "lost although it was still valid");
    assert!(now < fake.world().expiry(client.session_id()), "the server may have granted it to another");
    assert!(!guard.is_held() && guard.valid_until().is_none());
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    assert_eq!(client.mutex("l").lock().await.unwrap_err(), Error::SessionExpired);
}

#[tokio::test]
async fn what_remains_of_a_lock_is_less_than_its_session_and_nothing_once_it_is_lost() {
    let fake = Fake::start().await;
    let client = fake.config().session_timeout(SHORT).connect().await.unwrap();
    let guard = client.mutex("l").lock().await.unwrap();
    let remaining = guard.remaining();
    assert!(!remaining.is_zero() && remaining < SHORT, "{remaining:?}");
    fake.world().delete(guard.path()).unwrap();
    guard.lost().await;
    assert!(guard.remaining().is_zero());
}

#[tokio::test]
async fn calls_end_with_the_operation_timeout_of_their_handle_and_waiting_for_a_lock_does_not() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let hasty = client.operation_timeout(std::time::Duration::from_millis(50));
    let guard = hasty.mutex("l").lock().await.unwrap();
    let other = fake.client().await.operation_timeout(std::time::Duration::from_millis(50));
    let waiting = waiter(&fake, &other).await;
    fake.silence();
    let error = hasty.set("/x", None, None).await.unwrap_err();
    assert_eq!(error, Error::NoAnswer);
    assert!(error.may_have_happened());
    assert_eq!(hasty.exists_watched("/x").await.map(drop), Err(Error::NoAnswer));
    assert!(guard.is_held() && !waiting.is_finished());
}

#[tokio::test]
async fn heartbeats_keep_a_lock_beyond_the_session_timeout() {
    let fake = Fake::start().await;
    let client = fake.config().session_timeout(SHORT).connect().await.unwrap();
    let guard = client.mutex("l").lock().await.unwrap();
    let first = guard.valid_until().unwrap();
    fake.until("six heartbeats", |world| world.pings >= 6).await;
    assert!(guard.is_held());
    assert!(guard.valid_until().unwrap() > first + SHORT);
}

#[tokio::test]
async fn work_is_dropped_at_the_moment_of_the_loss() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let guard = client.mutex("l").lock().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await, Ok(7));
    let (result, ()) = tokio::join!(guard.run(std::future::pending::<()>()), async { fake.expire(&client) });
    assert_eq!(result, Err(LockLost { reason: LostReason::Expired }));
    assert_eq!(guard.run(async { 7 }).await, Err(LockLost { reason: LostReason::Expired }));
}

#[tokio::test]
async fn a_dropped_guard_releases_in_the_background_even_when_the_connection_breaks() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    for fault in [Cut::Before, Cut::AfterDone] {
        let guard = client.mutex("l").lock().await.unwrap();
        fake.fault(fault, is_delete);
        drop(guard);
        fake.until("released", |world| world.children(LOCK).is_empty() && world.faults.is_empty()).await;
    }
}

#[test]
fn a_guard_may_be_dropped_outside_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (fake, client) = runtime.block_on(async {
        let fake = Fake::start().await;
        let client = fake.client().await;
        (fake, client)
    });
    let guard = runtime.block_on(client.mutex("l").lock()).unwrap();
    drop(guard);
    runtime.block_on(fake.until("released", |world| world.children(LOCK).is_empty()));
}

#[tokio::test]
async fn a_release_survives_lost_connections() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    for fault in [Cut::Before, Cut::AfterDone] {
        let guard = client.mutex("l").lock().await.unwrap();
        fake.fault(fault, is_delete);
        assert_eq!(guard.release().await, Ok(()), "{fault:?}");
        assert!(fake.world().children(LOCK).is_empty());
    }
}

#[tokio::test]
async fn a_release_whose_reply_was_lost_never_touches_a_newer_lock_of_the_same_session() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let guard = client.mutex("l").lock().await.unwrap();
    fake.fault(Cut::AfterDone, is_delete);
    let release = task::spawn("release", guard.release());
    let newer = client.mutex("l").lock().await.unwrap();
    release.await.unwrap().unwrap();
    client.sync("/").await.unwrap();
    assert!(newer.is_held());
    assert_eq!(fake.world().children(LOCK).len(), 1);
}

#[tokio::test]
async fn a_release_that_the_session_does_not_survive_is_unknown() {
    let fake = Fake::start().await;
    let client = fake.config().session_timeout(SHORT).connect().await.unwrap();
    let guard = client.mutex("l").lock().await.unwrap();
    fake.silence();
    assert_eq!(guard.release().await, Err(ReleaseError::Unknown));
}

#[tokio::test]
async fn a_lock_passes_on_when_its_holder_s_last_handle_is_dropped() {
    let fake = Fake::start().await;
    let (holder, client) = (fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let session = holder.session_id();
    let task = waiter(&fake, &client).await;
    drop(holder);
    assert!(guard.is_held(), "a guard keeps its session alive");
    drop(guard);
    assert!(task.await.unwrap().unwrap().is_held());
    fake.until("the session was closed", |world| !world.has_session(session)).await;
}
