//! Commands that reach a cluster by TLS only: a port that decrypts stands before its node.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rowlock_env::net::Listener;
use rowlock_tls::{Acceptor, ClientAuth, Files, Material};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::cli_under_lock::start;
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock, run};
use crate::support::secs;

const UNAVAILABLE: i32 = 69;
const CONFIG: i32 = 78;

/// A node, a port before it that takes nothing but TLS, and `tls/` in its folder.
struct Encrypted {
    cluster: Cluster,
    endpoint: String,
    accepts: JoinHandle<()>,
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

impl Encrypted {
    async fn start() -> Encrypted {
        let cluster = Cluster::start(1, FAST).await;
        for arguments in
            [&["tls", "init", "--nodes", "1", "--cluster", "test"][..], &["tls", "client", "alice"]]
        {
            assert_eq!(run(&cluster.folder, arguments).code, 0, "{arguments:?}");
        }
        let file = |name: &str| cluster.folder.join("tls").join(name);
        let files = Files {
            cert: file("node-1.pem"),
            key: file("node-1.key"),
            peer_ca: None,
            client_ca: Some(file("clients-ca.pem")),
            crl: None,
        };
        let acceptor = Material::read(&files, ClientAuth::Need).unwrap().clients;
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().to_string();
        let accepts = tokio::spawn(decrypt(listener, acceptor, cluster.endpoints()));
        Encrypted { cluster, endpoint, accepts }
    }

    /// `arguments` where `%` stands for how to reach the cluster.
    fn way<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let way = [
            "--endpoints",
            &self.endpoint,
            "--tls-ca=tls/peers-ca.pem",
            "--tls-cert=tls/client-alice.pem",
            "--tls-key=tls/client-alice.key",
        ];
        let one = |argument: &&'a str| if *argument == "%" { way.to_vec() } else { vec![*argument] };
        arguments.iter().flat_map(one).collect()
    }

    async fn ask(&self, arguments: &[&str]) -> Said {
        let child = rowlock(&self.cluster.folder, &self.way(arguments)).spawn().unwrap();
        tokio::task::spawn_blocking(|| finish(child)).await.unwrap()
    }
}

async fn decrypt(listener: Listener, acceptor: Acceptor, node: String) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, node) = (acceptor.clone(), node.clone());
        tokio::spawn(async move {
            let Ok(mut secured) = acceptor.accept(stream).await else { return };
            let mut plain = TcpStream::connect(&node).await.unwrap();
            // Whichever side hangs up ends both.
            let _ = tokio::io::copy_bidirectional(&mut secured.stream, &mut plain).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_work_by_tls_with_flags_or_with_the_environment() {
    let it = Encrypted::start().await;
    for (arguments, wanted) in [
        (&["create", "%", "/a", "one"][..], "/a\n"),
        (&["get", "%", "/a"], "one"),
        (&["lock", "%", "l", "-c", "echo $ROWLOCK_LOCK_NAME"], "l\n"),
        (&["ls", "%", "/locks"], "l\n"),
    ] {
        let said = it.ask(arguments).await;
        assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, wanted, ""), "{arguments:?}");
    }
    let said = it.ask(&["status", "%"]).await;
    assert!(said.code == 0 && said.out.contains(&it.endpoint), "{} {}", said.out, said.err);
    let mut command = rowlock(&it.cluster.folder, &["get", "/a"]);
    let file = |name: &str| it.cluster.folder.join("tls").join(name);
    command.env("ROWLOCK_ENDPOINTS", &it.endpoint).env("ROWLOCK_TLS_CA", file("peers-ca.pem"));
    command
        .env("ROWLOCK_TLS_CERT", file("client-alice.pem"))
        .env("ROWLOCK_TLS_KEY", file("client-alice.key"));
    let child = command.spawn().unwrap();
    let said = tokio::task::spawn_blocking(|| finish(child)).await.unwrap();
    assert_eq!((said.code, said.out.as_str()), (0, "one"), "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_lock_is_given_back_by_tls_long_before_its_session_ends() {
    let it = Encrypted::start().await;
    let words = ["lock", "%", "--ttl", "60", "--disconnect-grace", "0", "l", "-c", "echo > held; sleep 60"];
    let mut holder = start(&it.cluster.folder, &it.way(&words));
    holder.wrote("held").await;
    holder.child.kill().unwrap();
    let said = it.ask(&["lock", "%", "-w", "20", "l", "true"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_in_one_line() {
    let it = Encrypted::start().await;
    let patience = secs(1).as_secs_f64().to_string();
    let short = ["--connect-timeout", patience.as_str()];
    let other = ["--tls-server-name", "other.example"];
    let plain = ["--endpoints", it.endpoint.as_str()];
    for (arguments, wanted) in [
        ([&["get", "%", "/"][..], &short, &other].concat(), "and not for other.example)"),
        ([&["get", "/"], &short[..], &plain].concat(), "the server wants TLS)"),
    ] {
        let said = it.ask(&arguments).await;
        assert!(said.code == UNAVAILABLE && said.err.contains(wanted), "{arguments:?}: {}", said.err);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
}

#[test]
fn a_key_that_others_may_read_is_refused_before_anything_is_tried() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path();
    fs::set_permissions(here, fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [&["tls", "init", "--nodes", "1"][..], &["tls", "client", "alice"]] {
        assert_eq!(run(here, arguments).code, 0, "{arguments:?}");
    }
    let open =
        |file: &str, mode| fs::set_permissions(here.join(file), fs::Permissions::from_mode(mode)).unwrap();
    open("tls", 0o755);
    open("tls/client-alice.key", 0o640);
    let flags = [
        "--endpoints=127.0.0.1:1",
        "--tls-ca=tls/peers-ca.pem",
        "--tls-cert=tls/client-alice.pem",
        "--tls-key=tls/client-alice.key",
    ];
    let said = run(here, &[&["get", "/"][..], &flags].concat());
    let wanted = "tls/client-alice.key: has a key, and can be read or written by other users of this machine";
    assert!(said.code == CONFIG && said.err.contains(wanted), "{}", said.err);
    // Half of what is needed.
    let said = run(here, &[&["get", "/"][..], &flags[..3]].concat());
    assert!(said.err.contains("ROWLOCK_TLS_CERT needs ROWLOCK_TLS_KEY"), "{}", said.err);
}
