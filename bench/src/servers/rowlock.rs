//! Three nodes of the release build beside this program, with the settings that everybody gets by default.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::{Process, Servers};
use crate::system::System;

/// Client ports are this and the next two; peers and HTTP are 100 and 200 above.
const PORT: u16 = 23181;
const PATIENCE: Duration = Duration::from_secs(60);

/// The binary `rowlock` in the folder of this program.
fn binary() -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("rowlock");
    if !beside.is_file() {
        bail!("{} is missing: cargo build --release", beside.display());
    }
    Ok(beside)
}

/// See [`Servers::start`].
pub async fn start(system: System, folder: &Path) -> Result<Servers> {
    let binary = binary()?;
    let mut config = String::from("log = \"warn\"\n");
    let mut addresses = Vec::new();
    for id in 1..=3_u16 {
        let port = PORT + id - 1;
        let address = format!("127.0.0.1:{port}");
        writeln!(
            config,
            "[[node]]\nid = {id}\nclient = \"{address}\"\npeer = \"127.0.0.1:{}\"\nhttp = \"127.0.0.1:{}\"",
            port + 100,
            port + 200
        )?;
        addresses.push(address);
    }
    std::fs::create_dir_all(folder)?;
    let file = folder.join("cluster.toml");
    std::fs::write(&file, config)?;
    let mut processes = Vec::new();
    for id in 1..=3_u16 {
        let mut command = Command::new(&binary);
        command.arg("serve").arg("--config").arg(&file).arg("--node").arg(id.to_string());
        processes.push(Process::start(&mut command, &folder.join(format!("node-{id}.log")))?);
    }
    let begun = std::time::Instant::now();
    while leader(&addresses).await.is_err() {
        if begun.elapsed() > PATIENCE {
            bail!("no leader after {PATIENCE:?}: see {}", folder.display());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let durability =
        "three nodes; a quorum has the write in its log, by fdatasync, before the answer".to_owned();
    let output = Command::new(&binary).arg("--version").output().await?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(Servers { addresses, processes, durability, version, system })
}

/// See [`Servers::leader`]. By ZooKeeper's four-letter word `srvr`.
pub async fn leader(addresses: &[String]) -> Result<usize> {
    for (n, address) in addresses.iter().enumerate() {
        if word(address, "srvr").await.is_ok_and(|answer| answer.contains("Mode: leader")) {
            return Ok(n);
        }
    }
    bail!("nobody leads")
}

/// Sends a four-letter word.
pub async fn word(address: &str, word: &str) -> Result<String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    tokio::time::timeout(Duration::from_secs(1), ask)
        .await
        .context("no answer in a second")?
        .map_err(Into::into)
}
