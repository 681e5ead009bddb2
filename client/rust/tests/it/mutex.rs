//! Waiting for a lock: who is granted it, when, and what is left behind.

use std::time::Duration;

use rowlock_client::{Client, Error, Guard, LockName, NameError, NameRule};
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_proto::{OpCode, Request, SessionId, path};

use crate::fake::{Cut, Fake, Keeper};

pub const LOCK: &str = "/locks/l";

pub fn is_queue_create(request: &Request) -> bool {
    matches!(request, Request::Create2(create) if create.path.contains("-lock-"))
}

/// Starts to wait, and returns once the waiter stands in the queue and watches its predecessor.
pub async fn waiter(fake: &Fake, client: &Client) -> Task<Result<Guard, Error>> {
    let before = fake.world().children(LOCK).len();
    let mutex = client.mutex("l");
    let task = task::spawn("waiter", async move { mutex.lock().await });
    let session = client.session_id();
    fake.until("the waiter watches its predecessor", |world| {
        world.children(LOCK).len() == before + 1 && watches_of(world, session) > 0
    })
    .await;
    task
}

/// How often a session has set a watch on a queue znode.
pub fn watches_of(world: &Keeper, session: SessionId) -> usize {
    world.asked(session, |request| matches!(request, Request::GetData(read) if read.path.contains("-lock-")))
}

fn queue_creates(fake: &Fake) -> usize {
    fake.world().log.iter().filter(|(_, _, request)| is_queue_create(request)).count()
}

#[tokio::test]
async fn a_free_lock_is_granted_and_released() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let guard = client.mutex("orders/42").lock().await.unwrap();
    assert!(guard.is_held() && guard.valid_until().is_some());
    assert_eq!((guard.wait_stats().position, guard.wait_stats().wakeups), (0, 0));
    assert!(fake.world().children("/locks/orders/42")[0].starts_with("_c_"));
    assert_eq!(guard.release().await, Ok(()));
    assert_eq!(fake.world().children("/locks/orders/42"), [""; 0]);
}

#[tokio::test]
async fn a_retry_after_a_lost_create_reply_finds_the_same_node() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    drop(client.mutex("l").lock().await.unwrap());
    fake.until("released", |world| world.children(LOCK).is_empty()).await;
    let before = queue_creates(&fake);
    fake.fault(Cut::AfterDone, is_queue_create);
    let guard = client.mutex("l").lock().await.unwrap();
    assert_eq!(queue_creates(&fake), before + 1, "created twice");
    assert_eq!(fake.world().children(LOCK), [path::name(guard.path())]);
}

#[tokio::test]
async fn a_create_that_was_lost_on_the_way_is_sent_again() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.fault(Cut::Before, is_queue_create);
    let guard = client.mutex("l").lock().await.unwrap();
    assert!(guard.is_held());
    assert_eq!(fake.world().children(LOCK).len(), 1);
}

#[tokio::test]
async fn a_wake_up_alone_never_grants() {
    let fake = Fake::start().await;
    let (holder, client) = (fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &client).await;
    let session = client.session_id();
    let before = watches_of(&fake.world(), session);
    holder.set(guard.path(), None, None).await.unwrap();
    fake.until("the waiter was woken and watches again", |world| watches_of(world, session) > before).await;
    assert!(!task.is_finished(), "granted by a wake-up");
    guard.release().await.unwrap();
    let granted = task.await.unwrap().unwrap();
    assert_eq!(granted.wait_stats().wakeups, 2);
}

