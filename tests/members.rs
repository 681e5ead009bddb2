//! Members come and go by `rowlock member` while clients take and release locks, and no session is lost.

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock};
use crate::support::load::Cycling;

const SUPER: &str = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n";

async fn member(cluster: &Cluster, arguments: &[&str]) -> Said {
    let mut command = rowlock(&cluster.folder, &[&["member"], arguments].concat());
    command.env("ROWLOCK_ENDPOINTS", cluster.endpoints()).env("ROWLOCK_AUTH", "digest:super:test");
    tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap()
}

async fn done(cluster: &Cluster, arguments: &[&str]) -> String {
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
        cluster.stop(id).await;
        cluster.lose(id);
    }
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
    let replacing = tokio::task::spawn_blocking(move || finish(command.spawn().unwrap()));
    // As an operator does, who reads what the command says.
    cluster.start_node(4);
    let said = replacing.await.unwrap();
    assert!(said.code == 0 && said.err.contains("learner = true"), "{} {}", said.code, said.err);
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
