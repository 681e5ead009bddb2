//! Acknowledgements before the flush: what is acknowledged when, and what a loss of power leaves.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time;
use rowlock_state::FORGOTTEN_MAX;
use rowlock_world::executor::Simulation;
use rowlock_world::time::{HostId, Nanos};

use super::identity;
use crate::testing::{entry, vote};
use crate::{Acknowledge, Done, Log, Memory, Opened, Storage};

const WITHIN: Duration = Duration::from_millis(100);

async fn open(acknowledge: Acknowledge) -> Opened {
    let settings = (64 << 10, acknowledge);
    let on_fatal = Arc::new(|_: &_| {});
    let opened = Storage::open_with(Path::new("/data"), identity(), on_fatal, Arc::default(), settings);
    opened.await.expect("opens")
}

fn written() -> Acknowledge {
    Acknowledge::Written { flush_within: WITHIN }
}

/// Appends entries and returns when they are acknowledged.
async fn append(log: &Log, indexes: std::ops::Range<u64>, early: Option<u32>) {
    let (done, waiter) = tokio::sync::oneshot::channel();
    let entries = indexes.map(|index| entry(1, index, b"x")).collect();
    log.append_as(entries, early, Done::Waiter(done)).await.expect("is queued");
    waiter.await.expect("is completed").expect("is written");
}

/// Runs the code on a machine, cuts the power when the code has ended, and returns the log's length and the
/// memory that the next start finds.
fn left_after<F: Future<Output = ()> + Send + 'static>(
    seed: u64,
    code: impl FnOnce(Opened) -> F + Send + 'static,
) -> (u64, Memory) {
    let sim = Simulation::new(seed, false);
    let host = sim.add_host("one", "node", Ipv4Addr::new(10, 0, 0, 1));
    sim.boot(host);
    let over = Arc::new(Mutex::new(false));
    let end = over.clone();
    sim.spawn(host, "one", async move {
        code(open(written()).await).await;
        *end.lock() = true;
    });
    while !*over.lock() {
        let soon = Nanos(sim.now().0 + 10_000);
        sim.run_until(soon).expect("runs");
    }
    sim.power_off(host).expect("goes off");
    sim.boot(host);
    let found = Arc::new(Mutex::new(None));
    let slot = found.clone();
    sim.spawn(host, "one", async move {
        let opened = open(written()).await;
        let last = opened.log.checkpoint().last.map_or(0, |last| last.index + 1);
        *slot.lock() = Some((last, opened.mark.memory()));
    });
    run(&sim, host);
    let found = found.lock().take();
    found.expect("the node starts")
}

fn run(sim: &Simulation, _: HostId) {
    sim.run_until(Nanos(sim.now().0 + 2_000_000_000)).expect("runs");
}

#[test]
fn an_early_entry_may_be_lost_and_the_next_start_knows() {
    let mut lost = 0;
    for seed in 0..20 {
        let (last, memory) = left_after(seed, |opened| async move {
            append(&opened.log, 0..2, None).await;
            append(&opened.log, 2..3, Some(1)).await;
            std::mem::forget(opened);
        });
        assert_eq!(memory, Memory::Forgotten);
        assert!((2..=3).contains(&last), "flushed entries stay: {last}");
        lost += u32::from(last == 2);
    }
    assert!(lost > 5, "it is acknowledged before its flush: lost {lost} times of 20");
}

#[test]
fn an_early_entry_is_flushed_in_time() {
    for seed in 0..10 {
        let (last, _) = left_after(seed, |opened| async move {
            append(&opened.log, 0..1, Some(1)).await;
            time::sleep(WITHIN + Duration::from_millis(40)).await;
            std::mem::forget(opened);
        });
        assert_eq!(last, 1);
    }
}

#[test]
fn entries_of_the_other_class_are_flushed_with_all_before_them() {
    for seed in 0..10 {
        let (last, _) = left_after(seed, |opened| async move {
            append(&opened.log, 0..2, Some(2)).await;
            append(&opened.log, 2..3, None).await;
            std::mem::forget(opened);
        });
        assert_eq!(last, 3);
        let (last, _) = left_after(seed, |opened| async move {
            append(&opened.log, 0..2, Some(2)).await;
            opened.log.save_vote(vote(2, 2)).await.expect("is saved");
            std::mem::forget(opened);
        });
        assert_eq!(last, 2, "a vote flushes the log");
        let (last, _) = left_after(seed, |opened| async move {
            append(&opened.log, 0..2, Some(FORGOTTEN_MAX)).await;
            append(&opened.log, 2..3, Some(1)).await;
            std::mem::forget(opened);
        });
        assert_eq!(last, 3, "no more commands than the bound are unflushed");
    }
}

#[test]
fn a_clean_stop_forgets_nothing() {
    for seed in 0..10 {
        let (last, memory) = left_after(seed, |opened| async move {
            append(&opened.log, 0..2, Some(2)).await;
            opened.log.close().await;
        });
        assert_eq!((last, memory), (2, Memory::Whole));
    }
}
