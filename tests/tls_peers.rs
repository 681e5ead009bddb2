//! Nodes that know each other by their certificates: who is refused, new certificates and authorities while
//! the cluster works, and the way from a cluster without to one with.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rowlock_client::{Acl, Client, CreateMode};
use rowlock_env::net::Stream;
use rowlock_tls::issue::{Authority, Leaf};
use rowlock_tls::{ClientKeeper, ClientTls, Pem};
use rustix::process::Signal;
use tokio::task::JoinSet;

use crate::support::certificates::{self, MONTH, TLS, Visitor, believe, give_certificates, of_node, shows};
use crate::support::cluster::{Cluster, FAST};
use crate::support::load::Cycling;
use crate::support::{eventually, secs};

const REFUSED: &str = "rowlock_peer_connections_refused_total";

fn settings(security: &str) -> String {
    format!("{FAST}{TLS}[peer]\nsecurity = \"{security}\"\n")
}

/// A new certificate for each node, by this authority, whom all believe.
fn prepare(authority: &Authority) -> impl FnOnce(&Path) {
    move |folder| {
        believe(folder, authority.cert_pem(), authority, &[]);
        give_certificates(folder, authority, 3);
    }
}

/// Lines about refused connections in the log of a node.
fn lines(cluster: &Cluster, node: u64) -> Vec<String> {
    let log = cluster.log(node);
    log.lines()
        .filter(|line| line.contains("refused a connection to the nodes' port"))
        .map(Into::into)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_at_the_nodes_port_with_one_line_and_the_nodes_go_on() {
    let (ours, theirs) = (certificates::authority("ours"), certificates::authority("theirs"));
    let revoked = of_node(&ours, 4, MONTH);
    let mut cluster = Cluster::start_with_files(3, &settings("mtls"), |folder| {
        believe(folder, ours.cert_pem(), &ours, &[&revoked.certificate]);
        give_certificates(folder, &ours, 3);
    })
    .await;
    let client = cluster.client().await;
    client.mutex("orders").lock().await.unwrap().release().await.unwrap();
    let nameless = ours.issue(&Leaf { name: "alice", hosts: &[], uri: None, valid_s: MONTH }).unwrap();
    let strangers = [
        ("it does not speak TLS", Visitor::plain(3)),
        (
            "its certificate is signed by an unknown authority",
            Visitor::with(&of_node(&theirs, 4, MONTH), &ours, 4),
        ),
        ("its certificate has expired", Visitor::with(&of_node(&ours, 4, -60), &ours, 4)),
        ("its certificate was revoked", Visitor::with(&revoked, &ours, 4)),
        ("the certificate is not that of node 3", Visitor::with(&of_node(&ours, 2, MONTH), &ours, 3)),
        ("the certificate of CN=alice names no node of this cluster", Visitor::with(&nameless, &ours, 4)),
    ];
    let (mut counted, mut told) = (cluster.metric(1, REFUSED).await, lines(&cluster, 1).len());
    for (reason, visitor) in strangers {
        // Of several within a second only the first is told.
        tokio::time::sleep(secs(1)).await;
        visitor.visit(cluster.peer(1), 1).await.expect_err(reason);
        (counted, told) = (counted + 1, told + 1);
        refused(&cluster, counted, told, reason).await;
    }
    // A second reason within the same second would not be logged, either.
    tokio::time::sleep(secs(1)).await;
    without_certificate(&cluster).await;
    refused(&cluster, counted + 1, told + 1, "it presented no certificate").await;
    // A node with a certificate is let in, and the cluster still elects and serves.
    Visitor::with(&of_node(&ours, 4, MONTH), &ours, 4).visit(cluster.peer(1), 1).await.unwrap();
    let leader = cluster.leader().await;
    cluster.kill(leader);
    client.mutex("orders").lock().await.unwrap().release().await.unwrap();
    cluster.start_node(leader);
    cluster.wait_until_serves(leader).await;
    cluster.wait_for_equal_digests().await;
}

async fn refused(cluster: &Cluster, counted: u64, told: usize, reason: &str) {
    let is_counted = || async move { (cluster.metric(1, REFUSED).await >= counted).then_some(()) };
    eventually(reason, secs(20), is_counted).await;
    assert_eq!(cluster.metric(1, REFUSED).await, counted, "{reason}");
    let lines = lines(cluster, 1);
    assert_eq!(lines.len(), told, "{reason}: {lines:#?}");
    assert!(lines.last().unwrap().contains(reason), "{reason}: {lines:#?}");
}

/// One who has none to show. The node says so only after its own half of the handshake.
async fn without_certificate(cluster: &Cluster) {
    use tokio::io::AsyncReadExt as _;
    let of = ClientTls { ca: Pem::File(cluster.folder.join("tls/peers-ca.pem")), identity: None };
    let connector = ClientKeeper::open(of).unwrap().connector();
    let plain = Stream::connect(cluster.peer(1), secs(10)).await.unwrap();
    let mut stream = connector.connect(plain, "127.0.0.1").await.unwrap();
    stream.read_u8().await.expect_err("is refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_authorities_are_replaced_and_no_session_is_lost() {
    let (old, new) = (certificates::authority("old"), certificates::authority("new"));
    let mut cluster = Cluster::start_with_files(3, &settings("mtls"), prepare(&old)).await;
    let holder = cluster.client().await;
    let held = holder.mutex("held").lock().await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(cluster.client().await);
    }
    let cycling = Cycling::start(clients, 3);
    let (of_old, of_new) = (of_node(&old, 4, MONTH), of_node(&new, 4, MONTH));
    let bundle = format!("{}{}", old.cert_pem(), new.cert_pem());
    // A new certificate, by the nodes' own look at their files.
    let issued = give_certificates(&cluster.folder, &old, 3);
    let visitor = Visitor::with(&of_old, &old, 4);
    for node in 1..=3 {
        shows(&cluster, &visitor, node, &issued[node as usize - 1].certificate.serial).await;
    }
    // A new authority beside the old one, certificates of it, and the old one goes.
    believe(&cluster.folder, &bundle, &old, &[]);
    for node in 1..=3 {
        cluster.signal(node, Signal::HUP);
        let visitor = Visitor::with(&of_new, &old, 4);
        let let_in = || async { visitor.visit(cluster.peer(node), node).await.ok() };
        eventually("the new authority counts", secs(20), let_in).await;
    }
    let issued = give_certificates(&cluster.folder, &new, 3);
    let visitor = Visitor::with(&of_new, &new, 4);
    for node in 1..=3 {
        cluster.signal(node, Signal::HUP);
        shows(&cluster, &visitor, node, &issued[node as usize - 1].certificate.serial).await;
    }
    believe(&cluster.folder, new.cert_pem(), &new, &[]);
    for node in 1..=3 {
        cluster.signal(node, Signal::HUP);
        let visitor = Visitor::with(&of_old, &new, 4);
        let refused = || async { visitor.visit(cluster.peer(node), node).await.err() };
        eventually("the old authority does not count any more", secs(20), refused).await;
        assert_eq!(cluster.metric(node, "rowlock_tls_reload_failures_total").await, 0);
    }
    // All dial each other again.
    let leader = cluster.leader().await;
    cluster.restart(leader).await;
    assert!(held.is_held());
    held.release().await.unwrap();
    cycling.end(&cluster).await;
}

/// Writes one after another until `stop`. Returns how many. Each must succeed.
async fn write(client: Client, path: String, stop: Arc<AtomicBool>, written: Arc<AtomicU64>) -> u64 {
    client.create(&path, None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        let set = client.set(&path, Some(format!("{count}").into()), None).await;
        set.unwrap_or_else(|error| panic!("{path} {count}: {error}"));
        written.fetch_add(1, Ordering::Relaxed);
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_cluster_becomes_a_secured_one_by_rolling_restarts_and_no_write_fails() {
    let authority = certificates::authority("peers");
    let mut cluster = Cluster::start_with_files(3, &settings("none"), prepare(&authority)).await;
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut writers = JoinSet::new();
    for n in 0..4 {
        let client = cluster.client().await;
        writers.spawn(write(client, format!("/w{n}"), stop.clone(), written.clone()));
    }
    Visitor::plain(5).visit(cluster.peer(1), 1).await.expect("is believed by its word");
    for security in ["both", "mtls"] {
        cluster.change_settings(&settings(security));
        for node in 1..=3 {
            cluster.restart(node).await;
            let enough = written.load(Ordering::Relaxed) + 20;
            let goes_on = || async { (written.load(Ordering::Relaxed) >= enough).then_some(()) };
            eventually("writes go on", secs(60), goes_on).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(count) = writers.join_next().await {
        assert!(count.expect("no write fails") > 0);
    }
    for node in 1..=3 {
        Visitor::plain(5).visit(cluster.peer(node), node).await.expect_err("certificates only");
        assert!(cluster.log(node).contains("the certificate of this node"));
    }
    cluster.wait_for_equal_digests().await;
}
