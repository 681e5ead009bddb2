//! Cost of one acquire and release while something unrelated grows: sessions, znodes, watches; and the cost
//! of a hand-over while the queue of its lock grows. Rowlock only. No such cost should grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use super::{cluster, idle, pulse};
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::servers::process::own_cpu;
use crate::system::System;

/// Time for which the servers are measured without acquires and releases.
const BACKGROUND: Duration = Duration::from_secs(3);
const DATA_BYTES: usize = 100;
/// Time of low load (below a tenth of a processor) after which servers have finished their work.
const QUIET: Duration = Duration::from_millis(250);
/// Bound on the wait: filling ends with snapshots of a second or two; a longer wait would hide work that
/// never ends.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// Measures beside `count` idle sessions.
///
/// # Errors
/// A session could not be opened, or was lost.
pub async fn sessions(servers: &Servers, count: u64, round: u32, measured: Duration) -> Result<Trial> {
    let before = servers.resident()?;
    let ends = Arc::new(Semaphore::new(0));
    let mut tasks = idle::open(System::Rowlock, servers, usize::try_from(count)?, &ends).await?;
    // The first keepalives come in a burst.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let trial =
        cost(servers, Trial::new(System::Rowlock, "scale-sessions", count, round), before, measured).await;
    ends.close();
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|panic| anyhow!("a session panicked: {panic}"))??;
    }
    trial
}

/// Measures beside `count` znodes of 100 bytes.
///
/// # Errors
/// The servers refuse.
pub async fn znodes(servers: &Servers, count: u64, round: u32, measured: Duration) -> Result<Trial> {
    let before = servers.resident()?;
    cluster::fill(servers, count, DATA_BYTES).await?;
    wait_until_quiet(servers).await?;
    cost(servers, Trial::new(System::Rowlock, "scale-znodes", count, round), before, measured).await
}

/// Measures beside `count` watches, each on its own path.
///
/// # Errors
/// The servers refuse.
pub async fn watches(servers: &Servers, count: u64, round: u32, measured: Duration) -> Result<Trial> {
    const WATCHERS: u64 = 10;
    let before = servers.resident()?;
    let mut tasks = JoinSet::new();
    for watcher in 0..WATCHERS.min(count) {
        let client = cluster::session(servers).await?;
        tasks.spawn(async move {
            let mut watches = Vec::new();
            for n in (watcher..count).step_by(WATCHERS as usize) {
                watches.push(client.exists_watched(&format!("/watched-{n}")).await?.watch);
            }
            anyhow::Ok((client, watches))
        });
    }
    let mut kept = Vec::new();
    while let Some(done) = tasks.join_next().await {
        kept.push(done.map_err(|panic| anyhow!("a client panicked: {panic}"))??);
    }
    let trial = Trial::new(System::Rowlock, "scale-watches", count, round);
    let trial = cost(servers, trial, before, measured).await;
    for (client, _) in kept {
        client.close().await?;
    }
    trial
}

/// Waits until the servers have finished the work after filling: snapshots, which are not part of the znodes'
/// cost.
async fn wait_until_quiet(servers: &Servers) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < SETTLED_WITHIN {
        let before = servers.cpu()?;
        tokio::time::sleep(QUIET).await;
        if (servers.cpu()? - before) * 10 < QUIET {
            break;
        }
    }
    Ok(())
}

/// Adds the cost of cycles: at a low load, then at full load.
async fn cost(servers: &Servers, trial: Trial, resident_before: u64, measured: Duration) -> Result<Trial> {
    let each = trial.size.max(1) as f64;
    let resident = servers.resident()? as f64 - resident_before as f64;
    let (cpu, begun) = (servers.cpu()?, Instant::now());
    tokio::time::sleep(BACKGROUND).await;
    let background = (servers.cpu()? - cpu).as_micros() as f64 / begun.elapsed().as_secs_f64();
    let light = pulse::run(servers, pulse::LIGHT, measured).await?;
    let full = pulse::run(servers, pulse::FULL, measured).await?;
    let light_us = light.servers_us() - background / light.per_second();
    Ok(trial
        .with("light_p50_ms", light.cycle.ms(0.5))
        .with("light_p99_ms", light.cycle.ms(0.99))
        .with("light_servers_cpu_us_per_cycle", light_us)
        .with("full_cycles_per_s", full.per_second())
        .with("full_p99_ms", full.cycle.ms(0.99))
        .with("full_servers_cpu_us_per_cycle", full.servers_us())
        .with(
            "full_client_cpu_us_per_cycle",
            full.client_cpu.as_micros() as f64 / full.cycle.count().max(1) as f64,
        )
        .with("background_servers_cpu_us_per_s", background)
        .with("servers_resident_kb_per_unit", resident / each / 1e3))
}

