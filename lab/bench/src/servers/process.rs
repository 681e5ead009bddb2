//! One server process, and its costs so far.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use tokio::process::{Child, Command};

/// Server process, killed when dropped, by its own id.
pub struct Process {
    child: Child,
    command: Command,
    log: PathBuf,
}

impl Process {
    /// Starts the program with stdout and stderr appended to `log`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Result<Process> {
        let child = spawn(&mut command, log)?;
        Ok(Process { child, command, log: log.to_owned() })
    }

    /// Kills the process if still running, and starts the same command again. The log is appended to.
    ///
    /// # Errors
    /// The same as [`Process::start`] and [`Process::kill`].
    pub async fn restart(&mut self) -> Result<()> {
        if self.id().is_some() {
            self.kill().await?;
        }
        self.child = spawn(&mut self.command, &self.log)?;
        Ok(())
    }

    /// Returns the process id of a running process.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Returns the processor time so far, user and system.
    ///
    /// # Errors
    /// The process has ended.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(self.id().context("the server is gone")?)
    }

    /// Returns the resident memory in bytes.
    ///
    /// # Errors
    /// The process has ended.
    pub fn resident(&self) -> Result<u64> {
        let status =
            std::fs::read_to_string(format!("/proc/{}/statm", self.id().context("the server is gone")?))?;
        let pages: u64 = status.split(' ').nth(1).context("statm without a second field")?.parse()?;
        Ok(pages * rustix::param::page_size() as u64)
    }
}

impl Process {
    /// Returns the proportional resident memory in bytes: memory shared by n processes counts 1/n for each.
    ///
    /// # Errors
    /// The process has ended.
    pub fn proportional(&self) -> Result<u64> {
        let id = self.id().context("the server is gone")?;
        let sums = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup"))?;
        let line = sums.lines().find_map(|line| line.strip_prefix("Pss:")?.strip_suffix("kB"));
        Ok(line.context("smaps_rollup without Pss")?.trim().parse::<u64>()? << 10)
    }
}

fn spawn(command: &mut Command, log: &Path) -> Result<Child> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("opening {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {:?}", command.as_std().get_program()))
}

/// Returns the processor time of any process of this user.
fn cpu_of(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").context("stat without a name")?;
    // utime and stime are fields 14 and 15 of proc(5); the rest begins with field 3.
    let ticks: u64 = rest.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Returns the processor time of this process: the load generator.
///
/// # Errors
/// A processor time before zero.
pub fn own_cpu() -> Result<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ProcessCPUTime))?)
}
