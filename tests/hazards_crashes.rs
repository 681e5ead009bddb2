//! Failures of other lock services when machines died: replies lost with a leader, grants lost with a server,
//! queues lost with a cluster, membership changes while clients wait. Numbers as in docs/testing.md.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rowlock_client::{Acl, Client, Error};
use rowlock_proto::lock::{Acquire, Mode, Notice, NoticeEvent, QueuePosition};
use rowlock_proto::request::Create;
use rowlock_proto::{CreateMode, ErrorCode, Request, Response};
use tokio::task::JoinSet;

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::{command, eventually, secs};
use rowlock_frames::raw::{RawClient, SESSION_MS, exclusive, held, waiting};

/// Every other one at an arbitrary moment.
const KILLS: usize = 4;

fn tagged(id: u64, acked: u64, request: Request) -> Request {
    Request::Tagged { id, acked, request: Box::new(request) }
}

/// The same session on any node that takes it.
async fn resumed(raw: &RawClient, cluster: &Cluster) -> RawClient {
    let anywhere = || async {
        for id in cluster.ids() {
            if let Some(raw) = raw.resume(cluster.endpoint(id)).await {
                return Some(raw);
            }
        }
        None
    };
    eventually("the session goes on", SERVING, anywhere).await
}

/// Asks until a node answers who leads.
async fn positions(raw: &mut RawClient, cluster: &Cluster, request: &Request) -> Vec<QueuePosition> {
    loop {
        let sent = raw.send(request.clone()).await;
        match raw.answer(sent).await {
            Some(Ok(Response::QueuePositions(positions))) => return positions.into_vec(),
            Some(other) => panic!("{other:?}"),
            None => *raw = resumed(raw, cluster).await,
        }
    }
}

#[tokio::test]
async fn hazard_1_a_leader_that_dies_before_its_reply_leaves_no_ghost_and_no_second_place() {
    let mut cluster = Cluster::start(3, FAST).await;
    for round in 0..KILLS {
        let leader = cluster.leader().await;
        let follower = cluster.follower().await;
        let lock = format!("/locks/{round}");
        let mut witness = RawClient::attach(cluster.endpoint(follower), SESSION_MS).await;
        let mut raw = RawClient::attach(cluster.endpoint(leader), SESSION_MS).await;
        let request = tagged(1, 0, Request::Acquire([exclusive(&lock, "_c_1-lock-")].into()));
        raw.send(request.clone()).await;
        if round % 2 == 0 {
            // Certainly committed, and the reply is unread.
            while witness.children(&lock).await.is_empty() {}
        }
        cluster.kill(leader);
        let mut raw = resumed(&raw, &cluster).await;
        let claim = held(positions(&mut raw, &cluster, &request).await.remove(0));
        let again = Request::Acquire([exclusive(&lock, "_c_1-lock-")].into());
        assert_eq!(
            held(positions(&mut raw, &cluster, &again).await.remove(0)),
            claim,
            "also without its number"
        );
        assert_eq!(raw.children(&lock).await.len(), 1, "one attempt, one place");
        assert!(raw.release(&claim).await);
        assert!(raw.children(&lock).await.is_empty());
        held(raw.acquire(exclusive(&lock, "_c_2-lock-")).await);
        cluster.start_node(leader);
        cluster.wait_until_serving().await;
    }
    cluster.wait_for_equal_digests().await;
}

