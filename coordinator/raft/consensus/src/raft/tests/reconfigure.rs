//! Changes of voters: which are refused, and one that its leader does not live to end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::Membership;
use openraft::entry::RaftPayload;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time;
use rowlock_proto::{ErrorCode, NodeId};

use super::support::{Cluster, Machine, PATIENCE};
use crate::peer::{Identity, PeerPool, Refusal};
use crate::raft::elections::Leadership;
use crate::raft::reconfigure::{ALIVE_WITHIN, Reconfigurer};
use crate::raft_types::EntryPayload;
use crate::reconfiguration::Wanted;

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

fn led_by(id: u64) -> Leadership {
    Leadership { term: 1, leader: Some(NodeId(id)), ready: true }
}

/// Returns the part of node `id` in changes, as if it saw this leadership.
fn reconfigurer(cluster: &Cluster, id: u64, view: Leadership) -> Reconfigurer<Machine> {
    let (me, tasks) = (NodeId(id), TaskGroup::new(Shutdown::new()));
    let pool = PeerPool::new(Identity { cluster: "test".into(), node: me }, tasks);
    let raft = cluster.nodes[&id].raft.clone();
    Reconfigurer::new(me, raft, watch::channel(view).1, pool, Duration::from_secs(1))
}

/// Asks the current leader for a change until a leader decides.
async fn ask(cluster: &Cluster, wanted: &Wanted) -> Result<u64, ErrorCode> {
    let asking = async {
        loop {
            let id = cluster.leader_among(&ALL).await;
            if let Ok(decided) = reconfigurer(cluster, id, led_by(id)).reconfigure(wanted).await {
                return decided;
            }
        }
    };
    time::timeout(PATIENCE, asking).await.expect("some leader decides in time")
}

/// Returns a request for one member more.
fn joining(id: u64, peer_addr: &str, role: &str) -> Wanted {
    let line = format!("server.{id}={peer_addr}:2:{role};127.0.0.1:3");
    Wanted { joining: Some(line), config_id: -1, ..Wanted::default() }
}

fn leaving(id: u64) -> Wanted {
    Wanted { leaving: Some(id.to_string()), config_id: -1, ..Wanted::default() }
}

fn voters(cluster: &Cluster, id: u64) -> BTreeSet<u64> {
    let metrics = cluster.nodes[&id].raft.metrics();
    metrics.borrow_watched().membership_config.membership().voter_ids().collect()
}

/// Waits until the leader has heard nothing of node `id` for longer than a live member may be silent.
async fn until_silent(cluster: &Cluster, id: u64) {
    let is_silent = |id: u64, leader: u64| {
        let metrics = cluster.nodes[&leader].raft.metrics();
        let heard = metrics.borrow_watched().heartbeat.as_ref().and_then(|nodes| nodes[&id]);
        heard.is_none_or(|at| time::Instant::now().saturating_since(at.into_inner().into()) > ALIVE_WITHIN)
    };
    let others: Vec<u64> = ALL.into_iter().filter(|other| *other != id).collect();
    let waiting = async {
        while !is_silent(id, cluster.leader_among(&others).await) {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    time::timeout(PATIENCE, waiting).await.expect("the silence is noticed in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_needs_a_leader_its_version_and_its_quorum() {
    let cluster = Cluster::start(4).await;
    let leader = cluster.form().await;
    let last = cluster.write(leader, b"before".to_vec()).await;
    cluster.agree(&ALL, last).await;
    let stranger = cluster.nodes[&4].member.peer_addr.clone();

    let follower = led_by(leader % 3 + 1);
    let refused = reconfigurer(&cluster, leader, follower).reconfigure(&leaving(leader)).await;
    assert_eq!(refused, Err(Refusal::NotLeader { leader: follower.leader }));
    let outdated = Wanted { config_id: 1_000_000, ..joining(4, &stranger, "observer") };
    assert_eq!(ask(&cluster, &outdated).await, Err(ErrorCode::BadVersion));
    let nowhere = joining(9, "127.0.0.1:1", "participant");
    assert_eq!(ask(&cluster, &nowhere).await, Err(ErrorCode::NewConfigNoQuorum));
    assert_eq!(voters(&cluster, leader), BTreeSet::from(ALL));

    let learns = ask(&cluster, &joining(4, &stranger, "observer")).await.expect("node 4 answers");
    cluster.agree(&[1, 2, 3, 4], learns).await;
    let exact = Wanted { config_id: learns as i64, ..joining(4, &stranger, "participant") };
    let votes = ask(&cluster, &exact).await.expect("node 4 has the log");
    cluster.agree(&[1, 2, 3, 4], votes).await;
    assert_eq!(voters(&cluster, 4), BTreeSet::from([1, 2, 3, 4]));
    let fewer = ask(&cluster, &leaving(4)).await.expect("three voters are left");
    cluster.agree(&ALL, fewer).await;

    // Of the two voters that would be left one is silent.
    let leader = cluster.leader_among(&ALL).await;
    let [silent, other] = [leader % 3 + 1, (leader + 1) % 3 + 1];
    cluster.cuts.isolate(silent);
    until_silent(&cluster, silent).await;
    let refused = reconfigurer(&cluster, leader, led_by(leader)).reconfigure(&leaving(other)).await;
    assert_eq!(refused, Ok(Err(ErrorCode::NewConfigNoQuorum)));
    assert_eq!(voters(&cluster, leader), BTreeSet::from(ALL));
    cluster.cuts.heal();
    cluster.stop().await;
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

    assert_eq!(ask(&cluster, &leaving(9)).await, Err(ErrorCode::ReconfigInProgress));
    let end = async |leader: u64, ready| {
        let view = Leadership { ready, ..led_by(leader) };
        reconfigurer(&cluster, leader, view).finish_interrupted().await;
    };
    end(leader, false).await;
    assert_eq!(steps(&cluster, leader), Some(2), "a leader that may not write yet leaves it");
    let leader = until_steps(&cluster, 1, async |leader| end(leader, true).await).await;
    assert_eq!(voters(&cluster, leader), stay);
    cluster.stop().await;
}
