//! Snapshots in chunks, to a scripted follower and to a real one.

use std::sync::Arc;

use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, future};
use openraft::errors::{ReplicationClosed, StreamingError};
use openraft::network::RPCOption;
use openraft::{RaftNetworkFactory, RaftNetworkV2};
use parking_lot::Mutex;
use rowlock_env::sync::watch;
use rowlock_env::time;
use rowlock_wal::entry::Member;

use super::support::{Bytewise, Cluster, PATIENCE, leased};
use crate::limits::{PEER_SNAPSHOT_CHUNK_BYTES, TERM_AHEAD_MAX};
use crate::peer::tests::support::{Service, listen, pool, raft_by};
use crate::raft::acks::Acks;
use crate::raft::network::{Network, Target};
use crate::raft::testing::{log_id, vote};
use crate::raft_types::{
    RaftRequest, RaftResponse, Snapshot, SnapshotMeta, SnapshotResponse, SnapshotStep, StoredMembership,
    VoteRequest, VoteResponse,
};

fn snapshot(bytes: Vec<u8>) -> Snapshot<Bytewise> {
    let meta = SnapshotMeta { last_log_id: Some(log_id(1, 9)), last_membership: StoredMembership::default() };
    Snapshot { meta, snapshot: Bytewise(bytes) }
}

async fn target(address: &str) -> Target<Bytewise> {
    let member = Member { peer_addr: address.to_owned(), client_addr: String::new() };
    Network::new(pool(address), Acks::default(), leased().1).new_snapshot_client(2, &member).await
}

/// Not a multiple of the chunk size.
fn some_megabytes() -> Vec<u8> {
    (0..(3 * PEER_SNAPSHOT_CHUNK_BYTES + 12_345) as u32)
        .flat_map(|i| (i.wrapping_mul(2_654_435_761)).to_be_bytes())
        .collect()
}

#[tokio::test]
async fn a_snapshot_arrives_in_chunks_and_byte_equal() {
    let received: Arc<Mutex<(Vec<Bytes>, u64)>> = Arc::default();
    let written = received.clone();
    let raft = raft_by(move |request| {
        let mut written = written.lock();
        let answer = match request {
            RaftRequest::Snapshot(SnapshotStep::Begin { len, .. }) => {
                written.1 = len;
                RaftResponse::SnapshotProceed
            }
            RaftRequest::Snapshot(SnapshotStep::Chunk { data, .. }) => {
                written.0.push(data);
                RaftResponse::SnapshotProceed
            }
            _ => RaftResponse::SnapshotInstalled(SnapshotResponse::new(vote(1, 1))),
        };
        future::ready(answer).boxed()
    });
    let node = listen("127.0.0.1:0", raft, Service::new()).await;
    let bytes = some_megabytes();
    let mut target = target(&node.address).await;
    let sent = target.full_snapshot(
        vote(1, 1),
        snapshot(bytes.clone()),
        future::pending(),
        RPCOption::new(PATIENCE),
    );
    let answer = time::timeout(PATIENCE, sent).await.expect("in time").expect("is installed");
    assert_eq!(answer.vote, vote(1, 1));
    let (chunks, len) = &*received.lock();
    assert_eq!(*len, bytes.len() as u64);
    assert!(chunks.iter().all(|chunk| chunk.len() <= PEER_SNAPSHOT_CHUNK_BYTES));
    assert!(chunks.concat() == bytes, "the bytes differ");
}

#[tokio::test]
async fn a_cancelled_transfer_ends_at_once_and_nothing_is_installed() {
    let begun = watch::channel(false).0;
    let said = begun.clone();
    let raft = raft_by(move |request| match request {
        RaftRequest::Snapshot(SnapshotStep::Begin { .. }) => {
            said.send(true);
            future::pending().boxed()
        }
        other => panic!("nothing may follow: {other:?}"),
    });
    let node = listen("127.0.0.1:0", raft, Service::new()).await;
    let mut target = target(&node.address).await;
    let cancel = async move {
        begun.subscribe().wait_for(|begun| *begun).await.expect("lives");
        ReplicationClosed::new("enough")
    };
    let sent = target.full_snapshot(vote(1, 1), snapshot(vec![1; 10]), cancel, RPCOption::new(PATIENCE));
    let error = time::timeout(PATIENCE / 2, sent)
        .await
        .expect("ends before its own deadline")
        .expect_err("cancelled");
    assert!(matches!(error, StreamingError::Closed(_)), "{error}");
}

#[tokio::test]
async fn an_answer_with_an_impossible_term_is_refused() {
    let answer = |request| {
        let RaftRequest::Vote(VoteRequest { vote: asked, .. }) = request else { panic!("{request:?}") };
        let term = if asked.leader_id.term == 7 { u64::MAX } else { asked.leader_id.term + TERM_AHEAD_MAX };
        let response = VoteResponse { vote: vote(term, 2), vote_granted: false, last_log_id: None };
        future::ready(RaftResponse::Vote(response)).boxed()
    };
    let node = listen("127.0.0.1:0", raft_by(answer), Service::new()).await;
    let mut target = target(&node.address).await;
    let ask = |term| VoteRequest { vote: vote(term, 1), last_log_id: None, leadership_transfer: false };
    let error = target.vote(ask(7), RPCOption::new(PATIENCE)).await.expect_err("too far ahead");
    assert!(error.to_string().contains("none of this cluster"), "{error}");
    target.vote(ask(8), RPCOption::new(PATIENCE)).await.expect("as far as may be");
}

#[tokio::test]
async fn a_follower_that_cannot_write_it_is_not_asked_again_at_once() {
    let raft = raft_by(|_| future::ready(RaftResponse::Failed("no space left".into())).boxed());
    let node = listen("127.0.0.1:0", raft, Service::new()).await;
    let mut target = target(&node.address).await;
    let option = RPCOption::new(Duration::from_secs(20));
    let sent = target.full_snapshot(vote(1, 1), snapshot(vec![1; 10]), future::pending(), option).await;
    let error = sent.expect_err("failed");
    assert!(
        matches!(&error, StreamingError::Unreachable(why) if why.to_string().contains("no space left")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_learner_gets_what_the_log_no_longer_has() {
    let cluster = Cluster::start(4).await;
    let leader = cluster.form().await;
    let mut last = 0;
    for number in 0..100_u32 {
        last = cluster.write(leader, number.to_be_bytes().repeat(10_000)).await;
    }
    let raft = &cluster.nodes[&leader].raft;
    raft.trigger().snapshot().await.expect("is asked");
    let metrics =
        raft.wait(Some(PATIENCE)).metrics(|m| m.snapshot.is_some_and(|s| s.index >= last), "snapshot").await;
    metrics.expect("a snapshot");
    raft.trigger().purge_log(last).await.expect("is asked");
    let purged =
        raft.wait(Some(PATIENCE)).metrics(|m| m.purged.is_some_and(|p| p.index >= last), "purge").await;
    purged.expect("purges");
    raft.add_learner(4, cluster.nodes[&4].member.clone(), true).await.expect("joins");
    last = cluster.write(leader, b"after".to_vec()).await;
    cluster.agree(&[leader, 4], last).await;
    assert_eq!(cluster.nodes[&4].machine.0.lock().installed, 1, "by snapshot, not by log");
    cluster.stop().await;
}