#[tokio::test]
async fn hazard_5_a_grant_that_died_with_a_server_is_found_on_the_next() {
    let mut cluster = Cluster::start(3, FAST).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let third = cluster.ids().into_iter().find(|id| ![leader, follower].contains(id)).unwrap();
    let mut holder = RawClient::attach(cluster.endpoint(third), SESSION_MS).await;
    let mut waiter = RawClient::attach(cluster.endpoint(follower), SESSION_MS).await;
    let first = held(holder.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
    let (claim, _) = waiting(waiter.acquire(exclusive("/locks/a", "_c_2-lock-")).await);
    cluster.kill(follower);
    assert!(holder.release(&first).await);
    let mut waiter = resumed(&waiter, &cluster).await;
    assert_eq!(held(waiter.acquire(exclusive("/locks/a", "_c_2-lock-")).await), claim);
    assert!(waiter.notices.is_empty(), "told by the answer, not twice");
}

/// What a lock's queue looks like to a reader.
async fn queue(raw: &mut RawClient, lock: &str) -> BTreeMap<i64, String> {
    let mut queue = BTreeMap::new();
    for name in raw.children(lock).await {
        let (_, stat) = raw.data(&format!("{lock}/{name}"), false).await.unwrap();
        queue.insert(stat.czxid.0, name);
    }
    queue
}

#[tokio::test]
async fn hazard_12_queue_tokens_numbers_limits_and_outcomes_survive_the_death_of_all_nodes_and_a_snapshot() {
    let settings = format!("{FAST}snapshot_every = 60\nkeep_logs = 5\n");
    let mut cluster = Cluster::start(3, &settings).await;
    let mut holder = RawClient::attach(cluster.endpoint(1), SESSION_MS).await;
    let mut waiter = RawClient::attach(cluster.endpoint(2), SESSION_MS).await;
    let permits = |prefix: &str, wanted, limit| Acquire {
        mode: Mode::Permits(wanted),
        limit,
        ..exclusive("/locks/sem", prefix)
    };
    let claim = held(holder.acquire(exclusive("/locks/a", "_c_1-lock-")).await);
    let (waits, _) = waiting(waiter.acquire(exclusive("/locks/a", "_c_2-lock-")).await);
    let (last, ahead) = waiting(holder.acquire(exclusive("/locks/a", "_c_3-lock-")).await);
    assert_eq!(ahead, 2);
    let three = held(holder.acquire(permits("_c_1-permit-", 3, 4)).await);
    let (two, _) = waiting(waiter.acquire(permits("_c_2-permit-", 2, 4)).await);
    let numbered = Create {
        path: "/numbered-".to_owned(),
        data: None,
        acl: Some(Acl::shared_open()),
        flags: CreateMode::PersistentSequential.flags(),
    };
    let write = tagged(7, 0, Request::Create(numbered.clone()));
    let Ok(Response::Path(created)) = holder.call(write.clone()).await else { panic!() };
    let before = queue(&mut holder, "/locks/a").await;
    // A node that misses all of it gets it by snapshot; the others start from theirs.
    let down = cluster.follower().await;
    let sender = cluster.ids().into_iter().find(|id| *id != down).unwrap();
    let mut writer = RawClient::attach(cluster.endpoint(sender), SESSION_MS).await;
    cluster.kill(down);
    while cluster.metric(sender, "rowlock_raft_snapshot_index").await < 60 {
        writer.create("/locks/load-", "", CreateMode::PersistentSequential).await.unwrap();
    }
    cluster.kill_all();
    cluster.ids().into_iter().for_each(|id| cluster.start_node(id));
    cluster.wait_until_serving().await;

    let (mut holder, mut waiter) = (resumed(&holder, &cluster).await, resumed(&waiter, &cluster).await);
    holder.call(Request::Sync("/".to_owned())).await.unwrap();
    assert_eq!(queue(&mut holder, "/locks/a").await, before);
    let held_ones = Request::Verify(vec![claim.clone(), three.clone(), waits.clone(), two.clone()].into());
    assert_eq!(holder.call(held_ones).await, Ok(Response::Held(vec![true, true, false, false].into())));
    assert_eq!(waiting(holder.acquire(exclusive("/locks/a", "_c_3-lock-")).await), (last, 2));
    assert_eq!(waiting(waiter.acquire(exclusive("/locks/a", "_c_2-lock-")).await), (waits.clone(), 1));
    assert_eq!(waiter.acquire(permits("_c_3-permit-", 1, 5)).await, QueuePosition::LimitIs(4));
    assert_eq!(
        holder.call(write).await,
        Ok(Response::Path(created.clone())),
        "the outcome of the first time"
    );
    let Ok(Response::Path(next)) = holder.call(Request::Create(numbered)).await else { panic!() };
    let number = |path: &str| path[path.len() - 10..].parse::<u64>().unwrap();
    assert_eq!(number(&next), number(&created) + 1, "the counter of names goes on");

    assert!(holder.release(&claim).await && holder.release(&three).await);
    let news = [waiter.notice().await.1, waiter.notice().await.1].map(|notice| (notice.claim, notice.event));
    assert_eq!(news, [(waits.clone(), NoticeEvent::Granted), (two, NoticeEvent::Granted)]);
    let newest = held(waiter.acquire(exclusive("/locks/b", "_c_9-lock-")).await);
    assert!(newest.token > waits.token, "tokens go on");
    cluster.wait_for_equal_digests().await;
}

/// Takes the lock again and again; what it was granted, and by what it was preceded.
async fn contend(client: Client, stop: Arc<AtomicBool>) -> Vec<(i64, i64)> {
    let mut grants = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let guard = client.mutex("contended").lock().await.unwrap();
        let token = guard.token().0;
        let (data, mut stat) = read(&client).await;
        // No other client writes while the lock is held; a write of ours whose reply was lost is found by its
        // data.
        loop {
            match client.set("/witness", Some(token.to_string().into()), Some(stat.version)).await {
                Ok(_) => break,
                Err(Error::ConnectionLoss | Error::Rejected(ErrorCode::BadVersion)) => {
                    let (now, now_stat) = read(&client).await;
                    if now == token {
                        break;
                    }
                    assert_eq!(now, data, "somebody else wrote while the lock was held");
                    stat = now_stat;
                }
                Err(error) => panic!("{error}"),
            }
        }
        grants.push((token, data));
        guard.release().await.unwrap();
    }
    grants
}

