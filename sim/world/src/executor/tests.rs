//! What the executor guarantees, on hosts without a network.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::{rng, task, time, worker};
use tokio::sync::Notify;

use super::{Halt, Simulation};
use crate::time::{HostId, Nanos};

fn world(seed: u64, hosts: u8) -> (Simulation, Vec<HostId>) {
    let sim = Simulation::new(seed, false);
    let add = |n| {
        let host = sim.add_host(&format!("host{n}"), "host", Ipv4Addr::new(10, 0, 0, n));
        sim.boot(host);
        host
    };
    let hosts = (1..=hosts).map(add).collect();
    (sim, hosts)
}

type Log = Arc<Mutex<Vec<String>>>;

fn say(log: &Log, what: impl Into<String>) {
    log.lock().push(what.into());
}

#[test]
fn time_passes_only_when_nobody_is_runnable_and_then_at_once() {
    let (sim, hosts) = world(1, 1);
    let log = Log::default();
    let ours = log.clone();
    sim.spawn(hosts[0], "sleeper", async move {
        let begun = time::now();
        time::sleep(Duration::from_secs(3_600)).await;
        say(&ours, format!("{:?}", begun.elapsed()));
    });
    sim.run_until(Nanos::from_millis(3_599_999)).unwrap();
    assert!(log.lock().is_empty());
    sim.run_until(Nanos::from_millis(3_600_000)).unwrap();
    assert_eq!(*log.lock(), ["3600s"]);
}