#[tokio::test]
async fn the_death_of_a_predecessor_that_only_waits_does_not_grant() {
    let fake = Fake::start().await;
    let (holder, middle, last) = (fake.client().await, fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let dying = waiter(&fake, &middle).await;
    let task = waiter(&fake, &last).await;
    let holder_path = guard.path().to_owned();
    fake.expire(&middle);
    let session = last.session_id();
    fake.until("the last watches the holder", |world| {
        world.requests().any(|asked| asked == (session, OpCode::GetData, holder_path.clone()))
    })
    .await;
    assert!(!task.is_finished(), "granted by the death of a waiter");
    assert_eq!(dying.await.unwrap().unwrap_err(), Error::SessionExpired);
    guard.release().await.unwrap();
    let granted = task.await.unwrap().unwrap();
    assert_eq!(granted.wait_stats().position, 2);
}

#[tokio::test]
async fn a_reconnect_keeps_the_place_and_grants_nothing() {
    let fake = Fake::start().await;
    let (holder, client, later) = (fake.client().await, fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &client).await;
    let behind = waiter(&fake, &later).await;
    fake.drop_connections();
    let session = client.session_id();
    fake.until("the waiter watches again", |world| watches_of(world, session) > 1).await;
    assert!(!task.is_finished() && guard.is_held());
    guard.release().await.unwrap();
    let granted = task.await.unwrap().unwrap();
    assert!(!behind.is_finished(), "the order was lost");
    granted.release().await.unwrap();
    behind.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_predecessor_that_goes_while_the_waiter_is_cut_off_is_noticed() {
    let fake = Fake::start().await;
    let (holder, client) = (fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &client).await;
    {
        let mut world = fake.world();
        world.drop_connections();
        world.delete(guard.path()).unwrap();
    }
    assert!(task.await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn a_waiter_whose_znode_is_deleted_by_somebody_is_told_so() {
    let fake = Fake::start().await;
    let (holder, client) = (fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    let task = waiter(&fake, &client).await;
    let ours = fake.world().children(LOCK).into_iter().find(|name| !guard.path().ends_with(name)).unwrap();
    fake.world().delete(&path::join(LOCK, &ours)).unwrap();
    guard.release().await.unwrap();
    assert_eq!(task.await.unwrap().unwrap_err(), Error::PlaceLost);
}

#[tokio::test]
async fn the_timeout_is_total_and_not_restarted_per_predecessor() {
    let fake = Fake::start().await;
    let (holder, client) = (fake.client().await, fake.client().await);
    let guard = holder.mutex("l").lock().await.unwrap();
    for _ in 0..100 {
        holder
            .create(
                "/locks/l/x-lock-",
                None,
                rowlock_client::CreateMode::EphemeralSequential,
                rowlock_client::Acl::open(),
            )
            .await
            .unwrap();
    }
    let mutex = client.mutex("l");
    let patience = Duration::from_millis(300);
    let started = time::now();
    let task = task::spawn("waiter", async move { mutex.lock_timeout(patience).await });
    // Predecessors die all the time, each long before the timeout.
    let mut left = 100;
    while !task.is_finished() && left > 0 {
        time::sleep(Duration::from_millis(20)).await;
        let last =
            fake.world().children(LOCK).into_iter().filter(|name| name.starts_with("x-")).max().unwrap();
        fake.world().delete(&path::join(LOCK, &last)).unwrap();
        left -= 1;
    }
    assert!(left > 0, "still waiting after {:?}", started.elapsed());
    let holder_name = path::name(guard.path()).to_owned();
    match task.await.unwrap().unwrap_err() {
        Error::Timeout { position: Some(position), holder } => {
            assert!(position > 1 && position <= 101, "{position}");
            assert_eq!(holder, Some(holder_name.clone()));
        }
        other => panic!("{other}"),
    }
    fake.until("the queue was left", |world| {
        let foreign = |name: &&String| !name.starts_with("x-") && **name != holder_name;
        world.children(LOCK).iter().filter(foreign).count() == 0
    })
    .await;
    assert!(started.elapsed() >= patience);
}

#[tokio::test]
async fn the_order_holds_across_the_overflow_of_the_sequence_counter() {
    let fake = Fake::start().await;
    let (holder, client) = (fake.client().await, fake.client().await);
    holder.mutex("l").lock().await.unwrap().release().await.unwrap();
    fake.world().next_sequence.insert(LOCK.to_owned(), i32::MAX);
    let guard = holder.mutex("l").lock().await.unwrap();
    assert!(guard.path().ends_with("-lock-2147483647"));
    fake.world().next_sequence.insert(LOCK.to_owned(), i32::MIN);
    let task = waiter(&fake, &client).await;
    assert!(!task.is_finished());
    guard.release().await.unwrap();
    assert!(task.await.unwrap().unwrap().path().ends_with("-lock--2147483648"));
}

#[tokio::test]
async fn contenders_of_other_clients_are_waited_for_in_their_order() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let acl = rowlock_client::Acl::open;
    for path in ["/app", "/app/lock"] {
        client.create(path, None, rowlock_client::CreateMode::Persistent, acl()).await.unwrap();
    }
    let kazoo = "/app/lock/8f14e45fceea167a5a36dedd4bea2543__lock__";
    let mode = rowlock_client::CreateMode::EphemeralSequential;
    let theirs = client.create(kazoo, None, mode, acl()).await.unwrap().path;
    let mutex = client.mutex_at("/app/lock");
    let patience = Duration::from_millis(1);
    assert!(matches!(mutex.lock_timeout(patience).await, Err(Error::Timeout { .. })));
    client.delete(&theirs, None).await.unwrap();
    assert!(mutex.lock().await.unwrap().is_held());
}

#[tokio::test]
async fn a_name_that_cannot_be_a_lock_is_an_error_of_lock() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    assert!(matches!(client.mutex("").lock().await, Err(Error::InvalidName(_))));
    assert!(matches!(client.mutex_at("relative").try_lock().await, Err(Error::InvalidName(_))));
    assert!(matches!(client.mutex_at("/").lock().await, Err(Error::InvalidName(_))));
    assert_eq!(client.mutex("").validate(), Err(Error::InvalidName(NameError::Rule(NameRule::Empty))));
    let name = LockName::new("orders/42").unwrap();
    assert_eq!(client.mutex(&name).validate(), Ok(()));
    assert_eq!(client.mutex(&name).path(), "/locks/orders/42");
    assert_eq!(client.mutex_at("/app/lock").path(), "/app/lock");
}
