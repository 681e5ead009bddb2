//! The end of the runtime that serves a client, at every step of those who rely on it; futures that outlive
//! their handles; and the edges of times.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use rowlock_client::{Client, Error, Guard, Instant, LostReason, SessionState};
use rowlock_env::{task, time};
use tokio::runtime::{Builder, Runtime};

use crate::cancel::poll_at_most;
use crate::fake::{Fake, SHORT};
use crate::served::LOCK;

/// Nothing here takes so long.
const SOON: Duration = Duration::from_secs(15);
/// No session expires before.
const LONG: Duration = Duration::from_secs(300);

/// A client that lives on a runtime of its own.
async fn elsewhere(fake: &Fake) -> (Runtime, Client) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config = fake.config().session_timeout(LONG);
    let client = runtime.spawn(config.connect()).await.unwrap().unwrap();
    (runtime, client)
}

/// The future's value, if it does not hang.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

#[tokio::test]
async fn a_runtime_that_ends_after_any_number_of_polls_of_a_lock_leaves_one_holder_at_most_and_nobody_waiting()
 {
    for held in [false, true] {
        let mut is_done = false;
        for polls in 0..100 {
            let fake = Fake::rowlock().await;
            let other = fake.client().await;
            let (runtime, client) = elsewhere(&fake).await;
            let holder = if held { Some(other.mutex("l").lock().await.unwrap()) } else { None };
            let mut lock = Box::pin(client.mutex("l").lock_owned());
            let early = tokio::select! {
                biased;
                early = poll_at_most(lock.as_mut(), polls) => early,
                // It waits, and nothing wakes it.
                () = fake.until("it waits", |world| held && world.contenders(LOCK) == 2) => None,
            };
            runtime.shutdown_background();
            is_done = early.is_some() || (held && fake.world().contenders(LOCK) == 2);
            let got = match early {
                Some(got) => got,
                None => soon("a lock whose client is gone", lock).await,
            };
            let mut states = client.states();
            soon("the end is told", states.wait_for(|state| *state == SessionState::Closed)).await.unwrap();
            match &got {
                Ok(guard) => {
                    assert!(!guard.is_held(), "after {polls} polls");
                    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Stopped);
                }
                Err(error) => assert!(
                    matches!(error, Error::Stopped | Error::ConnectionLoss),
                    "after {polls} polls: {error}"
                ),
            }
            drop(holder);
            let next = soon("the next grant", other.mutex("l").lock()).await.unwrap();
            assert!(next.is_held(), "after {polls} polls");
            if is_done {
                break;
            }
        }
        assert!(is_done, "it got as far as it can");
    }
}

/// Panics in who wakes it: in the task of the session, which tells a reply.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("on purpose, in the task of a session");
    }
}

#[tokio::test]
async fn a_task_that_panics_takes_nothing_with_it_that_still_says_held() {
    let fake = Fake::rowlock().await;
    let (other, (runtime, client)) = (fake.client().await, elsewhere(&fake).await);
    let guard = client.mutex("l").lock().await.unwrap();
    let waiting = task::spawn("next", other.mutex("l").lock_owned());
    fake.until("it waits", |world| world.contenders(LOCK) == 2).await;
    let bomb = Waker::from(Arc::new(Bomb));
    let mut call = pin!(client.exists("/"));
    assert!(call.as_mut().poll(&mut Context::from_waker(&bomb)).is_pending());
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Stopped);
    assert!(!guard.is_held());
    assert!(soon("the next grant", waiting).await.unwrap().unwrap().is_held());
    assert_eq!(soon("a call", client.exists("/")).await, Err(Error::Stopped));
    runtime.shutdown_background();
}

type Kept<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'static>>;

struct Keeps {
    lock: Kept<Guard>,
}

