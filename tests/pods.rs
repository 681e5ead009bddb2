//! durable: nodes that are known by name, as pods of Kubernetes are, and have another address after each
//! restart. Each process sees a hosts file of the test in a mount namespace of its own.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::cluster::{FAST, SERVING};
use crate::support::command::{Said, finish, rowlock};
use crate::support::{cluster, ports, secs};

/// In seconds: so long that an election under load does not end the holder.
const SESSION: &str = "30";

struct Pods {
    folder: TempDir,
    /// Client, peer, HTTP: the same for a node at all of its addresses.
    ports: BTreeMap<u8, [u16; 3]>,
    /// The third and fourth number of 127.0.x.y.
    addresses: BTreeMap<u8, (u8, u8)>,
    running: BTreeMap<u8, Child>,
}

fn name(node: u8) -> String {
    format!("rowlock-{}.rowlock-nodes", node - 1)
}

/// Whether this process may have a mount namespace with another hosts file.
fn may_change_hosts(folder: &Path) -> bool {
    fs::write(folder.join("hosts"), "127.0.0.1 localhost\n").unwrap();
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "mount", "--bind", "hosts", "/etc/hosts"]).current_dir(folder);
    let may = tried.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !may {
        println!("no mount namespace can be had (unshare, as root): nodes with names are NOT tried");
    }
    may
}

