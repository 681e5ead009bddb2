//! Many idle sessions: their memory on the servers, and the cost of their keepalives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::phase::Times;
use crate::drivers::Driver;
use crate::results::Trial;
use crate::servers::Servers;
use crate::servers::process::own_cpu;
use crate::system::System;

/// Number of sessions that are opened or closed at once.
const AT_ONCE: usize = 64;
/// Interval of the sessions that acquire a lock at the end, to prove that the sessions lived.
const TRIED: usize = 100;
/// Time for which the servers are measured without sessions.
const BEFORE: Duration = Duration::from_secs(3);

/// Runs one trial, on servers without any other work before: freed memory is hard to tell from memory in use.
///
/// # Errors
/// A session could not be opened, or was lost.
pub async fn run(
    system: System,
    servers: &Servers,
    sessions: usize,
    round: u32,
    times: Times,
) -> Result<Trial> {
    let resident_before = servers.resident()? as f64;
    let cpu = servers.cpu()?;
    tokio::time::sleep(BEFORE).await;
    let background = (servers.cpu()? - cpu).as_micros() as f64 / BEFORE.as_secs_f64();
    let begun = Instant::now();
    let ends = Arc::new(Semaphore::new(0));
    let mut tasks = open(system, servers, sessions, &ends).await?;
    let opened = begun.elapsed();
    tokio::time::sleep(times.warm_up).await;
    let (servers_before, own_before, begun) = (servers.cpu()?, own_cpu()?, Instant::now());
    tokio::time::sleep(times.measured).await;
    let took = begun.elapsed().as_secs_f64();
    let (servers_cpu, own_cpu) = (servers.cpu()? - servers_before, own_cpu()? - own_before);
    let (resident, proportional) = (servers.resident()? as f64, servers.proportional()? as f64);
    ends.close();
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|panic| anyhow!("a session panicked: {panic}"))??;
    }
    let each = sessions as f64;
    let rate = |cpu: Duration| cpu.as_micros() as f64 / took;
    Ok(Trial::new(system, "idle", sessions as u64, round)
        .with("servers_resident_mb", resident / 1e6)
        .with("servers_proportional_mb", proportional / 1e6)
        .with("servers_resident_before_mb", resident_before / 1e6)
        .with("servers_resident_kb_per_session", (resident - resident_before) / each / 1e3)
        .with("servers_cpu_us_per_session_s", rate(servers_cpu) / each)
        .with("servers_cpu_without_sessions_us_per_s", background)
        .with("client_cpu_us_per_session_s", rate(own_cpu) / each)
        .with("opened_per_s", each / opened.as_secs_f64()))
}

/// Opens the sessions; a task serves each session until `ends` is closed. Returns when all sessions are open.
pub async fn open(
    system: System,
    servers: &Servers,
    sessions: usize,
    ends: &Arc<Semaphore>,
) -> Result<JoinSet<Result<()>>> {
    let doors = Arc::new(Semaphore::new(AT_ONCE));
    let (told, mut tells) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for n in 0..sessions {
        let (doors, ends, told) = (doors.clone(), ends.clone(), told.clone());
        let addresses = servers.addresses.clone();
        tasks.spawn(async move {
            let door = doors.acquire().await?;
            let driver = Driver::connect(system, &addresses, n).await;
            drop(door);
            let driver = driver.with_context(|| format!("opening session {n}"))?;
            told.send(()).context("the counting task has ended")?;
            drop(told);
            live(driver, n, &ends, &doors).await
        });
    }
    drop(told);
    let mut open = 0;
    while open < sessions {
        tokio::select! {
            biased;
            ended = tasks.join_next() => match ended {
                Some(ended) => ended.map_err(|panic| anyhow!("a session panicked: {panic}"))??,
                None => bail!("all sessions have ended"),
            },
            Some(()) = tells.recv() => open += 1,
        }
    }
    Ok(tasks)
}

async fn live(mut driver: Driver, n: usize, ends: &Semaphore, doors: &Semaphore) -> Result<()> {
    tokio::select! {
        biased;
        // The semaphore never gets permits: the wait ends when the semaphore is closed.
        _ = ends.acquire() => {}
        lost = driver.stay() => lost.with_context(|| format!("session {n}"))?,
    }
    // Closing all sessions at once would be too much for etcd.
    let _door = doors.acquire().await?;
    if n.is_multiple_of(TRIED) {
        driver.acquire(&format!("idle-{n}")).await.with_context(|| format!("session {n} at the end"))?;
        driver.release().await?;
    }
    driver.close().await
}