async fn read(client: &Client) -> (i64, rowlock_client::Stat) {
    loop {
        match client.sync("/witness").await {
            Ok(()) => {}
            Err(Error::ConnectionLoss) => continue,
            Err(error) => panic!("{error}"),
        }
        match client.get("/witness").await {
            Ok(read) => return (std::str::from_utf8(read.bytes()).unwrap().parse().unwrap(), read.stat),
            Err(Error::ConnectionLoss) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hazard_13_members_change_and_leaders_leave_and_die_while_everybody_queues() {
    let superuser = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n";
    let mut cluster = Cluster::start(3, &format!("{FAST}{superuser}")).await;
    let first = cluster.client().await;
    first.create("/witness", Some("0".into()), CreateMode::Persistent, Acl::open()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut contenders = JoinSet::new();
    for _ in 0..6 {
        contenders.spawn(contend(cluster.client().await, stop.clone()));
    }
    let goes_on = || async {
        let before = read(&first).await.0;
        let later = || async { (read(&first).await.0 > before).then_some(()) };
        eventually("the lock goes on from hand to hand", secs(60), later).await;
    };
    goes_on().await;

    cluster.add_learner(4);
    cluster.start_node(4);
    cluster.wait_until_serves(4).await;
    let mut admin = RawClient::attach(cluster.endpoint(4), SESSION_MS).await;
    admin.become_superuser().await;
    let line = member_line(&mut admin, 4).await;
    reconfig(&mut admin, Some(line.replace(":observer;", ":participant;")), None).await;
    goes_on().await;

    let leaves = cluster.leader().await;
    reconfig(&mut admin, None, Some(leaves.to_string())).await;
    goes_on().await;
    let voters: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != leaves).collect();
    let leads = || async {
        for id in &voters {
            let status = cluster.status(*id).await?;
            if status["raft"]["role"] == "leader" {
                return Some(*id);
            }
        }
        None
    };
    let dies = eventually("another leader", SERVING, leads).await;
    cluster.kill(dies);
    goes_on().await;
    cluster.start_node(dies);
    cluster.wait_until_serves(dies).await;
    goes_on().await;

    stop.store(true, Ordering::SeqCst);
    let mut grants: Vec<(i64, i64)> = contenders.join_all().await.concat();
    grants.sort_unstable();
    let mut before = 0;
    for (token, preceded_by) in &grants {
        assert_eq!(*preceded_by, before, "{token} was not granted in its turn");
        before = *token;
    }
    assert!(grants.len() > 20, "{}", grants.len());
}

/// Waits for the line of a node in the list of members. The leader writes the list after the change of the
/// membership, and the node may serve before.
async fn member_line(admin: &mut RawClient, node: u64) -> String {
    let begin = format!("server.{node}=");
    for _ in 0..600 {
        admin.call(Request::Sync("/".to_owned())).await.unwrap();
        let (config, _) = admin.data("/zookeeper/config", false).await.unwrap();
        let config = String::from_utf8(config.to_vec()).unwrap();
        if let Some(line) = config.lines().find(|line| line.starts_with(&begin)) {
            return line.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("node {node} is not listed after a minute");
}

async fn reconfig(admin: &mut RawClient, joining: Option<String>, leaving: Option<String>) {
    let request = Request::Reconfig { joining, leaving, new_members: None, config_id: -1 };
    let answer = admin.call(request).await;
    assert!(matches!(answer, Ok(Response::Data(..))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_waiter_holds_after_the_grace_of_a_killed_holder_and_long_before_its_timeout() {
    let cluster = Cluster::start(3, "").await;
    let mut waiter = RawClient::attach(cluster.endpoint(cluster.leader().await), SESSION_MS).await;
    for round in 0..3 {
        let lock = format!("/locks/{round}");
        let endpoints = cluster.endpoints();
        let name = round.to_string();
        let arguments =
            ["lock", "--ttl", "40", "--disconnect-grace", "0.5", "--endpoints", &endpoints, &name];
        let mut holder = command::rowlock(&cluster.folder, &arguments).spawn().unwrap();
        while waiter.children(&lock).await.is_empty() {
            tokio::task::yield_now().await;
        }
        let (claim, _) = waiting(waiter.acquire(exclusive(&lock, "_c_2-lock-")).await);
        let killed = Instant::now();
        holder.kill().unwrap();
        assert_eq!(waiter.notice().await.1, Notice { claim, event: NoticeEvent::Granted });
        let took = killed.elapsed();
        assert!(took > Duration::from_millis(450) && took < secs(20), "{took:?}");
        println!("granted {took:.0?} after the kill");
        holder.wait().unwrap();
    }
}
