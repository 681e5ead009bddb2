//! Tests of a node that comes in beside a scripted node.

use std::sync::Arc;

use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_wal::entry::Member;
use rowlock_wal::{Entry, FolderState, Identity, LeaderId, LogId, Membership, Payload, Storage};

use super::LEADER_EVERY;
use crate::Node;
use crate::config::{NodeConfig, NodeEntry};
use crate::peer_support::{self as support, PATIENCE, Service};

/// Configures a learner with number 4, in the cluster that the scripted node 2 listens for.
fn newcomer(data: &std::path::Path, other: &str) -> NodeConfig {
    let mut config = NodeConfig::single(data);
    let learner = NodeEntry { id: NodeId(4), learner: true, ..config.nodes[0].clone() };
    let other = NodeEntry { id: NodeId(2), peer_addr: other.to_owned(), ..config.nodes[0].clone() };
    "test".clone_into(&mut config.name);
    (config.id, config.learner) = (NodeId(4), true);
    config.nodes = vec![learner, other];
    config
}

async fn taken_in(service: &Service) -> usize {
    let begun = time::now();
    loop {
        let asked = service.script.lock().taken_in.len();
        if asked > 0 || begun.elapsed() > PATIENCE {
            return asked;
        }
        time::sleep(LEADER_EVERY / 10).await;
    }
}

/// Restarts the newcomer with such a folder state and with entries of a leader in its log.
async fn restarted(
    state: FolderState,
    data: &std::path::Path,
    service: &Arc<Service>,
) -> (Node, support::Node) {
    let identity = Identity { cluster: "test".to_owned(), node: NodeId(4) };
    let opened = Storage::open(data, identity, Arc::new(|_| {}), Arc::default()).await.expect("is new");
    opened.folder.rise_to(state).await.expect("writes");
    let log = opened.log.clone();
    let leader_id = LeaderId { term: 1, node_id: 1 };
    let membership = Membership { configs: vec![[1].into()], nodes: [(1, Member::default())].into() };
    let payloads = [Payload::Membership(membership), Payload::Normal(b"x"[..].into())];
    let entry = |(index, payload)| Entry { log_id: LogId { leader_id, index }, payload };
    let entries = (0..).zip(payloads).map(entry).collect();
    log.append_durably(entries).await.expect("appends");
    log.close().await;
    let other = support::listen_anywhere(service.clone()).await;
    (Node::start(newcomer(data, &other.address)).await.expect("starts"), other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_with_a_deposed_leaders_entries_joins_again() {
    let (data, service) = (tempfile::tempdir().expect("a temporary folder"), Service::new());
    let (node, _other) = restarted(FolderState::Admitted, data.path(), &service).await;
    assert!(taken_in(&service).await > 0, "it took itself for a member because its log is not empty");
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_removed_does_not_come_again_by_itself() {
    let (data, service) = (tempfile::tempdir().expect("a temporary folder"), Service::new());
    let (node, _other) = restarted(FolderState::Member, data.path(), &service).await;
    let mut status = node.status();
    let known = status.wait_for(|status| !status.voters.is_empty());
    time::timeout(PATIENCE, known).await.expect("in time").expect("runs");
    // The absence of a request cannot be awaited.
    time::sleep(2 * LEADER_EVERY).await;
    assert_eq!(service.script.lock().taken_in, []);
    node.shutdown().await;
}
