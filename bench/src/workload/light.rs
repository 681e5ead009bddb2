//! One client with a lock of its own that rests between its cycles: what a service pays that locks now and then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::phase::{self, Phase, Times};
use crate::drivers::Driver;
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// What the client saw.
#[derive(Default)]
struct Seen {
    cycles: u64,
    acquire: Latency,
    release: Latency,
}

/// One trial: so many cycles per second, or as many as are answered.
///
/// # Errors
/// The client was refused or cut off.
pub async fn run(
    system: System,
    servers: &Servers,
    per_second: u64,
    round: u32,
    times: Times,
) -> Result<Trial> {
    ensure!((1..=1000).contains(&per_second), "the size is cycles per second, from 1 to 1000");
    let (phase, mut task) = (Arc::new(Phase::default()), JoinSet::new());
    for driver in phase::connect(system, servers, 1).await? {
        task.spawn(client(driver, Duration::from_secs(1).div_f64(per_second as f64), phase.clone()));
    }
    tokio::time::sleep(times.warm_up).await;
    let cost = phase.count(servers, times.measured).await?;
    let mut trial = Trial::new(system, "light", per_second, round);
    for seen in phase::gather(task).await? {
        let cycles = seen.cycles as f64;
        trial = trial
            .with("cycles_per_s", cost.per_s(cycles))
            .with("acquire_p50_ms", seen.acquire.ms(0.50))
            .with("acquire_p99_ms", seen.acquire.ms(0.99))
            .with("release_p50_ms", seen.release.ms(0.50))
            .with("release_p99_ms", seen.release.ms(0.99))
            .with("servers_cpu_us_per_cycle", cost.servers_us(cycles))
            .with("client_cpu_us_per_cycle", cost.client_us(cycles));
    }
    Ok(trial)
}

async fn client(mut driver: Driver, every: Duration, phase: Arc<Phase>) -> Result<Seen> {
    let (mut seen, mut next) = (Seen::default(), tokio::time::interval(every));
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !phase.is_over() {
        next.tick().await;
        let begun = Instant::now();
        driver.acquire("bench-light").await?;
        let held = Instant::now();
        driver.release().await?;
        let released = Instant::now();
        if phase.counts() {
            seen.cycles += 1;
            seen.acquire.record(held - begun);
            seen.release.record(released - held);
        }
    }
    driver.close().await?;
    Ok(seen)
}