/// State shared by the clients of the lock.
#[derive(Default)]
struct Queue {
    counts: AtomicBool,
    ends: AtomicBool,
    handovers: AtomicU64,
    released: AtomicU64,
    took: Mutex<Latency>,
}

/// Measures one lock with always `waiters` waiters: each former holder queues again.
///
/// # Errors
/// A client was refused or cut off.
pub async fn queue(servers: &Servers, waiters: u64, round: u32, measured: Duration) -> Result<Trial> {
    /// Below the limit of 1,024 queue positions per session.
    const PER_SESSION: u64 = 500;
    let (queue, origin) = (Arc::new(Queue::default()), Instant::now());
    let before = servers.resident()?;
    let mut tasks = JoinSet::new();
    let mut clients = Vec::new();
    for first in (0..waiters).step_by(PER_SESSION as usize) {
        let client = cluster::session(servers).await?;
        for _ in first..waiters.min(first + PER_SESSION) {
            tasks.spawn(waiter(client.clone(), queue.clone(), origin));
        }
        clients.push(client);
    }
    // One client holds, and another may be about to queue again.
    while queue_length(servers).await? < (waiters as f64 - 2.0) * 0.99 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let resident = servers.resident()? as f64 - before as f64;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (servers_before, own_before, begun) = (servers.cpu()?, own_cpu()?, Instant::now());
    queue.counts.store(true, Ordering::SeqCst);
    tokio::time::sleep(measured).await;
    queue.counts.store(false, Ordering::SeqCst);
    let seconds = begun.elapsed().as_secs_f64();
    let (servers_cpu, own_cpu) = (servers.cpu()? - servers_before, own_cpu()? - own_before);
    queue.ends.store(true, Ordering::SeqCst);
    // A waiter leaves the queue when its attempt is dropped.
    tasks.shutdown().await;
    let handovers = queue.handovers.load(Ordering::SeqCst) as f64;
    let took = queue.took.lock().await;
    for client in clients {
        client.close().await?;
    }
    Ok(Trial::new(System::Rowlock, "scale-queue", waiters, round)
        .with("handovers_per_s", handovers / seconds)
        .with("handover_p50_ms", took.ms(0.5))
        .with("handover_p99_ms", took.ms(0.99))
        .with("servers_cpu_us_per_handover", servers_cpu.as_micros() as f64 / handovers.max(1.0))
        .with("client_cpu_us_per_handover", own_cpu.as_micros() as f64 / handovers.max(1.0))
        .with("servers_resident_kb_per_unit", resident / waiters.max(1) as f64 / 1e3))
}

/// Returns the average of the nodes' counts of lock waiters.
async fn queue_length(servers: &Servers) -> Result<f64> {
    let nodes = servers.addresses.len() as f64;
    let all = cluster::metric(servers, "rowlock_lock_waiters").await?;
    Ok(all / nodes)
}

async fn waiter(client: rowlock_client::Client, queue: Arc<Queue>, origin: Instant) -> Result<()> {
    let lock = client.mutex("scale-queue");
    while !queue.ends.load(Ordering::Relaxed) {
        let guard = lock.lock().await.context("waiting")?;
        let granted = origin.elapsed();
        if queue.counts.load(Ordering::Relaxed) {
            let released = Duration::from_nanos(queue.released.load(Ordering::SeqCst));
            queue.handovers.fetch_add(1, Ordering::SeqCst);
            queue.took.lock().await.record(granted.saturating_sub(released));
        }
        queue.released.store(origin.elapsed().as_nanos() as u64, Ordering::SeqCst);
        guard.release().await.context("giving back")?;
    }
    Ok(())
}
