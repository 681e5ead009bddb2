//! What `rowlock serve` and `rowlock up` say when they cannot start: one line with the cause and the remedy,
//! and an exit code.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use crate::support::cluster::Cluster;
use crate::support::command::{Said, run};
use crate::support::ports;

const CONFIG: i32 = 78;
const DATA_FOLDER: i32 = 73;
const UNAVAILABLE: i32 = 69;
const USAGE: i32 = 64;

fn file(nodes: &[(&str, &str, &str)]) -> String {
    let node = |(id, client, peer): &(&str, &str, &str)| {
        format!(
            "[[node]]\nid = {id}\nclient = \"{client}\"\npeer = \"{peer}\"\nhttp = \"{}\"\n",
            ports::address()
        )
    };
    nodes.iter().map(node).collect()
}

/// A cluster.toml of one node in this folder, with these lines before it; gives its HTTP address.
pub fn one_node(folder: &Path, settings: &str) -> String {
    let (client, peer, http) = (ports::address(), ports::address(), ports::address());
    let node = format!("[[node]]\nid = 1\nclient = \"{client}\"\npeer = \"{peer}\"\nhttp = \"{http}\"\n");
    fs::write(folder.join("cluster.toml"), format!("{settings}{node}")).unwrap();
    http
}

/// `serve --node 1` in a folder with this cluster.toml.
fn serve(text: &str) -> Said {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cluster.toml"), text).unwrap();
    run(folder.path(), &["serve", "--node", "1"])
}

fn one_line(said: &Said) -> &str {
    assert_eq!(said.err.lines().count(), 1, "one line: {}", said.err);
    assert!(said.out.is_empty(), "{}", said.out);
    said.err.trim_end()
}

#[test]
fn wrong_files_are_refused_with_line_key_and_remedy() {
    let cases = [
        (
            file(&[("1", "127.0.0.1:21", "127.0.0.1:22"), ("1", "127.0.0.1:23", "127.0.0.1:24")]),
            "rowlock: cluster.toml:7: node id 1 appears twice (first on line 2); give every [[node]] its own id",
        ),
        (
            file(&[("1", "localhost", "127.0.0.1:22")]),
            "rowlock: cluster.toml:3: client = \"localhost\" is not an address: the port is missing; write it as \"host:port\", \
             e.g. \"127.0.0.1:2181\" or \"[::1]:2181\"",
        ),
        (
            file(&[("1", "127.0.0.1:21", "127.0.0.1:21")]),
            "rowlock: cluster.toml:4: peer of node 1 takes 127.0.0.1:21, which is already the client address of node 1; give \
             every listener its own port",
        ),
    ];
    for (text, expected) in cases {
        let said = serve(&text);
        assert_eq!((one_line(&said), said.code), (expected, CONFIG));
    }
    let said = serve("[raft]\nheartbeet_ms = 5\n");
    assert!(
        one_line(&said).starts_with("rowlock: cluster.toml:2: unknown field `heartbeet_ms`, expected one of"),
        "{}",
        said.err
    );
    assert_eq!(said.code, CONFIG);
}

#[test]
fn missing_file_and_missing_node_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let said = run(folder.path(), &["serve", "--config", "absent.toml", "--node", "1"]);
    assert!(one_line(&said).starts_with("rowlock: absent.toml: cannot be read: "), "{}", said.err);
    assert_eq!(said.code, CONFIG);
    let text = file(&[("3", "127.0.0.1:21", "127.0.0.1:22"), ("7", "127.0.0.1:23", "127.0.0.1:24")]);
    let said = serve(&text);
    assert_eq!(one_line(&said), "rowlock: cluster.toml has no node 1; use --node with one of 3, 7");
    assert_eq!(said.code, USAGE);
}

#[test]
fn taken_port_is_named_with_its_purpose() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let said = serve(&file(&[("1", &addr, &ports::address())]));
    let last = said.err.lines().last().unwrap();
    assert!(last.starts_with(&format!("rowlock: cannot listen on {addr} for ")), "{last}");
    assert_eq!(said.code, UNAVAILABLE, "{}", said.err);
}

#[test]
fn unusable_data_folder_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    // Also for root, who may write everywhere, a file is no folder.
    fs::write(folder.path().join("data"), "").unwrap();
    fs::write(folder.path().join("cluster.toml"), file(&[("1", &ports::address(), &ports::address())]))
        .unwrap();
    let said = run(folder.path(), &["serve", "--node", "1"]);
    let last = said.err.lines().last().unwrap();
    assert!(
        last.contains("data/node-1") && last.ends_with(". Or name another folder with --data."),
        "{last}"
    );
    assert_eq!(said.code, DATA_FOLDER, "{}", said.err);
    let said = run(folder.path(), &["up", "--data", "data/up"]);
    assert!(one_line(&said).contains("make it writable, or use another one with --data"), "{}", said.err);
    assert_eq!(said.code, DATA_FOLDER, "{}", said.err);
}

#[test]
fn up_names_a_taken_port_before_it_starts_anything() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cluster.toml"), file(&[("1", &addr, &ports::address())])).unwrap();
    let said = run(folder.path(), &["up"]);
    assert!(
        one_line(&said).starts_with(&format!("rowlock: cannot listen on {addr} (client of node 1): ")),
        "{}",
        said.err
    );
    assert_eq!(said.code, UNAVAILABLE);
    assert!(!Path::new(&folder.path().join("data")).exists(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_folder_of_another_node_is_refused() {
    let mut cluster = Cluster::start(1, "").await;
    cluster.kill(1);
    let text = file(&[("2", &ports::address(), &ports::address())]);
    fs::write(cluster.folder.join("other.toml"), format!("name = \"test\"\n{text}")).unwrap();
    let arguments = ["serve", "--config", "other.toml", "--node", "2", "--data", "data/node-1"];
    let folder = cluster.folder.clone();
    let said = tokio::task::spawn_blocking(move || run(&folder, &arguments)).await.unwrap();
    let last = said.err.lines().last().unwrap();
    assert!(last.contains("data/node-1 belongs to"), "{last}");
    assert_eq!(said.code, DATA_FOLDER, "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn even_number_of_nodes_starts_with_a_warning() {
    let cluster = Cluster::start(2, "").await;
    assert!(cluster.log(1).contains("2 voting nodes survive no more failures than 1"), "{}", cluster.log(1));
}

#[test]
fn log_levels_that_are_none_are_refused_instead_of_silencing_the_node() {
    let folder = tempfile::tempdir().unwrap();
    one_node(folder.path(), "");
    let wrong = "rowlock: log level \"inof\" is not valid (\"inof\" is no level); use error, warn, info, debug, trace or off, or \
                 directives such as info,rowlock_coordinator=debug";
    let said = run(folder.path(), &["serve", "--node", "1", "--log", "inof"]);
    assert_eq!((one_line(&said), said.code), (wrong, USAGE));
    let said = run(folder.path(), &["up", "--check", "--log", "inof"]);
    assert_eq!((one_line(&said), said.code), (wrong, USAGE));
    one_node(folder.path(), "log = \"inof\"\n");
    let said = run(folder.path(), &["serve", "--node", "1"]);
    assert_eq!(
        (one_line(&said), said.code),
        (wrong.replace("rowlock: ", "rowlock: cluster.toml: ").as_str(), CONFIG)
    );
}
