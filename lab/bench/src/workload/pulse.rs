//! Steady rate of acquire and release on Rowlock during another operation. Each client has its own lock and
//! starts a cycle at fixed moments. A cycle's time counts from its planned start, so a standstill shows in
//! every delayed cycle, not only in the cycles under way.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;

use super::phase;
use crate::drivers::Driver;
use crate::latency::Latency;
use crate::servers::Servers;
use crate::servers::process::own_cpu;
use crate::system::System;

/// Load of the clients.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    pub clients: usize,
    /// Interval of one client's cycles; zero means at once.
    pub every: Duration,
}

/// Low load: 400 cycles per second altogether.
pub const LIGHT: Beat = Beat { clients: 8, every: Duration::from_millis(20) };
/// Full load: each client starts a cycle after the last answer.
pub const FULL: Beat = Beat { clients: 64, every: Duration::ZERO };

pub struct Pulse {
    /// Durations of whole cycles, from their planned starts.
    pub cycle: Latency,
    /// Processor time of all servers meanwhile.
    pub servers_cpu: Duration,
    pub client_cpu: Duration,
    /// Duration of the pulse.
    pub took: Duration,
}

impl Pulse {
    pub fn per_second(&self) -> f64 {
        self.cycle.count() as f64 / self.took.as_secs_f64()
    }

    /// Returns the processor time of the servers per cycle, in microseconds.
    pub fn servers_us(&self) -> f64 {
        self.servers_cpu.as_micros() as f64 / self.cycle.count().max(1) as f64
    }
}

/// Runs the load for `during`, after a short warm-up.
///
/// # Errors
/// A client was refused or cut off.
pub async fn run(servers: &Servers, beat: Beat, during: Duration) -> Result<Pulse> {
    const WARM_UP: Duration = Duration::from_millis(500);
    let drivers = phase::connect(System::Rowlock, servers, beat.clients).await?;
    let from = Instant::now() + WARM_UP;
    let until = from + during;
    let mut tasks = JoinSet::new();
    for (n, driver) in drivers.into_iter().enumerate() {
        tasks.spawn(client(driver, n, beat, from, until));
    }
    tokio::time::sleep_until(from.into()).await;
    let (servers_before, own_before) = (servers.cpu()?, own_cpu()?);
    tokio::time::sleep_until(until.into()).await;
    let took = from.elapsed();
    let (servers_cpu, client_cpu) = (servers.cpu()? - servers_before, own_cpu()? - own_before);
    let mut cycle = Latency::default();
    for seen in phase::gather(tasks).await? {
        cycle.add(&seen);
    }
    Ok(Pulse { cycle, servers_cpu, client_cpu, took })
}

async fn client(mut driver: Driver, n: usize, beat: Beat, from: Instant, until: Instant) -> Result<Latency> {
    let lock = format!("pulse-{n}");
    let mut seen = Latency::default();
    // The clients' starts are spread over one interval.
    let mut due = Instant::now() + beat.every * n as u32 / beat.clients as u32;
    while due < until {
        tokio::time::sleep_until(due.into()).await;
        driver.acquire(&lock).await?;
        driver.release().await?;
        let done = Instant::now();
        if due >= from {
            seen.record(done - due);
        }
        due = if beat.every.is_zero() { done } else { due + beat.every };
    }
    driver.close().await?;
    Ok(seen)
}
