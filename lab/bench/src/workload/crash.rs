//! Death of a holder without closing its session, and the time until the next waiter holds the lock.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::relay::Relay;
use crate::drivers::{Driver, Settings};
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Holders per trial, each with its own lock and waiter.
const HOLDERS: u32 = 8;
/// Interval of the deaths, which must not all fall on the same beat of a server's clock.
const BETWEEN: Duration = Duration::from_millis(150);
/// Time from the grant to the first death, in which the waiters start waiting.
const LIFE: Duration = Duration::from_millis(300);
/// Disconnect grace that an operator of Rowlock may choose besides the session timeout.
const GRACE: Duration = Duration::from_secs(1);
/// Time beyond the session timeout after which the lock counts as lost for good.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Runs one trial with this session timeout (time to live of the lease or key).
///
/// # Errors
/// A waiter got the lock before the holder was dead, or never.
pub async fn run(system: System, servers: &Servers, timeout_ms: u64, round: u32) -> Result<Trial> {
    let ttl = Duration::from_millis(timeout_ms);
    let usual = all(system, servers, Settings { ttl, ..Settings::default() }, round).await?;
    let mut trial = Trial::new(system, "crash", timeout_ms, round)
        .with("crash_to_grant_p50_s", usual.ms(0.5) / 1000.0)
        .with("crash_to_grant_max_s", usual.ms(1.0) / 1000.0);
    if system == System::Rowlock {
        let graced =
            all(system, servers, Settings { ttl, disconnect_grace: GRACE, ..Settings::default() }, round)
                .await?;
        trial = trial
            .with("crash_with_1_s_grace_to_grant_p50_s", graced.ms(0.5) / 1000.0)
            .with("crash_with_1_s_grace_to_grant_max_s", graced.ms(1.0) / 1000.0);
    }
    Ok(trial)
}

async fn all(system: System, servers: &Servers, settings: Settings, round: u32) -> Result<Latency> {
    let mut tasks = JoinSet::new();
    for n in 0..HOLDERS {
        let lock = format!(
            "bench-crash-{}-{}-{round}-{n}",
            settings.ttl.as_millis(),
            settings.disconnect_grace.as_millis()
        );
        tasks.spawn(one(system, servers.addresses.clone(), settings, n, lock));
    }
    let mut seen = Latency::default();
    while let Some(took) = tasks.join_next().await {
        seen.record(took.map_err(|panic| anyhow!("a client panicked: {panic}"))??);
    }
    Ok(seen)
}

/// Measures the time from a holder's death to the grant of the lock to its waiter.
async fn one(
    system: System,
    addresses: Vec<String>,
    settings: Settings,
    n: u32,
    lock: String,
) -> Result<Duration> {
    let mut relay = Relay::start(&addresses).await?;
    let mut holder = Driver::connect_with(system, &relay.addresses, n as usize, settings).await?;
    let mut waiter = Driver::connect_with(system, &addresses, n as usize + 1, settings).await?;
    holder.acquire(&lock).await?;
    let waits = tokio::spawn(async move {
        waiter.acquire(&lock).await?;
        Ok::<_, anyhow::Error>((Instant::now(), waiter))
    });
    // The holder lives and sends its keepalives.
    if let Ok(end) = timeout(LIFE + BETWEEN * n, holder.stay()).await {
        end?;
    }
    if waits.is_finished() {
        bail!("the lock was granted while its holder lived");
    }
    let died = Instant::now();
    relay.cut().await;
    let granted = timeout(settings.ttl + WAIT_MAX, waits).await;
    let (granted, mut waiter) = granted.map_err(|_| anyhow!("the lock is never granted again"))???;
    waiter.release().await?;
    waiter.close().await?;
    drop(holder);
    Ok(granted - died)
}
