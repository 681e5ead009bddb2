//! Connections by TLS, to a node behind something that decrypts.

#![allow(clippy::disallowed_methods)] // tests

use std::path::{Path, PathBuf};
use std::time::Duration;

use rowlock_client::{Client, ClientBuilder, ConfigError, ConnectError, Pem, Tls};
use rowlock_env::net::{Listener, Stream};
use rowlock_env::task::{self, Task};
use rowlock_testkit::Cluster;
use rowlock_tls::issue::{Authority, Leaf};
use rowlock_tls::{Acceptor, ClientAuth, Files, Material};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::within;

const DAY: i64 = 86_400;
const PATIENCE: Duration = Duration::from_secs(2);

struct Place {
    folder: tempfile::TempDir,
    nodes: Authority,
    clients: Authority,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let authority = |name| Authority::new(name, DAY).unwrap();
        let place = Place { folder, nodes: authority("nodes"), clients: authority("clients") };
        place.write("peers-ca.pem", place.nodes.cert_pem());
        place.write("clients-ca.pem", place.clients.cert_pem());
        place.sign(&place.clients, "alice", &[], DAY);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        write(&self.path(name), text, 0o600);
    }

    fn sign(&self, authority: &Authority, name: &str, hosts: &[&str], valid_s: i64) {
        let issued = authority.issue(&Leaf { name, hosts, uri: None, valid_s }).unwrap();
        self.write(&format!("{name}.pem"), &issued.cert_pem);
        self.write(&format!("{name}.key"), &issued.key_pem);
    }

    /// The server's side, with a certificate for these hosts.
    fn acceptor(&self, hosts: &[&str], valid_s: i64) -> Acceptor {
        self.sign(&self.nodes, "node-1", hosts, valid_s);
        let files = Files {
            cert: self.path("node-1.pem"),
            key: self.path("node-1.key"),
            peer_ca: None,
            client_ca: Some(self.path("clients-ca.pem")),
            crl: None,
        };
        Material::read(&files, ClientAuth::Need).unwrap().clients
    }

    fn file(&self, name: &str) -> Pem {
        Pem::File(self.path(name))
    }

    fn stranger(&self) -> Tls {
        Tls::new(self.file("peers-ca.pem"))
    }

    fn client(&self, name: &str) -> Tls {
        self.stranger().identity(self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")))
    }
}

