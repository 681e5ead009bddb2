//! Each switch of the kit does what it says.

use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode, Instant, SessionState};
use rowlock_env::time;
use rowlock_testkit::{Cluster, Role};

use crate::support::{reaches, short, suspended, within};

async fn create(client: &Client, path: &str) {
    let created = client.create(path, None, CreateMode::Persistent, Acl::open());
    within("a write", created).await.unwrap();
}

async fn client_of(cluster: &Cluster, node: usize) -> Client {
    cluster.client_with(|config| config.endpoints(cluster.endpoint(node))).await
}

fn others(cluster: &Cluster, node: usize) -> Vec<usize> {
    (0..cluster.nodes()).filter(|other| *other != node).collect()
}

#[tokio::test]
async fn a_cluster_starts_fast_and_leaves_no_folder_behind() {
    let begun = Instant::now();
    let cluster = Cluster::start(3).await;
    let took = begun.elapsed();
    create(&cluster.client().await, "/a").await;
    let folder = cluster.data_dir(2).to_owned();
    assert!(folder.exists());
    drop(cluster);
    assert!(!folder.exists() && !folder.parent().unwrap().exists(), "{folder:?}");
    // It takes 0.3 s; the bound is for a machine that runs ten other tests.
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// To stop three nodes in order takes more than a second, each time.
#[tokio::test]
async fn a_cluster_is_dropped_at_once_whatever_its_clients_do() {
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        assert_eq!(client.session_timeout(), Duration::from_secs(4));
        let _guard = within("a lock", client.mutex("m").lock()).await.unwrap();
        let begun = Instant::now();
        drop(cluster);
        fastest = fastest.min(begun.elapsed());
    }
    assert!(fastest < Duration::from_millis(700), "{fastest:?}");
}

#[tokio::test]
async fn a_partitioned_leader_is_replaced_and_comes_back_when_the_network_heals() {
    let cluster = Cluster::start(3).await;
    let old = cluster.leader().await;
    let majority = others(&cluster, old);
    let client = client_of(&cluster, old).await;
    cluster.partition(&[old], &majority);
    let new = cluster.leader_among(&majority).await;
    create(&client_of(&cluster, new).await, "/by-the-majority").await;
    suspended(&client).await;
    cluster.heal();
    cluster.wait_until_healthy().await;
    reaches(&client, SessionState::Connected).await;
    assert!(client.exists("/by-the-majority").await.unwrap().is_some());
}

#[tokio::test]
async fn a_paused_leader_is_replaced_and_its_clients_move_on() {
    let cluster = Cluster::start(3).await;
    let old = cluster.leader().await;
    // Notices a silent server after two thirds of its session timeout, and has about a quarter of it for
    // another one.
    let client = cluster.client_with(|config| config.session_timeout(Duration::from_secs(12))).await;
    cluster.pause(old);
    let new = cluster.leader_among(&others(&cluster, old)).await;
    create(&client, "/after-the-pause").await;
    cluster.resume(old);
    cluster.wait_until_healthy().await;
    assert_eq!(cluster.status(new).unwrap().role, Role::Leader);
}

#[tokio::test]
async fn an_isolated_holder_knows_its_loss_before_the_next_is_granted() {
    let cluster = Cluster::start(1).await;
    let (alice, bob) = (short(&cluster).await, cluster.client().await);
    let guard = alice.mutex("m").lock().await.unwrap();
    cluster.isolate_client(&alice);
    let next = bob.mutex("m");
    let mut next = std::pin::pin!(next.lock());
    tokio::select! {
        biased;
        _ = within("the loss", guard.lost()) => {}
        _ = &mut next => panic!("granted while the former holder believes to hold"),
    }
    let next = within("the next grant", next).await.unwrap();
    assert!(next.token() > guard.token());
    cluster.heal();
    reaches(&alice, SessionState::Expired).await;
}

#[tokio::test]
async fn a_node_whose_clients_are_cut_off_goes_on_among_the_nodes() {
    let cluster = Cluster::start(3).await;
    let (cut_off, free) = (client_of(&cluster, 0).await, client_of(&cluster, 1).await);
    cluster.cut_clients(0);
    create(&free, "/meanwhile").await;
    let mut read = std::pin::pin!(cut_off.exists("/meanwhile"));
    assert!(time::timeout(Duration::from_millis(200), &mut read).await.is_err(), "nobody is to hear it");
    cluster.heal();
    assert!(within("the answer", read).await.unwrap().is_some());
}

#[tokio::test]
async fn a_broken_connection_does_not_end_the_session() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let session = client.session_id();
    let mut states = client.states();
    let suspended = states.wait_for(|state| matches!(state, SessionState::Suspended { .. }));
    cluster.disconnect_clients(0);
    within("the disconnect", suspended).await.unwrap();
    reaches(&client, SessionState::Connected).await;
    create(&client, "/a").await;
    assert_eq!(client.session_id(), session);
}

#[tokio::test]
async fn an_expired_session_is_lost_with_its_ephemerals() {
    let cluster = Cluster::start(3).await;
    let (alice, bob) = (cluster.client().await, cluster.client().await);
    alice.create("/e", None, CreateMode::Ephemeral, Acl::open()).await.unwrap();
    let guard = alice.mutex("m").lock().await.unwrap();
    cluster.expire(alice.session_id()).await;
    within("the loss", guard.lost()).await;
    assert_eq!(alice.state(), SessionState::Expired);
    bob.sync("/").await.unwrap();
    assert!(bob.exists("/e").await.unwrap().is_none());
    let fresh = alice.renew().await.unwrap();
    let next = within("the lock", fresh.mutex("m").lock()).await.unwrap();
    assert!(next.token() > guard.token());
}

#[tokio::test]
async fn stopped_and_killed_nodes_come_back_with_what_they_had() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    for (at, path) in ["/0", "/1", "/2"].into_iter().enumerate() {
        if at == 1 {
            cluster.stop(at).await
        } else {
            cluster.kill(at).await
        }
        assert!(cluster.status(at).is_none() && cluster.http(at).is_none());
        create(&client, path).await;
        cluster.restart(at).await;
    }
    cluster.wait_until_healthy().await;
    for node in 0..3 {
        let client = client_of(&cluster, node).await;
        client.sync("/").await.unwrap();
        assert_eq!(
            client.get_children("/").await.unwrap().names.len(),
            4,
            "three and /zookeeper at node {node}"
        );
    }
}

#[tokio::test]
async fn a_whole_cluster_that_is_killed_at_once_keeps_what_it_acknowledged() {
    let cluster = Cluster::start(3).await;
    create(&cluster.client().await, "/kept").await;
    for node in 0..3 {
        cluster.kill(node).await;
    }
    // One that restarts serves only with another: both at once.
    tokio::join!(cluster.restart(0), cluster.restart(1));
    assert!(cluster.client().await.exists("/kept").await.unwrap().is_some());
}

#[tokio::test]
async fn clusters_of_one_process_know_nothing_of_each_other() {
    let (left, right) = tokio::join!(Cluster::start(1), Cluster::start(1));
    create(&left.client().await, "/only-here").await;
    assert!(right.client().await.exists("/only-here").await.unwrap().is_none());
}

#[tokio::test]
async fn a_start_that_is_given_up_at_any_time_does_no_harm() {
    for after in [0, 1, 5, 20, 60, 150] {
        // Whether it is ready by then does not matter.
        let _ = time::timeout(Duration::from_millis(after), Cluster::start(3)).await;
    }
    create(&Cluster::start(1).await.client().await, "/a").await;
}
