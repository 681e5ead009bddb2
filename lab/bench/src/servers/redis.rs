//! Redis from Debian's package: one with its defaults, one that syncs its log before each answer, or five
//! independent masters for RedLock.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use super::programs::debian;
use super::{Process, Servers, WAIT_MAX, refuse_taken};
use crate::drivers::resp::{Connection, Reply};
use crate::system::System;

const PROGRAM: &str = "/usr/bin/redis-server";
/// Number of RedLock's masters, as on its page.
const MASTERS: u16 = 5;

/// Returns the first port and the number of servers.
fn ports(system: System) -> (u16, u16) {
    match system {
        System::RedisFsync => (23802, 1),
        System::Redlock => (23811, MASTERS),
        _ => (23801, 1),
    }
}

pub async fn start(system: System, folder: &Path) -> Result<Servers> {
    debian(PROGRAM, "redis-server")?;
    let (first, count) = ports(system);
    refuse_taken(first..first + count)?;
    let (mut addresses, mut processes) = (Vec::new(), Vec::new());
    for port in first..first + count {
        let data = folder.join(format!("redis-{port}"));
        std::fs::create_dir_all(&data)?;
        let mut command = Command::new(PROGRAM);
        command.args(["--bind", "127.0.0.1", "--maxclients", "15000", "--daemonize", "no"]);
        command.arg("--port").arg(port.to_string()).arg("--dir").arg(&data);
        if system == System::RedisFsync {
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        }
        processes.push(Process::start(command, &folder.join(format!("redis-{port}.log")))?);
        addresses.push(format!("127.0.0.1:{port}"));
    }
    let begun = Instant::now();
    for address in &addresses {
        while !serves(address).await {
            if begun.elapsed() > WAIT_MAX {
                bail!("Redis does not serve after {WAIT_MAX:?}: see {}", folder.display());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let durability = match system {
        System::RedisFsync => "one node; its log is synced before the answer (appendfsync always)",
        System::Redlock => {
            "five independent masters; nothing is durable when they answer (defaults: snapshots now and then)"
        }
        _ => "one node; nothing is durable when it answers (defaults: snapshots now and then)",
    };
    let version = version().await?;
    Ok(Servers {
        addresses,
        processes,
        durability: durability.to_owned(),
        version,
        folder: folder.to_owned(),
        system,
    })
}

/// Reports whether a server answers PING.
pub async fn serves(address: &str) -> bool {
    let Ok(mut connection) = Connection::open(address).await else { return false };
    matches!(connection.call(&[b"PING"]).await, Ok(Reply::Status(text)) if text == "PONG")
}

/// Reads the version from `Redis server v=7.0.15 sha=...`.
async fn version() -> Result<String> {
    let output = Command::new(PROGRAM).arg("--version").output().await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).context("no version")?;
    Ok(format!("Redis {version}"))
}
