//! A change of voters that its leader does not live to end.

use std::collections::{BTreeMap, BTreeSet};

use openraft::Membership;
use openraft::entry::RaftPayload;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_proto::NodeId;

use super::support::Cluster;
use crate::peer::{Identity, PeerPool};
use crate::raft::leadership::Leadership;
use crate::raft::reconfigure::Reconfigurer;
use crate::raft::types::EntryPayload;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_ends_a_change_of_voters_that_was_begun() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.form().await;
    let last = cluster.write(leader, b"before".to_vec()).await;
    cluster.agree(&[1, 2, 3], last).await;
    let raft = cluster.nodes[&leader].raft.clone();
    // What a leader leaves behind that dies between the two steps.
    let stay = BTreeSet::from([leader, leader % 3 + 1]);
    let nodes = cluster.nodes.iter().map(|(id, node)| (*id, node.member.clone()));
    let joint =
        Membership::new(vec![BTreeSet::from([1, 2, 3]), stay.clone()], nodes.collect::<BTreeMap<_, _>>());
    let appended = raft.append_membership(joint.expect("is valid"), EntryPayload::blank(), []).await;
    appended.expect("is committed");

    let me = NodeId(leader);
    let leads = |ready| watch::channel(Leadership { term: 1, leader: Some(me), ready }).1;
    let pool =
        || PeerPool::new(Identity { cluster: "test".into(), node: me }, TaskGroup::new(Shutdown::new()));
    let joint_steps =
        || raft.metrics().borrow_watched().membership_config.membership().get_joint_config().len();
    Reconfigurer::new(me, raft.clone(), leads(false), pool()).finish_interrupted().await;
    assert_eq!(joint_steps(), 2, "a leader that may not write yet leaves it");
    Reconfigurer::new(me, raft.clone(), leads(true), pool()).finish_interrupted().await;
    assert_eq!(joint_steps(), 1);
    let voters: BTreeSet<u64> =
        raft.metrics().borrow_watched().membership_config.membership().voter_ids().collect();
    assert_eq!(voters, stay);
    cluster.stop().await;
}
