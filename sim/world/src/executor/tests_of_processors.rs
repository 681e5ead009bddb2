//! Turns take time, on hosts without a network.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::busy::{Work, spend};
use rowlock_env::{task, time};

use super::{Simulation, USUAL_SPEED};
use crate::time::{HostId, Nanos};

/// Hosts of the usual speed.
fn world(seed: u64) -> (Simulation, [HostId; 2]) {
    let sim = Simulation::new(seed, false);
    let hosts = [1, 2].map(|n| {
        let host = sim.add_host(&format!("host{n}"), "host", Ipv4Addr::new(10, 0, 0, n));
        sim.boot(host);
        sim.set_speed(host, USUAL_SPEED);
        host
    });
    (sim, hosts)
}

/// A handshake takes 0.4 ms.
fn work(tenths: u64) {
    spend(Work::Handshake, tenths);
}

type Times = Arc<Mutex<Vec<(u64, u32)>>>;

#[test]
fn a_turn_occupies_only_its_own_host() {
    let (sim, [busy, other]) = world(3);
    let times = Times::default();
    for (host, name) in [(busy, 1), (other, 2)] {
        let (ours, sim_in) = (times.clone(), sim.clone());
        sim.spawn(host, "sleeper", async move {
            for _ in 0..5 {
                time::sleep(Duration::from_millis(10)).await;
                ours.lock().push((sim_in.now().millis(), name));
            }
        });
    }
    sim.spawn(busy, "worker", async {
        time::sleep(Duration::from_millis(15)).await;
        work(50); // 20 ms
    });
    sim.run_until(Nanos::from_millis(100)).unwrap();
    let of = |who| -> Vec<u64> {
        times.lock().iter().filter(|(_, name)| *name == who).map(|(at, _)| *at).collect()
    };
    assert_eq!(of(1), [10, 35, 45, 55, 65], "the timer of 20 ms is late");
    assert_eq!(of(2), [10, 20, 30, 40, 50]);
}

#[test]
fn turns_scale_with_speed_and_survive_pauses_and_deaths() {
    let (sim, [host, _]) = world(4);
    sim.set_speed(host, USUAL_SPEED / 10);
    let times = Times::default();
    let (ours, sim_in) = (times.clone(), sim.clone());
    sim.spawn(host, "worker", async move {
        for _ in 0..3 {
            work(25); // 10 ms, and here 100 ms
            task::yield_now().await;
            ours.lock().push((sim_in.now().millis(), 0));
        }
    });
    sim.run_until(Nanos::from_millis(50)).unwrap();
    sim.pause(host);
    sim.resume(host);
    sim.run_until(Nanos::from_millis(250)).unwrap();
    assert_eq!(*times.lock(), [(100, 0), (200, 0)]);
    sim.kill(host).unwrap();
    sim.boot(host);
    let (ours, sim_in) = (times.clone(), sim.clone());
    sim.spawn(host, "next", async move { ours.lock().push((sim_in.now().millis(), 1)) });
    sim.run_until(Nanos::from_millis(251)).unwrap();
    assert_eq!(times.lock()[2..], [(250, 1)], "a new process has no turn behind it");
}

#[test]
fn waiting_tasks_have_turns_roughly_in_order() {
    let (sim, [host, _]) = world(5);
    let turns = Arc::new(Mutex::new(vec![0_u32; 20]));
    for n in 0..20 {
        let turns = turns.clone();
        sim.spawn(host, "eater", async move {
            loop {
                work(3);
                turns.lock()[n] += 1;
                task::yield_now().await;
            }
        });
    }
    sim.run_until(Nanos::from_millis(2_400)).unwrap(); // 2,000 turns
    let turns = turns.lock();
    assert!(turns.iter().all(|turns| (90..=110).contains(turns)), "{turns:?}");
}

#[test]
fn work_is_part_of_the_fingerprint_and_speeds_are_of_the_seed() {
    let run = |seed, tenths| {
        let (sim, [host, _]) = world(seed);
        sim.spawn(host, "worker", async move { work(tenths) });
        sim.run_until(Nanos::from_millis(10)).unwrap();
        sim.trace().fingerprint()
    };
    assert_eq!(run(1, 1), run(1, 1));
    assert_ne!(run(1, 1), run(1, 2));
    let speeds: Vec<u32> = (0..300)
        .map(|seed| {
            let sim = Simulation::new(seed, false);
            let host = sim.add_host("host", "host", Ipv4Addr::new(10, 0, 0, 1));
            sim.speed(host)
        })
        .collect();
    assert!(speeds.iter().all(|speed| (10..=400).contains(speed)), "{speeds:?}");
    assert!(speeds.iter().filter(|speed| (80..=125).contains(*speed)).count() > 180, "mostly near 1");
    assert!(speeds.iter().any(|speed| *speed < 35) && speeds.iter().any(|speed| *speed > 200));
}
