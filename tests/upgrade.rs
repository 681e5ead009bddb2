//! An upgrade node by node while clients work: there, back, there again, and over for good.
//!
//! The old release is the built binary. The new one is the same code with one version more, which a node
//! inside the test gets as a parameter: a second build of the server would take minutes.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use rowlock_client::Client;
use rowlock_coordinator::config::ClusterConfig;
use rowlock_coordinator::{Node, NodeConfig};
use rowlock_proto::NodeId;
use rowlock_state::version::Versions;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::mixed_queue::{curator, kazoo, said, script};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock};
use crate::support::load::Cycling;
use crate::support::{eventually, secs};

const GRANTS: &str = "rowlock_lock_grants_total";
const SETTINGS: &str = "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n\
                        [upgrade]\nfinalize = \"manual\"\n";

async fn operator(cluster: &Cluster, arguments: &[&str]) -> Said {
    let mut command = rowlock(&cluster.folder, arguments);
    command.env("ROWLOCK_ENDPOINTS", cluster.endpoints()).env("ROWLOCK_AUTH", "digest:super:test");
    tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap()
}

async fn status(cluster: &Cluster) -> (i32, Value) {
    let said = operator(cluster, &["upgrade", "status", "-o", "json"]).await;
    (said.code, serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {} {}", said.out, said.err)))
}

/// Three nodes, of which some run inside the test.
struct Rolling {
    cluster: Cluster,
    upgraded: BTreeMap<u64, Node>,
}

impl Rolling {
    fn config(&self, id: u64) -> NodeConfig {
        let file = ClusterConfig::load(&self.cluster.config()).unwrap();
        NodeConfig { versions: Versions::of_a_rehearsal(), ..file.node(NodeId(id)).unwrap() }
    }

    async fn forward(&mut self, id: u64) {
        self.cluster.stop(id).await;
        let node = Node::start(self.config(id)).await.unwrap();
        self.upgraded.insert(id, node);
        self.cluster.wait_until_serves(id).await;
    }

    async fn back(&mut self, id: u64) {
        self.upgraded.remove(&id).expect("it is of the new release").shutdown().await;
        self.cluster.start_node(id);
        self.cluster.wait_until_serves(id).await;
    }
}

/// By an operator who first thinks better of it.
async fn finalize(cluster: &Cluster) {
    let (code, document) = status(cluster).await;
    assert!(code == 69 && document["state"] == "ready" && document["version"]["number"] == 1, "{document}");
    assert_eq!(document["finalizes_in_ms"], Value::Null, "an operator decides");
    let unsaid = operator(cluster, &["upgrade", "finalize"]).await;
    assert!(unsaid.code == 64 && unsaid.err.contains("no way back"), "{}", unsaid.err);
    let held_back = operator(cluster, &["upgrade", "cancel"]).await;
    assert!(
        held_back.code == 0 && held_back.out.contains("which is held"),
        "{}{}",
        held_back.out,
        held_back.err
    );
    let done = operator(cluster, &["upgrade", "finalize", "--yes", "-o", "json"]).await;
    let document: Value = serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {}", done.err));
    assert!(document["version"]["number"] == 2 && document["state"] == "done", "{document}");
    let listed = operator(cluster, &["member", "ls", "-o", "json"]).await;
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed["members"][0]["release"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_upgraded_and_goes_back_and_forth_until_it_is_finalized_and_no_session_is_lost() {
    let cluster = Cluster::start(3, &format!("{FAST}{SETTINGS}")).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(cluster.client().await);
    }
    let load = Cycling::start(clients, 2);
    let holder = cluster.client_of(&cluster.endpoints()).await;
    let held = holder.mutex("held").lock().await.unwrap();
    let mut rolling = Rolling { cluster, upgraded: BTreeMap::new() };
    assert_eq!(status(&rolling.cluster).await.0, 0, "no upgrade is under way");
    let refused = operator(&rolling.cluster, &["upgrade", "cancel"]).await;
    assert!(refused.code == 1 && refused.err.contains("no upgrade is under way"), "{}", refused.err);

    for id in 1..=3 {
        rolling.forward(id).await;
        if id < 3 {
            let (code, document) = status(&rolling.cluster).await;
            let waits_for = document["waits_for"].as_str().unwrap_or_default();
            assert!(code == 69 && waits_for.contains("runs release"), "{document}");
            let refused = operator(&rolling.cluster, &["upgrade", "finalize", "--yes"]).await;
            assert!(refused.code == 1 && refused.err.contains("not every member"), "{}", refused.err);
        }
    }
    for id in 1..=3 {
        rolling.back(id).await;
    }
    assert_eq!(status(&rolling.cluster).await.0, 0, "all are of the old release again");
    for id in 1..=3 {
        rolling.forward(id).await;
    }

    finalize(&rolling.cluster).await;
    let grants = rolling.cluster.metric(1, GRANTS).await;
    let goes_on = async || (rolling.cluster.metric(1, GRANTS).await >= grants + 8).then_some(());
    eventually("work goes on in the new version", secs(60), goes_on).await;
    held.release().await.unwrap();
    load.end(&rolling.cluster).await;
    for id in 1..=3 {
        assert_eq!(rolling.cluster.metric(id, "rowlock_cluster_version").await, 2);
        assert_eq!(rolling.cluster.metric(id, "rowlock_sessions_expired_total").await, 0);
        assert!(
            fs::read_to_string(rolling.cluster.data(id).join("identity")).unwrap().contains("\nversion 2 ")
        );
    }
    rolling.upgraded.remove(&2).unwrap().shutdown().await;
    rolling.cluster.start_node(2);
    assert_eq!(rolling.cluster.exit_code(2).await, Some(73), "there is no way back");
    let log = rolling.cluster.log(2);
    let both = format!("release {} (version 1)", env!("CARGO_PKG_VERSION"));
    assert!(log.contains("the cluster uses version 2") && log.contains(&both), "{log}");
    for (_, node) in rolling.upgraded {
        node.shutdown().await;
    }
}

/// Adds one to a number in a file under the lock, until `stop` is there; returns how often.
async fn count(client: Client, file: PathBuf, stop: PathBuf) -> u64 {
    let session = client.session_id();
    let mut cycles = 0;
    while !stop.exists() {
        let held = client.mutex("shared").lock().await.unwrap();
        let number: u64 = fs::read_to_string(&file).unwrap().parse().unwrap();
        fs::write(&file, (number + 1).to_string()).unwrap();
        held.release().await.unwrap();
        cycles += 1;
    }
    assert_eq!(client.session_id(), session);
    cycles
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_curator_and_our_client_work_through_an_upgrade_there_and_back() {
    let cluster = Cluster::start(3, &format!("{FAST}{SETTINGS}")).await;
    let (file, stop) = (cluster.folder.join("number"), cluster.folder.join("stop"));
    fs::write(&file, "0").unwrap();
    let ours = tokio::spawn(count(cluster.client().await, file.clone(), stop.clone()));
    let mut others = JoinSet::new();
    for (command, name) in [(kazoo(), "cycle.py"), (curator(), "Cycle.java")] {
        let Some(mut command) = command else { continue };
        command.arg(script(name)).args([&cluster.endpoints(), "/locks/shared"]).args([&file, &stop]);
        others.spawn(async move { (name, said(command).await) });
    }
    let all = 1 + others.len();
    let everybody = async || {
        let queue = cluster.client().await.get_children("/locks/shared").await.ok()?.names;
        (queue.len() >= all).then_some(())
    };
    eventually("everybody in the queue", secs(60), everybody).await;
    let mut rolling = Rolling { cluster, upgraded: BTreeMap::new() };
    for id in 1..=3 {
        rolling.forward(id).await;
    }
    for id in 1..=3 {
        rolling.back(id).await;
    }
    let cycles = || fs::read_to_string(&file).unwrap().parse::<usize>().ok();
    let before = eventually("a whole number", secs(60), async || cycles()).await;
    // The queue is fair: by then each of them has had one more cycle with all nodes back.
    let more = async || cycles().filter(|now| *now >= before + 2 * all);
    eventually("one more cycle of each client", secs(60), more).await;
    fs::write(&stop, "").unwrap();
    let mut cycles = ours.await.expect("our client was refused nothing");
    println!("our client: {cycles} cycles");
    while let Some(ended) = others.join_next().await {
        let (name, said) = ended.unwrap();
        println!("{name}: {}{}", said.out, said.err);
        let words: Vec<&str> = said.out.split_whitespace().collect();
        let ["cycles", own, "lost", "0"] = words[..] else { panic!("{name}: {} {}", said.out, said.err) };
        assert!(own != "0", "{name} has had the lock");
        cycles += own.parse::<u64>().unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), cycles.to_string(), "two held it at once");
    assert_eq!(rolling.cluster.metric_of_all("rowlock_sessions_expired_total").await, 0);
}
