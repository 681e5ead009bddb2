//! The audit log of a node of its own process: who has done what, line by line.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use bytes::Bytes;
use rowlock_client::CreateMode;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::request::SetAcl;
use rowlock_proto::{ErrorCode, Request, Version};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::cluster::{Cluster, FAST};
use crate::support::{eventually, secs};
use rowlock_frames::raw::RawClient;

const SETTINGS: &str =
    "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n[audit]\nfile = \"audit.log\"\n";

fn file(cluster: &Cluster) -> PathBuf {
    cluster.data(1).join("audit.log")
}

/// What stands in the file, once one of its lines is of this request and result.
async fn lines_with(cluster: &Cluster, op: &str, result: &str) -> Vec<Value> {
    let found = async || {
        let text = fs::read_to_string(file(cluster)).unwrap();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let lines: Vec<Value> = whole.map(|line| serde_json::from_str(line).expect("a document")).collect();
        lines.iter().any(|line| line["op"] == op && line["result"] == result).then_some(lines)
    };
    eventually(&format!("{op}: {result}"), secs(60), found).await
}

fn only_for(user: &str) -> Acl {
    let id = Id { scheme: "digest".to_owned(), id: format!("{user}:hash") };
    Acl { perms: perms::ALL, id }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_login_a_new_acl_a_denied_write_and_a_reconfig_are_found_in_the_file() {
    let mut it = Cluster::start(1, &format!("{FAST}{SETTINGS}")).await;
    let hostile = "/a\u{2028}\"}{\"event\":\"admin\"";
    let mut raw = RawClient::attach(it.endpoint(1), 20_000).await;
    raw.create(hostile, "secret data", CreateMode::Persistent).await.unwrap();
    let auth = Bytes::from_static(b"super:wrong password");
    let sent = raw.send(Request::Auth { auth_type: 0, scheme: "digest".to_owned(), auth }).await;
    raw.answer(sent).await.expect("the connection stays").unwrap();
    let lines = lines_with(&it, "auth", "WrongSuperPassword").await;
    let failed = lines.last().unwrap();
    assert_eq!((&failed["event"], &failed["detail"]), (&"auth".into(), &"digest:super".into()));
    assert!(failed["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{failed}");
    let closed =
        SetAcl { path: hostile.to_owned(), acl: Some([only_for("bob")].into()), version: Version::ANY };
    raw.call(Request::SetAcl(closed)).await.unwrap();
    let below = format!("{hostile}/b");
    assert_eq!(raw.create(&below, "", CreateMode::Persistent).await, Err(ErrorCode::NoAuth));
    let reconfig = || Request::Reconfig {
        joining: None,
        leaving: Some("1".to_owned()),
        new_members: None,
        config_id: -1,
    };
    assert_eq!(raw.call(reconfig()).await, Err(ErrorCode::NoAuth));
    raw.become_superuser().await;
    assert_eq!(raw.call(reconfig()).await, Err(ErrorCode::BadArguments));
    let lines = lines_with(&it, "reconfig", "BadArguments").await;
    let told: Vec<[&str; 3]> =
        lines.iter().map(|line| ["event", "op", "result"].map(|key| line[key].as_str().unwrap())).collect();
    assert_eq!(
        told,
        [
            ["admin", "start", "ok"],
            ["auth", "auth", "WrongSuperPassword"],
            ["acl", "setACL", "ok"],
            ["denied", "create", "NoAuth"],
            ["denied", "reconfig", "NoAuth"],
            ["auth", "auth", "ok"],
            ["admin", "reconfig", "BadArguments"],
        ],
        "and neither the create that was allowed nor the name of a znode has a line"
    );
    assert_eq!((&lines[2]["paths"][0], &lines[3]["paths"][0]), (&hostile.into(), &below.as_str().into()));
    assert_eq!(lines[2]["detail"], "digest:bob=0x1f");
    let who = lines[6]["who"].as_array().unwrap();
    assert!(who.contains(&"super".into()) && who.contains(&"digest:super".into()), "{who:?}");
    assert_eq!(lines[6]["detail"], "leaving=1");
    let text = fs::read_to_string(file(&it)).unwrap();
    assert!(!text.contains("secret data") && !text.contains("password"), "{text}");
    assert_eq!(fs::metadata(file(&it)).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(it.metric(1, "rowlock_audit_dropped_total").await, 0);
    raw.close().await;
    it.stop(1).await;
    let text = fs::read_to_string(file(&it)).unwrap();
    assert!(text.lines().last().unwrap().contains("\"op\":\"stop\""), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_at_the_nodes_port_and_a_reconfig_that_is_switched_off_are_found_in_the_file() {
    let off = SETTINGS.replace("[audit]", "reconfig = false\n[audit]");
    let mut it = Cluster::start(1, &format!("{FAST}{off}")).await;
    let mut stranger = TcpStream::connect(it.peer(1)).await.unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let lines = lines_with(&it, "nodePort", "refused").await;
    let told = lines.last().unwrap();
    assert_eq!(told["event"], "denied");
    assert_eq!(told["address"], stranger.local_addr().unwrap().to_string());
    assert!(!told["detail"].as_str().unwrap().is_empty(), "{told}");
    let mut raw = RawClient::attach(it.endpoint(1), 20_000).await;
    raw.become_superuser().await;
    let leaving = Some("1".to_owned());
    let reconfig = Request::Reconfig { joining: None, leaving, new_members: None, config_id: -1 };
    assert_eq!(raw.call(reconfig).await, Err(ErrorCode::ReconfigDisabled));
    let lines = lines_with(&it, "reconfig", "ReconfigDisabled").await;
    assert_eq!(lines.last().unwrap()["event"], "admin");
    raw.close().await;
    it.stop(1).await;
}
