//! Three nodes of Apache ZooKeeper with its default durability: ZooKeeper forces every transaction to disk
//! before the acknowledgment.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use super::programs::{Programs, debian};
use super::words::{leader, word};
use super::{Process, Servers, WAIT_MAX, refuse_taken};
use crate::system::System;

/// Client ports are this and the next two; peer ports are 100 and 200 above.
const PORT: u16 = 23481;
const NODES: u16 = 3;

pub async fn start(system: System, folder: &Path, programs: &Programs) -> Result<Servers> {
    let (classpath, java) = (programs.zookeeper()?, debian("/usr/bin/java", "default-jre-headless")?);
    refuse_taken((PORT..PORT + NODES).flat_map(|port| [port, port + 100, port + 200]))?;
    let (mut addresses, mut processes) = (Vec::new(), Vec::new());
    for id in 1..=NODES {
        let data = folder.join(format!("node-{id}"));
        std::fs::create_dir_all(data.join("log"))?;
        std::fs::write(data.join("myid"), id.to_string())?;
        let file = folder.join(format!("node-{id}.cfg"));
        std::fs::write(&file, config(&data, id)?)?;
        let mut command = Command::new(&java);
        command
            .args(["-Xms512m", "-Xmx1g", "-Dzookeeper.root.logger=WARN"])
            .arg(format!("-Dzookeeper.log.dir={}", data.display()))
            .args(["-cp", &classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain"])
            .arg(&file);
        processes.push(Process::start(command, &folder.join(format!("node-{id}.log")))?);
        addresses.push(address(id));
    }
    wait(&addresses, folder).await?;
    let durability =
        "three nodes; a quorum has forced the transaction log to disk before the answer (forceSync=yes)"
            .to_owned();
    let version = version(&addresses[0]).await?;
    Ok(Servers { addresses, processes, durability, version, folder: folder.to_owned(), system })
}

fn address(id: u16) -> String {
    format!("127.0.0.1:{}", PORT + id - 1)
}

/// Returns the defaults, with other limits of connections and with the four-letter words. With this tick,
/// session timeouts are between 4 s and 40 s.
fn config(data: &Path, id: u16) -> Result<String> {
    let mut text = String::from("tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxClientCnxns=0\n");
    text.push_str("admin.enableServer=false\n4lw.commands.whitelist=*\nautopurge.purgeInterval=0\n");
    let data = std::path::absolute(data)?;
    writeln!(text, "dataDir={}\ndataLogDir={}", data.display(), data.join("log").display())?;
    writeln!(text, "clientPort={}\nclientPortAddress=127.0.0.1", PORT + id - 1)?;
    for other in 1..=NODES {
        let port = PORT + other - 1;
        writeln!(text, "server.{other}=127.0.0.1:{}:{}", port + 100, port + 200)?;
    }
    Ok(text)
}

/// Waits until one server leads and all serve.
async fn wait(addresses: &[String], folder: &Path) -> Result<()> {
    let begun = Instant::now();
    loop {
        let mut serving = 0;
        for address in addresses {
            serving += usize::from(word(address, "srvr").await.is_ok_and(|answer| answer.contains("Mode: ")));
        }
        if serving == addresses.len() && leader(addresses).await.is_ok() {
            return Ok(());
        }
        if begun.elapsed() > WAIT_MAX {
            bail!("ZooKeeper does not serve after {WAIT_MAX:?}: see {}", folder.display());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn version(address: &str) -> Result<String> {
    let answer = word(address, "srvr").await?;
    let line = answer.lines().next().context("srvr answered nothing")?;
    let version = line.trim_start_matches("Zookeeper version: ");
    Ok(format!("ZooKeeper {}", version.split([',', '-']).next().unwrap_or(version)))
}
