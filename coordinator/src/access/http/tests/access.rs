//! TLS, certificates and tokens.
#![allow(clippy::disallowed_methods)] // the files of the test

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rowlock_tls::issue::{Authority, Leaf};
use rowlock_tls::{ClientAuth, ClientKeeper, ClientTls, Files, Pem};
use tempfile::TempDir;

use super::*;
use crate::access::tokens::{self, Token};
use crate::limits::{HTTP_TLS_HANDSHAKES_PER_SECOND, WRONG_PASSWORDS_PER_SECOND};

const HOUR: i64 = 3_600;

pub(super) fn write(path: &Path, text: &str) -> PathBuf {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    path.to_owned()
}

/// Starts a listener with a token file. Returns the texts of four tokens: roles `read`, `operator`,
/// `lock:/*`, and an expired token.
async fn with_tokens() -> (Server, [String; 4], TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let made = [("read", None), ("operator", None), ("lock:/*", None), ("operator", Some(1))];
    let made = made.map(|(role, end)| {
        let name = format!("{}-{}", role.split(':').next().unwrap(), end.unwrap_or(0));
        Token::new(name, [role.parse().unwrap()].into(), end)
    });
    let text: String = made.iter().map(|(token, _)| format!("{token}\n")).collect();
    let keeper = tokens::open(write(&folder.path().join("tokens"), &text)).unwrap();
    let access = Access::new(true, Some(Arc::new(keeper)), Vec::new());
    (start_with(access, None).await, made.map(|(_, text)| text), folder)
}

