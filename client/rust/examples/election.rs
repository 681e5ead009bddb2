//! An election: one of many leads, all know who, and a leader that is gone is followed by the next.
//!
//! ```text
//! cargo run -p rowlock-client --example election
//! ```
//! With `ROWLOCK_ENDPOINTS=host:port,...` it runs on that cluster, also on Apache ZooKeeper.

#![allow(clippy::disallowed_methods)] // an application: what it does is not simulated

use rowlock_client::{Client, Error, LeaderWatcher};
use tokio::sync::oneshot;

mod support;
use support::{Stage, Story, unique};

/// A candidate leads until it is told to go.
async fn candidate(
    client: Client,
    name: String,
    address: &'static str,
    go: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let election = client.election(&name);
    let leadership = election.campaign(address).await?;
    // The leader's work goes here, and its token along with every write. `run` drops the work when the lead
    // is lost.
    let until_told = async { drop(go.await) };
    match leadership.run(until_told).await {
        Ok(()) => println!("  {address}: I resign"),
        Err(lost) => println!("  {address}: {lost}"),
    }
    leadership.resign().await.map_err(|_| Error::NotHeld)
}

/// The next leader that is told.
async fn next_leader(leaders: &mut LeaderWatcher) -> Result<String, Error> {
    loop {
        // There is no leader for a moment in between.
        if let Some(leader) = leaders.next().await? {
            println!("{} leads, token {}", leader.value, leader.token);
            return Ok(leader.value);
        }
    }
}

#[tokio::main]
pub async fn main() -> Story {
    let stage = Stage::set().await;
    let watcher = stage.client("watcher").await?;
    let name = unique("scheduler");

    // Anybody may look on, without being a candidate.
    let mut leaders = watcher.election(&name).observe();
    assert!(leaders.next().await?.is_none());
    println!("nobody leads yet");

    // Three candidates, one after the other: the first to campaign leads first.
    let mut running = Vec::new();
    for (at, address) in ["host-a:80", "host-b:80", "host-c:80"].into_iter().enumerate() {
        let client = stage.client(address).await?;
        let (tell, go) = oneshot::channel();
        let task = tokio::spawn(candidate(client.clone(), name.clone(), address, go));
        while watcher.election(&name).candidates().await?.len() <= at {
            tokio::task::yield_now().await;
        }
        running.push((client, tell, task));
    }
    assert_eq!(next_leader(&mut leaders).await?, "host-a:80");

    // A leader resigns: the next one leads at once.
    let (_, tell, task) = running.remove(0);
    let _ = tell.send(());
    task.await??;
    assert_eq!(next_leader(&mut leaders).await?, "host-b:80");

    // A leader's session ends, as when its machine is gone: the same.
    let (client, _tell, _task) = running.remove(0);
    client.close().await?;
    assert_eq!(next_leader(&mut leaders).await?, "host-c:80");

    // A leader may choose its successor among the candidates.
    let (_, tell, task) = running.remove(0);
    let _ = tell.send(());
    task.await??;
    let (d, e, f) = (stage.client("d").await?, stage.client("e").await?, stage.client("f").await?);
    let leadership = d.election(&name).campaign("host-d:80").await?;
    assert_eq!(next_leader(&mut leaders).await?, "host-d:80");
    let (waiting, chosen) = (e.election(&name), f.election(&name));
    let waiting = tokio::spawn(async move { waiting.campaign("host-e:80").await });
    let chosen = tokio::spawn(async move { chosen.campaign("host-f:80").await });
    let successor = loop {
        let candidates = watcher.election(&name).candidates().await?;
        let them = candidates.iter().any(|it| it.value == "host-e:80");
        if let Some(it) = candidates.into_iter().find(|it| them && it.value == "host-f:80") {
            break it;
        }
        tokio::task::yield_now().await;
    };
    println!("host-d:80 hands over to {}", successor.value);
    leadership.transfer_to(&successor).await?;
    assert_eq!(next_leader(&mut leaders).await?, "host-f:80");
    chosen.await??.resign().await?;
    assert_eq!(next_leader(&mut leaders).await?, "host-e:80");
    waiting.await??.resign().await?;
    watcher.close().await?;
    Ok(())
}
