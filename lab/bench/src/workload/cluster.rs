//! Changes of a cluster for Rowlock's own trials: new settings, a restart of all nodes at once, many znodes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use rowlock_client::{Client, Transaction};
use rowlock_proto::{Acl, CreateMode};
use tokio::task::JoinSet;

use crate::servers::Servers;
use crate::servers::words::word;

/// Number of children of one parent.
const FAMILY: u64 = 1_000;
const PER_TRANSACTION: u64 = 500;
/// Number of sessions that create znodes.
const MAKERS: u64 = 8;
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Opens a session of our client, which tries the addresses in its own order.
///
/// # Errors
/// No server can be reached.
pub async fn session(servers: &Servers) -> Result<Client> {
    Ok(Client::builder()
        .endpoints(&servers.addresses.join(","))
        .session_timeout(Duration::from_secs(30))
        .connect()
        .await?)
}

/// Writes `[raft]` settings into the file of the cluster; the settings apply from the next start.
///
/// # Errors
/// The file cannot be read or written.
pub fn settings(servers: &Servers, raft: &str) -> Result<()> {
    let file = servers.folder.join("cluster.toml");
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let text = with_raft(&text, raft).with_context(|| format!("in {}", file.display()))?;
    Ok(std::fs::write(&file, text)?)
}

/// Returns the file with these settings instead of those of an earlier call.
fn with_raft(text: &str, raft: &str) -> Result<String> {
    let (head, nodes) = text.split_at(text.find("[[node]]").context("no nodes")?);
    let head = head.split("[raft]").next().unwrap_or_default();
    Ok(format!("{head}[raft]\n{raft}\n{nodes}"))
}

/// Kills all nodes at once, starts them again, and returns the time until all nodes served clients.
///
/// # Errors
/// A node does not come back.
pub async fn restart(servers: &mut Servers) -> Result<Duration> {
    for process in &mut servers.processes {
        process.kill().await?;
    }
    let begun = Instant::now();
    for process in &mut servers.processes {
        process.restart().await?;
    }
    for address in &servers.addresses {
        while !word(address, "srvr").await.is_ok_and(|answer| answer.contains("Mode: ")) {
            if begun.elapsed() > WAIT_MAX {
                bail!("{address} does not serve after {WAIT_MAX:?}: see {}", servers.folder.display());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(begun.elapsed())
}

/// Creates `znodes` znodes of `data_bytes` each, a thousand below one parent; returns the duration.
///
/// # Errors
/// The servers refuse.
pub async fn fill(servers: &Servers, znodes: u64, data_bytes: usize) -> Result<Duration> {
    let begun = Instant::now();
    let first = session(servers).await?;
    first.create("/fill", None, CreateMode::Persistent, Acl::open()).await?;
    let mut tasks = JoinSet::new();
    for maker in 0..MAKERS {
        let client = session(servers).await?;
        let data = Bytes::from(vec![b'x'; data_bytes]);
        tasks.spawn(async move {
            for family in (maker..znodes.div_ceil(FAMILY)).step_by(MAKERS as usize) {
                fill_family(&client, family, (znodes - family * FAMILY).min(FAMILY), &data).await?;
            }
            anyhow::Ok(client.close().await?)
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|panic| anyhow!("a client panicked: {panic}"))??;
    }
    first.close().await?;
    Ok(begun.elapsed())
}

async fn fill_family(client: &Client, family: u64, children: u64, data: &Bytes) -> Result<()> {
    let open = || Acl::open();
    let parent = format!("/fill/{family:06}");
    client.create(&parent, None, CreateMode::Persistent, open()).await?;
    for first in (0..children).step_by(PER_TRANSACTION as usize) {
        let mut transaction = Transaction::new();
        for child in first..children.min(first + PER_TRANSACTION) {
            let path = format!("{parent}/{child:06}");
            transaction = transaction.create(path, Some(data.clone()), CreateMode::Persistent, open());
        }
        client.commit(transaction).await?;
    }
    Ok(())
}

/// Returns the sum of a metric over all nodes.
///
/// # Errors
/// A node does not answer, or has no such metric.
pub async fn metric(servers: &Servers, name: &str) -> Result<f64> {
    let mut sum = 0.0;
    for address in &servers.addresses {
        let page = get(&http_address(address)?, "/metrics").await?;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        sum += line.with_context(|| format!("{address} has no {name}"))?.trim().parse::<f64>()?;
    }
    Ok(sum)
}

/// Returns the HTTP address: the port is 200 above the clients' port.
fn http_address(client: &str) -> Result<String> {
    let (host, port) = client.rsplit_once(':').context("an address without a port")?;
    Ok(format!("{host}:{}", port.parse::<u16>()? + 200))
}

async fn get(address: &str, path: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut page = String::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut page)).await??;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_replace_those_of_an_earlier_call() {
        let file = "log = \"warn\"\n[[node]]\nid = 1\n";
        let once = with_raft(file, "a = 1").unwrap();
        assert_eq!(once, "log = \"warn\"\n[raft]\na = 1\n[[node]]\nid = 1\n");
        assert_eq!(with_raft(&once, "b = 2").unwrap(), "log = \"warn\"\n[raft]\nb = 2\n[[node]]\nid = 1\n");
        assert!(with_raft("log = 1", "a = 1").is_err());
    }
}
