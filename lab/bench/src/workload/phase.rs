//! Phases of a trial under load: warm-up, counted time, end; and the cost of the counted time.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tokio::task::JoinSet;

use crate::drivers::Driver;
use crate::servers::Servers;
use crate::servers::process::own_cpu;
use crate::system::System;

/// Durations of a trial's warm-up and counted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub warm_up: Duration,
    pub measured: Duration,
}

/// Phase after the warm-up, which is 0.
const COUNTED: u8 = 1;
const PAUSED: u8 = 2;
const OVER: u8 = 3;

/// Current phase of the trial, read by all of its clients.
#[derive(Default)]
pub struct Phase(AtomicU8);

impl Phase {
    /// Reports whether the present time counts.
    pub fn counts(&self) -> bool {
        self.0.load(Ordering::Relaxed) == COUNTED
    }

    /// Reports whether clients must end after their next release.
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OVER
    }

    /// Counts for `measured`; then the trial is over.
    ///
    /// # Errors
    /// A server is gone.
    pub async fn count(&self, servers: &Servers, measured: Duration) -> Result<Cost> {
        self.count_until(servers, measured, measured, || true).await
    }

    /// Counts until `is_enough`, but at least for `least` and at most for `most`; then the trial is over.
    ///
    /// # Errors
    /// A server is gone.
    pub async fn count_until(
        &self,
        servers: &Servers,
        least: Duration,
        most: Duration,
        is_enough: impl Fn() -> bool,
    ) -> Result<Cost> {
        const LOOK_EVERY: Duration = Duration::from_millis(50);
        let (servers_before, own_before, begun) = (servers.cpu()?, own_cpu()?, Instant::now());
        self.0.store(COUNTED, Ordering::SeqCst);
        tokio::time::sleep(least).await;
        while begun.elapsed() < most && !is_enough() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.0.store(PAUSED, Ordering::SeqCst);
        let took = begun.elapsed();
        let servers = servers.cpu()?.saturating_sub(servers_before);
        let client = own_cpu()?.saturating_sub(own_before);
        self.0.store(OVER, Ordering::SeqCst);
        Ok(Cost { took, servers, client })
    }
}

/// Cost of the counted time.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub took: Duration,
    servers: Duration,
    client: Duration,
}

impl Cost {
    pub fn per_s(&self, count: f64) -> f64 {
        count / self.took.as_secs_f64()
    }

    /// Returns the processor time of all servers per operation, in µs.
    pub fn servers_us(&self, count: f64) -> f64 {
        self.servers.as_micros() as f64 / count.max(1.0)
    }

    /// Returns the processor time of the load generator per operation, in µs.
    pub fn client_us(&self, count: f64) -> f64 {
        self.client.as_micros() as f64 / count.max(1.0)
    }
}

/// Connects `clients` clients, each with its own connection.
///
/// # Errors
/// The servers cannot be reached, or refuse.
pub async fn connect(system: System, servers: &Servers, clients: usize) -> Result<Vec<Driver>> {
    let mut drivers = Vec::with_capacity(clients);
    for n in 0..clients {
        drivers.push(Driver::connect(system, &servers.addresses, n).await?);
    }
    Ok(drivers)
}

/// Waits for all clients, and returns their results.
///
/// # Errors
/// The error of the first client that failed.
pub async fn gather<T: 'static>(mut clients: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut all = Vec::with_capacity(clients.len());
    while let Some(seen) = clients.join_next().await {
        all.push(seen.map_err(|panic| anyhow!("a client panicked: {panic}"))??);
    }
    Ok(all)
}
