//! Hazard 22: several locks in opposite orders: no deadlock, no partial hold, and nothing left when one gives
//! up midway.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rowlock_client::{Client, Error};
use rowlock_env::task;
use rowlock_env::time::{self, Instant};
use rowlock_testkit::Cluster;

use crate::support::{SOON, within};

const CLIENTS: usize = 20;
/// Of all clients together; `ROWLOCK_TEST_ROUNDS=10000` for the whole of it.
const ROUNDS: usize = 1_000;
/// Each client wants two of these, every second one in the opposite order.
const LOCKS: [&str; 3] = ["a", "b", "c"];
/// For all of them, on a machine that is busy with other tests.
const ALL_ROUNDS: Duration = Duration::from_secs(120);

/// Who holds which lock, as this process knows it: 0 is no one.
#[derive(Default)]
struct Ledger([AtomicUsize; LOCKS.len()]);

impl Ledger {
    fn enter(&self, lock: usize, client: usize) {
        let before = self.0[lock].swap(client + 1, Ordering::SeqCst);
        assert_eq!(
            before,
            0,
            "client {client} was granted {}, which client {} holds",
            LOCKS[lock],
            before.wrapping_sub(1)
        );
    }

    fn leave(&self, lock: usize, client: usize) {
        assert_eq!(self.0[lock].swap(0, Ordering::SeqCst), client + 1, "held to the end");
    }
}

/// The two locks of a round, in the order in which they are named.
fn pair(client: usize, round: usize) -> [usize; 2] {
    let first = (client / 2 + round) % LOCKS.len();
    let second = (first + 1) % LOCKS.len();
    if client.is_multiple_of(2) { [first, second] } else { [second, first] }
}

async fn take_turns(client: Client, number: usize, rounds: usize, ledger: Arc<Ledger>) -> Result<(), Error> {
    for round in 0..rounds {
        let wanted = pair(number, round);
        let guard = client.lock_all(wanted.map(|lock| LOCKS[lock])).await?;
        assert_eq!(guard.guards().len(), wanted.len());
        wanted.iter().for_each(|lock| ledger.enter(*lock, number));
        tokio::task::yield_now().await;
        wanted.iter().for_each(|lock| ledger.leave(*lock, number));
        guard.release().await.map_err(|_| Error::NotHeld)?;
    }
    Ok(())
}

async fn queue(client: &Client, lock: &str) -> usize {
    client.sync("/locks").await.unwrap();
    client.get_children(&format!("/locks/{lock}")).await.unwrap().names.len()
}

#[tokio::test]
async fn multi_locks_in_opposite_orders_never_deadlock_and_are_never_held_in_part() {
    let rounds: usize = std::env::var("ROWLOCK_TEST_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    let cluster = Cluster::start(1).await;
    let ledger = Arc::new(Ledger::default());
    let mut running = Vec::new();
    let begun = Instant::now();
    for number in 0..CLIENTS {
        let client = cluster.client_with(|config| config.session_timeout(SOON)).await;
        let work = take_turns(client, number, rounds / CLIENTS, ledger.clone());
        running.push(task::spawn("client", work));
    }
    let all = async {
        for client in running {
            client.await.unwrap().unwrap();
        }
    };
    time::timeout(ALL_ROUNDS * (rounds / ROUNDS).max(1) as u32, all).await.expect("a deadlock");
    eprintln!("{rounds} multi-locks of {CLIENTS} clients in {:?}", begun.elapsed());
    let client = cluster.client().await;
    for lock in LOCKS {
        assert_eq!(queue(&client, lock).await, 0, "nothing is left in {lock}");
    }
}

#[tokio::test]
async fn giving_up_in_the_middle_of_a_multi_lock_frees_all_of_it() {
    let cluster = Cluster::start(1).await;
    let (holder, waiter) = (cluster.client().await, cluster.client().await);
    let held = holder.mutex("b").lock().await.unwrap();
    // By its timeout; "a" was free, and so was held meanwhile.
    let waited = waiter.multi(["a", "b"]).lock_timeout(Duration::from_millis(200)).await;
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    // By dropping the future.
    let multi = waiter.multi(["b", "a"]);
    assert!(time::timeout(Duration::from_millis(200), multi.lock()).await.is_err());
    let next = within("a free lock", holder.mutex("a").lock()).await.unwrap();
    assert_eq!((queue(&holder, "a").await, queue(&holder, "b").await), (1, 1), "the holder's own");
    next.release().await.unwrap();
    held.release().await.unwrap();
    // Both are free for who wants both.
    let both = within("two free locks", waiter.lock_all(["a", "b"])).await.unwrap();
    assert!(both.is_held());
    both.release().await.unwrap();
}
