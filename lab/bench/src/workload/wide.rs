//! Cycles of many tasks that share one client, each time on another lock, while a property of the locks
//! grows: their number in one folder, the length and depth of their paths, the number of the session's other
//! locks. So nodes make hardly any system call beyond the lock's own work. Rowlock only. No such cost should
//! grow.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use rowlock_client::{Client, Guard};
use tokio::task::JoinSet;

use super::cluster;
use super::phase::{self, Phase, Times};
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Number of tasks. Their locks differ, so no task waits for another.
const TASKS: usize = 256;
/// Number of locks while another property grows: four for each task.
const LOCKS: usize = 1024;
/// Below the limit of 1,024 queue positions per session: each task needs one.
const PLACES_MAX: u64 = 700;
/// Length of a slash and the lock's number.
const LAST_NAME: usize = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    Locks,
    /// Bytes of a lock's path with two levels.
    PathBytes,
    /// Levels of a lock's path.
    Levels,
    /// Other locks that the same session holds.
    Places,
}

impl Growth {
    fn name(self) -> &'static str {
        match self {
            Growth::Locks => "scale-locks",
            Growth::PathBytes => "scale-paths",
            Growth::Levels => "scale-depth",
            Growth::Places => "scale-places",
        }
    }

    /// Returns the number of locks, and their folder.
    fn locks(self, size: u64) -> Result<(usize, String)> {
        let count = usize::try_from(size)?;
        Ok(match self {
            Growth::Locks => {
                ensure!((TASKS..=999_999).contains(&count), "{TASKS} to 999,999 locks");
                (count, "/scale".to_owned())
            }
            Growth::PathBytes => {
                ensure!((10..=1000).contains(&count), "a path of 10 to 1,000 bytes");
                (LOCKS, format!("/{}", "f".repeat(count - LAST_NAME - 1)))
            }
            Growth::Levels => {
                ensure!((2..=64).contains(&count), "2 to 64 levels");
                (LOCKS, "/d".repeat(count - 1))
            }
            Growth::Places => {
                ensure!(size <= PLACES_MAX, "at most {PLACES_MAX} others");
                (LOCKS, "/scale".to_owned())
            }
        })
    }
}

/// Returns the paths of one task's locks among the `locks` of the folder.
fn paths(folder: &str, locks: usize, task: usize) -> Vec<String> {
    (task..locks).step_by(TASKS).map(|n| format!("{folder}/{n:0digits$}", digits = LAST_NAME - 1)).collect()
}

/// Measures cycles beside many locks or long paths.
///
/// # Errors
/// The client was refused or cut off, or the size is not measurable.
pub async fn run(servers: &Servers, growth: Growth, size: u64, round: u32, times: Times) -> Result<Trial> {
    let (locks, folder) = growth.locks(size)?;
    let client = cluster::session(servers).await?;
    let others = if growth == Growth::Places { hold(&client, size).await? } else { Vec::new() };
    // The first round creates the locks' znodes.
    let mut making = JoinSet::new();
    for task in 0..TASKS {
        let (client, paths) = (client.clone(), paths(&folder, locks, task));
        making.spawn(async move {
            for path in &paths {
                client.mutex_at(path).lock().await?.release().await?;
            }
            Ok(())
        });
    }
    phase::gather(making).await?;
    let phase = Arc::new(Phase::default());
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(cycles(client.clone(), paths(&folder, locks, task), phase.clone()));
    }
    tokio::time::sleep(times.warm_up).await;
    let cost = phase.count(servers, times.measured).await?;
    let mut seen = Latency::default();
    for cycle in phase::gather(tasks).await? {
        seen.add(&cycle);
    }
    for guard in others {
        guard.release().await?;
    }
    client.close().await?;
    let count = seen.count() as f64;
    Ok(Trial::new(System::Rowlock, growth.name(), size, round)
        .with("cycles_per_s", cost.per_s(count))
        .with("cycle_p50_ms", seen.ms(0.5))
        .with("cycle_p99_ms", seen.ms(0.99))
        .with("servers_cpu_us_per_cycle", cost.servers_us(count))
        .with("client_cpu_us_per_cycle", cost.client_us(count)))
}

/// Acquires locks that stay held all the time.
async fn hold(client: &Client, count: u64) -> Result<Vec<Guard>> {
    let mut held = Vec::new();
    for n in 0..count {
        held.push(client.mutex_at(format!("/held/{n:06}")).lock().await?);
    }
    Ok(held)
}

async fn cycles(client: Client, paths: Vec<String>, phase: Arc<Phase>) -> Result<Latency> {
    let mut seen = Latency::default();
    for path in paths.iter().cycle() {
        if phase.is_over() {
            break;
        }
        let begun = Instant::now();
        client.mutex_at(path).lock().await?.release().await?;
        if phase.counts() {
            seen.record(begun.elapsed());
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn paths_have_the_wanted_size_and_belong_to_one_task() {
        for (growth, size) in
            [(Growth::Locks, 1000), (Growth::PathBytes, 20), (Growth::Levels, 8), (Growth::Places, 5)]
        {
            let (locks, folder) = growth.locks(size).unwrap();
            let all: Vec<String> = (0..TASKS).flat_map(|task| paths(&folder, locks, task)).collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), locks, "{growth:?}");
            assert_eq!(all.len(), locks, "{growth:?}");
            assert!((0..TASKS).all(|task| !paths(&folder, locks, task).is_empty()), "{growth:?}");
            match growth {
                Growth::PathBytes => assert!(all.iter().all(|path| path.len() == 20), "{}", all[0]),
                Growth::Levels => assert!(all.iter().all(|path| path.matches('/').count() == 8)),
                Growth::Locks | Growth::Places => {}
            }
        }
        assert!(Growth::Locks.locks(10).is_err() && Growth::Levels.locks(1).is_err());
    }
}
