//! The barrier: who waits passes when it is removed, and only then.

use rowlock_client::{Client, Error};
use rowlock_env::task::{self, Task};
use rowlock_proto::{OpCode, Request};

use crate::fake::{Cut, Fake};

const BARRIER: &str = "/locks/@barriers/b";

/// Starts to wait, and returns once the waiter has its watch.
async fn waiter(fake: &Fake, client: &Client) -> Task<Result<(), Error>> {
    let session = client.session_id();
    let barrier = client.barrier("b");
    let task = task::spawn("waiter", async move { barrier.wait().await });
    fake.until("the waiter watches", |world| {
        world.requests().any(|asked| asked == (session, OpCode::Exists, BARRIER.to_owned()))
    })
    .await;
    task
}

#[tokio::test]
async fn a_barrier_outlives_its_raiser() {
    let fake = Fake::start().await;
    let (raiser, other) = (fake.client().await, fake.client().await);
    raiser.barrier("b").raise().await.unwrap();
    fake.expire(&raiser);
    assert_eq!(other.barrier("b").is_raised().await, Ok(true));
}

#[tokio::test]
async fn a_change_of_the_znode_alone_lets_nobody_pass() {
    let fake = Fake::start().await;
    let (client, other) = (fake.client().await, fake.client().await);
    other.barrier("b").raise().await.unwrap();
    let task = waiter(&fake, &client).await;
    other.set(BARRIER, None, None).await.unwrap();
    let session = client.session_id();
    fake.until("the waiter looked again", |world| {
        world.asked(session, |request| matches!(request, Request::Exists(_))) == 2
    })
    .await;
    assert!(!task.is_finished());
    other.barrier("b").remove().await.unwrap();
    assert_eq!(task.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn raising_and_removing_survive_lost_connections() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    for fault in [Cut::Before, Cut::AfterDone] {
        fake.fault(fault, |request| matches!(request, Request::Create2(create) if create.path == BARRIER));
        client.barrier("b").raise().await.unwrap();
        assert_eq!(client.barrier("b").is_raised().await, Ok(true), "{fault:?}");
        fake.fault(fault, |request| matches!(request, Request::Delete { .. }));
        client.barrier("b").remove().await.unwrap();
        assert_eq!(client.barrier("b").is_raised().await, Ok(false), "{fault:?}");
    }
}

#[tokio::test]
async fn a_waiter_cut_off_while_the_barrier_is_removed_hears_of_it_after_the_reconnect() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    client.barrier("b").raise().await.unwrap();
    let task = waiter(&fake, &client).await;
    {
        let mut world = fake.world();
        world.drop_connections();
        world.delete(BARRIER).unwrap();
    }
    assert_eq!(task.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_waiter_at_a_barrier_ends_early_when_its_own_session_ends() {
    let fake = Fake::start().await;
    let (raiser, client) = (fake.client().await, fake.client().await);
    raiser.barrier("b").raise().await.unwrap();
    let task = waiter(&fake, &client).await;
    fake.expire(&client);
    assert_eq!(task.await.unwrap(), Err(Error::SessionExpired));
    assert_eq!(client.barrier("b").raise().await, Err(Error::SessionExpired));
    assert!(matches!(raiser.barrier("").raise().await, Err(Error::InvalidName(_))));
}
