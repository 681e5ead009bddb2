//! The recipes on servers that keep queues and request ids: exact, whatever happens to connections.

use std::time::Duration;

use rowlock_client::{Client, Error, LostReason, Owner, ReleaseError};
use rowlock_env::{task, time};

use crate::exactly_once::same_at_every_cut;
use crate::fake::{Fake, Keeper};

const LOCK: &str = "/locks/l";
const A: Owner = Owner::named("a");
const B: Owner = Owner::named("b");

#[tokio::test]
async fn a_counter_cut_at_every_frame_counts_exactly_once_and_sees_no_error() {
    same_at_every_cut(async |client: Client| {
        let counter = client.counter("n");
        let mut seen = Vec::new();
        for delta in [1, 10, 100] {
            seen.push(counter.add(delta).await.unwrap());
        }
        let swapped = counter.compare_and_set(111, 5).await.unwrap();
        let refused = counter.compare_and_set(111, 6).await.unwrap();
        counter.set(7).await.unwrap();
        (seen, swapped, refused, counter.add(-8).await.unwrap())
    })
    .await;
}

#[tokio::test]
async fn a_latch_cut_at_every_frame_counts_each_count_down_once() {
    same_at_every_cut(async |client: Client| {
        let latch = client.latch("l", 3);
        let mut left = Vec::new();
        for _ in 0..4 {
            left.push(latch.count_down().await.unwrap());
        }
        latch.wait().await.unwrap();
        latch.remove().await.unwrap();
        (left, latch.count().await.unwrap())
    })
    .await;
}

#[tokio::test]
async fn barriers_cut_at_every_frame_let_in_and_out_once() {
    same_at_every_cut(async |client: Client| {
        let barrier = client.barrier("b");
        barrier.raise().await.unwrap();
        let raised = barrier.is_raised().await.unwrap();
        barrier.remove().await.unwrap();
        barrier.wait().await.unwrap();
        let double = client.double_barrier("d", 1);
        for _ in 0..2 {
            double.enter().await.unwrap().leave().await.unwrap();
        }
        raised
    })
    .await;
}

#[tokio::test]
async fn a_reentrant_lock_cut_at_every_frame_has_one_place() {
    same_at_every_cut(async |client: Client| {
        let mutex = client.reentrant_mutex("l");
        let outer = mutex.lock(A).await.unwrap();
        let inner = mutex.lock(A).await.unwrap();
        let busy = mutex.try_lock(B).await.unwrap().is_none();
        outer.release().await.unwrap();
        let places = client.get_children(LOCK).await.unwrap().names.len();
        inner.release().await.unwrap();
        mutex.lock(B).await.unwrap().release().await.unwrap();
        (busy, places, client.get_children(LOCK).await.unwrap().names.len())
    })
    .await;
}

#[tokio::test]
async fn a_lead_cut_at_every_frame_is_won_handed_over_and_given_back_once() {
    same_at_every_cut(async |client: Client| {
        let election = client.election("e");
        let first = election.campaign("first").await.unwrap();
        first.set_value("first leads").await.unwrap();
        let (second, values) = tokio::join!(biased; election.campaign("second"), async {
            let candidates = election.candidates().await.unwrap();
            first.transfer_to(&candidates[1]).await.unwrap();
            candidates.into_iter().map(|candidate| candidate.value).collect::<Vec<_>>()
        });
        let leader = election.leader().await.unwrap().map(|leader| leader.value);
        (values, leader, second.unwrap().resign().await, election.leader().await)
    })
    .await;
}

#[tokio::test]
async fn connections_that_break_all_the_time_break_no_promise() {
    let fake = Fake::rowlock().await;
    let mut members = Vec::new();
    for number in 0..4 {
        let client = fake.client().await;
        members.push(task::spawn("member", async move {
            let (barrier, counter) = (client.double_barrier("d", 4), client.counter("n"));
            for round in 1..=10 {
                let inside = barrier.enter().await.unwrap();
                counter.add(1).await.unwrap();
                let latch = client.latch(format!("round {round}"), 4);
                latch.count_down().await.unwrap();
                latch.wait().await.unwrap();
                assert_eq!(counter.get().await, Ok(4 * round), "somebody counted twice, or came too early");
                let lead = client.election("e").campaign(number.to_string()).await.unwrap();
                lead.resign().await.unwrap();
                inside.leave().await.unwrap();
            }
        }));
    }
    let breaks = async {
        loop {
            time::sleep(Duration::from_millis(20)).await;
            fake.drop_connections();
        }
    };
    let all_done = async {
        for member in members {
            member.await.unwrap();
        }
    };
    tokio::select! {
        () = all_done => {}
        () = breaks => {}
    }
    let world = fake.world();
    assert_eq!(world.contenders("/locks/@elections/e"), 0);
    assert!(world.children("/locks/@double-barriers/d").is_empty());
    world.machine.check().unwrap();
}

#[tokio::test]
async fn an_owner_that_would_wait_for_itself_over_two_locks_is_told_so() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let (one, two) = (client.reentrant_mutex("1"), client.reentrant_mutex("2"));
    let (a, b) = (one.lock(A).await.unwrap(), two.lock(B).await.unwrap());
    let waits = task::spawn("waiter", async move { two.lock(A).await });
    fake.until("it waits", |world| world.contenders("/locks/2") == 2).await;
    let refused = one.lock(B).await.unwrap_err();
    assert!(matches!(&refused, Error::Deadlock { cycle } if cycle.len() == 2), "{refused}");
    assert_eq!(fake.world().contenders("/locks/1"), 1, "what was refused is still in the queue");
    b.release().await.unwrap();
    assert!(waits.await.unwrap().unwrap().is_held() && a.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_owner_that_gives_back_and_asks_again_from_many_tasks_never_waits_for_itself() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let mutex = client.reentrant_mutex("l");
            task::spawn("worker", async move {
                for round in 0..50 {
                    // Deadlock, if an acquire overtook the release of the hold before.
                    let guard = mutex.lock(A).await.unwrap();
                    if (number + round) % 2 == 0 {
                        guard.release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    client.sync("/").await.unwrap();
    assert_eq!(fake.world().contenders(LOCK), 0);
}

#[tokio::test]
async fn forcing_the_release_of_a_reentrant_lock_is_told_to_all_its_guards() {
    let fake = Fake::rowlock().await;
    let (client, operator) = (fake.client().await, fake.client().await);
    let outer = client.reentrant_mutex("l").lock(A).await.unwrap();
    let inner = outer.clone();
    assert_eq!(operator.force_release(&outer.claim()).await, Ok(true));
    assert_eq!(
        (outer.lost().await, inner.lost().await),
        (LostReason::ForceReleased, LostReason::ForceReleased)
    );
    assert_eq!(outer.release().await, Err(ReleaseError::NotHeld));
    assert_eq!(inner.release().await, Err(ReleaseError::NotHeld));
}

#[tokio::test]
async fn a_lead_takes_one_round_trip_for_the_lock_and_one_for_the_note() {
    let fake = Fake::rowlock().await;
    let client = fake.client().await;
    let election = client.election("e");
    election.campaign("warm up").await.unwrap().resign().await.unwrap();
    let count = |world: &Keeper| (world.log.len(), world.machine.last_zxid().0);
    let (log, zxid) = count(&fake.world());
    election.campaign("me").await.unwrap().resign().await.unwrap();
    // acquire; sync and getData at once; release.
    assert_eq!(count(&fake.world()), (log + 4, zxid + 2));
}