fn write(path: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Decrypts what comes to a port and hands it on to a node.
struct Front {
    endpoint: String,
    _accepts: Task<()>,
}

async fn front(acceptor: Acceptor, node: &str) -> Front {
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().to_string();
    let node = node.to_owned();
    let accepts = task::spawn("front", async move {
        loop {
            let stream = listener.accept().await;
            let (acceptor, node) = (acceptor.clone(), node.clone());
            drop(task::spawn("pipe", async move {
                let Ok(secured) = acceptor.accept(stream).await else { return };
                let inner = Stream::connect(&node, PATIENCE).await.unwrap();
                let ((mut from, mut to), (mut back, mut on)) =
                    (secured.stream.into_split(), inner.into_split());
                tokio::select! {
                    () = copy(&mut from, &mut on) => {}
                    () = copy(&mut back, &mut to) => {}
                }
            }));
        }
    });
    Front { endpoint, _accepts: accepts }
}

async fn copy(from: &mut (impl AsyncReadExt + Unpin), to: &mut (impl AsyncWriteExt + Unpin)) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

fn builder(endpoint: &str) -> ClientBuilder {
    Client::builder().endpoints(endpoint).connect_timeout(PATIENCE)
}

/// Why no session could be opened.
async fn refused(builder: ClientBuilder) -> String {
    let error = within("a refusal", builder.connect()).await.expect_err("must be refused");
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn a_client_that_shows_its_certificate_takes_locks_and_may_send_its_password() {
    let (cluster, place) = (Cluster::start(1).await, Place::new());
    let front = front(place.acceptor(&["localhost", "127.0.0.1"], DAY), cluster.endpoint(0)).await;
    let by_name = front.endpoint.replace("127.0.0.1", "localhost");
    for endpoint in [&front.endpoint, &by_name] {
        let client = builder(endpoint).tls(place.client("alice")).auth("digest", "alice:hush").connect();
        let client = within("a session", client).await.unwrap();
        let guard = within("a lock", client.mutex("m").lock()).await.unwrap();
        let large = vec![b'x'; 900_000];
        guard.release().await.unwrap();
        client
            .create(
                "/large",
                Some(large.clone().into()),
                rowlock_client::CreateMode::Ephemeral,
                rowlock_client::Acl::open(),
            )
            .await
            .unwrap();
        assert_eq!(client.get("/large").await.unwrap().data.unwrap(), large);
        client.close().await.unwrap();
    }
}

#[cfg(feature = "blocking")]
#[test]
fn a_blocking_client_is_encrypted_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let place = Place::new();
    let acceptor = place.acceptor(&["127.0.0.1"], DAY);
    let (_cluster, front) = runtime.block_on(async {
        let cluster = Cluster::start(1).await;
        let front = front(acceptor, cluster.endpoint(0)).await;
        (cluster, front)
    });
    let client =
        rowlock_client::blocking::Client::connect(builder(&front.endpoint).tls(place.client("alice")));
    let client = client.unwrap();
    client.mutex("m").lock().unwrap().release().unwrap();
    client.close().unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_who_it_should_be_is_refused_with_the_reason() {
    let (cluster, place) = (Cluster::start(1).await, Place::new());
    let node = cluster.endpoint(0);
    let elsewhere = front(place.acceptor(&["db1.example"], DAY), node).await;
    let error = refused(builder(&elsewhere.endpoint).tls(place.client("alice"))).await;
    assert!(error.ends_with("TLS: its certificate is for db1.example, and not for 127.0.0.1)"), "{error}");
    // A name that is said counts instead of the endpoint's.
    let named = builder(&elsewhere.endpoint).tls(place.client("alice").server_name("db1.example"));
    within("a session", named.connect()).await.unwrap().close().await.unwrap();

    let late = front(place.acceptor(&["127.0.0.1"], -60), node).await;
    let error = refused(builder(&late.endpoint).tls(place.client("alice"))).await;
    assert!(error.ends_with("TLS: its certificate has expired)"), "{error}");

    let good = front(place.acceptor(&["127.0.0.1"], DAY), node).await;
    let other = Tls::new(place.file("clients-ca.pem"));
    let error = refused(builder(&good.endpoint).tls(other)).await;
    assert!(error.ends_with("TLS: its certificate is signed by an unknown authority)"), "{error}");
}

#[tokio::test]
async fn a_client_that_is_not_believed_learns_why() {
    let (cluster, place) = (Cluster::start(1).await, Place::new());
    let front = front(place.acceptor(&["127.0.0.1"], DAY), cluster.endpoint(0)).await;
    let error = refused(builder(&front.endpoint).tls(place.stranger())).await;
    assert!(error.ends_with("TLS: it asks for a certificate, and we have none)"), "{error}");
    place.sign(&place.nodes, "mallory", &[], DAY);
    let error = refused(builder(&front.endpoint).tls(place.client("mallory"))).await;
    let wanted = "TLS: it refuses our certificate: its authority is unknown there)";
    assert!(error.ends_with(wanted), "{error}");
    place.sign(&place.clients, "late", &[], -60);
    let error = refused(builder(&front.endpoint).tls(place.client("late"))).await;
    assert!(error.ends_with("TLS: it refuses our certificate: it has expired)"), "{error}");
}

#[tokio::test]
async fn plain_and_encrypted_that_meet_say_so() {
    let (cluster, place) = (Cluster::start(1).await, Place::new());
    let error = refused(builder(cluster.endpoint(0)).tls(place.client("alice"))).await;
    assert!(error.contains("it may not speak TLS"), "{error}");
    let front = front(place.acceptor(&["127.0.0.1"], DAY), cluster.endpoint(0)).await;
    let error = refused(builder(&front.endpoint)).await;
    assert!(error.contains("the server wants TLS"), "{error}");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named_before_anything_is_tried() {
    let place = Place::new();
    let said = async |tls: Tls| match builder("127.0.0.1:1").tls(tls).connect().await {
        Err(ConnectError::Config(ConfigError::Tls { what })) => what,
        other => panic!("{other:?}"),
    };
    let absent = said(Tls::new(place.file("absent.pem"))).await;
    assert!(absent.contains("absent.pem: cannot be read"), "{absent}");
    let mixed = place.stranger().identity(place.file("alice.pem"), place.file("peers-ca.pem"));
    assert!(said(mixed).await.contains("peers-ca.pem: has no key that can be read"));
    // The folder lets others in, and so does the key.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(place.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(place.path("alice.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = said(place.client("alice")).await;
    assert!(open.contains("can be read or written by other users of this machine; chmod 600"), "{open}");
}
