//! One server process, and what it has cost so far.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::{Child, Command};

/// Killed when dropped.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts it with stdout and stderr in `log`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command, log: &Path) -> Result<Process> {
        let file = std::fs::File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {:?}", command.as_std().get_program()))?;
        Ok(Process { child })
    }

    /// Its id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Time on processors so far, user and system.
    ///
    /// # Errors
    /// It runs no more.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(self.id().context("the server is gone")?)
    }

    /// Resident memory, bytes.
    ///
    /// # Errors
    /// It runs no more.
    pub fn resident(&self) -> Result<u64> {
        let status =
            std::fs::read_to_string(format!("/proc/{}/statm", self.id().context("the server is gone")?))?;
        let pages: u64 = status.split(' ').nth(1).context("statm without a second field")?.parse()?;
        Ok(pages * rustix::param::page_size() as u64)
    }
}

/// Of any process of this user.
fn cpu_of(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").context("stat without a name")?;
    // utime and stime are fields 14 and 15 of proc(5); the rest begins with field 3.
    let ticks: u64 = rest.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Of this process: the load generator.
///
/// # Errors
/// /proc cannot be read.
pub fn own_cpu() -> Result<Duration> {
    cpu_of(std::process::id())
}
