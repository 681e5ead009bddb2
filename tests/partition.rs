//! linearizable-writes, ephemeral-lifetime, replica-equality: the leader is cut off from the others.

use std::time::Duration;

use rowlock_client::{Acl, CreateMode};

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::{eventually, secs};

/// Longer than the session timeout of the clients below.
const CUT_OFF: Duration = secs(6);
const SESSION: Duration = secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_leader_answers_no_write_and_expires_no_session_and_all_agree_after_healing() {
    let cluster = Cluster::start_on_network(3, FAST).await;
    let ids = cluster.ids();
    let old = cluster.leader().await;
    let majority: Vec<&str> = ids.iter().filter(|id| **id != old).map(|id| cluster.endpoint(*id)).collect();
    let inside = cluster.client_of(&majority.join(",")).await;
    inside.create("/before", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    // A session that lives on the leader's side of the cut.
    let config = rowlock_client::Client::builder().endpoints(cluster.endpoint(old)).session_timeout(SESSION);
    let outside = config.connect().await.unwrap();
    outside.create("/ours", None, CreateMode::Ephemeral, Acl::open()).await.unwrap();
    let sessions = sessions_of(&cluster, old).await;

    cluster.network().isolate(old, &ids);
    let write = outside.create("/lost", None, CreateMode::Persistent, Acl::open());
    let answered = tokio::time::timeout(CUT_OFF, write).await;
    assert!(!matches!(answered, Ok(Ok(_))), "a minority acknowledged a write");
    // No node on that side may decide that a session is over, whatever the clock says.
    assert!(sessions_of(&cluster, old).await >= sessions, "a minority expired a session");

    // The others have gone on.
    let serving = || async {
        for id in ids.iter().filter(|id| **id != old) {
            let status = cluster.status(*id).await?;
            (status["serving"] == true && status["raft"]["leader"] != old).then_some(())?;
        }
        Some(())
    };
    eventually("the majority elects", SERVING, serving).await;
    inside.create("/during", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let gone = || async { inside.exists("/ours").await.ok()?.is_none().then_some(()) };
    eventually("the majority expires the session that nobody heard of", secs(30), gone).await;

    cluster.network().heal();
    cluster.wait_until_serving().await;
    cluster.wait_for_equal_digests().await;
    let healed = cluster.client_of(cluster.endpoint(old)).await;
    healed.sync("/").await.unwrap();
    assert!(healed.exists("/during").await.unwrap().is_some());
    assert!(healed.exists("/ours").await.unwrap().is_none());
}

async fn sessions_of(cluster: &Cluster, node: u64) -> u64 {
    let found = || async { cluster.status(node).await?["state"]["sessions"].as_u64() };
    eventually("the node's status", SERVING, found).await
}
