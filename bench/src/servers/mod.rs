//! Real servers of every system, started by us on loopback with the durability that the tables state, and ended by
//! their own process ids.

mod rowlock;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::system::System;
use process::Process;

pub mod process;

/// The running servers of one system.
pub struct Servers {
    /// Where clients connect; server k is `processes[k]`.
    pub addresses: Vec<String>,
    /// In the order of `addresses`.
    pub processes: Vec<Process>,
    /// What is durable before an answer, in words.
    pub durability: String,
    /// Of the servers, as they say.
    pub version: String,
    system: System,
}

impl Servers {
    /// Starts them with empty data in `folder` and returns when they serve.
    ///
    /// # Errors
    /// The programs are not installed, a port is taken, or they do not serve within a minute.
    pub async fn start(system: System, folder: &Path) -> Result<Servers> {
        match system {
            System::Rowlock | System::RowlockPlain => rowlock::start(system, folder).await,
            _ => bail!("not yet"),
        }
    }

    /// Time that all of them have spent on processors so far.
    ///
    /// # Errors
    /// One of them is gone.
    pub fn cpu(&self) -> Result<Duration> {
        self.processes.iter().map(Process::cpu).sum()
    }

    /// Which of the processes leads, if the system has leaders.
    ///
    /// # Errors
    /// Nobody says that he leads.
    pub async fn leader(&self) -> Result<usize> {
        match self.system {
            System::Rowlock | System::RowlockPlain => rowlock::leader(&self.addresses).await,
            other => bail!("{other} has no leader"),
        }
    }
}
