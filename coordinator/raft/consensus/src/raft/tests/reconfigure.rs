//! A change of voters that its leader does not live to end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::Membership;
use openraft::entry::RaftPayload;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time;
use rowlock_proto::NodeId;

use super::support::{Cluster, PATIENCE};
use crate::peer::{Identity, PeerPool};
use crate::raft::elections::Leadership;
use crate::raft::reconfigure::Reconfigurer;
use crate::raft_types::EntryPayload;

const ALL: [u64; 3] = [1, 2, 3];

/// How many sets of voters the membership has on a node, if it is committed there.
fn steps(cluster: &Cluster, id: u64) -> Option<usize> {
    let metrics = cluster.nodes[&id].raft.metrics();
    let metrics = metrics.borrow_watched();
    let (known, committed) = (&metrics.membership_config, &metrics.committed_membership_config);
    (known.log_id() == committed.log_id()).then(|| known.membership().get_joint_config().len())
}

/// Asks the current leader repeatedly until the membership has this number of steps there: on a busy machine
/// leaders change, and a leader refuses while its quorum is silent. Gives the last leader.
async fn until_steps(cluster: &Cluster, wanted: usize, ask: impl AsyncFn(u64)) -> u64 {
    let asking = async {
        loop {
            let leader = cluster.leader_among(&ALL).await;
            if steps(cluster, leader) == Some(wanted) {
                return leader;
            }
            ask(leader).await;
        }
    };
    time::timeout(PATIENCE, asking).await.expect("some leader does it in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_ends_a_change_of_voters_that_was_begun() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.form().await;
    let last = cluster.write(leader, b"before".to_vec()).await;
    cluster.agree(&ALL, last).await;
    // What a leader leaves behind that dies between the two steps.
    let stay = BTreeSet::from([leader, leader % 3 + 1]);
    let nodes = cluster.nodes.iter().map(|(id, node)| (*id, node.member.clone()));
    let joint = Membership::new(vec![BTreeSet::from(ALL), stay.clone()], nodes.collect::<BTreeMap<_, _>>());
    let joint = joint.expect("is valid");
    let leader = until_steps(&cluster, 2, async |leader| {
        let raft = &cluster.nodes[&leader].raft;
        let _ = raft.append_membership(joint.clone(), EntryPayload::blank(), []).await;
    })
    .await;

    let end = async |leader: u64, ready| {
        let (me, tasks) = (NodeId(leader), TaskGroup::new(Shutdown::new()));
        let leads = watch::channel(Leadership { term: 1, leader: Some(me), ready }).1;
        let pool = PeerPool::new(Identity { cluster: "test".into(), node: me }, tasks);
        let raft = cluster.nodes[&leader].raft.clone();
        Reconfigurer::new(me, raft, leads, pool, Duration::from_secs(1)).finish_interrupted().await;
    };
    end(leader, false).await;
    assert_eq!(steps(&cluster, leader), Some(2), "a leader that may not write yet leaves it");
    let leader = until_steps(&cluster, 1, async |leader| end(leader, true).await).await;
    let metrics = cluster.nodes[&leader].raft.metrics();
    let voters: BTreeSet<u64> = metrics.borrow_watched().membership_config.membership().voter_ids().collect();
    assert_eq!(voters, stay);
    cluster.stop().await;
}
