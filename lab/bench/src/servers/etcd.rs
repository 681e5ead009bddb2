//! Three nodes of etcd with its default durability: etcd syncs the log before the answer.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use super::programs::Programs;
use super::{Process, Servers, WAIT_MAX, refuse_taken};
use crate::grpc::Channel;
use crate::protobuf::{bytes, number};
use crate::system::System;

/// Client ports are this and the next two; peer ports are 100 above.
const PORT: u16 = 23901;
const NODES: u16 = 3;

pub async fn start(system: System, folder: &Path, programs: &Programs) -> Result<Servers> {
    let program = programs.etcd()?;
    refuse_taken((PORT..PORT + NODES).flat_map(|port| [port, port + 100]))?;
    std::fs::create_dir_all(folder)?;
    let mut members = Vec::new();
    for id in 1..=NODES {
        members.push(format!("e{id}={}", peer(id)));
    }
    let (mut addresses, mut processes) = (Vec::new(), Vec::new());
    for id in 1..=NODES {
        let client = format!("http://{}", address(id));
        let mut command = Command::new(&program);
        command.arg("--name").arg(format!("e{id}"));
        command.arg("--data-dir").arg(folder.join(format!("node-{id}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer(id), "--initial-advertise-peer-urls", &peer(id)]);
        // A node with data ignores this option: a restart takes the same command.
        command.args(["--initial-cluster", &members.join(","), "--initial-cluster-state", "new"]);
        command.args(["--auto-compaction-mode=revision", "--auto-compaction-retention=100000"]);
        command.args(["--quota-backend-bytes=8000000000", "--logger=zap", "--log-level=error"]);
        processes.push(Process::start(command, &folder.join(format!("node-{id}.log")))?);
        addresses.push(address(id));
    }
    let begun = Instant::now();
    while !serve(&addresses).await {
        if begun.elapsed() > WAIT_MAX {
            bail!("etcd does not serve after {WAIT_MAX:?}: see {}", folder.display());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let durability =
        "three nodes; a quorum has the write in its log, by fdatasync, before the answer".to_owned();
    let version = format!("etcd {}", status(&addresses[0]).await?.version);
    Ok(Servers { addresses, processes, durability, version, folder: folder.to_owned(), system })
}

fn address(id: u16) -> String {
    format!("127.0.0.1:{}", PORT + id - 1)
}

fn peer(id: u16) -> String {
    format!("http://127.0.0.1:{}", PORT + id + 99)
}

/// Reports whether all nodes know the same leader.
async fn serve(addresses: &[String]) -> bool {
    let mut leaders = Vec::new();
    for address in addresses {
        match status(address).await {
            Ok(status) if status.leader != 0 => leaders.push(status.leader),
            _ => return false,
        }
    }
    leaders.windows(2).all(|two| two[0] == two[1])
}

/// Reports whether a node knows a leader.
pub async fn serves(address: &str) -> bool {
    status(address).await.is_ok_and(|status| status.leader != 0)
}

pub async fn leader(addresses: &[String]) -> Result<usize> {
    for (n, address) in addresses.iter().enumerate() {
        if status(address).await.is_ok_and(|status| status.leader == status.member && status.leader != 0) {
            return Ok(n);
        }
    }
    bail!("no node leads")
}

/// Status of a node, by its own report.
struct Status {
    member: u64,
    leader: u64,
    version: String,
}

async fn status(address: &str) -> Result<Status> {
    let ask = async {
        let mut channel = Channel::open(address).await?;
        channel.call("/etcdserverpb.Maintenance/Status", &[]).await
    };
    let answer =
        tokio::time::timeout(Duration::from_secs(1), ask).await.context("no answer in a second")??;
    // StatusResponse: 1 is the header (with 2, the member who answers), 2 the version, 4 the leader.
    let version = String::from_utf8_lossy(&bytes(&answer, 2)?).into_owned();
    Ok(Status { member: number(&bytes(&answer, 1)?, 2)?, leader: number(&answer, 4)?, version })
}
