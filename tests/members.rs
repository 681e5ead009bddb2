//! Members come and go by `rowlock member` while clients take and release locks, and no session is lost.

use std::time::{Duration, Instant};

use rowlock_client::{Acl, Bytes, Client, CreateMode, Transaction};

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock};
use crate::support::eventually;
use crate::support::load::Cycling;
use crate::support::ports;

pub const SUPER: &str = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n";

async fn member(cluster: &Cluster, arguments: &[&str]) -> Said {
    let mut command = rowlock(&cluster.folder, &[&["member"], arguments].concat());
    command.env("ROWLOCK_ENDPOINTS", cluster.endpoints()).env("ROWLOCK_AUTH", "digest:super:test");
    tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap()
}

/// How much of it there is; figures for the docs are taken with more.
fn size(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |value| value.parse().expect("a number"))
}

/// Number of znodes, 100 bytes each.
async fn grow(client: &Client, znodes: usize) {
    let data = Bytes::from(vec![b'x'; 100]);
    for first in (0..znodes).step_by(500) {
        let mut all = Transaction::new();
        for n in first..znodes.min(first + 500) {
            all = all.create(format!("/z{n}"), Some(data.clone()), CreateMode::Persistent, Acl::open());
        }
        client.commit(all).await.unwrap();
    }
}

