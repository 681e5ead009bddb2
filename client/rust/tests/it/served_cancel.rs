//! Dropping futures at each of their steps where the server keeps the queue, with cuts in between: nothing
//! stays in a queue, and the next waiter is granted.

use rowlock_client::Client;
use rowlock_env::task;

use crate::cancel::poll_at_most;
use crate::fake::{Cut, Fake, Keeper};
use crate::served::LOCK;

/// Drops the future of `attempt` after 0, 1, 2... polls, until one gets as far as it can: to the lock or,
/// when another client holds it, to a place in the queue. Each time nothing of it is left, and the next one
/// gets the lock.
async fn every_poll_count_leaves_nothing<T, F: Future<Output = T>>(
    held: bool,
    cut: Option<Cut>,
    attempt: impl Fn(Client) -> F,
) {
    let fake = Fake::rowlock().await;
    let (client, other, next) = (fake.client().await, fake.client().await, fake.client().await);
    let mut holder = if held { Some(other.mutex("l").lock().await.unwrap()) } else { None };
    client.sync("/").await.unwrap();
    for polls in 0..100 {
        fake.world().cut = cut.map(|cut| (0, cut));
        let contenders = usize::from(held) + 1;
        let done = tokio::select! {
            biased;
            done = poll_at_most(attempt(client.clone()), polls) => done.is_some(),
            () = fake.until("it waits", |world| held && world.cut.is_none() && world.contenders(LOCK) == contenders) => true,
        };
        fake.world().cut = None;
        client.sync("/").await.unwrap();
        fake.until("nothing of it is left", |world| world.contenders(LOCK) == usize::from(held)).await;
        fake.world().machine.check().unwrap();
        if done {
            assert!(polls > 1, "it cannot have been that fast");
            let mutex = next.mutex("l");
            let waiting = task::spawn("next", async move { mutex.lock().await });
            if let Some(holder) = holder.take() {
                holder.release().await.unwrap();
            }
            assert!(waiting.await.unwrap().unwrap().is_held());
            return;
        }
    }
    panic!("never got far");
}

const CUTS: [Option<Cut>; 4] = [None, Some(Cut::Before), Some(Cut::AfterDone), Some(Cut::AfterReply)];

#[tokio::test]
async fn a_lock_future_dropped_after_any_number_of_polls_leaves_no_node() {
    for cut in CUTS {
        for held in [false, true] {
            every_poll_count_leaves_nothing(held, cut, async |client: Client| {
                client.mutex("l").lock().await.unwrap()
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_multi_lock_future_dropped_after_any_number_of_polls_frees_all() {
    for cut in CUTS {
        every_poll_count_leaves_nothing(false, cut, async |client: Client| {
            client.lock_all(["a", "l"]).await.unwrap()
        })
        .await;
    }
}

#[tokio::test]
async fn a_conversion_dropped_after_any_number_of_polls_leaves_no_node() {
    for cut in CUTS {
        for polls in 0..12 {
            let fake = Fake::rowlock().await;
            let client = fake.client().await;
            let reader = client.rwlock("l").read().await.unwrap();
            fake.world().cut = cut.map(|cut| (0, cut));
            let upgraded = poll_at_most(reader.try_upgrade(), polls).await;
            fake.world().cut = None;
            drop(upgraded);
            client.sync("/").await.unwrap();
            fake.until("nothing of it is left", |world: &Keeper| world.contenders(LOCK) == 0).await;
        }
    }
}

#[tokio::test]
async fn a_release_dropped_after_any_number_of_polls_goes_on() {
    for cut in CUTS {
        for polls in 0..6 {
            let fake = Fake::rowlock().await;
            let client = fake.client().await;
            let guard = client.mutex("l").lock().await.unwrap();
            fake.world().cut = cut.map(|cut| (0, cut));
            let _ = poll_at_most(guard.release(), polls).await;
            fake.until("released", |world| world.contenders(LOCK) == 0).await;
        }
    }
}
