//! A large tree: how a snapshot of it slows other requests, how long a restart takes, what a znode weighs.

use std::time::Duration;

use anyhow::{Result, bail};

use super::phase::Times;
use super::{cluster, pulse};
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Bytes in each znode.
const DATA_BYTES: usize = 100;
/// 800 cycles per second: half of what would be noticed by the machine even while it writes a snapshot.
const BEAT: pulse::Beat = pulse::Beat { clients: 16, every: Duration::from_millis(20) };
/// More entries than a trial has.
const NO_SNAPSHOTS: &str = "snapshot_every = 1000000000";
/// A snapshot about every two seconds.
const SNAPSHOTS: &str = "snapshot_every = 2000";

/// One trial, on servers of its own: their settings are changed.
///
/// # Errors
/// The servers do not come back, no snapshot was taken, or a client was refused.
pub async fn run(servers: &mut Servers, znodes: u64, round: u32, times: Times) -> Result<Trial> {
    cluster::settings(servers, NO_SNAPSHOTS)?;
    cluster::restart(servers).await?;
    let resident_before = servers.resident()? as f64;
    let filled = cluster::fill(servers, znodes, DATA_BYTES).await?;
    let resident = servers.resident()? as f64;
    let without = pulse::run(servers, BEAT, times.measured).await?;
    let from_log = cluster::restart(servers).await?;
    cluster::settings(servers, SNAPSHOTS)?;
    cluster::restart(servers).await?;
    let written_before = written(servers).await?;
    let beside = pulse::run(servers, BEAT, times.measured).await?;
    let snapshots = written(servers).await? - written_before;
    if snapshots < 1.0 {
        bail!("no snapshot was written in {:?}", times.measured);
    }
    let snapshot_bytes = cluster::metric(servers, "rowlock_snapshot_bytes").await?;
    cluster::settings(servers, NO_SNAPSHOTS)?;
    let from_snapshot = cluster::restart(servers).await?;
    let nodes = servers.processes.len() as f64;
    Ok(Trial::new(System::Rowlock, "snapshot", znodes, round)
        .with("without_p50_ms", without.cycle.ms(0.5))
        .with("without_p999_ms", without.cycle.ms(0.999))
        .with("without_longest_ms", without.cycle.ms(1.0))
        .with("beside_p50_ms", beside.cycle.ms(0.5))
        .with("beside_p999_ms", beside.cycle.ms(0.999))
        .with("beside_longest_ms", beside.cycle.ms(1.0))
        .with("snapshots_per_node", snapshots / nodes)
        .with("snapshot_mb", snapshot_bytes / nodes / 1e6)
        .with("restart_from_log_s", from_log.as_secs_f64())
        .with("restart_from_snapshot_s", from_snapshot.as_secs_f64())
        .with("filled_znodes_per_s", znodes as f64 / filled.as_secs_f64())
        .with("resident_bytes_per_znode_and_node", (resident - resident_before) / nodes / znodes as f64))
}

async fn written(servers: &Servers) -> Result<f64> {
    cluster::metric(servers, "rowlock_snapshots_written_total").await
}