pub async fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let said = member(cluster, arguments).await;
    assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
    said.out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_three_grows_to_five_and_shrinks_to_three_under_load() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{SUPER}")).await;
    assert!(done(&cluster, &["ls"]).await.ends_with("tolerates 1 failure\n"));
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(cluster.client().await);
    }
    let cycling = Cycling::start(clients, 2);
    for id in [4, 5] {
        cluster.add_learner(id);
        let number = id.to_string();
        let (peer, client) = (cluster.peer(id).to_owned(), cluster.endpoint(id).to_owned());
        let said = done(&cluster, &["add", &number, "--peer", &peer, "--client", &client]).await;
        assert!(said.contains(&format!("peer = {peer:?}\nlearner = true")), "{said}");
        let again = member(&cluster, &["add", &number, "--peer", &peer, "--client", &client]).await;
        assert!(again.code == 1 && again.err.contains("is a member already"), "{}", again.err);
        cluster.start_node(id);
        cluster.wait_until_serves(id).await;
        let said = done(&cluster, &["promote", &number, "-o", "json"]).await;
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(said["node"] == id && said["role"] == "voter", "{said}");
    }
    let listed: serde_json::Value =
        serde_json::from_str(&done(&cluster, &["ls", "-o", "json"]).await).unwrap();
    assert!(listed["members"].as_array().unwrap().iter().all(|one| one["behind"].is_u64()), "{listed}");
    assert!(done(&cluster, &["ls"]).await.ends_with("tolerates 2 failures\n"));
    let leader = cluster.leader().await;
    let other = if leader == 1 { 2 } else { 1 };
    done(&cluster, &["demote", &other.to_string()]).await;
    for id in [leader, other] {
        done(&cluster, &["remove", &id.to_string()]).await;
        if id == leader {
            cluster.stop(id).await;
        }
    }
    let says = |count: usize| {
        let cluster = &cluster;
        let told = move || cluster.log(other).matches("it was removed. It serves no clients").count();
        move || async move { (told() >= count).then_some(()) }
    };
    eventually("a removed node says so while it runs", Duration::from_secs(60), says(1)).await;
    cluster.stop(other).await;
    let before = cluster.log(other).matches("it was removed. It serves no clients").count();
    cluster.start_node(other);
    let says = || async {
        (cluster.log(other).matches("it was removed. It serves no clients").count() > before).then_some(())
    };
    eventually("a removed node says so at its next start", Duration::from_secs(30), says).await;
    cluster.stop(other).await;
    cluster.lose(leader);
    cluster.lose(other);
    let listed = done(&cluster, &["ls"]).await;
    assert!(listed.ends_with("tolerates 1 failure\n") && listed.lines().count() == 5, "{listed}");
    let last = cluster.ids()[0];
    let refused = member(&cluster, &["remove", &last.to_string()]).await;
    assert!(refused.code == 1 && refused.err.contains("tolerates no failure"), "{}", refused.err);
    done(&cluster, &["wait", "--timeout", "30"]).await;
    cycling.end(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_and_wiped_node_is_replaced_by_one_command_under_load() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{SUPER}")).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(cluster.client().await);
    }
    grow(&clients[0], size("ROWLOCK_TEST_ZNODES", 5_000)).await;
    let cycling = Cycling::start(clients, 2);
    let dead = cluster.leader().await;
    cluster.kill(dead);
    cluster.wipe(dead);
    cluster.add_learner(4);
    let (peer, client) = (cluster.peer(4).to_owned(), cluster.endpoint(4).to_owned());
    let old = dead.to_string();
    let mut command =
        rowlock(&cluster.folder, &["member", "replace", &old, "4", "--peer", &peer, "--client", &client]);
    command.env("ROWLOCK_ENDPOINTS", cluster.endpoints()).env("ROWLOCK_AUTH", "digest:super:test");
    let begun = Instant::now();
    let replacing = tokio::task::spawn_blocking(move || finish(command.spawn().unwrap()));
    // As an operator does, who reads what the command says.
    cluster.start_node(4);
    let said = replacing.await.unwrap();
    assert!(said.code == 0 && said.err.contains("learner = true"), "{} {}", said.code, said.err);
    println!("replaced after {:?}", begun.elapsed());
    cluster.lose(dead);
    let listed = done(&cluster, &["ls"]).await;
    assert!(listed.ends_with("tolerates 1 failure\n") && !listed.contains("learner"), "{listed}");
    cycling.end(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_votes_by_one_command_when_it_has_served_for_a_while() {
    let mut cluster = Cluster::start(1, &format!("{FAST}{SUPER}")).await;
    cluster.add_learner(2);
    let (peer, client) = (cluster.peer(2).to_owned(), cluster.endpoint(2).to_owned());
    let add = ["member", "add", "2", "--peer", &peer, "--client", &client, "--promote", "--stable", "1"];
    let late = rowlock(&cluster.folder, &[&add[..], &["--timeout", "1"]].concat());
    let adding = rowlock(&cluster.folder, &add);
    let [late, adding] = [late, adding].map(|mut command| {
        command.env("ROWLOCK_ENDPOINTS", cluster.endpoint(1)).env("ROWLOCK_AUTH", "digest:super:test");
        tokio::task::spawn_blocking(move || finish(command.spawn().unwrap()))
    });
    let said = late.await.unwrap();
    assert!(said.code == 69 && said.err.contains("it is a learner now"), "{} {}", said.code, said.err);
    assert!(member(&cluster, &["ls"]).await.out.contains("learner"));
    cluster.start_node(2);
    let said = adding.await.unwrap();
    assert!(said.code == 0 && said.out == "node 2 votes\n", "{} {}", said.code, said.err);
    assert!(!done(&cluster, &["ls"]).await.contains("learner"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_shown_for_how_long_a_member_is_down() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{SUPER}")).await;
    for is_leader in [true, false] {
        let leader = cluster.leader().await;
        let dead = if is_leader { leader } else { leader % 3 + 1 };
        cluster.kill(dead);
        let shown = || async {
            let said = member(&cluster, &["ls"]).await;
            let row = said.out.lines().find(|row| row.starts_with(&dead.to_string()))?.to_owned();
            (said.code == 69 && row.contains("down ")).then_some(row)
        };
        let row = eventually("the member is down", Duration::from_secs(30), shown).await;
        // The next leader has never heard of the last one.
        assert!(row.contains(" s") && (!is_leader || row.contains(" or more: ")), "{row}");
        let listed: serde_json::Value =
            serde_json::from_str(&member(&cluster, &["ls", "-o", "json"]).await.out).unwrap();
        let down: Vec<_> =
            listed["members"].as_array().unwrap().iter().filter(|one| !one["down_ms"].is_null()).collect();
        assert!(down.len() == 1 && down[0]["node"] == dead, "{listed}");
        assert!(down[0]["down_ms"].as_u64().unwrap() >= 2_000, "{listed}");
        cluster.start_node(dead);
        done(&cluster, &["wait", "--timeout", "30"]).await;
        let listed = done(&cluster, &["ls"]).await;
        assert!(!listed.contains("down"), "{listed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_members_needs_a_superuser_a_member_and_an_address() {
    let cluster = Cluster::start(1, &format!("{FAST}{SUPER}")).await;
    for (arguments, code, words) in [
        (&["promote", "7"][..], 1, "node 7 is no member"),
        (&["set", "1"], 64, "--peer HOST:PORT or --client HOST:PORT"),
        (&["set", "1", "--client", "nowhere"], 64, "is no address"),
        (&["add", "2", "--peer", "a:1;b", "--client", "a:2"], 64, "is no address"),
    ] {
        let said = member(&cluster, arguments).await;
        assert!(said.code == code && said.err.contains(words), "{arguments:?}: {} {}", said.code, said.err);
    }
    let mut command =
        rowlock(&cluster.folder, &["member", "add", "2", "--peer", "127.0.0.1:1", "--client", "127.0.0.1:2"]);
    command.env("ROWLOCK_ENDPOINTS", cluster.endpoints());
    let said = tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap();
    assert!(said.code == 1 && said.err.contains("only superusers"), "{} {}", said.code, said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_get_other_addresses_one_after_the_other_under_load() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{SUPER}")).await;
    let before = cluster.endpoints();
    let after: Vec<String> = (1..=3).map(|_| ports::address()).collect();
    let mut clients = Vec::new();
    for _ in 0..4 {
        // Clients know the places to which nodes are going to move, as DNS would say them.
        clients.push(cluster.client_of(&format!("{before},{}", after.join(","))).await);
    }
    let cycling = Cycling::start(clients, 2);
    for (id, client) in (1..=3).zip(&after) {
        cluster.stop(id).await;
        cluster.move_node(id, client);
        let (number, peer) = (id.to_string(), cluster.peer(id).to_owned());
        done(&cluster, &["set", &number, "--peer", &peer, "--client", client]).await;
        cluster.start_node(id);
        cluster.wait_until_serves(id).await;
        done(&cluster, &["wait", "--timeout", "30"]).await;
    }
    let listed = done(&cluster, &["ls"]).await;
    assert!(listed.ends_with("tolerates 1 failure\n"), "{listed}");
    assert!(after.iter().all(|client| listed.contains(client)), "{listed}");
    cycling.end(&cluster).await;
}
