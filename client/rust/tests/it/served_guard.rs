//! Holding a lock whose queue the server keeps: how its loss is told, options, and how it is given back.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rowlock_client::{
    Acl, Claim, Client, CreateMode, Error, ErrorCode, FencingToken, Kept, LostReason, Owner, ReleaseError,
    SessionState, Transaction, Version,
};
use rowlock_env::{task, time};
use rowlock_proto::Request;
use rowlock_state::command::Command;

use crate::fake::Fake;
use crate::served::{LOCK, waiter};

/// The cluster does what is due by its clock at `now_ms`.
fn sweep(fake: &Fake) {
    let mut world = fake.world();
    let due: Vec<String> = world.machine.locks_due(time::wall_ms()).map(str::to_owned).collect();
    for lock in due {
        world.propose(Command::LockDue { lock }).unwrap();
    }
    drop(world);
    fake.touch();
}

#[tokio::test]
async fn a_guard_costs_no_watch_and_no_read() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let guard = client.mutex("l").lock().await.unwrap();
    client.sync("/").await.unwrap();
    let session = client.session_id();
    let reads = |request: &Request| matches!(request, Request::GetData(_) | Request::Exists(_));
    assert_eq!(fake.world().asked(session, reads), 1, "the probe alone");
    assert!(guard.check().await.unwrap());
    assert_eq!(fake.world().asked(session, |request| matches!(request, Request::Verify(_))), 1);
}

#[tokio::test]
async fn a_forced_release_is_told_to_the_holder_and_grants_the_next() {
    let fake = Fake::rowlock().await;
    let (client, next, admin) = (fake.client().await, fake.client().await, fake.client().await);
    let guard = client.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &next).await;
    let stale = Claim { path: guard.path().into(), token: rowlock_client::FencingToken(1) };
    assert_eq!(admin.force_release(&stale).await, Ok(false), "another token");
    assert!(guard.is_held());
    assert_eq!(admin.force_release(&guard.claim()).await, Ok(true));
    assert_eq!(guard.lost().await, LostReason::ForceReleased);
    assert!(task.await.unwrap().unwrap().token() > guard.token());
    assert_eq!(admin.force_release(&guard.claim()).await, Ok(false), "twice");
}

#[tokio::test]
async fn a_release_by_a_guard_that_lost_its_lock_unnoticed_is_not_held_and_changes_nothing() {
    let fake = Fake::rowlock().await;
    let (client, next) = (fake.client().await, fake.client().await);
    let guard = client.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &next).await;
    {
        // The notice is lost with the connection, and the release is sent before the place can be verified.
        let mut world = fake.world();
        world.drop_connections();
        let session = next.session_id();
        let path = guard.path().to_owned();
        world.act(session, Command::Client(Request::Delete { path, version: Version::ANY })).unwrap();
    }
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    assert!(task.await.unwrap().unwrap().check().await.unwrap());
}

#[tokio::test]
async fn an_expired_session_s_locks_are_lost_and_it_acquires_no_more() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let guard = client.mutex("l").lock().await.unwrap();
    let waiting = waiter(&fake, &client).await;
    fake.expire(&client);
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert_eq!(waiting.await.unwrap().unwrap_err(), Error::SessionExpired);
    assert_eq!(client.mutex("l").lock().await.unwrap_err(), Error::SessionExpired);
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
    assert!(fake.world().queue(LOCK).is_empty());
}

#[tokio::test]
async fn a_fenced_transaction_takes_effect_only_while_the_lock_is_held() {
    let fake = Fake::rowlock().await;
    let (client, admin) = (fake.client().await, fake.client().await);
    let guard = client.mutex("l").lock().await.unwrap();
    let write =
        |txn: Transaction| txn.create("/result-", None, CreateMode::PersistentSequential, Acl::open());
    assert_eq!(client.commit(write(guard.txn())).await.unwrap().len(), 2);
    let late = write(guard.txn());
    assert!(admin.force_release(&guard.claim()).await.unwrap());
    let refused = client.commit(late).await.unwrap_err();
    assert_eq!(refused, Error::TransactionRejected { index: 0, code: ErrorCode::NoNode });
}

#[tokio::test]
async fn a_maximum_hold_warns_then_gives_the_lock_back_by_itself() {
    let fake = Fake::rowlock().await;
    let (client, next) = (fake.client().await, fake.client().await);
    let most = Duration::from_secs(2);
    let started = time::now();
    let guard = client.mutex("l").request().max_hold(most).lock().await.unwrap();
    assert!(guard.valid_until().unwrap() <= time::now() + most);
    let task = waiter(&fake, &next).await;
    guard.expiring().await;
    assert!(guard.is_held() && started.elapsed() >= most / 5 * 4);
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert!(started.elapsed() >= most);
    assert!(task.await.unwrap().unwrap().is_held());
    assert_eq!(guard.release().await, Err(ReleaseError::NotHeld));
}

