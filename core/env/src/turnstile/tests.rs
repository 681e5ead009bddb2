use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;

use super::*;
use crate::busy::{Work, spend};
use crate::task::{spawn, yield_now};

async fn work(total: Duration) {
    let step = Work::Read.cost(10);
    let mut done = Duration::ZERO;
    while done < total {
        spend(Work::Read, 10);
        done += step;
        if busy::turn_is_over() {
            yield_now().await;
        }
    }
}

async fn many_turns(total: Duration) {
    let mut done = Duration::ZERO;
    while done < total {
        spend(Work::Read, 10);
        done += Work::Read.cost(10);
        yield_now().await;
    }
}

/// Returns the most work of clients' tasks between two turns of the node's own task.
async fn longest_lap(turnstile: &Turnstile, clients: usize, ms: u64) -> Duration {
    let done = Arc::new(Mutex::new(Duration::ZERO));
    let running = Arc::new(AtomicUsize::new(clients));
    for _ in 0..clients {
        let (done, running) = (done.clone(), running.clone());
        let mut client = Box::pin(work(Duration::from_millis(ms)));
        let counted = std::future::poll_fn(move |cx| {
            let before = busy::spent();
            let polled = client.as_mut().poll(cx);
            *done.lock() += busy::spent() - before;
            if polled.is_ready() {
                running.fetch_sub(1, Relaxed);
            }
            polled
        });
        spawn("client", turnstile.turns(Class::Client, counted));
    }
    let mut longest = Duration::ZERO;
    while running.load(Relaxed) > 0 {
        yield_now().await;
        longest = longest.max(std::mem::take(&mut *done.lock()));
    }
    longest
}

#[tokio::test]
async fn sixty_flooding_clients_take_two_milliseconds_of_a_lap() {
    let longest = longest_lap(&Turnstile::default(), 60, 5).await;
    // Sums the light class, a long turn, and the overshoot of the last tasks.
    assert!(longest <= 2 * TURN_MAX + 3 * LIGHT_MAX, "{longest:?}");
    assert!(longest >= TURN_MAX / 2, "nothing was measured: {longest:?}");
}

/// Returns the turns of the node's own task while a quiet client waits among `count` flooding clients.
async fn turns_among<F: Future<Output = ()> + Send + 'static>(
    count: usize,
    work_of: fn(Duration) -> F,
) -> usize {
    let turnstile = Turnstile::default();
    let flood: Vec<_> = (0..count)
        .map(|_| spawn("flood", turnstile.turns(Class::Client, work_of(Duration::from_millis(20)))))
        .collect();
    while turnstile.waiting() < count * 4 / 5 {
        yield_now().await;
    }
    let quiet = spawn("quiet", turnstile.turns(Class::Client, work(Work::Read.cost(10))));
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = turns.clone();
    let node = spawn("node", async move {
        std::future::poll_fn(|cx| {
            counted.fetch_add(1, Relaxed);
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        })
        .await;
    });
    quiet.await.expect("it runs to its end");
    let turns = turns.load(Relaxed);
    node.abort();
    assert!(flood.iter().filter(|task| task.is_finished()).count() < 5);
    for task in flood {
        task.await.expect("it runs to its end");
    }
    assert_eq!(turnstile.waiting(), 0);
    turns
}

#[tokio::test]
async fn a_quiet_client_passes_flooding_clients() {
    let turns = [turns_among(60, work).await, turns_among(200, many_turns).await];
    assert!(turns[0] <= 100 && turns[1] <= 60, "the node had {turns:?} meanwhile");
}

#[tokio::test]
async fn ten_thousand_light_turns_leave_laps_to_the_node() {
    let turnstile = Turnstile::default();
    let light: Vec<_> = (0..10_000)
        .map(|_| spawn("light", turnstile.turns(Class::Client, work(Work::Read.cost(10)))))
        .collect();
    let mut laps = 0;
    for task in light {
        while !task.is_finished() {
            laps += 1;
            yield_now().await;
        }
    }
    let alone = Work::Read.cost(100_000).as_millis();
    assert!(laps >= alone / 2, "{laps} laps in {alone} ms of work");
}

#[tokio::test]
async fn a_task_dropped_in_line_does_not_block_the_line() {
    let turnstile = Turnstile::default();
    let tasks: Vec<_> = (0..40)
        .map(|_| spawn("flood", turnstile.turns(Class::Client, work(Duration::from_millis(5)))))
        .collect();
    while turnstile.waiting() < 30 {
        yield_now().await;
    }
    for (nth, task) in tasks.into_iter().enumerate() {
        if nth % 2 == 0 {
            task.abort();
        } else {
            task.await.expect("it runs to its end");
        }
    }
    while turnstile.waiting() > 0 {
        yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn turns_on_several_threads_lose_no_task() {
    let turnstile = Turnstile::default();
    let tasks: Vec<_> = (0..200)
        .map(|nth| spawn("flood", turnstile.turns(Class::Client, work(Duration::from_micros(37 * nth)))))
        .collect();
    for task in tasks {
        task.await.expect("it runs to its end");
    }
}
