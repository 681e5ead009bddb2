//! Startup checks of certificates and of the port for other nodes, and reloads of changed files.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::Path;
use std::time::Duration;

use rowlock_coordinator::config::{PeerSecurity, TlsFiles};
use rowlock_coordinator::{Instant, Node, NodeConfig, StartError};
use rowlock_env::disk::Dir;
use rowlock_env::time;
use rowlock_tls::issue::{Authority, Leaf};
use rowlock_tls::node_uri;

const DAY: i64 = 86_400;
const SOON: Duration = Duration::from_secs(30);

/// Writes a new certificate of the node with this URI, and its key.
fn issue(authority: &Authority, folder: &Path, uri: &str) {
    let issued = authority.issue(&Leaf { name: "n", hosts: &[], uri: Some(uri), valid_s: 3 * DAY }).unwrap();
    let dir = Dir::open(folder).unwrap();
    dir.write_atomic("key", issued.key_pem.as_bytes()).unwrap();
    dir.write_atomic("cert", issued.cert_pem.as_bytes()).unwrap();
    dir.write_atomic("ca", authority.cert_pem().as_bytes()).unwrap();
}

/// Returns the configuration of node 1 of the cluster `rowlock`, with its certificates in the folder.
fn secured(folder: &Path) -> NodeConfig {
    let mut config = NodeConfig::single(folder.join("data"));
    let at = |name: &str| folder.join(name);
    let (cert, key, peer_ca) = (at("cert"), at("key"), Some(at("ca")));
    config.tls = Some(TlsFiles { cert, key, peer_ca, client_ca: None, crl: None });
    config.peer.security = Some(PeerSecurity::Mtls);
    config
}

async fn refusal(config: NodeConfig) -> String {
    let Err(error) = Node::start(config).await else { panic!("must not start") };
    assert!(matches!(error, StartError::Tls(_) | StartError::Insecure { .. }), "{error}");
    error.to_string()
}

#[tokio::test]
async fn peer_port_beyond_loopback_needs_a_security_setting() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = NodeConfig::single(folder.path());
    config.peer_addr = "0.0.0.0:0".to_owned();
    let said = refusal(config.clone()).await;
    assert!(said.contains("or write security = \"none\" in [peer]"), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was touched");
    config.peer.security = Some(PeerSecurity::None);
    Node::start(config).await.unwrap().shutdown().await;
}

#[tokio::test]
async fn certificate_of_another_node_or_cluster_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("peers", DAY).unwrap();
    for (uri, whose) in
        [(node_uri("rowlock", 2), "node 2"), (node_uri("other", 1), "no node of this cluster")]
    {
        issue(&authority, folder.path(), &uri);
        let said = refusal(secured(folder.path())).await;
        let wanted =
            format!("is the certificate of {whose}; node 1 needs one for the URI rowlock://rowlock/node/1");
        assert!(said.ends_with(&wanted), "{said}");
    }
    let mut without = secured(folder.path());
    without.tls = None;
    let said = refusal(without).await;
    assert_eq!(said, "[tls]: the nodes' port needs certificates");
}

#[tokio::test]
async fn bad_certificate_file_is_counted_and_the_old_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("peers", DAY).unwrap();
    issue(&authority, folder.path(), &node_uri("rowlock", 1));
    let node = Node::start(secured(folder.path())).await.unwrap();
    node.serving(Instant::now() + SOON).await.unwrap();
    let metrics = node.metrics();
    let left = || {
        let text = metrics.render();
        let line = text.lines().find(|line| line.starts_with("rowlock_tls_cert_expiry_seconds{"));
        let left = line.unwrap().strip_prefix("rowlock_tls_cert_expiry_seconds{listener=\"peer\"} ").unwrap();
        left.parse::<i64>().unwrap()
    };
    assert!((3 * DAY - 60..=3 * DAY).contains(&left()), "{}", left());
    issue(&authority, folder.path(), &node_uri("rowlock", 2));
    assert!(node.reload_files_soon());
    let deadline = Instant::now() + SOON;
    while metrics.tls_reload_failures_total.get() == 0 {
        assert!(Instant::now() < deadline, "the change is seen");
        time::sleep(Duration::from_millis(5)).await;
    }
    assert!(left() > 2 * DAY);
    node.shutdown().await;
}