#[tokio::test]
async fn a_revocation_by_the_server_is_told() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let most = Duration::from_secs(3600);
    let guard = client.mutex("l").request().max_hold(most).lock().await.unwrap();
    let due = fake.world().machine.next_lock_due().unwrap();
    let lost = task::spawn("lost", {
        let loss = guard.loss();
        async move { loss.wait().await }
    });
    assert!(due >= time::wall_ms() + 3_600_000, "not before the client gives up");
    {
        let mut world = fake.world();
        world.clock_ahead_ms = due - time::wall_ms() + 1_000;
        world.propose(Command::LockDue { lock: LOCK.to_owned() }).unwrap();
    }
    assert_eq!(lost.await.unwrap(), LostReason::Revoked);
    assert!(fake.world().queue(LOCK).is_empty());
}

#[tokio::test]
async fn a_lock_delay_follows_an_expiry_and_not_a_release() {
    let fake = Fake::rowlock().await;
    let (client, next) = (fake.client().await, fake.client().await);
    let delay = Duration::from_millis(100);
    let request = |client: &Client| client.mutex("l").request().lock_delay(delay);
    request(&client).lock().await.unwrap().release().await.unwrap();
    let guard = request(&client).try_lock().await.unwrap().unwrap();
    let task = waiter(&fake, &next).await;
    let expired = time::now();
    fake.expire(&client);
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert_eq!(fake.world().holders(LOCK), 0);
    while !task.is_finished() {
        sweep(&fake);
        tokio::task::yield_now().await;
    }
    assert!(expired.elapsed() + Duration::from_millis(2) >= delay);
    assert!(task.await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn a_minimum_hold_outlasts_a_release_and_one_that_lapses_no_expiry() {
    let fake = Fake::rowlock().await;
    let (client, next) = (fake.client().await, fake.client().await);
    let least = Duration::from_millis(100);
    let request = |client: &Client| client.mutex("l").request().min_hold(least);
    request(&client).min_hold_lapses().lock().await.unwrap().release().await.unwrap();
    assert!(next.mutex("l").try_lock().await.unwrap().is_none(), "a release counts");
    let delay = Claim { path: LOCK.into(), token: FencingToken(0) };
    assert!(next.force_release(&delay).await.unwrap());
    let begun = time::now();
    request(&client).lock().await.unwrap().release().await.unwrap();
    let task = waiter(&fake, &next).await;
    while !task.is_finished() {
        sweep(&fake);
        tokio::task::yield_now().await;
    }
    assert!(begun.elapsed() + Duration::from_millis(2) >= least);
    task.await.unwrap().unwrap().release().await.unwrap();
    let guard = request(&client).min_hold_lapses().lock().await.unwrap();
    fake.expire(&client);
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(next.mutex("l").try_lock().await.unwrap().is_some(), "a loss does not");
}

#[tokio::test]
async fn waiting_that_would_never_end_is_refused_with_everybody_in_the_circle() {
    let fake = Fake::rowlock().await;
    let (a, b) = (
        fake.config().label("a").connect().await.unwrap(),
        fake.config().label("b").connect().await.unwrap(),
    );
    let owned =
        |client: &Client, name: &str| client.mutex(name).request().owner(Owner::Session).meta("job=1");
    let _first = owned(&a, "x").lock().await.unwrap();
    let second = owned(&b, "y").lock().await.unwrap();
    let waiting = owned(&a, "y");
    let waiting = task::spawn("waiting", async move { waiting.lock().await });
    fake.until("a waits for b", |world| world.contenders("/locks/y") == 2).await;
    match owned(&b, "x").lock().await.unwrap_err() {
        Error::Deadlock { cycle } => {
            let who: Vec<_> = cycle.iter().map(|party| (party.label.as_str(), party.session)).collect();
            assert!(who.contains(&("a", a.session_id())), "{cycle:?}");
            assert!(cycle.iter().all(|party| party.path.starts_with("/locks/") && party.meta == "job=1"));
        }
        other => panic!("{other}"),
    }
    assert_eq!(fake.world().contenders("/locks/x"), 1, "nothing is left behind");
    second.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn label_and_metadata_stand_in_the_queue() {
    let fake = Fake::rowlock().await;
    let client = fake.config().label("worker-7").connect().await.unwrap();
    let _guard = client.mutex("l").request().meta("job=1").lock().await.unwrap();
    assert_eq!(fake.world().queue(LOCK)[0].label, "worker-7\njob=1");
    let _other = client.mutex("m").request().label("other").lock().await.unwrap();
    assert_eq!(fake.world().queue("/locks/m")[0].label, "other");
}

#[tokio::test]
async fn the_client_asks_for_its_disconnect_grace_on_every_connection() {
    let fake = Fake::rowlock().await;
    let grace = Duration::from_millis(500);
    let client = fake.config().disconnect_grace(grace).connect().await.unwrap();
    client.sync("/").await.unwrap();
    fake.drop_connections();
    client.sync("/").await.unwrap();
    let world = fake.world();
    assert_eq!(
        world.options.iter().map(|options| options.disconnect_grace_ms).collect::<Vec<_>>(),
        [500, 500]
    );
}

#[tokio::test]
async fn a_session_that_is_cut_off_for_its_grace_is_over_before_the_server_ends_it() {
    let fake = Fake::rowlock().await;
    let grace = Duration::from_millis(300);
    let client = fake.config().disconnect_grace(grace).connect().await.unwrap();
    let guard = client.mutex("l").lock().await.unwrap();
    let full = guard.valid_until().unwrap();
    fake.silence();
    fake.drop_connections();
    let mut states = client.states();
    states.wait_for(|state| *state != SessionState::Connected).await.unwrap();
    if let SessionState::Suspended { until } = client.state() {
        assert!(until <= time::now() + grace / 10 * 9 && until < full, "{until:?}");
    }
    assert_eq!(guard.lost().await, LostReason::Unreachable);
    assert!(time::now() < full && guard.valid_until().is_none());
}

#[test]
fn dropping_a_guard_outside_a_runtime_frees_the_lock() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let fake = runtime.block_on(Fake::rowlock());
    let client = runtime.block_on(fake.client());
    drop(runtime.block_on(client.mutex("l").lock()).unwrap());
    runtime.block_on(fake.until("released", |world| world.queue(LOCK).is_empty()));
}

#[tokio::test]
async fn a_dropped_guard_releases_its_claim_and_a_lost_one_leaves_the_queue() {
    let fake = Fake::rowlock().await;
    let (client, admin) = (fake.client().await, fake.client().await);
    let requests = || {
        let asked = |is: fn(&Request) -> bool| fake.world().asked(client.session_id(), is);
        let is_release = |request: &Request| matches!(request, Request::Release(_));
        [asked(is_release), asked(|request| matches!(request, Request::Abandon(_)))]
    };
    drop(client.mutex("l").lock().await.unwrap());
    let guard = client.mutex("l").try_lock().await.unwrap().expect("the release went first");
    assert_eq!(requests(), [1, 0], "released by the slow way");
    assert_eq!(admin.force_release(&guard.claim()).await, Ok(true));
    assert_eq!(guard.lost().await, LostReason::ForceReleased);
    drop(guard);
    client.sync("/").await.unwrap();
    assert_eq!(requests(), [1, 1]);
}

#[tokio::test]
async fn a_release_is_answered_though_the_session_is_closed_right_behind_it() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let guard = client.mutex("l").lock().await.unwrap();
    let (released, closed) = tokio::join!(biased; guard.release(), client.close());
    assert_eq!((released, closed), (Ok(()), Ok(())));
}

#[tokio::test]
async fn reports_are_passed_on_and_plain_servers_have_none() {
    let fake = Fake::rowlock().await;
    let report = fake.client().await.report("/v1/locks?limit=1").await.unwrap();
    assert!(report.contains("/v1/locks?limit=1"));
    let plain = Fake::start().await;
    let error = plain.client().await.report("/v1/locks").await.unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)));
}

