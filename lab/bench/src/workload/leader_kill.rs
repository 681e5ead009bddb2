//! Kill of the leader's process, and the time until a client acquires a lock again.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::drivers::{Driver, Settings};
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Time for which the client with an old session works before the leader dies.
const BEFORE: Duration = Duration::from_millis(500);
/// Interval of new clients, whatever the outcome of earlier clients: their timeouts must not be measured.
const BETWEEN: Duration = Duration::from_millis(20);
/// Time after which the cluster counts as lost.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Runs one trial, and starts the killed server again before the return.
///
/// # Errors
/// No server leads, no lock is granted any more, or the server does not come back.
pub async fn run(system: System, servers: &mut Servers, round: u32) -> Result<Trial> {
    let leader = servers.leader().await?;
    let mut survivors = servers.addresses.clone();
    survivors.remove(leader);
    let killed_at = Arc::new(OnceLock::new());
    let lock = format!("bench-kill-{round}");
    let client = Driver::connect(system, &survivors, 0).await?;
    let mut connected = tokio::spawn(cycles(client, lock.clone(), killed_at.clone()));
    tokio::time::sleep(BEFORE).await;
    let killed = *killed_at.get_or_init(Instant::now);
    let fresh = fresh(system, &survivors, &lock);
    let (kill, granted) = tokio::join!(servers.processes[leader].kill(), timeout(WAIT_MAX, fresh));
    kill?;
    let fresh = granted.map_err(|_| anyhow!("no lock is granted after {WAIT_MAX:?}"))?? - killed;
    // A client that has lost its session returns at once; other clients need not wait for long.
    let connected_took = match timeout(Duration::from_secs(5), &mut connected).await {
        Ok(end) => end?.ok().map(|granted| granted - killed),
        Err(_) => None,
    };
    connected.abort();
    servers.restart(leader).await?;
    let first = connected_took.map_or(fresh, |connected| connected.min(fresh));
    let trial = Trial::new(system, "leader-kill", 1, round)
        .with("kill_to_acquire_ms", first.as_secs_f64() * 1000.0)
        .with("kill_to_acquire_of_new_client_ms", fresh.as_secs_f64() * 1000.0);
    Ok(match connected_took {
        Some(took) => trial.with("kill_to_acquire_of_connected_client_ms", took.as_secs_f64() * 1000.0),
        None => trial,
    })
}

/// Acquires and releases until the grant of a lock requested after the kill, and returns the time of that
/// grant.
async fn cycles(mut driver: Driver, lock: String, killed_at: Arc<OnceLock<Instant>>) -> Result<Instant> {
    loop {
        let begun = Instant::now();
        driver.acquire(&lock).await?;
        let granted = Instant::now();
        driver.release().await?;
        if killed_at.get().is_some_and(|killed| begun > *killed) {
            driver.close().await?;
            return Ok(granted);
        }
    }
}

/// Starts new clients with their own locks at intervals, without waiting for earlier ones, and returns the
/// time of the first grant.
async fn fresh(system: System, addresses: &[String], lock: &str) -> Result<Instant> {
    let mut tries = JoinSet::new();
    let mut ticks = interval(BETWEEN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for n in 0.. {
        loop {
            tokio::select! {
                biased;
                Some(end) = tries.join_next() => {
                    if let Ok(Ok(granted)) = end {
                        return Ok(granted);
                    }
                }
                _ = ticks.tick() => break,
            }
        }
        let (addresses, lock) = (addresses.to_vec(), format!("{lock}-{n}"));
        let settings = Settings { retry_for: Duration::ZERO, ..Settings::default() };
        tries.spawn(async move {
            let mut driver = Driver::connect_with(system, &addresses, n, settings).await?;
            driver.acquire(&lock).await?;
            let granted = Instant::now();
            driver.release().await?;
            driver.close().await?;
            Ok::<_, anyhow::Error>(granted)
        });
    }
    unreachable!("the tries have no end")
}