/// The files of `deploy/kubernetes-tls` and their secrets, in `folder`. Each node listens at its own address
/// instead of all, because the nodes of a test share a machine.
fn with_certificates(folder: TempDir) -> Pods {
    let here = folder.path();
    let of = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes-tls"));
    let mut file = fs::read_to_string(of.join("cluster.toml")).unwrap();
    for node in 1..=3 {
        let (all, own) = (r#"_listen = "0.0.0.0:"#, format!("_listen = \"127.0.5.{node}:"));
        let (begin, end) = file.split_at(file.find(&format!("id = {node}\n")).unwrap());
        file = format!("{begin}{}", end.replacen(all, &own, 2));
    }
    fs::write(here.join("cluster.toml"), file).unwrap();
    fs::copy(of.join("secrets.sh"), here.join("secrets.sh")).unwrap();
    let program = rowlock(here, &[]).get_program().to_owned();
    let bin = Path::new(&program).parent().unwrap().display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    let made =
        Command::new("sh").args(["secrets.sh", "payments"]).current_dir(here).env("PATH", path).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let ports = (1..=3).map(|node| (node, [2481, 2281, 8081])).collect();
    Pods { folder, ports, addresses: BTreeMap::new(), running: BTreeMap::new() }
}

impl Pods {
    fn new(folder: TempDir) -> Pods {
        let ports: BTreeMap<u8, [u16; 3]> =
            (1..=3).map(|node| (node, [(); 3].map(|()| ports::free()))).collect();
        let mut file = FAST.to_owned();
        for (node, [client, peer, http]) in &ports {
            let name = name(*node);
            file += &format!("[[node]]\nid = {node}\nclient = \"{name}:{client}\"\n");
            file += &format!("peer = \"{name}:{peer}\"\nhttp = \"{name}:{http}\"\n");
        }
        fs::write(folder.path().join("cluster.toml"), file).unwrap();
        Pods { folder, ports, addresses: BTreeMap::new(), running: BTreeMap::new() }
    }

    /// The program where the names lead to the pods' present addresses, and to later ones when they change.
    fn command(&self, arguments: &[&str]) -> Command {
        let program = rowlock(self.folder.path(), &[]).get_program().to_owned();
        self.command_of(program, arguments)
    }

    fn command_of(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
        let plain = rowlock(self.folder.path(), arguments);
        let mut command = Command::new("unshare");
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["--mount", "sh", "-c", "mount --bind hosts /etc/hosts && exec \"$@\"", "sh"]);
        command.arg(program).args(arguments).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn say(&self, arguments: &[&str]) -> Said {
        finish(self.command(arguments).spawn().unwrap())
    }

    fn place(&mut self, node: u8, net: u8) {
        self.addresses.insert(node, (net, node));
        let mut hosts = String::from("127.0.0.1 localhost\n");
        for (node, (net, host)) in &self.addresses {
            // The second name is the pod's own; the Service leads to any node.
            hosts += &format!("127.0.{net}.{host} {} rowlock-{} rowlock.payments\n", name(*node), node - 1);
        }
        // In its place: a mount leads to the file and not to its name.
        fs::write(self.folder.path().join("hosts"), hosts).unwrap();
    }

    fn start(&mut self, node: u8) {
        let (id, data) = (node.to_string(), format!("data-{node}"));
        let mut command = self.command(&["serve", "--node", &id, "--data", &data]);
        let log = fs::File::create(self.folder.path().join(format!("log-{node}"))).unwrap();
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        assert!(self.running.insert(node, child).is_none());
    }

    fn wait_until_ready(&self, node: u8) {
        let scheme = if self.trust().is_empty() { "" } else { "https://" };
        let http = format!("{scheme}{}:{}", name(node), self.ports[&node][2]);
        let begun = Instant::now();
        loop {
            let said = self.say(&[&["health", "--http", &http], self.trust()].concat());
            if said.code == 0 {
                return;
            }
            let log = fs::read_to_string(self.folder.path().join(format!("log-{node}"))).unwrap();
            assert!(begun.elapsed() < SERVING, "node {node}: {}\n{log}", said.err);
        }
    }

    fn start_all(&mut self, net: u8) {
        for node in 1..=3 {
            self.place(node, net);
        }
        for node in 1..=3 {
            self.start(node);
        }
        for node in 1..=3 {
            self.wait_until_ready(node);
        }
    }

    /// Returns the options of a command that trusts the nodes' certificates, if they have some.
    fn trust(&self) -> &[&str] {
        let has_tls = self.folder.path().join("secrets").exists();
        if has_tls { &["--tls-ca", "secrets/peers-ca.pem"] } else { &[] }
    }

    fn listens_at(&self, node: u8, net: u8) -> bool {
        TcpStream::connect((format!("127.0.{net}.{node}"), self.ports[&node][0])).is_ok()
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        for child in self.running.values_mut() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn follow(pods: &mut Pods) {
    pods.start_all(1);
    assert_eq!(pods.say(&["create", "/kept", "v"]).code, 0);
    let until = "echo > begun; until test -e finish; do sleep 0.05; done";
    let holder =
        pods.command(&["lock", "--session-timeout", SESSION, "held", "--", "sh", "-c", until]).spawn();
    let mut holder = holder.unwrap();
    let begun = Instant::now();
    while !pods.folder.path().join("begun").exists() {
        let ended = holder.try_wait().unwrap();
        assert!(ended.is_none() && begun.elapsed() < secs(60), "the lock is not granted: {ended:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    for node in 1..=3 {
        let mut child = pods.running.remove(&node).unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        pods.place(node, 2);
        pods.start(node);
        pods.wait_until_ready(node);
        assert!(pods.listens_at(node, 2) && !pods.listens_at(node, 1), "{node} is not where its name leads");
    }
    let queue = pods.say(&["queue", "held"]);
    assert!(queue.out.contains("1 holds"), "{} {}", queue.out, queue.err);
    fs::write(pods.folder.path().join("finish"), "").unwrap();
    let said = finish(holder);
    assert_eq!(said.code, 0, "{}", said.err);

    for child in pods.running.values_mut() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    pods.running.clear();
    pods.start_all(3);
    let kept = pods.say(&["get", "/kept"]);
    assert_eq!((kept.code, kept.out.as_str()), (0, "v"), "{}", kept.err);
}

/// A pod of another namespace: locks by certificate, by token, and by neither.
fn use_from_another_pod(pods: &mut Pods) {
    pods.start_all(5);
    let file = |name: &str| format!("secrets/{name}");
    let (cert, key) = (file("client-operator.pem"), file("client-operator.key"));
    let endpoints = "rowlock-0.rowlock-nodes:2481,rowlock-1.rowlock-nodes:2481,rowlock-2.rowlock-nodes:2481";
    let by_certificate = ["--endpoints", endpoints, "--tls-cert", &cert, "--tls-key", &key];
    let lock = [&["lock"], pods.trust(), &by_certificate, &["nightly", "true"]].concat();
    let said = pods.say(&lock);
    assert_eq!(said.code, 0, "{}", said.err);
    let said = pods.say(
        &[&["lock", "--endpoints", endpoints, "--connect-timeout", "5"], pods.trust(), &["nightly", "true"]]
            .concat(),
    );
    assert_ne!(said.code, 0, "a client without a certificate");

    let token = fs::read_to_string(pods.folder.path().join("secrets/operator.token")).unwrap();
    let ask = |token: &str| {
        let authorization = format!("Authorization: Bearer {token}");
        let url = "https://rowlock.payments:8081/v1/locks/nightly/acquire";
        let arguments = [
            "-sS",
            "--cacert",
            "secrets/peers-ca.pem",
            "-H",
            &authorization,
            "-d",
            r#"{"ttl_ms":10000}"#,
            url,
        ];
        finish(pods.command_of("curl", &arguments).spawn().unwrap())
    };
    let said = ask(token.trim());
    assert!(said.out.contains(r#""state":"held""#), "{} {}", said.out, said.err);
    let said = ask("another");
    assert!(said.out.contains("401"), "{} {}", said.out, said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_with_certificates_serve_locks_to_other_pods_by_certificate_and_by_token() {
    let _turn = cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    if may_change_hosts(folder.path()) {
        let mut pods = with_certificates(folder);
        tokio::task::block_in_place(|| use_from_another_pod(&mut pods));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_come_back_at_other_addresses_one_by_one_and_all_at_once() {
    let _turn = cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    if may_change_hosts(folder.path()) {
        let mut pods = Pods::new(folder);
        tokio::task::block_in_place(|| follow(&mut pods));
    }
}