async fn send_with(server: &Server, path: &str, header: &str) -> (u16, String) {
    code_of(&server.addr, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n")).await
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[tokio::test]
async fn wrong_tokens_are_throttled_and_right_tokens_accepted() {
    let (server, [reader, ..], _folder) = with_tokens().await;
    let mut codes = Vec::new();
    for n in 0..2 * WRONG_PASSWORDS_PER_SECOND {
        codes.push(send_with(&server, "/metrics", &bearer(&format!("rowlock_{n}"))).await.0);
    }
    assert!(codes[..WRONG_PASSWORDS_PER_SECOND as usize].iter().all(|code| *code == 401), "{codes:?}");
    // On a slow machine the bucket refills during the loop.
    assert!(codes.iter().all(|code| [401, 429].contains(code)), "{codes:?}");
    assert_eq!(send_with(&server, "/metrics", &bearer(&reader)).await.0, 200);
    assert_eq!(send_with(&server, "/livez", "").await.0, 200);
    assert!(server.metrics.http_tokens_wrong_total.get() >= u64::from(2 * WRONG_PASSWORDS_PER_SECOND));
}

/// Certificates for a listener and its clients.
struct Papers {
    folder: TempDir,
    clients: Authority,
}

impl Papers {
    fn new() -> Papers {
        let folder = tempfile::tempdir().unwrap();
        let (nodes, clients) =
            (Authority::new("nodes", HOUR).unwrap(), Authority::new("clients", HOUR).unwrap());
        let papers = Papers { folder, clients };
        let node = Leaf { name: "node", hosts: &["127.0.0.1"], uri: None, valid_s: HOUR };
        let node = nodes.issue(&node).unwrap();
        for (name, text) in [
            ("node.pem", node.cert_pem.as_str()),
            ("node.key", &node.key_pem),
            ("nodes.pem", nodes.cert_pem()),
            ("clients.pem", papers.clients.cert_pem()),
        ] {
            write(&papers.file(name), text);
        }
        papers
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn keeper(&self) -> Arc<Keeper> {
        let files = Files {
            cert: self.file("node.pem"),
            key: self.file("node.key"),
            peer_ca: None,
            client_ca: Some(self.file("clients.pem")),
            crl: None,
        };
        Arc::new(Keeper::open(files, ClientAuth::None, |_| Ok(())).unwrap())
    }

    /// Returns a client with a certificate of this authority, or without a certificate.
    fn client(&self, signed: Option<(&Authority, &str)>) -> Arc<ClientKeeper> {
        let identity = signed.map(|(authority, name)| {
            let leaf = Leaf { name, hosts: &[], uri: None, valid_s: HOUR };
            let issued = authority.issue(&leaf).unwrap();
            (Pem::Text(issued.cert_pem.into()), Pem::Text(issued.key_pem.into()))
        });
        ClientKeeper::open(ClientTls { ca: Pem::File(self.file("nodes.pem")), identity }).unwrap()
    }
}

/// Returns the status code, or the reason for a missing response.
async fn send_by_tls(addr: &str, client: &ClientKeeper, path: &str) -> Result<u16, String> {
    let text = |error: std::io::Error| error.to_string();
    let stream = Stream::connect(addr, PATIENCE).await.map_err(text)?;
    let connected = client.connector().connect(stream, "127.0.0.1").await;
    let mut stream = connected.map_err(|error| error.to_string())?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(text)?;
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an end").map_err(text)?;
    answer.get(9..12).ok_or("no answer".to_owned())?.parse().map_err(|_| answer)
}

#[tokio::test]
async fn client_certificate_opens_paths_beyond_probes() {
    let papers = Papers::new();
    let access = Access::new(true, None, vec!["CN=admin".to_owned()]);
    let server = start_with(access, Some(papers.keeper())).await;
    let send = async |client: &ClientKeeper, path: &str| send_by_tls(&server.addr, client, path).await;
    let (alice, admin) =
        (papers.client(Some((&papers.clients, "alice"))), papers.client(Some((&papers.clients, "admin"))));
    let nobody = papers.client(None);
    for client in [&alice, &admin, &nobody] {
        assert_eq!(send(client, "/livez").await, Ok(200));
    }
    assert_eq!(send(&nobody, "/metrics").await, Ok(401));
    assert_eq!(send(&alice, "/metrics").await, Ok(200));
    let foreign = "/v1/sessions?session=0x5";
    assert_eq!(send(&alice, foreign).await, Ok(403), "a client sees no sessions of others");
    assert_eq!(send(&admin, foreign).await, Ok(404), "an operator does, and there is none");
    assert_eq!(server.metrics.http_tls_handshakes_failed_total.get(), 0);
    let stranger = Authority::new("others", HOUR).unwrap();
    let mallory = papers.client(Some((&stranger, "alice")));
    send(&mallory, "/livez").await.expect_err("a certificate that counts for nothing");
    let (code, said) = code_of(&server.addr, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(code == 400 && said.ends_with("this port is for https\n"), "{said}");
    assert_eq!(server.metrics.http_tls_handshakes_failed_total.get(), 2);
}

#[tokio::test]
async fn silent_connections_do_not_delay_a_tls_probe() {
    let papers = Papers::new();
    let server = start_with(Access::new(true, None, Vec::new()), Some(papers.keeper())).await;
    let mut idle = Vec::new();
    for _ in 0..HTTP_CONNECTIONS_MAX + 16 {
        idle.push(Stream::connect(&server.addr, PATIENCE).await.unwrap());
    }
    let nobody = papers.client(None);
    let answer = timeout(HTTP_CONNECTION_MAX / 2, send_by_tls(&server.addr, &nobody, "/livez")).await;
    assert_eq!(answer.expect("well before the idle ones are closed anyway"), Ok(200));
}

/// Sends more partial hellos per second than permitted handshakes.
#[tokio::test]
async fn partial_hellos_do_not_delay_a_tls_client() {
    let papers = Papers::new();
    let server = start_with(Access::new(true, None, Vec::new()), Some(papers.keeper())).await;
    let mut half = Vec::new();
    for _ in 0..HTTP_TLS_HANDSHAKES_PER_SECOND * 12 {
        let mut stream = Stream::connect(&server.addr, PATIENCE).await.unwrap();
        // First byte of a handshake record of 512 bytes.
        stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        half.push(stream);
        if half.len() > HTTP_CONNECTIONS_MAX / 2 {
            half.remove(0);
        }
    }
    let begun = Instant::now();
    let nobody = papers.client(None);
    assert_eq!(send_by_tls(&server.addr, &nobody, "/livez").await, Ok(200));
    // Turns for all partial hellos would take twelve seconds, minus the time for opening the connections.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}
