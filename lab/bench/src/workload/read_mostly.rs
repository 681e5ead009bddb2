//! N clients that read plain znodes (or etcd's keys) ten times and write once, in a loop.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::phase::{self, Phase, Times};
use crate::drivers::{Driver, Reads, data};
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Number of entries, shared by all clients.
const ENTRIES: usize = 1000;
const ENTRY_BYTES: usize = 100;
const READS_PER_WRITE: usize = 10;
/// Step from one entry to the next: no divisor of [`ENTRIES`], so that each client reaches all entries.
const STEP: usize = 37;

#[derive(Default)]
struct Seen {
    reads: Latency,
    writes: Latency,
}

struct Shared {
    paths: Vec<String>,
    data: Bytes,
    reads: Reads,
    phase: Phase,
}

/// Runs one trial; on etcd, with both kinds of reads.
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
    // Rowlock also uses a plain client here: the creation of znodes is not measured.
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
        phase: Phase::default(),
    });
    let mut tasks = JoinSet::new();
    for (n, driver) in phase::connect(trial.system, servers, clients).await?.into_iter().enumerate() {
        tasks.spawn(client(driver, n, shared.clone()));
    }
    tokio::time::sleep(times.warm_up).await;
    let cost = shared.phase.count(servers, times.measured).await?;
    let mut all = Seen::default();
    for seen in phase::gather(tasks).await? {
        all.reads.add(&seen.reads);
        all.writes.add(&seen.writes);
    }
    let ops = (all.reads.count() + all.writes.count()) as f64;
    let name = |metric: &str| format!("{prefix}{metric}");
    Ok(trial
        .with(&name("ops_per_s"), cost.per_s(ops))
        .with(&name("read_p50_ms"), all.reads.ms(0.50))
        .with(&name("read_p99_ms"), all.reads.ms(0.99))
        .with(&name("write_p50_ms"), all.writes.ms(0.50))
        .with(&name("write_p99_ms"), all.writes.ms(0.99))
        .with(&name("servers_cpu_us_per_op"), cost.servers_us(ops))
        .with(&name("client_cpu_us_per_op"), cost.client_us(ops)))
}

async fn client(mut driver: Driver, n: usize, shared: Arc<Shared>) -> Result<Seen> {
    let (mut seen, mut at) = (Seen::default(), n * ENTRIES / 7);
    while !shared.phase.is_over() {
        for _ in 0..READS_PER_WRITE {
            at = (at + STEP) % ENTRIES;
            let begun = Instant::now();
            let length = driver.read_data(&shared.paths[at], shared.reads).await?;
            if length != ENTRY_BYTES {
                bail!("{} has {length} bytes", shared.paths[at]);
            }
            if shared.phase.counts() {
                seen.reads.record(begun.elapsed());
            }
        }
        at = (at + STEP) % ENTRIES;
        let begun = Instant::now();
        driver.write_data(&shared.paths[at], &shared.data).await?;
        if shared.phase.counts() {
            seen.writes.record(begun.elapsed());
        }
    }
    driver.close().await?;
    Ok(seen)
}
