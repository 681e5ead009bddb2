//! Release of one lock before many waiters: the number of messages, and the time until the next waiter knows
//! of its grant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::witness::Witness;
use crate::drivers::{Driver, Settings};
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::servers::messages::Messages;
use crate::system::System;

/// Session timeout, as long as every system allows: a keepalive is due only a third of the timeout after the
/// last request, after the releases, so that no keepalive counts as a message of a release.
const TTL: Duration = Duration::from_secs(40);
/// Number of releases measured one by one.
const RELEASES: usize = 20;
/// Time between a release and the count of its messages.
const SETTLE: Duration = Duration::from_millis(50);
/// Longest time until all clients wait.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Report of a client.
enum Told {
    Granted(Instant),
    /// Start of the client's release.
    Releases(Instant),
}

struct Shared {
    lock: String,
    witness: Witness,
    /// The holder may release.
    turn: Notify,
    /// Every holder may release at once.
    drains: AtomicBool,
    told: mpsc::UnboundedSender<Told>,
}

/// Measures releases before waiters.
///
/// # Errors
/// Two clients held the lock at once, or a client was refused or cut off.
pub async fn run(system: System, servers: &Servers, waiters: usize, round: u32) -> Result<Trial> {
    let (told, mut tells) = mpsc::unbounded_channel();
    let lock = format!("bench-herd-{waiters}-{round}");
    let (witness, turn, drains) = (Witness::default(), Notify::new(), AtomicBool::new(false));
    let shared = Arc::new(Shared { lock, witness, turn, drains, told });
    let settings = Settings { ttl: TTL, ..Settings::default() };
    let mut drivers = Vec::with_capacity(waiters + 1);
    for n in 0..=waiters {
        drivers.push(Driver::connect_with(system, &servers.addresses, n, settings).await?);
    }
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    let mut drivers = drivers.into_iter().enumerate();
    let (n, first) = drivers.next().context("there is always a holder")?;
    tasks.spawn(client(first, n, shared.clone()));
    let mut served = Vec::with_capacity(waiters + 1);
    granted(&mut tells, &mut tasks, &mut served).await?;
    for (n, driver) in drivers {
        tasks.spawn(client(driver, n, shared.clone()));
    }
    let asking = wait_until_quiet(servers).await?;
    let queued = begun.elapsed();
    let (mut received, mut sent, mut waits) = (Vec::new(), Vec::new(), Latency::default());
    for _ in 0..RELEASES.min(waiters) {
        let before = servers.messages().await?;
        shared.turn.notify_one();
        waits.record(granted(&mut tells, &mut tasks, &mut served).await?);
        tokio::time::sleep(SETTLE).await;
        let messages = servers.messages().await? - before - asking;
        received.push(messages.received);
        sent.push(messages.sent);
    }
    let draining = Instant::now();
    shared.drains.store(true, Ordering::SeqCst);
    shared.turn.notify_one();
    while let Some(end) = tasks.join_next().await {
        served.push(end.map_err(|panic| anyhow!("a client panicked: {panic}"))??);
    }
    let drained = draining.elapsed();
    for driver in served {
        driver.close().await?;
    }
    Ok(Trial::new(system, "herd", waiters as u64, round)
        .with("messages_in_per_release", median(&mut received))
        .with("messages_out_per_release", median(&mut sent))
        .with("release_to_grant_p50_ms", waits.ms(0.50))
        .with("release_to_grant_max_ms", waits.ms(1.0))
        .with("all_queued_s", queued.as_secs_f64())
        .with("all_served_s", drained.as_secs_f64()))
}

/// Returns after the release, with the session still open: a close would cost messages, too.
async fn client(mut driver: Driver, n: usize, shared: Arc<Shared>) -> Result<Driver> {
    driver.acquire(&shared.lock).await?;
    let granted = Instant::now();
    shared.witness.enter(n)?;
    // The receiver is gone while the rest of the queue is served.
    let _ = shared.told.send(Told::Granted(granted));
    if !shared.drains.load(Ordering::SeqCst) {
        shared.turn.notified().await;
    }
    shared.witness.leave();
    let _ = shared.told.send(Told::Releases(Instant::now()));
    driver.release().await?;
    Ok(driver)
}

/// Waits for a grant and returns its time after the release (the first grant follows no release).
async fn granted(
    tells: &mut mpsc::UnboundedReceiver<Told>,
    tasks: &mut JoinSet<Result<Driver>>,
    served: &mut Vec<Driver>,
) -> Result<Duration> {
    let mut released = None;
    loop {
        tokio::select! {
            biased;
            told = tells.recv() => match told.context("all clients are gone")? {
                Told::Releases(at) => released = Some(at),
                Told::Granted(at) => return Ok(released.map_or(Duration::ZERO, |released| at - released)),
            },
            Some(end) = tasks.join_next() => {
                served.push(end.map_err(|panic| anyhow!("a client panicked: {panic}"))??);
            }
        }
    }
}

/// Waits until all clients are in the queue and none sends any more. Returns the messages that one query of
/// the counters adds to them.
async fn wait_until_quiet(servers: &Servers) -> Result<Messages> {
    let begun = Instant::now();
    let mut quiet = 0;
    loop {
        let first = servers.messages().await?;
        let asking = servers.messages().await? - first;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let meanwhile = servers.messages().await? - first - asking - asking;
        quiet = if meanwhile == Messages::default() { quiet + 1 } else { 0 };
        if quiet == 5 {
            return Ok(asking);
        }
        if begun.elapsed() > WAIT_MAX {
            bail!("the clients still send after {WAIT_MAX:?}");
        }
    }
}

/// Returns the median: unlike a mean, the median ignores a stray keepalive.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn one_stray_heartbeat_does_not_move_the_count() {
        assert_eq!(median(&mut [2.0, 2.0, 3.0, 2.0, 2.0]), 2.0);
        assert_eq!(median(&mut []), 0.0);
    }
}
