//! K clients that all want one lock: the rate of hand-overs, and the fairness of the shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;

use super::phase::{self, Phase, Times};
use super::witness::Witness;
use crate::drivers::Driver;
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// State shared by all clients of a trial.
#[derive(Default)]
struct Shared {
    witness: Witness,
    phase: Phase,
    /// Grants so far. A client was overtaken if more grants happened during its wait than clients were in
    /// front.
    grants: AtomicU64,
    /// Clients that have held the lock at least once.
    begun: AtomicUsize,
    /// Last release of the lock, nanoseconds since the beginning of the trial.
    released: AtomicU64,
}

/// Longest wait until every client has held the lock once.
const QUEUE_FORMS_MAX: Duration = Duration::from_secs(20);
/// Turns per client below which a single turn changes a share too much: the trial goes on.
const TURNS: u64 = 15;
/// Bound on the counted time.
const MEASURED_MAX: Duration = Duration::from_secs(8);
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Default)]
struct Seen {
    grants: u64,
    overtakes: u64,
    wait: Latency,
    handover: Latency,
}

/// Measures hand-overs of one lock.
///
/// # Errors
/// Two clients held the lock at once, or a client was refused or cut off.
pub async fn run(
    system: System,
    servers: &Servers,
    clients: usize,
    round: u32,
    times: Times,
) -> Result<Trial> {
    let shared = Arc::new(Shared::default());
    let origin = Instant::now();
    let lock = format!("bench-shared-{clients}-{round}");
    let mut tasks = JoinSet::new();
    for (n, driver) in phase::connect(system, servers, clients).await?.into_iter().enumerate() {
        tasks.spawn(client(driver, n, lock.clone(), shared.clone(), origin, clients as u64));
    }
    tokio::time::sleep(times.warm_up).await;
    // The counted time starts after a queue has formed: before, early clients get many turns. Without a
    // queue, some clients may never get a turn.
    let latest = Instant::now() + QUEUE_FORMS_MAX;
    while system.is_fair() && shared.begun.load(Ordering::SeqCst) < clients && Instant::now() < latest {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let wanted = shared.grants.load(Ordering::SeqCst) + TURNS * clients as u64;
    let is_enough = || shared.grants.load(Ordering::SeqCst) >= wanted;
    let most = MEASURED_MAX.max(times.measured);
    let cost = shared.phase.count_until(servers, times.measured, most, is_enough).await?;
    let (mut all, mut shares) = (Seen::default(), Vec::new());
    for seen in phase::gather(tasks).await? {
        shares.push(seen.grants as f64);
        all.grants += seen.grants;
        all.overtakes += seen.overtakes;
        all.wait.add(&seen.wait);
        all.handover.add(&seen.handover);
    }
    let grants = all.grants as f64;
    Ok(Trial::new(system, "contended", clients as u64, round)
        .with("handovers_per_s", cost.per_s(grants))
        .with("handover_p50_ms", all.handover.ms(0.50))
        .with("handover_p99_ms", all.handover.ms(0.99))
        .with("wait_p50_ms", all.wait.ms(0.50))
        .with("wait_p99_ms", all.wait.ms(0.99))
        .with("jain", jain(&shares))
        .with("turns_per_client", grants / clients as f64)
        .with("overtakes", all.overtakes as f64)
        .with("servers_cpu_us_per_handover", cost.servers_us(grants))
        .with("client_cpu_us_per_handover", cost.client_us(grants)))
}

async fn client(
    mut driver: Driver,
    n: usize,
    lock: String,
    shared: Arc<Shared>,
    origin: Instant,
    clients: u64,
) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut is_first = true;
    while !shared.phase.is_over() {
        let (begun, granted_before) = (Instant::now(), shared.grants.load(Ordering::SeqCst));
        driver.acquire(&lock).await?;
        let held = Instant::now();
        shared.witness.enter(n)?;
        let others = shared.grants.fetch_add(1, Ordering::SeqCst) - granted_before;
        shared.begun.fetch_add(usize::from(std::mem::take(&mut is_first)), Ordering::SeqCst);
        let released = shared.released.load(Ordering::SeqCst);
        if shared.phase.counts() {
            seen.grants += 1;
            // Each other client may have been in front once: any further grant went to a later client.
            seen.overtakes += others.saturating_sub(clients);
            seen.wait.record(held - begun);
            seen.handover.record((held - origin).saturating_sub(std::time::Duration::from_nanos(released)));
        }
        shared.released.store(origin.elapsed().as_nanos() as u64, Ordering::SeqCst);
        shared.witness.leave();
        driver.release().await?;
    }
    driver.close().await?;
    Ok(seen)
}

/// Returns Jain's index of fairness: 1 for equal shares, 1/n if one client has everything.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (shares.iter().sum(), shares.iter().map(|share| share * share).sum());
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn equal_shares_are_fair_and_one_winner_is_not() {
        assert!((jain(&[5.0, 5.0, 5.0, 5.0]) - 1.0).abs() < 1e-9);
        assert!((jain(&[20.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
    }
}
