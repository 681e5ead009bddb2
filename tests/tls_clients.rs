//! Clients with TLS at a cluster of real processes, while certificates and authorities are replaced.

use std::path::Path;
use std::time::Duration;

use rowlock_client::{Client, ConnectError, Pem, Tls};
use rowlock_tls::issue::{Authority, Leaf};
use rustix::process::Signal;

use crate::support::certificates::{
    self, MONTH, TLS, Visitor, believe, give_certificates, of_node, shows, write,
};
use crate::support::cluster::{Cluster, FAST};
use crate::support::load::Cycling;
use crate::support::{eventually, secs};

const CYCLING: usize = 50;

fn settings() -> String {
    format!("{FAST}{TLS}client_ca = \"tls/clients-ca.pem\"\n[peer]\nsecurity = \"mtls\"\n")
}

/// Gives the client `name` a certificate of this authority.
fn give(folder: &Path, authority: &Authority, name: &str) {
    let issued = authority.issue(&Leaf { name, hosts: &[], uri: None, valid_s: MONTH }).unwrap();
    write(&folder.join(format!("tls/{name}.key")), &issued.key_pem);
    write(&folder.join(format!("tls/{name}.pem")), &issued.cert_pem);
}

/// A client with TLS whose certificate is in the folder.
async fn connect(cluster: &Cluster, name: &str) -> Result<Client, ConnectError> {
    connect_within(secs(30), cluster, name).await
}

/// One that is not let in tries on until then.
async fn connect_within(patience: Duration, cluster: &Cluster, name: &str) -> Result<Client, ConnectError> {
    let file = |name: &str| Pem::File(cluster.folder.join("tls").join(name));
    let identity = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
    let tls = Tls::new(file("peers-ca.pem")).identity(identity.0, identity.1);
    let endpoints: Vec<&str> = cluster.ids().into_iter().map(|node| cluster.secure(node)).collect();
    let builder = Client::builder().endpoints(&endpoints.join(",")).tls(tls);
    builder.session_timeout(secs(40)).connect_timeout(patience).connect().await
}

fn reload(cluster: &Cluster) {
    (1..=3).for_each(|node| cluster.signal(node, Signal::HUP));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_keep_their_sessions_and_locks_while_certificates_and_authorities_are_replaced() {
    let nodes = certificates::authority("nodes");
    let (old, new) = (certificates::authority("old clients"), certificates::authority("new clients"));
    let mut cluster = Cluster::start_with_files(3, &settings(), |folder| {
        believe(folder, nodes.cert_pem(), &nodes, &[]);
        give_certificates(folder, &nodes, 3);
        write(&folder.join("tls/clients-ca.pem"), old.cert_pem());
        give(folder, &old, "alice");
        give(folder, &old, "mallory");
        give(folder, &new, "bob");
    })
    .await;
    let holder = connect(&cluster, "alice").await.unwrap();
    let held = holder.mutex("held").lock().await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..CYCLING {
        clients.push(connect(&cluster, "alice").await.unwrap());
    }
    let cycling = Cycling::start(clients, 5);
    connect_within(secs(1), &cluster, "bob")
        .await
        .map(drop)
        .expect_err("the new authority does not count yet");
    // New certificates of the nodes, found by themselves.
    let issued = give_certificates(&cluster.folder, &nodes, 3);
    let visitor = Visitor::with(&of_node(&nodes, 4, MONTH), &nodes, 4);
    for node in 1..=3 {
        shows(&cluster, &visitor, node, &issued[node as usize - 1].certificate.serial).await;
    }
    // The new authority beside the old one, certificates of it for the clients, and the old one goes.
    let authorities = cluster.folder.join("tls/clients-ca.pem");
    write(&authorities, &format!("{}{}", old.cert_pem(), new.cert_pem()));
    reload(&cluster);
    let let_in = || async { connect_within(secs(2), &cluster, "bob").await.ok() };
    eventually("the new authority counts", secs(60), let_in).await;
    give(&cluster.folder, &new, "alice");
    write(&authorities, new.cert_pem());
    reload(&cluster);
    let refused = || async { connect_within(secs(1), &cluster, "mallory").await.err() };
    eventually("the old authority does not count any more", secs(60), refused).await;
    // The clients of this node come back at the others, with their new certificates.
    let leader = cluster.leader().await;
    cluster.restart(leader).await;
    assert!(held.is_held());
    held.release().await.unwrap();
    cycling.end(&cluster).await;
}
