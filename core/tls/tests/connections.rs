//! Handshakes over real sockets: admission, refusal, and the transferred bytes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests

#[path = "connections/closing.rs"]
mod closing;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::net::{Listener, Stream};
use rowlock_env::time;
use rowlock_tls::issue::{Authority, Issued, Leaf};
use rowlock_tls::{
    Certificate, ClientAuth, ClientKeeper, ClientTls, Files, Keeper, Material, Pem, Reloaded, Secured,
    TlsError, inspect, node_uri,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const DAY: i64 = 86_400;
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder with an authority for nodes, an authority for clients, and certificates signed by both.
struct Place {
    folder: tempfile::TempDir,
    peers: Authority,
    clients: Authority,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let place = Place {
            folder,
            peers: Authority::new("peers", DAY).unwrap(),
            clients: Authority::new("clients", DAY).unwrap(),
        };
        place.write("peers-ca.pem", place.peers.cert_pem());
        place.write("clients-ca.pem", place.clients.cert_pem());
        for node in 1..=2 {
            place.keep(&format!("node-{node}"), &place.node(node));
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        write(&self.path(name), text, 0o600);
    }

    fn keep(&self, name: &str, issued: &Issued) {
        self.write(&format!("{name}.pem"), &issued.cert_pem);
        self.write(&format!("{name}.key"), &issued.key_pem);
    }

    fn node(&self, node: u64) -> Issued {
        let uri = node_uri("prod", node);
        let leaf = Leaf { name: "node", hosts: &["localhost", "127.0.0.1"], uri: Some(&uri), valid_s: DAY };
        self.peers.issue(&leaf).unwrap()
    }

    fn files(&self, name: &str) -> Files {
        Files {
            cert: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            peer_ca: Some(self.path("peers-ca.pem")),
            client_ca: Some(self.path("clients-ca.pem")),
            crl: None,
        }
    }

    fn material(&self, name: &str) -> Material {
        Material::read(&self.files(name), ClientAuth::Need).unwrap()
    }

    fn client(&self, name: &str) -> ClientTls {
        let file = |end: &str| Pem::File(self.path(&format!("{name}.{end}")));
        ClientTls { ca: Pem::File(self.path("peers-ca.pem")), identity: Some((file("pem"), file("key"))) }
    }

    /// Signs a certificate for a client and writes the files.
    fn new_client(&self, authority: &Authority, name: &str, valid_s: i64) -> Issued {
        let issued = authority.issue(&Leaf { name, hosts: &[], uri: None, valid_s }).unwrap();
        self.keep(name, &issued);
        issued
    }
}

fn write(path: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

async fn pair() -> (Stream, Stream) {
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let dialed = Stream::connect(&listener.local_addr().to_string(), PATIENCE).await.unwrap();
    (dialed, listener.accept().await)
}

/// Runs a handshake between nodes; returns the results of both sides.
async fn peers(
    dialer: &Material,
    listener: &Material,
) -> (Result<(Stream, Certificate), TlsError>, Result<Secured, TlsError>) {
    let (dialed, accepted) = pair().await;
    let connector = &dialer.peers.as_ref().unwrap().1;
    let acceptor = &listener.peers.as_ref().unwrap().0;
    let both = async { tokio::join!(connector.connect_to_node(dialed), acceptor.accept(accepted)) };
    time::timeout(PATIENCE, both).await.unwrap()
}

/// Runs a handshake with a required client certificate; returns the listener's result.
async fn client(
    of: &ClientTls,
    host: &str,
    listener: &Material,
) -> (Result<Stream, TlsError>, Result<Secured, TlsError>) {
    let connector = ClientKeeper::open(of.clone()).unwrap().connector();
    let (dialed, accepted) = pair().await;
    let both = async { tokio::join!(connector.connect(dialed, host), listener.clients.accept(accepted)) };
    time::timeout(PATIENCE, both).await.unwrap()
}

fn refusal<T>(result: Result<T, TlsError>) -> String {
    result.err().expect("must be refused").to_string()
}

#[tokio::test]
async fn nodes_identify_each_other_and_bytes_arrive_both_ways() {
    let place = Place::new();
    let (dialed, accepted) = peers(&place.material("node-1"), &place.material("node-2")).await;
    let (dialed, theirs) = dialed.unwrap();
    let Secured { stream: accepted, certificate, .. } = accepted.unwrap();
    assert_eq!(theirs.node_of("prod"), Some(2));
    assert_eq!(certificate.unwrap().node_of("prod"), Some(1));
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut from, mut to) = (dialed.into_split(), accepted.into_split());
    let write = async {
        from.1.write_all(&sent).await.unwrap();
        from.1.shutdown().await.unwrap();
    };
    let echo = async {
        let mut seen = Vec::new();
        to.0.read_to_end(&mut seen).await.unwrap();
        to.1.write_all(&seen).await.unwrap();
        to.1.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let all = async { tokio::join!(write, echo, from.0.read_to_end(&mut back)) };
    time::timeout(PATIENCE, all).await.unwrap().2.unwrap();
    assert!(back == sent, "{} bytes came back of {}", back.len(), sent.len());
}

#[tokio::test]
async fn retried_writes_arrive_once_and_in_order() {
    let place = Place::new();
    let (dialed, accepted) = peers(&place.material("node-1"), &place.material("node-2")).await;
    let (dialed, mut accepted) = (dialed.unwrap().0, accepted.unwrap().stream);
    let sent: Vec<u8> = (0..9_000_000_u32).map(|n| (n % 241) as u8).collect();
    let write = async {
        let (mut dialed, mut at, mut full) = (dialed, 0, 0);
        while at < sent.len() {
            match dialed.try_write(&sent[at..]) {
                Ok(count) => at += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    full += 1;
                    at += dialed.write(&sent[at..]).await.unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        dialed.shutdown().await.unwrap();
        full
    };
    let mut seen = Vec::new();
    let (full, read) = tokio::join!(write, accepted.read_to_end(&mut seen));
    read.unwrap();
    assert!(seen == sent, "{} bytes came of {}", seen.len(), sent.len());
    assert!(full > 0, "the socket was never full");
}

#[tokio::test]
async fn the_wire_carries_no_plaintext() {
    let place = Place::new();
    let (near, far) =
        (Listener::bind("127.0.0.1:0").await.unwrap(), Listener::bind("127.0.0.1:0").await.unwrap());
    let dialed = Stream::connect(&near.local_addr().to_string(), PATIENCE).await.unwrap();
    let mut relay_in = near.accept().await;
    let mut relay_out = Stream::connect(&far.local_addr().to_string(), PATIENCE).await.unwrap();
    let accepted = far.accept().await;
    let (one, two) = (place.material("node-1"), place.material("node-2"));
    let secret = b"the data of a znode";
    let mut seen = Vec::new();
    let relay = async {
        let (mut there, mut back) = ([0; 4096], [0; 4096]);
        loop {
            tokio::select! {
                read = relay_in.read(&mut there) => match read { Ok(count) if count > 0 => {
                    seen.extend_from_slice(&there[..count]);
                    relay_out.write_all(&there[..count]).await.unwrap();
                } _ => return },
                read = relay_out.read(&mut back) => match read { Ok(count) if count > 0 => {
                    relay_in.write_all(&back[..count]).await.unwrap();
                } _ => return },
            }
        }
    };
    let talk = async {
        let connector = &one.peers.as_ref().unwrap().1;
        let acceptor = &two.peers.as_ref().unwrap().0;
        let (dialed, accepted) = tokio::join!(connector.connect_to_node(dialed), acceptor.accept(accepted));
        let (mut dialed, mut accepted) = (dialed.unwrap().0, accepted.unwrap().stream);
        dialed.write_all(secret).await.unwrap();
        let mut read = [0; 19];
        accepted.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, secret);
    };
    time::timeout(PATIENCE, async { tokio::join!(relay, talk) }).await.unwrap();
    assert!(seen.len() > secret.len());
    assert!(!seen.windows(8).any(|window| secret.windows(8).any(|part| part == window)));
}

#[tokio::test]
async fn a_clients_subject_has_javas_form_and_hosts_match_its_server() {
    let place = Place::new();
    place.new_client(&place.clients, "alice", DAY);
    let node = place.material("node-1");
    for host in ["localhost", "127.0.0.1"] {
        let (dialed, accepted) = client(&place.client("alice"), host, &node).await;
        dialed.unwrap();
        assert_eq!(accepted.unwrap().certificate.unwrap().subject, "CN=alice");
    }
    let (dialed, accepted) = client(&place.client("alice"), "elsewhere.example", &node).await;
    let refused = refusal(dialed);
    assert!(refused.contains("is for localhost, 127.0.0.1, and not for"), "{refused}");
    refusal(accepted);
}

#[tokio::test]
async fn unauthorized_peers_are_refused() {
    let place = Place::new();
    let stranger = Authority::new("clients", DAY).unwrap();
    place.new_client(&stranger, "mallory", DAY);
    place.new_client(&place.clients, "late", -60);
    place.new_client(&place.clients, "alice", DAY);
    let revoked = place.new_client(&place.clients, "revoked", DAY);
    place.write("crl.pem", &place.clients.revoke(&[&revoked.certificate]).unwrap());
    let files = Files { crl: Some(place.path("crl.pem")), ..place.files("node-1") };
    let node = Material::read(&files, ClientAuth::Need).unwrap();
    // Certificates of a foreign authority's client, and of a node.
    for name in ["mallory", "node-2"] {
        let (_, accepted) = client(&place.client(name), "localhost", &node).await;
        refusal(accepted);
    }
    let (_, accepted) = client(&place.client("late"), "localhost", &node).await;
    assert!(refusal(accepted).contains("expired"));
    let (_, accepted) = client(&place.client("revoked"), "localhost", &node).await;
    assert!(refusal(accepted).to_lowercase().contains("revoked"));
    let none = ClientTls { identity: None, ..place.client("alice") };
    let (_, accepted) = client(&none, "localhost", &node).await;
    assert!(refusal(accepted).contains("it presented no certificate"));
    let (dialed, accepted) = client(&place.client("alice"), "localhost", &node).await;
    dialed.unwrap();
    accepted.unwrap();
}

#[tokio::test]
async fn the_nodes_port_refuses_clients_and_foreign_nodes() {
    let (place, other) = (Place::new(), Place::new());
    place.new_client(&place.clients, "alice", DAY);
    let node = place.material("node-1");
    let alice = place.material("alice");
    let (_, accepted) = peers(&alice, &node).await;
    refusal(accepted);
    let (dialed, accepted) = peers(&other.material("node-2"), &node).await;
    refusal(dialed);
    refusal(accepted);
}

#[tokio::test]
async fn a_plain_client_is_refused_without_information() {
    let place = Place::new();
    let node = place.material("node-1");
    let (mut dialed, accepted) = pair().await;
    let talk = async {
        dialed.write_all(b"\0\0\0\x2dROWLOCKp, let me in").await.unwrap();
        let mut answer = Vec::new();
        // A reset is an acceptable reply as well.
        let _ = dialed.read_to_end(&mut answer).await;
        answer
    };
    let both = async { tokio::join!(talk, node.clients.accept(accepted)) };
    let (answer, accepted) = time::timeout(PATIENCE, both).await.unwrap();
    refusal(accepted);
    assert!(answer.len() <= 7, "an alert at most: {answer:?}");
}

#[tokio::test]
async fn new_files_apply_together_and_bad_files_change_nothing() {
    let place = Place::new();
    place.new_client(&place.clients, "alice", DAY);
    let keeper = Arc::new(Keeper::open(place.files("node-1"), ClientAuth::Need, |_| Ok(())).unwrap());
    assert_eq!(keeper.reload(), Reloaded::Same);
    let before = keeper.material().certificate.serial.clone();
    // Writes the certificate without its key: an unfinished change.
    let new = place.node(1);
    place.write("node-1.pem", &new.cert_pem);
    let Reloaded::Failed(failed) = keeper.reload() else { panic!("must fail") };
    assert!(failed.to_string().contains("node-1.key: does not go with"), "{failed}");
    assert_eq!(keeper.reload(), Reloaded::Same, "a failure is returned once");
    assert_eq!(keeper.material().certificate.serial, before);
    place.write("node-1.key", &new.key_pem);
    assert_eq!(keeper.reload(), Reloaded::New);
    assert_eq!(keeper.material().certificate.serial, new.certificate.serial);
    // Adds a second authority of clients, then removes the first authority.
    let next = Authority::new("clients", DAY).unwrap();
    place.new_client(&next, "bob", DAY);
    let bundle = format!("{}{}", place.clients.cert_pem(), next.cert_pem());
    for (ca, alice_may) in [(bundle.as_str(), true), (next.cert_pem(), false)] {
        place.write("clients-ca.pem", ca);
        assert_eq!(keeper.reload(), Reloaded::New);
        let node = keeper.material();
        client(&place.client("bob"), "localhost", &node).await.1.unwrap();
        let alice = client(&place.client("alice"), "localhost", &node).await.1;
        assert_eq!(alice.is_ok(), alice_may);
    }
}

#[tokio::test]
async fn a_resumed_client_is_identified_and_new_material_resumes_none() {
    let place = Place::new();
    place.new_client(&place.clients, "alice", DAY);
    let connector = ClientKeeper::open(place.client("alice")).unwrap().connector();
    let (old, new) = (place.material("node-1"), place.material("node-1"));
    for (node, resumes) in [(&old, false), (&old, true), (&new, false), (&new, true)] {
        let (dialed, accepted) = pair().await;
        let both =
            async { tokio::join!(connector.connect(dialed, "localhost"), node.clients.accept(accepted)) };
        let (dialed, accepted) = time::timeout(PATIENCE, both).await.unwrap();
        let Secured { mut stream, certificate, is_resumed } = accepted.unwrap();
        assert_eq!((certificate.unwrap().subject.as_str(), is_resumed), ("CN=alice", resumes));
        // Tickets follow the handshake and arrive with the first bytes.
        stream.write_all(b"x").await.unwrap();
        assert_eq!(dialed.unwrap().read_u8().await.unwrap(), b'x');
    }
}

#[test]
fn a_key_readable_by_other_users_is_refused() {
    let place = Place::new();
    // The rights of a parent folder matter as well.
    write(&place.path("node-1.key"), &place.node(1).key_pem, 0o644);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(place.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = Material::read(&place.files("node-1"), ClientAuth::Need).err().unwrap().to_string();
    assert!(error.contains("can be read or written by other users of this machine; chmod 600"), "{error}");
}

#[test]
fn an_authority_is_loaded_from_its_files() {
    let one = Authority::new("peers of prod", DAY).unwrap();
    let again = Authority::load(one.cert_pem(), &one.key_pem()).unwrap();
    assert_eq!(again.cert_pem(), one.cert_pem());
    let other = Authority::new("peers of prod", DAY).unwrap();
    assert!(Authority::load(one.cert_pem(), &other.key_pem()).is_err(), "another key");
}

#[tokio::test]
async fn files_checked_offline_pass_and_fail_as_in_a_handshake() {
    let place = Place::new();
    place.new_client(&place.clients, "alice", DAY);
    place.new_client(&place.clients, "late", -60);
    let path = |name: &str| place.path(name);
    let read = &inspect::certificates(&path("node-1.pem")).unwrap()[0];
    assert_eq!((read.hosts.join(" ").as_str(), read.is_authority), ("localhost 127.0.0.1", false));
    assert!(inspect::certificates(&path("peers-ca.pem")).unwrap()[0].is_authority);
    let chains = |cert: &str, ca: &str| inspect::chains_to(&path(cert), &path(ca));
    assert_eq!(chains("node-1.pem", "peers-ca.pem"), Ok(()));
    assert_eq!(chains("alice.pem", "clients-ca.pem"), Ok(()));
    assert!(refusal(chains("alice.pem", "peers-ca.pem")).ends_with("is signed by an unknown authority"));
    assert!(refusal(chains("late.pem", "clients-ca.pem")).ends_with("its certificate has expired"));
    assert_eq!(inspect::key(&path("alice.key"), &path("alice.pem")), Ok(()));
    assert!(
        refusal(inspect::key(&path("late.key"), &path("alice.pem"))).contains("late.key: does not go with")
    );
}

#[tokio::test]
async fn a_client_reloads_its_certificate_and_survives_a_bad_file() {
    let place = Place::new();
    place.new_client(&place.clients, "alice", DAY);
    let node = place.material("node-1");
    let keeper = ClientKeeper::open(place.client("alice")).unwrap();
    let shown = async || {
        let (dialed, accepted) = pair().await;
        let connector = keeper.connector();
        let (dialed, accepted) =
            tokio::join!(connector.connect(dialed, "localhost"), node.clients.accept(accepted));
        dialed.unwrap();
        accepted.unwrap().certificate.unwrap().serial
    };
    let first = shown().await;
    let new = place.new_client(&place.clients, "alice", DAY);
    assert_ne!(first, new.certificate.serial);
    assert_eq!(shown().await, new.certificate.serial);
    place.write("alice.key", "nothing");
    assert_eq!(shown().await, new.certificate.serial);
    let error = ClientKeeper::open(place.client("alice")).err().unwrap().to_string();
    assert!(error.contains("alice.key: has no key that can be read"), "{error}");
}

/// Returns the number of records in which this client reads a server's writes.
#[tokio::test]
async fn each_frame_for_a_client_is_a_separate_record() {
    let place = Place::new();
    place.new_client(&place.clients, "alice", DAY);
    let near = Listener::bind("127.0.0.1:0").await.unwrap();
    let dialed = Stream::connect(&near.local_addr().to_string(), PATIENCE).await.unwrap();
    let middle = near.accept().await;
    let (relayed, accepted) = pair().await;
    let (mut from_client, mut to_client) = middle.into_split();
    let (mut from_server, mut to_server) = relayed.into_split();
    let (node, connector) = (place.material("node-1"), ClientKeeper::open(place.client("alice")).unwrap());
    let connector = connector.connector();
    let there = async { tokio::io::copy(&mut from_client, &mut to_server).await.unwrap() };
    let sizes = [1_usize, 40, 0, 3_000, 12];
    let talk = async {
        let both =
            async { tokio::join!(connector.connect(dialed, "localhost"), node.clients.accept(accepted)) };
        let (dialed, accepted) = both.await;
        let (mut dialed, mut accepted) = (dialed.unwrap(), accepted.unwrap().stream);
        let frames =
            sizes.map(|size| [(size as u32).to_be_bytes().to_vec(), vec![7; size]].concat()).concat();
        accepted.write_all(&frames).await.unwrap();
        let mut read = vec![0; frames.len()];
        dialed.read_exact(&mut read).await.unwrap();
        assert_eq!(read, frames);
    };
    let mut seen = Vec::new();
    let back = async {
        let mut bytes = [0; 4_096];
        while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
            seen.extend_from_slice(&bytes[..count]);
            to_client.write_all(&bytes[..count]).await.unwrap();
        }
    };
    let all = async {
        tokio::select! {
            () = talk => {}
            _ = async { tokio::join!(there, back) } => panic!("both sides are there"),
        }
    };
    time::timeout(PATIENCE, all).await.unwrap();
    // Each record has type, version and length; its content has a byte of type and 16 bytes of seal.
    let mut lengths = Vec::new();
    let mut rest = seen.as_slice();
    while let [_, _, _, high, low, ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        lengths.push(length);
        rest = &rest[5 + length..];
    }
    let wanted = sizes.map(|size| 4 + size + 17);
    assert!(lengths.ends_with(&wanted), "{lengths:?} does not end with {wanted:?}");
}
