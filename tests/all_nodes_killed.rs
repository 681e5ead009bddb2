//! durable, ephemeral-lifetime: all nodes die at once under load.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rowlock_client::{Acl, Client, CreateMode, Error, SessionState, Znode};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::cluster::{Cluster, FAST};
use crate::support::{command, eventually, secs};

const WRITERS: usize = 8;
const ACKNOWLEDGED_BEFORE_KILL: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_write_survives_the_death_of_all_nodes_and_ephemerals_follow_their_sessions() {
    let mut cluster = Cluster::start(3, FAST).await;
    let keeper = cluster.client().await;
    for parent in ["/load", "/live"] {
        keeper.create(parent, None, CreateMode::Persistent, Acl::open()).await.unwrap();
    }
    let live = keeper.create("/live/e", None, CreateMode::Ephemeral, Acl::open()).await.unwrap().stat;
    let mut doomed = owner_of_an_ephemeral(&cluster);
    let there = || async { keeper.exists("/dead").await.unwrap() };
    eventually("the other process's ephemeral", secs(30), there).await;

    let (stop, stopped) = watch::channel(false);
    let count = Arc::new(AtomicUsize::new(0));
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let client = cluster.client().await;
        writers.spawn(write(client, writer, count.clone(), stopped.clone()));
    }
    let enough = || async { (count.load(Ordering::SeqCst) >= ACKNOWLEDGED_BEFORE_KILL).then_some(()) };
    eventually("writes under way", secs(60), enough).await;

    doomed.kill().unwrap();
    doomed.wait().unwrap();
    cluster.kill_all();
    stop.send(true).unwrap();
    cluster.ids().into_iter().for_each(|id| cluster.start_node(id));
    cluster.wait_until_serving().await;

    let mut acknowledged = BTreeMap::new();
    while let Some(written) = writers.join_next().await {
        acknowledged.extend(written.unwrap());
    }
    assert!(acknowledged.len() >= ACKNOWLEDGED_BEFORE_KILL);
    for id in cluster.ids() {
        let client = cluster.client_of(cluster.endpoint(id)).await;
        client.sync("/").await.unwrap();
        for (path, data) in &acknowledged {
            let Znode { data: found, .. } =
                client.get(path).await.unwrap_or_else(|e| panic!("{path} on node {id}: {e}"));
            assert_eq!(found.as_deref(), Some(data.as_bytes()), "{path} on node {id}");
        }
    }

    // The live session came back in time: its ephemeral is the same one.
    let back = || async { (keeper.state() == SessionState::Connected).then_some(()) };
    eventually("the live session comes back", secs(10), back).await;
    let found = keeper.exists("/live/e").await.unwrap().expect("the live session's ephemeral");
    assert_eq!(found.czxid, live.czxid);
    let gone = || async { keeper.exists("/dead").await.unwrap().is_none().then_some(()) };
    eventually("the dead session's ephemeral goes", secs(30), gone).await;
    assert_eq!(keeper.exists("/live/e").await.unwrap().map(|stat| stat.czxid), Some(live.czxid));
    cluster.wait_for_equal_digests().await;
}

/// A process with a session of 4 s and an ephemeral znode; killing it leaves both behind.
fn owner_of_an_ephemeral(cluster: &Cluster) -> Child {
    let endpoints = cluster.endpoints();
    let arguments = ["create", "-e", "/dead", "--endpoints", &endpoints, "--session-timeout", "4"];
    command::rowlock(&cluster.folder, &arguments).spawn().unwrap()
}

/// Creates znodes and changes them until told to stop; what was acknowledged, with the last acknowledged
/// data.
///
/// A change whose outcome is unknown makes the znode useless for the check, so each is changed at most once.
async fn write(
    client: Client,
    writer: usize,
    count: Arc<AtomicUsize>,
    stop: watch::Receiver<bool>,
) -> BTreeMap<String, String> {
    let mut acknowledged = BTreeMap::new();
    for n in 0.. {
        if *stop.borrow() {
            break;
        }
        let path = format!("/load/{writer}-{n}");
        match client.create(&path, Some("1".into()), CreateMode::Persistent, Acl::open()).await {
            Ok(_) => {}
            Err(Error::ConnectionLoss) => continue,
            Err(e) => panic!("{path}: {e}"),
        }
        match client.set(&path, Some("2".into()), None).await {
            Ok(_) => acknowledged.insert(path, "2".to_owned()),
            Err(Error::ConnectionLoss) => continue,
            Err(e) => panic!("{path}: {e}"),
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
    acknowledged
}
