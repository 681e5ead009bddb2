//! Who is believed to be which node.

use rowlock_env::disk::Dir;
use rowlock_metrics::Metrics;
use rowlock_tls::issue::{Authority, Leaf};
use rowlock_tls::{ClientAuth, Files, Keeper, node_uri};

use super::*;

const DAY: i64 = 86_400;

/// The material that an authority of nodes issues for this URI.
fn keeper(authority: &Authority, trusted: &Authority, uri: Option<&str>) -> Arc<Keeper> {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = Dir::open(folder.path()).expect("is there");
    let issued = authority.issue(&Leaf { name: "n", hosts: &[], uri, valid_s: DAY }).expect("is signed");
    let texts = [("cert", issued.cert_pem), ("key", issued.key_pem), ("ca", trusted.cert_pem().to_owned())];
    for (name, text) in texts {
        dir.write_atomic(name, text.as_bytes()).expect("is written");
    }
    let at = |name: &str| folder.path().join(name);
    let (cert, key, peer_ca) = (at("cert"), at("key"), Some(at("ca")));
    let files = Files { cert, key, peer_ca, client_ca: None, crl: None };
    Arc::new(Keeper::open(files, ClientAuth::None, |_| Ok(())).expect("can be used"))
}

fn node(authority: &Authority, node: u64) -> Arc<Keeper> {
    keeper(authority, authority, Some(&node_uri("test", node)))
}

struct Listening {
    address: String,
    metrics: Arc<Metrics>,
    tasks: TaskGroup,
}

impl Listening {
    async fn start(security: Security) -> Listening {
        let tasks = TaskGroup::new(Shutdown::new());
        let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().to_string();
        let metrics = Arc::new(Metrics::default());
        let server = Server::new(identity(2), Arc::new(Anybody(2, None)), Arc::new(Echo), tasks.clone());
        server.secured_by(security).measured_by(metrics.clone(), None).start(listener);
        Listening { address, metrics, tasks }
    }

    /// What `us` is told that dials it as node `to`.
    async fn asked_by(&self, us: Identity, security: Security, to: u64) -> Result<Bytes, PeerError> {
        let pool = Pool::new(us, Arc::new(Anybody(1, None)), self.tasks.clone()).secured_by(security);
        let peer = pool.set_address(NodeId(to), &self.address);
        peer.call(Lane::Control, b"hello".to_vec(), time::now() + PATIENCE).await
    }

    fn refused(&self) -> u64 {
        self.metrics.peer_connections_refused_total.get()
    }
}

#[tokio::test]
async fn nodes_with_certificates_of_their_authority_talk() {
    let authority = Authority::new("nodes", DAY).expect("is made");
    let two = Listening::start(Security::Mtls(node(&authority, 2))).await;
    let one = Security::Mtls(node(&authority, 1));
    assert_eq!(two.asked_by(identity(1), one, 2).await.expect("is answered"), "hello");
    assert_eq!(two.refused(), 0);
    two.tasks.stop().await;
}

#[tokio::test]
async fn impostors_are_refused_and_counted() {
    let authority = Authority::new("nodes", DAY).expect("is made");
    let other = Authority::new("nodes", DAY).expect("is made");
    let two = Listening::start(Security::Mtls(node(&authority, 2))).await;
    let refused = [
        ("no TLS", identity(1), Security::None),
        (
            "a foreign authority",
            identity(1),
            Security::Mtls(keeper(&other, &authority, Some(&node_uri("test", 1)))),
        ),
        ("node 1's certificate as node 3", identity(3), Security::Mtls(node(&authority, 1))),
        ("no node", identity(1), Security::Mtls(keeper(&authority, &authority, None))),
        (
            "another cluster's node",
            identity(1),
            Security::Mtls(keeper(&authority, &authority, Some(&node_uri("prod", 1)))),
        ),
    ];
    for (what, us, security) in refused {
        let before = two.refused();
        let pool = Pool::new(us, Arc::new(Anybody(1, None)), two.tasks.clone()).secured_by(security);
        let peer = pool.set_address(NodeId(2), &two.address);
        let deadline = time::now() + Duration::from_secs(2);
        let error = peer.call(Lane::Control, b"hello".to_vec(), deadline).await.expect_err(what);
        assert!(!error.may_have_happened(), "{what}: {error}");
        assert!(two.refused() > before, "{what}");
    }
    two.tasks.stop().await;
}

#[tokio::test]
async fn a_dialer_sends_nothing_to_a_wrong_node() {
    let authority = Authority::new("nodes", DAY).expect("is made");
    let two = Listening::start(Security::Mtls(node(&authority, 2))).await;
    let pool = Pool::new(identity(1), Arc::new(Anybody(1, None)), two.tasks.clone());
    let pool = pool.secured_by(Security::Mtls(node(&authority, 1)));
    let peer = pool.set_address(NodeId(3), &two.address);
    let deadline = time::now() + Duration::from_secs(2);
    let error = peer.call(Lane::Control, b"hello".to_vec(), deadline).await.expect_err("is refused");
    assert!(error.to_string().contains("the certificate there is that of node 2"), "{error}");
    two.tasks.stop().await;
}

#[tokio::test]
async fn nodes_with_and_without_certificates_talk_in_transition() {
    let authority = Authority::new("nodes", DAY).expect("is made");
    let (plain, both) = (Security::None, |n| Security::Both(node(&authority, n)));
    let cases = [(both(1), plain.clone()), (plain, both(2)), (both(1), both(2))];
    let more =
        [(both(1), Security::Mtls(node(&authority, 2))), (Security::Mtls(node(&authority, 1)), both(2))];
    for (dialer, listener) in cases.into_iter().chain(more) {
        let two = Listening::start(listener).await;
        assert_eq!(two.asked_by(identity(1), dialer, 2).await.expect("is answered"), "hello");
        two.tasks.stop().await;
    }
}
