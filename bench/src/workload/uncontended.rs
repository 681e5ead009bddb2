//! N clients, each with a lock of its own: acquire, release, again, as fast as they are answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tokio::task::JoinSet;

use crate::drivers::Driver;
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::servers::process::own_cpu;
use crate::system::System;

/// How long the clients work before and while it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Not counted.
    pub warm_up: Duration,
    /// Counted.
    pub measured: Duration,
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
) -> Result<Trial> {
    let (counts, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut drivers = Vec::with_capacity(clients);
    for n in 0..clients {
        drivers.push(Driver::connect(system, &servers.addresses, n).await?);
    }
    let mut tasks = JoinSet::new();
    for (n, driver) in drivers.into_iter().enumerate() {
        tasks.spawn(client(driver, format!("bench-own-{n}"), counts.clone(), ends.clone()));
    }
    tokio::time::sleep(times.warm_up).await;
    let (servers_before, own_before) = (servers.cpu()?, own_cpu()?);
    let begun = Instant::now();
    counts.store(true, Ordering::Relaxed);
    tokio::time::sleep(times.measured).await;
    counts.store(false, Ordering::Relaxed);
    let took = begun.elapsed();
    let (servers_cpu, own_cpu) =
        (servers.cpu()?.saturating_sub(servers_before), own_cpu()?.saturating_sub(own_before));
    ends.store(true, Ordering::Relaxed);
    let mut all = Seen::default();
    while let Some(seen) = tasks.join_next().await {
        let seen = seen.map_err(|panic| anyhow!("a client panicked: {panic}"))??;
        all.cycles += seen.cycles;
        all.acquire.add(&seen.acquire);
        all.release.add(&seen.release);
    }
    let cycles = all.cycles.max(1) as f64;
    Ok(Trial::new(system, "uncontended", clients as u64, round)
        .with("cycles_per_s", all.cycles as f64 / took.as_secs_f64())
        .with("acquire_p50_ms", all.acquire.ms(0.50))
        .with("acquire_p99_ms", all.acquire.ms(0.99))
        .with("release_p50_ms", all.release.ms(0.50))
        .with("release_p99_ms", all.release.ms(0.99))
        .with("servers_cpu_us_per_cycle", servers_cpu.as_micros() as f64 / cycles)
        .with("client_cpu_us_per_cycle", own_cpu.as_micros() as f64 / cycles))
}

async fn client(
    mut driver: Driver,
    lock: String,
    counts: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
) -> Result<Seen> {
    let mut seen = Seen::default();
    while !ends.load(Ordering::Relaxed) {
        let begun = Instant::now();
        driver.acquire(&lock).await?;
        let held = Instant::now();
        driver.release().await?;
        let released = Instant::now();
        if counts.load(Ordering::Relaxed) {
            seen.cycles += 1;
            seen.acquire.record(held - begun);
            seen.release.record(released - held);
        }
    }
    driver.close().await?;
    Ok(seen)
}
