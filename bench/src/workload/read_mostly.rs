//! N clients that read plain znodes (or etcd's keys) ten times and write once, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::uncontended::Times;
use crate::drivers::{Driver, Reads, data};
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::servers::process::own_cpu;
use crate::system::System;

/// All clients share these.
const ENTRIES: usize = 1000;
const ENTRY_BYTES: usize = 100;
const READS_PER_WRITE: usize = 10;
/// From one entry to the next: no divisor of [`ENTRIES`], so that each client comes to all of them.
const STEP: usize = 37;

/// What clients saw.
#[derive(Default)]
struct Seen {
    reads: Latency,
    writes: Latency,
}

struct Shared {
    paths: Vec<String>,
    data: Bytes,
    reads: Reads,
    counts: AtomicBool,
    ends: AtomicBool,
}

/// One trial; of etcd, with both kinds of reads.
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
    // By a plain client on Rowlock, too: making znodes is not what is measured.
    let maker = if system == System::Rowlock { System::RowlockPlain } else { system };
    let mut maker = Driver::connect(maker, &servers.addresses, 0).await?;
    let paths: Vec<String> = (0..ENTRIES).map(data::path).collect();
    maker.make_data(&paths, &Bytes::from(vec![7; ENTRY_BYTES])).await?;
    maker.close().await?;
    let mut trial = Trial::new(system, "read-mostly", clients as u64, round);
    trial = half(trial, "", servers, clients, Reads::Default, times).await?;
    if system == System::Etcd {
        trial = half(trial, "serializable_", servers, clients, Reads::Serializable, times).await?;
    }
    Ok(trial)
}

/// Adds the metrics of one kind of reads.
async fn half(
    trial: Trial,
    prefix: &str,
    servers: &Servers,
    clients: usize,
    reads: Reads,
    times: Times,
) -> Result<Trial> {
    let shared = Arc::new(Shared {
        paths: (0..ENTRIES).map(data::path).collect(),
        data: Bytes::from(vec![7; ENTRY_BYTES]),
        reads,
        counts: AtomicBool::new(false),
        ends: AtomicBool::new(false),
    });
    let mut drivers = Vec::with_capacity(clients);
    for n in 0..clients {
        drivers.push(Driver::connect(trial.system, &servers.addresses, n).await?);
    }
    let mut tasks = JoinSet::new();
    for (n, driver) in drivers.into_iter().enumerate() {
        tasks.spawn(client(driver, n, shared.clone()));
    }
    tokio::time::sleep(times.warm_up).await;
    let (servers_before, own_before, begun) = (servers.cpu()?, own_cpu()?, Instant::now());
    shared.counts.store(true, Ordering::Relaxed);
    tokio::time::sleep(times.measured).await;
    shared.counts.store(false, Ordering::Relaxed);
    let took = begun.elapsed().as_secs_f64();
    let servers_cpu = servers.cpu()?.saturating_sub(servers_before);
    let own_cpu = own_cpu()?.saturating_sub(own_before);
    shared.ends.store(true, Ordering::Relaxed);
    let mut all = Seen::default();
    while let Some(seen) = tasks.join_next().await {
        let seen = seen.map_err(|panic| anyhow!("a client panicked: {panic}"))??;
        all.reads.add(&seen.reads);
        all.writes.add(&seen.writes);
    }
    let ops = (all.reads.count() + all.writes.count()).max(1) as f64;
    let name = |metric: &str| format!("{prefix}{metric}");
    Ok(trial
        .with(&name("ops_per_s"), ops / took)
        .with(&name("read_p50_ms"), all.reads.ms(0.50))
        .with(&name("read_p99_ms"), all.reads.ms(0.99))
        .with(&name("write_p50_ms"), all.writes.ms(0.50))
        .with(&name("write_p99_ms"), all.writes.ms(0.99))
        .with(&name("servers_cpu_us_per_op"), servers_cpu.as_micros() as f64 / ops)
        .with(&name("client_cpu_us_per_op"), own_cpu.as_micros() as f64 / ops))
}

async fn client(mut driver: Driver, n: usize, shared: Arc<Shared>) -> Result<Seen> {
    let (mut seen, mut at) = (Seen::default(), n * ENTRIES / 7);
    while !shared.ends.load(Ordering::Relaxed) {
        for _ in 0..READS_PER_WRITE {
            at = (at + STEP) % ENTRIES;
            let begun = Instant::now();
            let length = driver.read_data(&shared.paths[at], shared.reads).await?;
            if length != ENTRY_BYTES {
                bail!("{} has {length} bytes", shared.paths[at]);
            }
            if shared.counts.load(Ordering::Relaxed) {
                seen.reads.record(begun.elapsed());
            }
        }
        at = (at + STEP) % ENTRIES;
        let begun = Instant::now();
        driver.write_data(&shared.paths[at], &shared.data).await?;
        if shared.counts.load(Ordering::Relaxed) {
            seen.writes.record(begun.elapsed());
        }
    }
    driver.close().await?;
    Ok(seen)
}
