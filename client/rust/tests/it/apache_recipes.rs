//! The recipes against servers that really exist, as [`crate::apache`]: `ROWLOCK_TEST_ZK` names them.

use std::time::Duration;

use rowlock_client::{Client, Error, Owner};
use rowlock_env::task;

use crate::apache::client;

/// Several sessions below one lock base.
async fn clients<const N: usize>() -> Option<[Client; N]> {
    let mut clients = vec![client().await?];
    for _ in 1..N {
        let other = clients[0].renew().await.unwrap();
        clients.push(other);
    }
    clients.try_into().ok()
}

#[tokio::test]
async fn real_servers_count() {
    let Some(clients) = clients::<6>().await else { return };
    let mut adders = Vec::new();
    for client in &clients {
        let counter = client.counter("n");
        adders.push(task::spawn("adder", async move {
            for _ in 0..10 {
                counter.add(1).await.unwrap();
            }
        }));
    }
    for adder in adders {
        adder.await.unwrap();
    }
    let counter = clients[0].counter("n");
    assert_eq!(counter.get().await, Ok(60));
    assert_eq!(counter.compare_and_set(59, 0).await, Ok(false));
    assert_eq!(counter.compare_and_set(60, -1).await, Ok(true));
    counter.set(i64::MAX).await.unwrap();
    assert_eq!(counter.add(1).await, Err(Error::Overflow));
    counter.remove().await.unwrap();
    assert_eq!(counter.get().await, Ok(0));
}

#[tokio::test]
async fn real_servers_open_latches_and_barriers() {
    let Some([one, two]) = clients::<2>().await else { return };
    let latch = one.latch("l", 3);
    let other = two.latch("l", 3);
    let waiter = task::spawn("waiter", async move { other.wait().await });
    for left in [2, 1, 0] {
        assert_eq!(latch.wait_timeout(Duration::from_millis(1)).await, Ok(false));
        assert_eq!(latch.count_down().await, Ok(left));
    }
    waiter.await.unwrap().unwrap();
    assert_eq!(two.latch("l", 2).wait().await, Err(Error::CountIs(3)));
    latch.remove().await.unwrap();
    let barrier = one.barrier("b");
    barrier.raise().await.unwrap();
    let other = two.barrier("b");
    assert_eq!(other.wait_timeout(Duration::from_millis(1)).await, Ok(false));
    let waiter = task::spawn("waiter", async move { other.wait().await });
    barrier.remove().await.unwrap();
    waiter.await.unwrap().unwrap();
}

#[tokio::test]
async fn real_servers_let_double_barriers_in_and_out_together() {
    let Some(clients) = clients::<4>().await else { return };
    let mut tasks = Vec::new();
    for client in clients {
        tasks.push(task::spawn("member", async move {
            let (barrier, entered, left) =
                (client.double_barrier("d", 4), client.counter("entered"), client.counter("left"));
            for round in 1..=10 {
                let inside = barrier.enter().await.unwrap();
                assert_eq!(left.get().await, Ok(4 * (round - 1)), "somebody is still in the round before");
                entered.add(1).await.unwrap();
                left.add(1).await.unwrap();
                inside.leave().await.unwrap();
                assert_eq!(entered.get().await, Ok(4 * round), "somebody left before all were done");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn real_servers_grant_owners_again_and_to_others_in_turn() {
    let Some([one, two]) = clients::<2>().await else { return };
    let (a, b) = (Owner::named("a"), one.new_owner());
    let mutex = one.reentrant_mutex("l");
    let outer = mutex.lock(a).await.unwrap();
    let inner = mutex.lock(a).await.unwrap();
    assert!(mutex.try_lock(b).await.unwrap().is_none());
    assert!(two.reentrant_mutex("l").try_lock(a).await.unwrap().is_none());
    outer.release().await.unwrap();
    assert!(two.mutex("l").try_lock().await.unwrap().is_none());
    // Given back and taken again at once, also without waiting for the acknowledgement.
    for _ in 0..20 {
        drop(inner.clone());
    }
    drop(inner);
    for _ in 0..20 {
        drop(mutex.lock(a).await.unwrap());
        mutex.lock(a).await.unwrap().release().await.unwrap();
    }
    mutex.lock(b).await.unwrap().release().await.unwrap();
    assert!(two.mutex("l").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn real_servers_elect_and_transfer() {
    let Some(clients) = clients::<5>().await else { return };
    let election = clients[0].election("e");
    let first = election.campaign("0").await.unwrap();
    let mut tasks = Vec::new();
    for (number, client) in clients.iter().enumerate().skip(1) {
        let candidate = client.election("e");
        tasks.push(task::spawn("candidate", async move { candidate.campaign(number.to_string()).await }));
        while election.candidates().await.unwrap().len() <= number {}
    }
    let mut observer = clients[4].election("e").observe();
    assert_eq!(observer.next().await.unwrap().unwrap().value, "0");
    let candidates = election.candidates().await.unwrap();
    assert_eq!(
        candidates.iter().map(|candidate| candidate.value.as_str()).collect::<Vec<_>>(),
        ["0", "1", "2", "3", "4"]
    );
    let mut token = first.token();
    first.transfer_to(&candidates[3]).await.unwrap();
    for number in [3, 4, 1, 2] {
        let leads = (&mut tasks[number - 1]).await.unwrap().unwrap();
        assert!(leads.token() > token);
        token = leads.token();
        leads.set_value(format!("{number} leads")).await.unwrap();
        loop {
            if observer.next().await.unwrap().is_some_and(|leader| leader.value == format!("{number} leads"))
            {
                break;
            }
        }
        leads.resign().await.unwrap();
    }
    while observer.next().await.unwrap().is_some() {}
}
