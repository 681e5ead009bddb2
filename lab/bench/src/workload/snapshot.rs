//! Large tree: the delay of other requests by a snapshot or a backup, the duration of a restart, the memory
//! of a znode.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use super::phase::Times;
use super::{cluster, pulse};
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

const DATA_BYTES: usize = 100;
/// Load of 800 cycles per second: half of a noticeable load even while the machine writes a snapshot.
const BEAT: pulse::Beat = pulse::Beat { clients: 16, every: Duration::from_millis(20) };
/// Interval beyond the entries of a trial.
const NO_SNAPSHOTS: &str = "snapshot_every = 1000000000";
/// Interval of about two seconds.
const SNAPSHOTS: &str = "snapshot_every = 2000";

/// Runs one trial, on servers of its own: the trial changes their settings.
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
    // The cycles and the backup run at once; the backup may take longer than the cycles are measured.
    let (beside_backup, backup) = tokio::join!(pulse::run(servers, BEAT, times.measured), back_up(servers));
    let (beside_backup, (backup_took, backup_bytes)) = (beside_backup?, backup?);
    let nodes = servers.processes.len() as f64;
    Ok(Trial::new(System::Rowlock, "snapshot", znodes, round)
        .with("without_p50_ms", without.cycle.ms(0.5))
        .with("without_p999_ms", without.cycle.ms(0.999))
        .with("without_longest_ms", without.cycle.ms(1.0))
        .with("beside_p50_ms", beside.cycle.ms(0.5))
        .with("beside_p999_ms", beside.cycle.ms(0.999))
        .with("beside_longest_ms", beside.cycle.ms(1.0))
        .with("backup_p999_ms", beside_backup.cycle.ms(0.999))
        .with("backup_longest_ms", beside_backup.cycle.ms(1.0))
        .with("backup_took_s", backup_took.as_secs_f64())
        .with("backup_mb", backup_bytes as f64 / 1e6)
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

/// Runs `rowlock backup save`; returns its duration, and the size of its file in bytes.
async fn back_up(servers: &Servers) -> Result<(Duration, u64)> {
    let file = servers.folder.join("state.backup");
    let begun = Instant::now();
    let mut command = Command::new(crate::servers::rowlock_binary()?);
    command.args(["backup", "save", "--force", "--endpoints", &servers.addresses.join(",")]).arg(&file);
    let output = command.env("ROWLOCK_AUTH", "digest:super:test").output().await?;
    if !output.status.success() {
        bail!("rowlock backup save: {}", String::from_utf8_lossy(&output.stderr));
    }
    let took = begun.elapsed();
    let bytes = std::fs::metadata(&file).with_context(|| format!("{}", file.display()))?.len();
    std::fs::remove_file(&file)?;
    Ok((took, bytes))
}
