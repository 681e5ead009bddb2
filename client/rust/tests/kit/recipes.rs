//! The recipes on real nodes whose leaders die.

use rowlock_client::{Client, blocking};
use rowlock_env::{task, worker};
use rowlock_testkit::Cluster;

use crate::support::{SOON, within};

const MEMBERS: i64 = 4;
const ROUNDS: i64 = 6;

/// All do the same rounds in step: count, count down, lead once each.
async fn member(client: Client, number: i64) {
    let (barrier, counter) = (client.double_barrier("step", 4), client.counter("steps"));
    for round in 1..=ROUNDS {
        let inside = barrier.enter().await.unwrap();
        counter.add(1).await.unwrap();
        let latch = client.latch(format!("round {round}"), 4);
        latch.count_down().await.unwrap();
        latch.wait().await.unwrap();
        assert_eq!(counter.get().await, Ok(MEMBERS * round), "somebody counted twice, or came too early");
        let lead = client.election("lead").campaign(number.to_string()).await.unwrap();
        lead.resign().await.unwrap();
        inside.leave().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recipes_count_exactly_and_keep_step_while_leaders_die() {
    let cluster = Cluster::start(3).await;
    let mut members = Vec::new();
    for number in 0..MEMBERS {
        let client = cluster.client_with(|config| config.session_timeout(SOON)).await;
        members.push(task::spawn("member", member(client, number)));
    }
    let steps = cluster.client().await.counter("steps");
    for deaths in 1..=2 {
        within("a third of the rounds", async {
            while steps.get().await.is_ok_and(|count| count < deaths * MEMBERS * ROUNDS / 3) {}
        })
        .await;
        let leader = cluster.leader().await;
        cluster.kill(leader).await;
        cluster.restart(leader).await;
    }
    for member in members {
        within("all rounds", member).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_arrives_while_the_leader_of_the_cluster_dies() {
    let cluster = Cluster::start(3).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(cluster.client_with(|config| config.session_timeout(SOON)).await);
    }
    let election = clients[0].election("lead");
    let first = election.campaign("0").await.unwrap();
    let mut waiting = Vec::new();
    for (number, client) in clients.iter().enumerate().skip(1) {
        let candidate = client.election("lead");
        waiting.push(task::spawn("candidate", async move { candidate.campaign(number.to_string()).await }));
        within("a candidate", async { while election.candidates().await.unwrap().len() <= number {} }).await;
    }
    let candidates = election.candidates().await.unwrap();
    let (token, leader) = (first.token(), cluster.leader().await);
    let (transferred, ()) = tokio::join!(first.transfer_to(&candidates[3]), cluster.kill(leader));
    transferred.unwrap();
    let last = within("the lead", &mut waiting[2]).await.unwrap().unwrap();
    assert!(last.token() > token && last.is_held());
    cluster.restart(leader).await;
    drop(last);
    for next in &mut waiting[..2] {
        let next = within("the lead", next).await.unwrap().unwrap();
        assert!(next.token() > token);
        next.resign().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_without_async_code_keeps_its_lock_while_the_leader_dies() {
    let cluster = Cluster::start(3).await;
    let config = Client::builder().endpoints(&cluster.endpoints()).session_timeout(SOON);
    let held = worker::run_blocking("program", move || {
        let client = blocking::Client::connect(config).unwrap();
        assert!(client.extensions().unwrap().has_locks());
        let guard = client.mutex("nightly").lock().unwrap();
        (client, guard)
    });
    let (client, guard) = held.await;
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    let token = worker::run_blocking("program", move || {
        assert!(guard.check().unwrap() && client.mutex("nightly").try_lock().unwrap().is_none());
        let token = guard.token();
        guard.release().unwrap();
        let next = client.mutex("nightly").lock_timeout(SOON).unwrap();
        assert!(next.token() > token);
        next.token()
    })
    .await;
    let next = cluster.client().await.mutex("nightly").lock_timeout(SOON).await.unwrap();
    assert!(next.token() > token);
}
