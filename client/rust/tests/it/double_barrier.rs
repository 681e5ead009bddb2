//! The double barrier: all begin together and end together, and dead members are not waited for.

use std::time::Duration;

use rowlock_client::{Client, DoubleBarrier, Error, Membership};
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use rowlock_proto::{OpCode, Request};

use crate::cancel::poll_at_most;
use crate::fake::{Cut, Fake, Keeper};

const BARRIER: &str = "/locks/@double-barriers/d";

fn is_member_create(request: &Request) -> bool {
    matches!(request, Request::Create2(create) if create.path.starts_with(BARRIER) && create.path.len() > BARRIER.len())
}

fn is_multi(request: &Request) -> bool {
    matches!(request, Request::Multi(_))
}

fn enter(barrier: DoubleBarrier) -> Task<Result<Membership, Error>> {
    task::spawn("entrant", async move { barrier.enter().await })
}

/// Starts to enter, and returns once the entrant's znode is there.
async fn entrant(fake: &Fake, client: &Client, size: u32) -> Task<Result<Membership, Error>> {
    let before = fake.world().children(BARRIER).len();
    let task = enter(client.double_barrier("d", size));
    fake.until("the entrant is there", |world| world.children(BARRIER).len() == before + 1).await;
    task
}

async fn clients<const N: usize>(fake: &Fake) -> [Client; N] {
    let mut clients = Vec::new();
    for _ in 0..N {
        clients.push(fake.client().await);
    }
    clients.try_into().unwrap()
}

/// Waits until this number of clients is inside.
async fn inside<const N: usize>(fake: &Fake) -> ([Client; N], Vec<Membership>) {
    let clients = clients::<N>(fake).await;
    let size = u32::try_from(N).unwrap();
    let tasks: Vec<_> = clients.iter().map(|client| enter(client.double_barrier("d", size))).collect();
    let mut members = Vec::new();
    for task in tasks {
        members.push(task.await.unwrap().unwrap());
    }
    (clients, members)
}

#[tokio::test]
async fn a_member_that_dies_inside_does_not_hang_the_others_at_leave() {
    // Whichever of them dies, the lowest (which the others look at) included.
    for dead in 0..3 {
        let fake = Fake::start().await;
        let (clients, mut members) = inside::<3>(&fake).await;
        members.sort_by_key(Membership::path);
        drop(members.remove(dead));
        fake.until("it is gone", |world| world.children(BARRIER).len() == 2).await;
        let leavers: Vec<_> =
            members.into_iter().map(|member| task::spawn("leaver", member.leave())).collect();
        for leaver in leavers {
            leaver.await.unwrap().unwrap();
        }
        drop(clients);
    }
}

#[tokio::test]
async fn a_session_that_expires_while_the_others_wait_for_it_is_not_waited_for() {
    for dead in 0..2 {
        let fake = Fake::start().await;
        let ([a, b], mut members) = inside::<2>(&fake).await;
        let (staying, client) = (members.remove(dead), [&a, &b][dead]);
        let leaver = task::spawn("leaver", members.remove(0).leave());
        fake.expire(client);
        leaver.await.unwrap().unwrap();
        assert_eq!(staying.leave().await, Err(Error::SessionExpired));
    }
}

#[tokio::test]
async fn a_member_that_dies_outside_is_replaced_by_the_next_one() {
    let fake = Fake::start().await;
    let [a, b, c, d] = clients::<4>(&fake).await;
    let (first, dead) = (entrant(&fake, &a, 3).await, entrant(&fake, &b, 3).await);
    fake.expire(&b);
    assert_eq!(dead.await.unwrap().unwrap_err(), Error::SessionExpired);
    let third = entrant(&fake, &c, 3).await;
    assert!(!first.is_finished() && !third.is_finished(), "the dead one was counted");
    let _last = d.double_barrier("d", 3).enter().await.unwrap();
    assert!(first.await.unwrap().is_ok() && third.await.unwrap().is_ok());
}

