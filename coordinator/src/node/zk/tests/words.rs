//! Tests of four-letter words in the form that monitoring reads.

use rowlock_proto::{CreateMode, Request};
use tokio::io::AsyncWriteExt;

use super::client::{Client, create, raw, rest, watched};
use super::node::{Node, config};
use crate::limits;

pub(super) async fn send_word(node: &Node, word: &str) -> String {
    let mut stream = raw(node).await;
    stream.write_all(word.as_bytes()).await.unwrap();
    String::from_utf8(rest(&mut stream).await).unwrap()
}

fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("no {key:?} in {text}"))
}

#[tokio::test]
async fn words_report_the_nodes_activity() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.call(create("/e", CreateMode::Ephemeral)).await.unwrap();
    client.call(Request::GetChildren(watched("/"))).await.unwrap();
    assert_eq!(send_word(&node, "ruok").await, "imok");
    assert_eq!(send_word(&node, "ruok\n").await, "imok");
    assert_eq!(send_word(&node, "isro").await, "rw");
    let srvr = send_word(&node, "srvr").await;
    assert!(srvr.starts_with("Zookeeper version: 3.9."), "{srvr}");
    assert_eq!(value(&srvr, "Mode: "), "standalone");
    assert_eq!(value(&srvr, "Zxid: "), "0x2");
    assert_eq!(value(&srvr, "Node count: "), "5");
    let mntr = send_word(&node, "mntr").await;
    assert_eq!(value(&mntr, "zk_watch_count\t"), "1");
    assert_eq!(value(&mntr, "zk_ephemerals_count\t"), "1");
    assert_eq!(value(&mntr, "zk_packets_received\t"), "2");
    assert!(value(&send_word(&node, "envi").await, "zookeeper.version=").starts_with("3.9."));
    let port = node.addr.rsplit_once(':').unwrap().1;
    assert_eq!(value(&send_word(&node, "conf").await, "clientPort="), port);
    assert!(send_word(&node, "stat").await.contains("[1](queued=0,recved=2,sent="));
    let sid = client.opened.session_id.to_string();
    assert!(send_word(&node, "cons").await.contains(&format!("sid={sid},lop=GETC,est=")));
    assert_eq!(send_word(&node, "wchs").await, "1 connections watching 1 paths\nTotal watches:1\n");
    assert_eq!(send_word(&node, "wchc").await, format!("{sid}\n\t/\n"));
    assert_eq!(send_word(&node, "wchp").await, format!("/\n\t{sid}\n"));
    assert!(send_word(&node, "dump").await.ends_with(&format!("{sid}:\n\t/e\n")));
    assert_eq!(send_word(&node, "srst").await, "Server stats reset.\n");
    assert_eq!(value(&send_word(&node, "srvr").await, "Received: "), "0");
    node.stop().await;
}

#[tokio::test]
async fn a_node_that_does_not_serve_says_so_and_is_alive() {
    let node = Node::start().await;
    node.stop_serving();
    assert_eq!(send_word(&node, "ruok").await, "imok");
    assert_eq!(send_word(&node, "isro").await, "null");
    assert!(send_word(&node, "srvr").await.contains("not currently serving requests"));
    node.stop().await;
}

#[tokio::test]
async fn only_configured_words_and_srvr_are_answered() {
    let mut config = config();
    config.client.words = vec!["ruok".to_owned()];
    let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    assert_eq!(send_word(&node, "ruok").await, "imok");
    assert!(send_word(&node, "srvr").await.starts_with("Zookeeper version: 3.9"));
    for word in ["dump", "mntr", "isro", "dirs", "gtmk"] {
        let refused = format!("{word} is not executed because it is not in the whitelist.\n");
        assert_eq!(send_word(&node, word).await, refused);
    }
    node.stop().await;
}

#[tokio::test]
async fn sizes_on_disk_are_reported_and_trace_masks_refused() {
    let folder = tempfile::tempdir().unwrap();
    let wal = rowlock_env::disk::Dir::create(&folder.path().join("wal")).unwrap();
    wal.write_atomic("1.wal", &[0; 100]).unwrap();
    let mut config = config();
    config.data_dir = folder.path().to_owned();
    let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    assert_eq!(send_word(&node, "dirs").await, "datadir_size: 0\nlogdir_size: 100\n");
    assert!(send_word(&node, "stmk").await.contains("not in the whitelist"));
    node.stop().await;
}

#[tokio::test]
async fn by_default_only_srvr_is_answered() {
    let mut config = config();
    config.client.words = crate::config::ClientConfig::default().words;
    let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    assert!(send_word(&node, "srvr").await.starts_with("Zookeeper version: 3.9"));
    for word in ["ruok", "stat", "mntr", "envi", "isro", "conf", "cons", "dump", "wchs", "srst", "dirs"] {
        assert!(send_word(&node, word).await.contains("not in the whitelist"), "{word}");
    }
    node.stop().await;
}