/// Seed 304802 of 30 s, all faults: the answer to an upgrade was late, and the new place had been taken away
/// by force before it came. The reader's guard came back, and believed in a place that had gone.
#[tokio::test]
async fn an_upgrade_whose_place_is_lost_before_its_answer_comes_gives_no_hold_back() {
    let fake = Fake::rowlock().await;
    let (client, admin) = (fake.client().await, fake.client().await);
    let reader = client.rwlock("l").read().await.unwrap();
    let (token, loss) = (reader.token(), reader.loss());
    let mut upgrade = pin!(reader.try_upgrade());
    poll_fn(|cx| {
        assert!(upgrade.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    fake.until("the upgrade", |keeper| keeper.queue(LOCK).iter().any(|place| place.token > token)).await;
    let place = fake.world().queue(LOCK).remove(0);
    let claim = Claim { path: place.path.into(), token: place.token };
    assert_eq!(admin.force_release(&claim).await, Ok(true));
    // It comes after the answer to the upgrade, and after the notice of the loss.
    client.sync("/").await.unwrap();
    let Kept { guard, error } = upgrade.await.unwrap_err();
    assert_eq!(error, Error::NotHeld);
    assert!(!guard.is_held() && !guard.check().await.unwrap());
    assert_eq!(loss.reason(), Some(LostReason::ForceReleased));
    assert_eq!(fake.world().contenders(LOCK), 0);
}
