//! bounded: a client that writes large znodes triggers snapshots, which shorten the log; the nodes' memory
//! does not grow with it.

use rowlock_client::{Acl, CreateMode};

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::eventually;

const LARGE: usize = 1_000_000;
/// More than a node keeps of its log in memory (`limits::LOG_MEMORY_MAX_BYTES`), in far fewer entries than
/// the snapshot policy counts.
const WRITES: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_few_large_entries_is_compacted_by_its_bytes() {
    let cluster = Cluster::start(1, FAST).await;
    let client = cluster.client().await;
    client.create("/large", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    for round in 0..WRITES {
        let data = vec![u8::try_from(round % 251).unwrap(); LARGE];
        client.set("/large", Some(data.into()), None).await.unwrap();
    }
    let purged = || async {
        let status = cluster.status(1).await?;
        (status["raft"]["purged_index"].as_u64()? > 100).then_some(())
    };
    eventually("the log is purged", SERVING, purged).await;
    assert_eq!(client.exists("/large").await.unwrap().unwrap().version.0, i32::try_from(WRITES).unwrap());
}
