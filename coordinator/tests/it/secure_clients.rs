//! Listener for clients with TLS: admission, proven identities, and counters.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::PathBuf;
use std::time::Duration;

use rowlock_coordinator::config::{ClientAuth, TlsFiles};
use rowlock_coordinator::{Instant, Node, NodeConfig};
use rowlock_env::disk::Dir;
use rowlock_env::net::Stream;
use rowlock_env::time;
use rowlock_frames::raw::RawClient;
use rowlock_frames::wire::{Wire, connect_request};
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::request::{Create, SetAcl};
use rowlock_proto::{CreateMode, ErrorCode, Request, Response, Version};
use rowlock_tls::issue::{Authority, Leaf};
use rowlock_tls::{ClientKeeper, ClientTls, Connector, Pem};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const DAY: i64 = 86_400;
const SOON: Duration = Duration::from_secs(30);

/// Node with TLS only, and its certificate authorities.
struct World {
    folder: tempfile::TempDir,
    clients: Authority,
    node: Node,
}

impl World {
    async fn new(change: impl FnOnce(&mut NodeConfig)) -> World {
        let folder = tempfile::tempdir().unwrap();
        let (nodes, clients) =
            (Authority::new("nodes", DAY).unwrap(), Authority::new("clients", DAY).unwrap());
        let leaf = Leaf { name: "node", hosts: &["127.0.0.1"], uri: None, valid_s: DAY };
        let issued = nodes.issue(&leaf).unwrap();
        let at = |name: &str, text: &str| write(folder.path().join(name), text);
        let mut config = NodeConfig::single(folder.path().join("data"));
        config.tls = Some(TlsFiles {
            cert: at("node.pem", &issued.cert_pem),
            key: at("node.key", &issued.key_pem),
            peer_ca: Some(at("nodes-ca.pem", nodes.cert_pem())),
            client_ca: Some(at("clients-ca.pem", clients.cert_pem())),
            crl: None,
        });
        config.secure_client_addr = config.client_addr.take();
        change(&mut config);
        let node = Node::start(config).await.unwrap();
        node.serving(Instant::now() + SOON).await.unwrap();
        assert_eq!(Some(node.addresses().client), node.addresses().secure_client);
        World { folder, clients, node }
    }

    fn named(&self, name: &str) -> Connector {
        self.signed(name, &self.clients)
    }

    fn signed(&self, name: &str, authority: &Authority) -> Connector {
        let issued = authority.issue(&Leaf { name, hosts: &[], uri: None, valid_s: DAY }).unwrap();
        let text = |pem: String| Pem::Text(pem.into_bytes());
        self.connector(Some((text(issued.cert_pem), text(issued.key_pem))))
    }

    fn nameless(&self) -> Connector {
        self.connector(None)
    }

    fn connector(&self, identity: Option<(Pem, Pem)>) -> Connector {
        let ca = Pem::File(self.folder.path().join("nodes-ca.pem"));
        ClientKeeper::open(ClientTls { ca, identity }).unwrap().connector()
    }

    async fn connect(&self, connector: &Connector) -> Result<Session, String> {
        let address = self.node.addresses().client.to_string();
        let plain = Stream::connect(&address, SOON).await.unwrap();
        let open = async {
            let stream = connector.connect(plain, "127.0.0.1").await.map_err(|error| error.to_string())?;
            let mut wire = Wire::over(stream);
            let opened = wire.open(&connect_request(30_000)).await.map_err(|error| error.to_string())?;
            Ok(Session(RawClient::over(wire, opened)))
        };
        time::timeout(SOON, open).await.expect("an answer in time")
    }

    fn failures(&self) -> u64 {
        self.node.metrics().client_tls_handshakes_failed_total.get()
    }
}

fn write(path: PathBuf, text: &str) -> PathBuf {
    let dir = Dir::open(path.parent().unwrap()).unwrap();
    dir.write_atomic(path.file_name().unwrap().to_str().unwrap(), text.as_bytes()).unwrap();
    path
}

/// Session of a client, in raw frames.
struct Session(RawClient);

impl Session {
    async fn call(&mut self, request: Request) -> Result<Response, ErrorCode> {
        self.0.call(request).await
    }

    async fn create(&mut self, path: &str, scheme: &str, id: &str) -> Result<(), ErrorCode> {
        let (acl, flags) = (Some(acl(scheme, id).into()), CreateMode::Persistent.flags());
        self.call(Request::Create(Create { path: path.to_owned(), data: None, acl, flags })).await.map(drop)
    }

    async fn read(&mut self, path: &str) -> Result<(), ErrorCode> {
        self.0.data(path, false).await.map(drop)
    }
}