#[test]
fn the_same_seed_gives_the_same_order_and_another_seed_another() {
    let run = |seed| {
        let (sim, hosts) = world(seed, 2);
        let log = Log::default();
        for n in 0..20 {
            let ours = log.clone();
            sim.spawn(hosts[n % 2], "racer", async move {
                time::sleep(Duration::from_millis(rng::below(3))).await;
                say(&ours, n.to_string());
            });
        }
        sim.run_until(Nanos::from_millis(10)).unwrap();
        let order = log.lock().clone();
        assert_eq!(order.len(), 20);
        (order, sim.trace().fingerprint())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_kill_drops_exactly_the_tasks_of_its_host() {
    let (sim, hosts) = world(3, 2);
    let log = Log::default();
    for (n, host) in hosts.iter().enumerate() {
        let ours = log.clone();
        sim.spawn(*host, "ticker", async move {
            loop {
                time::sleep(Duration::from_secs(1)).await;
                say(&ours, n.to_string());
            }
        });
    }
    sim.run_until(Nanos::from_millis(1_500)).unwrap();
    sim.kill(hosts[0]).unwrap();
    assert!(sim.tasks_of(hosts[0]).is_empty());
    sim.run_until(Nanos::from_millis(3_500)).unwrap();
    sim.boot(hosts[0]);
    sim.run_until(Nanos::from_millis(4_500)).unwrap();
    assert_eq!(log.lock().iter().filter(|n| *n == "0").count(), 1);
    assert_eq!(log.lock().iter().filter(|n| *n == "1").count(), 4);
}

#[test]
fn a_loss_of_power_changes_the_boot_id_and_a_kill_does_not() {
    let (sim, hosts) = world(3, 2);
    let id = |host| sim.on(host, || rowlock_env::process::boot_id().unwrap());
    let (first, other) = (id(hosts[0]), id(hosts[1]));
    assert_ne!(first, other);
    sim.kill(hosts[0]).unwrap();
    sim.boot(hosts[0]);
    assert_eq!(id(hosts[0]), first);
    sim.power_off(hosts[0]).unwrap();
    sim.boot(hosts[0]);
    assert_ne!(id(hosts[0]), first);
    assert_eq!(id(hosts[1]), other);
}

#[test]
fn what_a_dying_task_starts_in_its_destructor_never_runs() {
    struct Last(Log);
    impl Drop for Last {
        fn drop(&mut self) {
            let log = self.0.clone();
            drop(task::spawn("last", async move { say(&log, "ran") }));
        }
    }
    let (sim, hosts) = world(3, 1);
    let log = Log::default();
    let last = Last(log.clone());
    sim.spawn(hosts[0], "dying", async move {
        let _last = last;
        std::future::pending::<()>().await;
    });
    sim.run_until(Nanos::from_millis(1)).unwrap();
    sim.kill(hosts[0]).unwrap();
    sim.run_until(Nanos::from_millis(2)).unwrap();
    assert!(log.lock().is_empty() && sim.tasks_of(hosts[0]).is_empty());
}

#[test]
fn a_paused_host_does_nothing_and_catches_up_afterwards() {
    let (sim, hosts) = world(3, 1);
    let log = Log::default();
    let ours = log.clone();
    sim.spawn(hosts[0], "ticker", async move {
        let begun = time::now();
        loop {
            time::sleep(Duration::from_secs(1)).await;
            say(&ours, begun.elapsed().as_secs().to_string());
        }
    });
    sim.run_until(Nanos::from_millis(1_500)).unwrap();
    sim.pause(hosts[0]);
    sim.run_until(Nanos::from_millis(60_000)).unwrap();
    assert_eq!(*log.lock(), ["1"]);
    sim.resume(hosts[0]);
    sim.run_until(Nanos::from_millis(61_500)).unwrap();
    assert_eq!(*log.lock(), ["1", "60", "61"]);
}

#[test]
fn woken_and_due_tasks_resume_in_any_order() {
    let firsts = (0..40).map(|seed| {
        let (sim, hosts) = world(seed, 1);
        let (log, woken) = (Log::default(), Arc::new(Notify::new()));
        let (ours, its) = (log.clone(), woken.clone());
        sim.spawn(hosts[0], "woken", async move {
            its.notified().await;
            say(&ours, "woken");
        });
        let ours = log.clone();
        sim.spawn(hosts[0], "sleeper", async move {
            time::sleep(Duration::from_secs(1)).await;
            say(&ours, "slept");
        });
        sim.run_until(Nanos::from_millis(500)).unwrap();
        sim.pause(hosts[0]);
        woken.notify_one();
        sim.run_until(Nanos::from_millis(5_000)).unwrap();
        sim.resume(hosts[0]);
        sim.run_until(Nanos::from_millis(5_001)).unwrap();
        let told = log.lock().clone();
        assert_eq!(told.len(), 2, "{told:?}");
        told[0].clone()
    });
    assert_eq!(firsts.collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn clocks_of_hosts_run_at_their_own_rates() {
    let (sim, hosts) = world(3, 2);
    sim.set_clock_rate(hosts[0], 1_050_000);
    let log = Log::default();
    for (n, host) in hosts.iter().enumerate() {
        let (ours, clock) = (log.clone(), sim.clone());
        sim.spawn(*host, "sleeper", async move {
            time::sleep(Duration::from_secs(105)).await;
            say(&ours, format!("{n} {}", clock.now().millis()));
        });
    }
    sim.run_until(Nanos::from_millis(200_000)).unwrap();
    assert_eq!(*log.lock(), ["0 100000", "1 105000"]);
}

#[test]
fn a_panic_is_a_finding_with_its_message() {
    let (sim, hosts) = world(3, 1);
    sim.spawn(hosts[0], "bug", async { panic!("on purpose") });
    let halt = sim.run_until(Nanos::from_millis(1)).unwrap_err();
    assert!(matches!(&halt, Halt::Panic { host: Some(_), what } if what.contains("on purpose")), "{halt}");
}

#[test]
fn whoever_spins_without_letting_time_pass_is_found() {
    let (sim, hosts) = world(3, 1);
    sim.spawn(hosts[0], "spinner", async {
        loop {
            time::sleep(Duration::ZERO).await;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                std::task::Poll::<()>::Pending
            })
            .await;
        }
    });
    let halt = sim.run_until(Nanos::from_millis(1)).unwrap_err();
    assert!(matches!(&halt, Halt::Livelock { task } if task.contains("spinner")), "{halt}");
}

#[test]
fn a_worker_runs_jobs_in_order_until_its_last_handle() {
    let (sim, hosts) = world(3, 1);
    let log = Log::default();
    let (ours, clock) = (log.clone(), sim.clone());
    sim.spawn(hosts[0], "boss", async move {
        let done = ours.clone();
        let worker = worker::spawn("rowlock-wal", 10, move |jobs: &mut Vec<u32>| {
            jobs.drain(..).for_each(|job| say(&done, job.to_string()));
        });
        (0..3).for_each(|job| worker.submit(job).expect("there is room"));
        time::sleep(Duration::from_millis(100)).await;
        let answer = worker::run_blocking("look", || 42).await;
        assert!(clock.now() > Nanos::from_millis(100));
        say(&ours, answer.to_string());
    });
    sim.run_until(Nanos::from_millis(1_000)).unwrap();
    assert_eq!(*log.lock(), ["0", "1", "2", "42"]);
    assert!(sim.tasks_of(hosts[0]).is_empty());
}

#[test]
fn an_aborted_task_ends_and_whoever_joins_it_is_told() {
    let (sim, hosts) = world(3, 1);
    let log = Log::default();
    let ours = log.clone();
    sim.spawn(hosts[0], "boss", async move {
        let sleeper = task::spawn("sleeper", time::sleep(Duration::from_secs(9)));
        time::sleep(Duration::from_millis(1)).await;
        sleeper.abort();
        say(&ours, sleeper.await.expect_err("it was aborted").to_string());
        let worker = task::spawn("worker", async { 6 * 7 });
        say(&ours, worker.await.expect("no panic").to_string());
    });
    sim.run_until(Nanos::from_millis(10)).unwrap();
    assert_eq!(*log.lock(), ["task was aborted", "42"]);
}

#[test]
fn work_on_a_slow_disk_goes_on_at_the_usual_speed_once_the_disk_is_fast_again() {
    let took = |heals: bool| {
        let (sim, hosts) = world(7, 1);
        let log = Log::default();
        let ours = log.clone();
        sim.disk(hosts[0]).set_pace(2_500);
        sim.spawn(hosts[0], "reads", async move {
            let begun = time::now();
            worker::run_blocking("open", || ()).await;
            say(&ours, begun.elapsed().as_millis().to_string());
        });
        sim.run_until(Nanos::from_millis(1_000)).unwrap();
        if heals {
            sim.disk(hosts[0]).heal();
        }
        sim.run_until(Nanos::from_millis(30_000)).unwrap();
        let log = log.lock();
        log[0].parse::<u64>().unwrap()
    };
    // 0.5 to 3.5 ms at the usual speed.
    let slow = took(false);
    assert!((1_250..=8_750).contains(&slow), "{slow} ms");
    let healed = took(true);
    assert!((1_000..=1_104).contains(&healed), "{healed} ms of {slow}");
}
