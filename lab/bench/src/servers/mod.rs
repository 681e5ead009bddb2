//! Real servers of every system: started on loopback with the durability that the tables state, and stopped
//! by their process ids.

mod etcd;
pub mod messages;
mod redis;
mod rowlock;
mod zookeeper;

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::system::System;
use messages::Messages;
use process::Process;
use programs::Programs;
pub use rowlock::binary as rowlock_binary;

pub mod process;
pub mod programs;
pub mod words;

/// Longest time until servers serve.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Running servers of one system.
pub struct Servers {
    /// Addresses for clients; server k is `processes[k]`.
    pub addresses: Vec<String>,
    /// Processes in the order of `addresses`.
    pub processes: Vec<Process>,
    /// Description of the data that is durable before an answer.
    pub durability: String,
    pub version: String,
    /// Folder of the servers' data and logs.
    pub folder: PathBuf,
    system: System,
}

impl Servers {
    /// Starts servers with empty data in `folder` and returns when they serve.
    ///
    /// # Errors
    /// The programs are not installed, a port is taken, or the servers do not serve within a minute.
    pub async fn start(system: System, folder: &Path, programs: &Programs) -> Result<Servers> {
        match system {
            System::Rowlock | System::RowlockTls | System::RowlockPlain => {
                rowlock::start(system, folder).await
            }
            System::Zookeeper => zookeeper::start(system, folder, programs).await,
            System::Etcd => etcd::start(system, folder, programs).await,
            System::Redis | System::RedisFsync | System::Redlock => redis::start(system, folder).await,
        }
    }

    /// Attaches to servers that another program starts and stops: their processes, and so their costs, are
    /// unknown.
    pub fn attach(system: System, addresses: Vec<String>) -> Servers {
        let unknown = "as it was started; not known here".to_owned();
        let (processes, version, folder) = (Vec::new(), String::new(), PathBuf::new());
        Servers { addresses, processes, durability: unknown, version, folder, system }
    }

    /// Returns the resident memory of all servers, in bytes.
    ///
    /// # Errors
    /// A server is gone.
    pub fn resident(&self) -> Result<u64> {
        self.processes.iter().map(Process::resident).sum()
    }

    /// Returns the resident memory of all servers, in bytes; shared memory counts once.
    ///
    /// # Errors
    /// A server is gone.
    pub fn proportional(&self) -> Result<u64> {
        self.processes.iter().map(Process::proportional).sum()
    }

    /// Returns the processor time of all servers so far.
    ///
    /// # Errors
    /// A server is gone.
    pub fn cpu(&self) -> Result<Duration> {
        self.processes.iter().map(Process::cpu).sum()
    }

    /// Returns the index of the leader's process, in a system with leaders.
    ///
    /// # Errors
    /// No server reports that it leads.
    pub async fn leader(&self) -> Result<usize> {
        match self.system {
            System::Rowlock | System::RowlockPlain | System::Zookeeper => {
                words::leader(&self.addresses).await
            }
            System::Etcd => etcd::leader(&self.addresses).await,
            other => bail!("{other} has no leader"),
        }
    }

    /// Kills all servers and waits for their ends, so that their ports are free.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn stop(mut self) -> Result<()> {
        for process in &mut self.processes {
            if process.id().is_some() {
                process.kill().await?;
            }
        }
        Ok(())
    }

    /// Restarts server `k` with its data, kills the server first if still running, and returns when the
    /// server serves.
    ///
    /// # Errors
    /// The server does not come back within a minute.
    pub async fn restart(&mut self, k: usize) -> Result<()> {
        self.processes[k].restart().await?;
        let begun = Instant::now();
        while !self.serves(k).await {
            if begun.elapsed() > WAIT_MAX {
                let (address, folder) = (&self.addresses[k], self.folder.display());
                bail!("{address} of {} does not come back: see {folder}", self.system);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn serves(&self, k: usize) -> bool {
        let address = &self.addresses[k];
        match self.system {
            System::Rowlock | System::RowlockTls | System::RowlockPlain | System::Zookeeper => {
                words::word(address, "srvr").await.is_ok_and(|answer| answer.contains("Mode: "))
            }
            System::Etcd => etcd::serves(address).await,
            System::Redis | System::RedisFsync | System::Redlock => redis::serves(address).await,
        }
    }

    /// Returns the messages between clients and all servers so far.
    ///
    /// # Errors
    /// The servers do not count messages, or do not answer.
    pub async fn messages(&self) -> Result<Messages> {
        match self.system {
            System::Rowlock | System::RowlockPlain | System::Zookeeper => {
                messages::by_word(&self.addresses).await
            }
            System::Etcd => messages::by_metrics(&self.addresses).await,
            other => bail!("{other} does not count messages"),
        }
    }
}

/// Refuses taken ports, so that no server fails late and no foreign server is measured.
fn refuse_taken(ports: impl IntoIterator<Item = u16>) -> Result<()> {
    for port in ports {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("port {port} of 127.0.0.1 is taken: end what listens there"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::refuse_taken;

    #[test]
    fn a_taken_port_is_refused_by_its_number() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let refusal = refuse_taken([port]).unwrap_err().to_string();
        assert_eq!(refusal, format!("port {port} of 127.0.0.1 is taken: end what listens there"));
        drop(listener);
        refuse_taken([port]).unwrap();
    }
}
