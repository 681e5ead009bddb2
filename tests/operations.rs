//! What operators have nodes do while clients take and release locks: another node leads, a node is drained,
//! clients spread. No session is lost.

use serde_json::Value;

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock};
use crate::support::load::Cycling;
use crate::support::{eventually, secs};

const SUPER: &str = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n";

async fn said(cluster: &Cluster, arguments: &[&str], auth: Option<&str>) -> Said {
    let mut command = rowlock(&cluster.folder, arguments);
    command.env("ROWLOCK_ENDPOINTS", cluster.endpoints());
    if let Some(auth) = auth {
        command.env("ROWLOCK_AUTH", auth);
    }
    tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap()
}

async fn operator(cluster: &Cluster, arguments: &[&str]) -> Said {
    said(cluster, arguments, Some("digest:super:test")).await
}

async fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let said = operator(cluster, arguments).await;
    assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
    said.out
}

async fn cycling(cluster: &Cluster) -> Cycling {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(cluster.client().await);
    }
    Cycling::start(clients, 2)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_goes_where_an_operator_wants_it_and_no_session_is_lost() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{SUPER}")).await;
    let load = cycling(&cluster).await;
    let first = cluster.leader().await;
    let next = cluster.follower().await;
    let moved = done(&cluster, &["member", "transfer-leader", &next.to_string()]).await;
    assert_eq!(moved, format!("node {next} leads\n"));
    assert_eq!(cluster.leader().await, next);
    let anybody: Value =
        serde_json::from_str(&done(&cluster, &["member", "transfer-leader", "-o", "json"]).await).unwrap();
    assert_ne!(anybody["leader"], next);
    load.end(&cluster).await;

    let refused = said(&cluster, &["member", "transfer-leader"], None).await;
    assert!(refused.code == 1 && refused.err.contains("only superusers"), "{}", refused.err);
    let refused = operator(&cluster, &["member", "transfer-leader", "9"]).await;
    assert!(refused.code == 1 && refused.err.contains("node 9 is no voter"), "{}", refused.err);
    let other = (1..=3).find(|id| anybody["leader"] != *id && *id != first).unwrap_or(first);
    cluster.kill(other);
    let missed = || async {
        operator(&cluster, &["member", "ls", "-o", "json"]).await.out.contains("down ").then_some(())
    };
    eventually("the leader misses the node", secs(30), missed).await;
    let refused = operator(&cluster, &["member", "transfer-leader", &other.to_string()]).await;
    assert!(refused.code == 1 && refused.err.contains("does not answer the leader"), "{}", refused.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_has_no_client_and_does_not_lead_until_it_is_undone() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{SUPER}")).await;
    let load = cycling(&cluster).await;
    let drained = cluster.leader().await;
    let number = drained.to_string();
    let holder = cluster.client_of(&cluster.endpoints()).await;
    let held = holder.mutex("held").lock().await.unwrap();
    assert_eq!(done(&cluster, &["drain", &number]).await, format!("node {number} is drained\n"));
    let empty = async || (cluster.metric(drained, "rowlock_connections").await == 0).then_some(());
    eventually("no client is connected", secs(30), empty).await;
    assert_ne!(cluster.leader().await, drained);
    let why = cluster.unready(drained).await.expect("it is not ready");
    assert!(why.contains("an operator has drained this node"), "{why}");
    assert_eq!(cluster.metric(drained, "rowlock_drained").await, 1);
    let listed = operator(&cluster, &["member", "ls"]).await;
    let row = listed.out.lines().find(|line| line.starts_with(&number)).expect("it is a member");
    assert!(listed.code == 69 && row.contains(" drained "), "{}", listed.out);
    // Leadership that comes back to it goes on.
    done(&cluster, &["member", "transfer-leader", &number]).await;
    let gone_on = async || (cluster.leader().await != drained).then_some(());
    eventually("another leads", secs(30), gone_on).await;
    let others: Vec<String> =
        cluster.ids().into_iter().filter(|id| *id != drained).map(|id| id.to_string()).collect();
    done(&cluster, &["drain", &others[0]]).await;
    let refused = operator(&cluster, &["drain", &others[1]]).await;
    assert!(refused.code == 1 && refused.err.contains("no other node could serve"), "{}", refused.err);
    done(&cluster, &["drain", "--undo", &others[0]]).await;
    let undone: Value =
        serde_json::from_str(&done(&cluster, &["drain", "--undo", &number, "-o", "json"]).await).unwrap();
    assert_eq!(undone, serde_json::json!({ "node": drained, "drained": false }));
    cluster.wait_until_serves(drained).await;
    held.release().await.unwrap();
    load.end(&cluster).await;

    done(&cluster, &["drain", &number]).await;
    assert!(cluster.unready(drained).await.is_some());
    cluster.stop(drained).await;
    cluster.start_node(drained);
    cluster.wait_until_serves(drained).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_spread_when_an_operator_says_so_and_the_only_node_is_not_drained() {
    let cluster = Cluster::start(1, &format!("{FAST}{SUPER}")).await;
    let mut clients = Vec::new();
    for n in 0..5 {
        let client = cluster.client().await;
        let held = client.mutex(format!("m-{n}")).lock().await.unwrap();
        clients.push((client, held));
    }
    let accepted = cluster.metric(1, "rowlock_connections_accepted_total").await;
    let said: Value =
        serde_json::from_str(&done(&cluster, &["rebalance", "--percent", "100", "-o", "json"]).await)
            .unwrap();
    let node = &said["nodes"][0];
    assert!(node["closed"] == node["connections"] && node["closed"].as_u64().unwrap() >= 5, "{said}");
    let back = async || {
        let now = cluster.metric(1, "rowlock_connections_accepted_total").await;
        (now >= accepted + 6).then_some(())
    };
    eventually("the clients have come back", secs(30), back).await;
    for (client, held) in clients {
        held.release().await.unwrap();
        client.close().await.unwrap();
    }
    assert_eq!(cluster.metric_of_all("rowlock_sessions_expired_total").await, 0);
    let refused = operator(&cluster, &["drain", "1"]).await;
    assert!(refused.code == 1 && refused.err.contains("no other node could serve"), "{}", refused.err);
    let refused = operator(&cluster, &["rebalance", "--percent", "5", "--node", "7"]).await;
    assert!(refused.code == 1 && refused.err.contains("node 7 is no member"), "{}", refused.err);
    for refused in [&["drain", "1"][..], &["rebalance", "--percent", "5"]] {
        let refused = self::said(&cluster, refused, None).await;
        assert!(refused.code == 1 && refused.err.contains("only superusers"), "{}", refused.err);
    }
    assert_eq!(operator(&cluster, &["rebalance", "--percent", "101"]).await.code, 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_ends_a_session_and_the_next_in_the_queue_gets_its_lock() {
    let cluster = Cluster::start(1, &format!("{FAST}{SUPER}[history]\nenabled = true\n")).await;
    let (holder, waiter) = (cluster.client().await, cluster.client().await);
    let held = holder.mutex("x").lock().await.unwrap();
    let session = holder.session_id().to_string();
    let shown: Value =
        serde_json::from_str(&done(&cluster, &["session", "show", &session, "-o", "json"]).await).unwrap();
    let znode = &shown["znodes"][0];
    assert!(znode["place"] == "holds" && znode["path"].as_str().unwrap().starts_with("/locks/x/"), "{shown}");
    let table = done(&cluster, &["session", "show", &session]).await;
    assert!(table.contains("holds") && table.contains(&session), "{table}");
    let waiting = tokio::spawn(async move { waiter.mutex("x").lock().await.map(|held| held.token()) });

    let refused = operator(&cluster, &["session", "end", &session]).await;
    assert!(refused.code == 64 && refused.err.contains("holds 1 lock,") && refused.err.contains("--force"));
    let refused = said(&cluster, &["session", "end", "--force", &session], None).await;
    assert!(refused.code == 1 && refused.err.contains("only superusers"), "{}", refused.err);
    let ended = done(&cluster, &["session", "end", "--force", &session]).await;
    assert_eq!(ended, format!("session {session} has ended\n"));
    waiting.await.unwrap().unwrap();
    eventually("the holder hears of it", secs(30), async || (!held.is_held()).then_some(())).await;

    let history = done(&cluster, &["history", "x"]).await;
    assert!(history.lines().any(|line| line.contains("lost") && line.contains("session-ended")), "{history}");
    let again = operator(&cluster, &["session", "end", "--force", &session]).await;
    assert!(again.code == 1 && again.err.contains("no such session"), "{}", again.err);
    let wrong = operator(&cluster, &["session", "end", "--force", "me"]).await;
    assert!(wrong.code == 64 && wrong.err.contains("is no session"), "{}", wrong.err);
}