fn acl(scheme: &str, id: &str) -> Vec<Acl> {
    vec![Acl { perms: perms::ALL, id: Id { scheme: scheme.to_owned(), id: id.to_owned() } }]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_is_an_acl_identity_and_listed_ones_are_super() {
    let world = World::new(|config| {
        config.client.x509_superusers = vec!["CN=admin".to_owned()];
        config.client.require_auth = true;
    })
    .await;
    let mut alice = world.connect(&world.named("alice")).await.unwrap();
    let mut bob = world.connect(&world.named("bob")).await.unwrap();
    let mut admin = world.connect(&world.named("admin")).await.unwrap();
    let Ok(Response::WhoAmI(who)) = alice.call(Request::WhoAmI).await else { panic!("must answer") };
    let who: Vec<(&str, &str)> = who.iter().map(|id| (id.scheme.as_str(), id.id.as_str())).collect();
    assert_eq!(who, [("ip", "127.0.0.1"), ("x509", "CN=alice")]);
    alice.create("/hers", "auth", "").await.unwrap();
    alice.read("/hers").await.unwrap();
    assert_eq!(bob.read("/hers").await, Err(ErrorCode::NoAuth));
    admin.read("/hers").await.unwrap();
    bob.create("/for-alice", "x509", "CN=alice").await.unwrap();
    alice.read("/for-alice").await.unwrap();
    assert_eq!(bob.read("/for-alice").await, Err(ErrorCode::NoAuth));
    assert_eq!(bob.create("/bad", "x509", "bob").await, Err(ErrorCode::InvalidAcl));
    let set =
        SetAcl { path: "/hers".to_owned(), acl: Some(acl("x509", "CN=bob").into()), version: Version::ANY };
    alice.call(Request::SetAcl(set)).await.unwrap();
    bob.read("/hers").await.unwrap();
    assert_eq!(alice.read("/hers").await, Err(ErrorCode::NoAuth));
    world.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_without_valid_certificate_is_refused_and_counted() {
    let world = World::new(|_| {}).await;
    let stranger = Authority::new("strangers", DAY).unwrap();
    for (count, connector) in [(1, world.signed("mallory", &stranger)), (2, world.nameless())] {
        world.connect(&connector).await.map(drop).expect_err("is refused");
        assert_eq!(world.failures(), count);
    }
    let mut plain = Stream::connect(&world.node.addresses().client.to_string(), SOON).await.unwrap();
    plain.write_all(b"ruok").await.unwrap();
    let mut answer = Vec::new();
    // The reply is a single TLS alert: a client without TLS learns that the port needs TLS.
    let _ = time::timeout(SOON, plain.read_to_end(&mut answer)).await.expect("is closed");
    assert_eq!((answer.as_slice(), world.failures()), (&[0x15, 3, 3, 0, 2, 2, 70][..], 3));
    let mut alice = world.connect(&world.named("alice")).await.unwrap();
    alice.create("/a", "world", "anyone").await.unwrap();
    assert_eq!(world.node.metrics().client_tls_handshakes_total.get(), 1);
    world.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn optional_certificate_leaves_others_unauthenticated() {
    let world = World::new(|config| {
        config.client.client_auth = ClientAuth::Want;
        config.client.require_auth = true;
    })
    .await;
    let mut nameless = world.connect(&world.nameless()).await.unwrap();
    assert_eq!(nameless.read("/").await, Err(ErrorCode::SessionClosedRequireSaslAuth));
    let mut alice = world.connect(&world.named("alice")).await.unwrap();
    alice.read("/").await.unwrap();
    world.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_tls_session_keeps_the_identity() {
    let world = World::new(|_| {}).await;
    let connector = world.named("alice");
    for resumed in [0, 1, 2] {
        let mut alice = world.connect(&connector).await.unwrap();
        assert_eq!(world.node.metrics().client_tls_resumed_total.get(), resumed);
        let Ok(Response::WhoAmI(who)) = alice.call(Request::WhoAmI).await else { panic!("must answer") };
        assert_eq!(who[1].id, "CN=alice");
    }
    world.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_handshakes_are_closed_and_block_no_client() {
    let world = World::new(|_| {}).await;
    let address = world.node.addresses().client.to_string();
    let mut idle = Vec::new();
    for _ in 0..100 {
        let mut stream = Stream::connect(&address, SOON).await.unwrap();
        // Sends only the first byte of a handshake.
        stream.write_all(&[0x16]).await.unwrap();
        idle.push(stream);
    }
    let mut alice = world.connect(&world.named("alice")).await.unwrap();
    alice.read("/").await.unwrap();
    for mut stream in idle {
        let mut rest = Vec::new();
        let _ = time::timeout(SOON, stream.read_to_end(&mut rest)).await.expect("is closed");
    }
    alice.read("/").await.unwrap();
    assert_eq!(world.failures(), 100);
    world.node.shutdown().await;
}
