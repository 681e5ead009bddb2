//! N clients, each with its own lock, acquire and release as fast as the servers answer. Variants: tasks
//! share one client, so that a socket costs little; the client does not wait for the answer to the release,
//! which then travels with the next acquire; or the client pauses before each cycle, like a service that
//! locks now and then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior};

use super::phase::{self, Phase, Times};
use crate::drivers::Driver;
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Start of a client's next cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// After the answer to the release.
    Awaited,
    /// Like [`Manner::Awaited`]; all tasks use one client, with one session and one connection.
    Shared,
    /// After sending the release.
    Posted,
    /// At a fixed rate, or after the answer to the release, whichever is later.
    Paced {
        /// Cycles of each client; from 1 to 1,000.
        per_second: u64,
    },
}

/// Measurements of one client.
#[derive(Default)]
struct Seen {
    cycles: u64,
    acquire: Latency,
    release: Latency,
}

/// Measures cycles of clients with their own locks.
///
/// # Errors
/// A client was refused or cut off.
pub async fn run(
    system: System,
    servers: &Servers,
    clients: usize,
    round: u32,
    times: Times,
    manner: Manner,
) -> Result<Trial> {
    let (name, size) = match manner {
        Manner::Awaited => ("uncontended", clients as u64),
        Manner::Shared => ("shared", clients as u64),
        Manner::Posted => ("posted", clients as u64),
        Manner::Paced { per_second } => {
            ensure!((1..=1000).contains(&per_second), "the size is cycles per second, from 1 to 1000");
            ("light", per_second)
        }
    };
    let phase = Arc::new(Phase::default());
    let mut tasks = JoinSet::new();
    let drivers = match manner {
        Manner::Shared => Driver::share(system, &servers.addresses, clients).await?,
        _ => phase::connect(system, servers, clients).await?,
    };
    for (n, driver) in drivers.into_iter().enumerate() {
        tasks.spawn(client(driver, format!("bench-own-{n}"), phase.clone(), manner));
    }
    tokio::time::sleep(times.warm_up).await;
    let cost = phase.count(servers, times.measured).await?;
    let mut all = Seen::default();
    for seen in phase::gather(tasks).await? {
        all.cycles += seen.cycles;
        all.acquire.add(&seen.acquire);
        all.release.add(&seen.release);
    }
    let cycles = all.cycles as f64;
    let trial = Trial::new(system, name, size, round)
        .with("cycles_per_s", cost.per_s(cycles))
        .with("acquire_p50_ms", all.acquire.ms(0.50))
        .with("acquire_p99_ms", all.acquire.ms(0.99))
        .with("servers_cpu_us_per_cycle", cost.servers_us(cycles))
        .with("client_cpu_us_per_cycle", cost.client_us(cycles));
    Ok(match manner {
        Manner::Awaited | Manner::Shared | Manner::Paced { .. } => {
            trial.with("release_p50_ms", all.release.ms(0.50)).with("release_p99_ms", all.release.ms(0.99))
        }
        Manner::Posted => trial,
    })
}

async fn client(mut driver: Driver, lock: String, phase: Arc<Phase>, manner: Manner) -> Result<Seen> {
    let (mut seen, mut pace) = (Seen::default(), Pace::of(manner));
    while !phase.is_over() {
        pace.rest().await;
        let begun = Instant::now();
        driver.acquire(&lock).await?;
        let held = Instant::now();
        match manner {
            // The last release waits for its answer: the locks are free when the trial is over.
            Manner::Posted if !phase.is_over() => driver.post_release()?,
            _ => driver.release().await?,
        }
        let released = Instant::now();
        if phase.counts() {
            seen.cycles += 1;
            seen.acquire.record(held - begun);
            seen.release.record(released - held);
        }
    }
    // Other tasks may still use a shared client.
    if manner != Manner::Shared {
        driver.close().await?;
    }
    Ok(seen)
}

/// Start of the next cycle; `None` means at once.
struct Pace(Option<Interval>);

impl Pace {
    fn of(manner: Manner) -> Pace {
        let Manner::Paced { per_second } = manner else { return Pace(None) };
        let mut ticks = tokio::time::interval(Duration::from_secs(1).div_f64(per_second as f64));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Pace(Some(ticks))
    }

    async fn rest(&mut self) {
        if let Some(ticks) = &mut self.0 {
            ticks.tick().await;
        }
    }
}
