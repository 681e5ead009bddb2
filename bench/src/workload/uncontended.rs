//! N clients, each with a lock of its own: acquire, release, again, as fast as they are answered. Or without waiting for the
//! answer to the release: then it travels with the next acquire.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use tokio::task::JoinSet;

use super::phase::{self, Phase, Times};
use crate::drivers::Driver;
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// How a lock is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The next acquire begins when the release is answered.
    Awaited,
    /// The next acquire begins at once.
    Posted,
}

/// What one client saw.
#[derive(Default)]
struct Seen {
    cycles: u64,
    acquire: Latency,
    release: Latency,
}

/// One trial.
///
/// # Errors
/// A client was refused or cut off.
pub async fn run(
    system: System,
    servers: &Servers,
    clients: usize,
    round: u32,
    times: Times,
    release: Release,
) -> Result<Trial> {
    let phase = Arc::new(Phase::default());
    let mut tasks = JoinSet::new();
    for (n, driver) in phase::connect(system, servers, clients).await?.into_iter().enumerate() {
        tasks.spawn(client(driver, format!("bench-own-{n}"), phase.clone(), release));
    }
    tokio::time::sleep(times.warm_up).await;
    let cost = phase.count(servers, times.measured).await?;
    let mut all = Seen::default();
    for seen in phase::gather(tasks).await? {
        all.cycles += seen.cycles;
        all.acquire.add(&seen.acquire);
        all.release.add(&seen.release);
    }
    let cycles = all.cycles as f64;
    let name = match release {
        Release::Awaited => "uncontended",
        Release::Posted => "posted",
    };
    let trial = Trial::new(system, name, clients as u64, round)
        .with("cycles_per_s", cost.per_s(cycles))
        .with("acquire_p50_ms", all.acquire.ms(0.50))
        .with("acquire_p99_ms", all.acquire.ms(0.99))
        .with("servers_cpu_us_per_cycle", cost.servers_us(cycles))
        .with("client_cpu_us_per_cycle", cost.client_us(cycles));
    Ok(match release {
        Release::Awaited => {
            trial.with("release_p50_ms", all.release.ms(0.50)).with("release_p99_ms", all.release.ms(0.99))
        }
        Release::Posted => trial,
    })
}

async fn client(mut driver: Driver, lock: String, phase: Arc<Phase>, release: Release) -> Result<Seen> {
    let mut seen = Seen::default();
    while !phase.is_over() {
        let begun = Instant::now();
        driver.acquire(&lock).await?;
        let held = Instant::now();
        match release {
            // The last one is waited for in any case: the locks are free when the trial is over.
            Release::Posted if !phase.is_over() => driver.post_release()?,
            _ => driver.release().await?,
        }
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
