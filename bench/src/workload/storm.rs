//! All clients return at once: the leader, to which all sessions are connected, is killed. How long until
//! each session is served again, and is any of them lost?

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rowlock_client::{Client, Error, PreferLeader};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::phase::gather;
use crate::drivers::TTL;
use crate::latency::Latency;
use crate::results::Trial;
use crate::servers::Servers;
use crate::system::System;

/// Sessions that are opened or closed at once.
const AT_ONCE: usize = 64;
/// For all to be at the leader before it dies.
const GATHERED_WITHIN: Duration = Duration::from_secs(60);
/// The cluster is lost beyond that.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How one session returned.
struct Return {
    /// From the kill to the first answer that needed a connection to another node.
    took: Duration,
    is_lost: bool,
}

/// One trial, on servers of its own. The killed one is started again before it returns.
///
/// # Errors
/// A session is lost, no server leads, or the server does not come back.
pub async fn run(servers: &mut Servers, sessions: usize, round: u32) -> Result<Trial> {
    let leader = servers.leader().await?;
    let (doors, barrier) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Barrier::new(sessions + 1)));
    let (killed, is_killed) = tokio::sync::watch::channel(None);
    let mut clients = JoinSet::new();
    for _ in 0..sessions {
        let (addresses, doors, barrier) = (servers.addresses.join(","), doors.clone(), barrier.clone());
        let mut is_killed = is_killed.clone();
        clients.spawn(async move {
            let door = doors.acquire().await?;
            let config = Client::builder().endpoints(&addresses).session_timeout(TTL);
            let client = config.prefer_leader(PreferLeader::Always).connect().await.context("connecting")?;
            client.exists("/").await.context("the first call")?;
            drop(door);
            barrier.wait().await;
            let at: Instant = is_killed.wait_for(Option::is_some).await?.expect("waited for");
            let back = come_back(&client, at).await?;
            let _door = doors.acquire().await?;
            // A session that is lost cannot be closed.
            let _ = client.close().await;
            Ok::<_, anyhow::Error>(back)
        });
    }
    tokio::select! {
        all = timeout(GATHERED_WITHIN, barrier.wait()) => {
            all.context("not all sessions came up")?;
        }
        Some(ended) = clients.join_next() => {
            ended.map_err(|panic| anyhow!("a client panicked: {panic}"))??;
        }
    }
    servers.processes[leader].kill().await?;
    killed.send_replace(Some(Instant::now()));
    let returns = gather(clients).await?;
    servers.restart(leader).await?;
    let lost = returns.iter().filter(|it| it.is_lost).count();
    ensure!(lost == 0, "{lost} of {sessions} sessions were lost");
    let mut served = Latency::default();
    returns.iter().for_each(|it| served.record(it.took));
    Ok(Trial::new(System::Rowlock, "storm", sessions as u64, round)
        .with("kill_to_served_p50_ms", served.ms(0.5))
        .with("kill_to_served_p99_ms", served.ms(0.99))
        .with("kill_to_served_max_ms", served.ms(1.0)))
}

/// The connection is broken: the answer comes when the session is attached to another node.
async fn come_back(client: &Client, killed: Instant) -> Result<Return> {
    let is_lost = match timeout(WAIT_MAX, client.exists("/")).await {
        Ok(Ok(_)) => false,
        Ok(Err(Error::SessionExpired)) => true,
        Ok(Err(other)) => return Err(other).context("after the kill"),
        Err(_) => return Err(anyhow!("a client is not served within {WAIT_MAX:?}")),
    };
    Ok(Return { took: killed.elapsed(), is_lost })
}