#[tokio::test]
async fn owned_futures_outlive_their_handles_and_can_be_stored_and_spawned() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let mut kept = Keeps { lock: Box::pin(client.mutex("l").lock_owned()) };
    let all: Vec<task::Task<bool>> = vec![
        task::spawn("request", {
            let lock = client.mutex("a").request().meta("job=1").lock_owned();
            async { lock.await.unwrap().is_held() }
        }),
        task::spawn("read", {
            let lock = client.rwlock("b").read_owned();
            async { lock.await.unwrap().is_held() }
        }),
        task::spawn("write", {
            let lock = client.rwlock("c").write_owned();
            async { lock.await.unwrap().is_held() }
        }),
        task::spawn("permits", {
            let lock = client.semaphore("d", 3).acquire_owned(2);
            async { lock.await.unwrap().is_held() }
        }),
        task::spawn("many", {
            let lock = client.multi(["e", "f"]).lock_owned();
            async { lock.await.unwrap().is_held() }
        }),
        task::spawn("reentrant", {
            let lock = client.reentrant_mutex("g").lock_owned(client.new_owner());
            async { lock.await.unwrap().is_held() }
        }),
        task::spawn("campaign", {
            let lead = client.election("h").campaign_owned("v".to_owned());
            async { lead.await.unwrap().is_held() }
        }),
    ];
    for one in all {
        assert!(soon("a lock", one).await.unwrap());
    }
    let stored = std::future::poll_fn(|cx| kept.lock.as_mut().poll(cx));
    assert!(soon("a stored one", stored).await.unwrap().is_held());
    let dropped: Kept<Guard> = Box::pin(client.mutex("i").lock_owned());
    drop(dropped);
}

async fn no_time_is_enough_for_a_free_lock(client: Client, other: Client) {
    let held = other.mutex("held").lock().await.unwrap();
    assert!(client.mutex("free").lock_timeout(Duration::ZERO).await.unwrap().is_held());
    assert!(client.rwlock("r").read_timeout(Duration::ZERO).await.unwrap().is_held());
    assert!(client.semaphore("s", 2).acquire_timeout(1, Duration::ZERO).await.unwrap().is_held());
    let owner = client.new_owner();
    assert!(client.reentrant_mutex("e").lock_timeout(owner, Duration::ZERO).await.unwrap().is_held());
    let busy = client.mutex("held").lock_timeout(Duration::ZERO).await;
    assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
    held.release().await.unwrap();
    assert!(client.mutex("held").lock_timeout(Duration::ZERO).await.unwrap().is_held(), "nothing was left");
}

#[tokio::test]
async fn a_timeout_of_zero_waits_for_nobody_and_takes_what_is_free() {
    let rowlock = Fake::rowlock().await;
    no_time_is_enough_for_a_free_lock(rowlock.client().await, rowlock.client().await).await;
    let zookeeper = Fake::start().await;
    no_time_is_enough_for_a_free_lock(zookeeper.client().await, zookeeper.client().await).await;
}

#[tokio::test]
async fn a_maximum_hold_of_no_time_is_refused() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let request = client.mutex("l").request().max_hold(Duration::ZERO);
    assert!(matches!(request.lock().await, Err(Error::InvalidArgument(_))));
    assert!(matches!(request.try_lock().await, Err(Error::InvalidArgument(_))));
    assert_eq!(fake.world().contenders(LOCK), 0);
}

#[tokio::test]
async fn connections_that_end_each_time_they_are_accepted_come_ever_more_slowly() {
    let fake = Fake::rowlock().await;
    let client = fake.config().session_timeout(SHORT * 10).connect().await.unwrap();
    // As a server that cannot stand the request: it ends every connection at its first sight.
    fake.world().poison = Some("/poison");
    let (begun, mut attempts) = (Instant::now(), 0);
    let mut call = pin!(client.exists("/poison"));
    let mut states = client.states();
    let failed = loop {
        tokio::select! {
            biased;
            failed = &mut call => break failed,
            changed = states.next() => {
                changed.unwrap();
                attempts += u32::from(states.current() == SessionState::Connected);
            }
        }
        assert!(begun.elapsed() < 2 * SOON, "{attempts} attempts");
    };
    let error = failed.unwrap_err();
    assert!(matches!(error, Error::GivenUp { connections: 12 }), "{error}");
    assert!(error.may_have_happened() && !error.is_retryable());
    // Pauses of 50 ms, twice as long each time, to one second, less their spread.
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
    soon("the next call", client.exists("/")).await.unwrap();
    soon("a close", client.close()).await.unwrap();
}