#[tokio::test]
async fn who_comes_while_a_round_is_on_waits_for_the_next_one() {
    let fake = Fake::start().await;
    let (_clients, members) = inside::<2>(&fake).await;
    let [late, later] = clients::<2>(&fake).await;
    let patience = Duration::from_millis(1);
    let barrier = late.double_barrier("d", 2);
    assert!(barrier.enter_timeout(patience).await.unwrap().is_none());
    fake.until("it is gone", |world| world.children(BARRIER).len() == 2).await;
    let late = entrant(&fake, &late, 2).await;
    let later = entrant(&fake, &later, 2).await;
    assert!(!late.is_finished() && !later.is_finished());
    let leavers: Vec<_> = members.into_iter().map(|member| task::spawn("leaver", member.leave())).collect();
    assert!(late.await.unwrap().is_ok() && later.await.unwrap().is_ok());
    for leaver in leavers {
        leaver.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_round_whose_members_have_all_died_does_not_let_anybody_in_nor_keep_anybody_out() {
    let fake = Fake::start().await;
    let (dead, members) = inside::<2>(&fake).await;
    dead.iter().for_each(|client| fake.expire(client));
    assert!(fake.world().children(BARRIER).is_empty());
    drop(members);
    let [a, b] = clients::<2>(&fake).await;
    let first = entrant(&fake, &a, 2).await;
    assert!(first_is_waiting(&fake).await && !first.is_finished(), "the old round let it in");
    let _second = b.double_barrier("d", 2).enter().await.unwrap();
    assert!(first.await.unwrap().is_ok());
}

/// The first entrant has closed the old round, and can only wait now.
async fn first_is_waiting(fake: &Fake) -> bool {
    fake.until("the old round is closed", |world| {
        world.requests().filter(|(_, op, path)| *op == OpCode::Multi && path.contains(BARRIER)).count() >= 2
    })
    .await;
    true
}

#[tokio::test]
async fn lost_connections_at_every_step_change_nothing() {
    for fault in [Cut::Before, Cut::AfterDone] {
        let fake = Fake::start().await;
        let [a, b] = clients::<2>(&fake).await;
        fake.fault(fault, is_member_create);
        fake.fault(fault, is_multi);
        let first = entrant(&fake, &a, 2).await;
        let second = b.double_barrier("d", 2).enter().await.unwrap();
        let first = first.await.unwrap().unwrap();
        assert_eq!(fake.world().children(BARRIER).len(), 2);
        fake.fault(fault, is_multi);
        fake.fault(fault, |request| matches!(request, Request::Delete { .. }));
        let first = task::spawn("leaver", first.leave());
        second.leave().await.unwrap();
        first.await.unwrap().unwrap();
        assert!(fake.world().children(BARRIER).is_empty() && fake.world().faults.is_empty(), "{fault:?}");
    }
}

#[tokio::test]
async fn entering_given_up_after_any_number_of_polls_leaves_no_node() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    for polls in 0..100 {
        let barrier = client.double_barrier("d", 2);
        let waits =
            |world: &Keeper| world.requests().filter(|(_, op, _)| *op == OpCode::GetChildren2).count();
        let before = waits(&fake.world());
        let waiting = tokio::select! {
            biased;
            _ = poll_at_most(barrier.enter(), polls) => false,
            () = fake.until("it waits", |world| waits(world) > before) => true,
        };
        client.sync("/").await.unwrap();
        fake.until("nothing is left", |world| world.children(BARRIER).is_empty()).await;
        if waiting {
            assert!(polls > 2);
            return;
        }
    }
    panic!("never got far");
}

#[tokio::test]
async fn leaving_with_a_timeout_gives_up_on_those_who_stay() {
    let fake = Fake::start().await;
    let (_clients, mut members) = inside::<3>(&fake).await;
    members.sort_by_key(Membership::path);
    let _stays = members.remove(1);
    let started = time::now();
    let patience = Duration::from_millis(20);
    for member in members {
        assert_eq!(member.leave_timeout(patience).await, Ok(false));
    }
    assert!(started.elapsed() >= 2 * patience);
    fake.until("the others have left", |world| world.children(BARRIER).len() == 1).await;
}

#[tokio::test]
async fn departures_wake_few() {
    let fake = Fake::start().await;
    let (_clients, members) = inside::<20>(&fake).await;
    fake.world().events.clear();
    let leavers: Vec<_> = members.into_iter().map(|member| task::spawn("leaver", member.leave())).collect();
    for leaver in leavers {
        leaver.await.unwrap().unwrap();
    }
    let events: usize = fake.world().events.values().sum();
    assert!(events <= 4 * 20, "{events} events for 20 departures");
}

#[tokio::test]
async fn sizes_must_agree_and_make_sense() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let _inside = client.double_barrier("d", 1).enter().await.unwrap();
    assert_eq!(client.double_barrier("d", 2).enter().await.unwrap_err(), Error::CountIs(1));
    let none = client.double_barrier("d", 0).enter().await;
    assert!(matches!(none, Err(Error::InvalidArgument(_))));
    let task = entrant(&fake, &client, 1).await;
    let path =
        fake.world().children(BARRIER).into_iter().find(|name| !_inside.path().ends_with(name)).unwrap();
    fake.world().delete(&format!("{BARRIER}/{path}")).unwrap();
    client.set(BARRIER, Some("size=1\nnobody".into()), None).await.unwrap();
    assert_eq!(task.await.unwrap().unwrap_err(), Error::PlaceLost);
    let other = client.clone();
    client.close().await.unwrap();
    assert_eq!(other.double_barrier("d", 1).enter().await.unwrap_err(), Error::Closed);
}
