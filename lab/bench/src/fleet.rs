//! Servers of a run: each server starts on first use and runs until the end.
//!
//! All servers stay up all the time. A start of ZooKeeper for every trial would take most of the run. A stop
//! of processes (SIGSTOP) between their turns costs a cluster its leader and its sessions, which shows in its
//! next trial. The results include the measured load of the idle servers; the sum is a few percent of one
//! core.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::servers::Servers;
use crate::servers::programs::Programs;
use crate::system::System;
use crate::workload::Workload;
use crate::workload::phase::Times;

const WARM_UP_CLIENTS: u64 = 256;

/// Running servers, by system. Rowlock's servers serve both of its clients.
pub struct Fleet {
    folder: PathBuf,
    programs: Programs,
    running: BTreeMap<System, Servers>,
    /// Load time of a Java server before its first trial, for the compilation of its code.
    java_warm_up: Duration,
}

/// Returns the system whose servers `system` uses.
fn host(system: System) -> System {
    match system {
        System::RowlockPlain | System::RowlockTls => System::Rowlock,
        other => other,
    }
}

impl Fleet {
    /// Creates a fleet without servers, with their later data below `folder`.
    pub fn new(folder: &Path, programs: Programs, java_warm_up: Duration) -> Fleet {
        Fleet { folder: folder.to_owned(), programs, running: BTreeMap::new(), java_warm_up }
    }

    /// Returns the servers of a system, and starts and warms them up on first use.
    ///
    /// # Errors
    /// The servers are not installed, or do not come up.
    pub async fn servers(&mut self, system: System) -> Result<&mut Servers> {
        let system = host(system);
        if !self.running.contains_key(&system) {
            let mut servers = self.start(system).await?;
            let measured =
                if system == System::Zookeeper { self.java_warm_up } else { Duration::from_millis(500) };
            let times = Times { warm_up: Duration::ZERO, measured };
            let warm_up = Workload::Uncontended.run(system, &mut servers, WARM_UP_CLIENTS, 0, times);
            warm_up.await.with_context(|| format!("warming up {system}"))?;
            self.running.insert(system, servers);
        }
        self.running.get_mut(&system).context("just started")
    }

    /// Returns fresh servers of the system: ends the running servers and removes their data.
    ///
    /// # Errors
    /// The same as [`Fleet::servers`].
    pub async fn fresh(&mut self, system: System) -> Result<&mut Servers> {
        let system = host(system);
        self.end(system).await?;
        let servers = self.start(system).await?;
        Ok(self.running.entry(system).or_insert(servers))
    }

    /// Ends the servers of a system, if running.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn end(&mut self, system: System) -> Result<()> {
        match self.running.remove(&host(system)) {
            Some(servers) => servers.stop().await,
            None => Ok(()),
        }
    }

    /// Ends all servers of all systems.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn end_all(&mut self) -> Result<()> {
        while let Some((_, servers)) = self.running.pop_first() {
            servers.stop().await?;
        }
        Ok(())
    }

    /// Measures the processor time of the running servers without requests, in percent of one core.
    ///
    /// # Errors
    /// A server is gone.
    pub async fn idle_cpu_percent(&self, during: Duration) -> Result<BTreeMap<System, f64>> {
        let before = self.cpu()?;
        let begun = Instant::now();
        tokio::time::sleep(during).await;
        let percent = |took: Duration| 100.0 * took.as_secs_f64() / begun.elapsed().as_secs_f64();
        let after = self.cpu()?;
        Ok(after.into_iter().map(|(system, cpu)| (system, percent(cpu - before[&system]))).collect())
    }

    fn cpu(&self) -> Result<BTreeMap<System, Duration>> {
        self.running.iter().map(|(system, servers)| Ok((*system, servers.cpu()?))).collect()
    }

    async fn start(&self, system: System) -> Result<Servers> {
        let folder = self.folder.join(system.name());
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", folder.display()));
            }
            _ => {}
        }
        let begun = Instant::now();
        let servers = Servers::start(system, &folder, &self.programs).await?;
        eprintln!(
            "{} serves after {:.1} s: {}",
            servers.version,
            begun.elapsed().as_secs_f64(),
            servers.durability
        );
        Ok(servers)
    }
}
