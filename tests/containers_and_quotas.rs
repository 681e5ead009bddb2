//! What the cluster does with znodes by itself: containers and TTL znodes are removed in time, on all nodes
//! and under any leader; quotas count, and hard ones refuse.

use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode, Error, ErrorCode};

use crate::support::cluster::{Cluster, FAST};
use crate::support::{eventually, secs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_and_ttl_znodes_vanish_on_all_nodes_also_after_the_leader_has_died() {
    let mut cluster = Cluster::start(3, &format!("{FAST}[znodes]\nsweep_interval_ms = 100\n")).await;
    let client = cluster.client().await;
    let open = Acl::open;
    client.create("/new", None, CreateMode::Container, open()).await.unwrap();
    client.create_with_ttl("/stays", None, CreateMode::Persistent, open(), secs(3_600)).await.unwrap();
    serve_their_purpose(&client).await;
    for node in cluster.ids() {
        wait_until_gone(&cluster.client_of(cluster.endpoint(node)).await).await;
    }

    let leader = cluster.leader().await;
    cluster.kill(leader);
    cluster.leader().await;
    let client = cluster.client().await;
    serve_their_purpose(&client).await;
    wait_until_gone(&client).await;
    for stays in ["/new", "/stays"] {
        assert!(client.exists(stays).await.unwrap().is_some(), "{stays} has gone");
    }
    cluster.start_node(leader);
    cluster.wait_until_serves(leader).await;
    cluster.wait_for_equal_digests().await;
}

async fn serve_their_purpose(client: &Client) {
    client.create("/box", None, CreateMode::Container, Acl::open()).await.unwrap();
    client.create("/box/a", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    client.delete("/box/a", None).await.unwrap();
    client
        .create_with_ttl("/ttl", None, CreateMode::Persistent, Acl::open(), Duration::from_millis(50))
        .await
        .unwrap();
}

async fn wait_until_gone(client: &Client) {
    for path in ["/box", "/ttl"] {
        let gone = || async { client.exists(path).await.unwrap().is_none().then_some(()) };
        eventually(path, secs(30), gone).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hard_quota_refuses_on_every_node_and_is_enforced_alike_after_all_nodes_have_died() {
    let mut cluster = Cluster::start(3, &format!("{FAST}[znodes]\nenforce_quota = true\n")).await;
    let client = cluster.client().await;
    let limits = "count=-1,bytes=-1=;byteHardLimit=10;countHardLimit=3";
    for (path, data) in [
        ("/a", "12"),
        ("/zookeeper/quota/a", ""),
        ("/zookeeper/quota/a/zookeeper_limits", limits),
        ("/zookeeper/quota/a/zookeeper_stats", "count=0,bytes=0"),
        ("/a/b", "1234"),
    ] {
        create(&client, path, data).await.unwrap();
    }
    for node in cluster.ids() {
        let of_node = cluster.client_of(cluster.endpoint(node)).await;
        let refused = of_node.set("/a/b", Some("123456789".into()), None).await;
        assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::QuotaExceeded));
        of_node.sync("/").await.unwrap();
        let shown = of_node.get("/zookeeper/quota/a/zookeeper_stats").await.unwrap().data;
        assert_eq!(shown.as_deref(), Some(&b"count=2,bytes=6"[..]));
    }
    create(&client, "/a/c", "1234").await.unwrap();
    assert_eq!(create(&client, "/a/d", "").await.unwrap_err().code(), Some(ErrorCode::QuotaExceeded));

    cluster.kill_all();
    for node in cluster.ids() {
        cluster.start_node(node);
    }
    cluster.wait_until_serving().await;
    cluster.wait_for_equal_digests().await;
    let client = cluster.client().await;
    assert_eq!(create(&client, "/a/d", "").await.unwrap_err().code(), Some(ErrorCode::QuotaExceeded));
}

async fn create(client: &Client, path: &str, data: &'static str) -> Result<(), Error> {
    client.create(path, Some(data.into()), CreateMode::Persistent, Acl::open()).await.map(drop)
}
