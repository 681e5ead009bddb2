//! Znodes by HTTP, at nodes of their own processes, beside a client of the ZooKeeper protocol.

use rowlock_proto::CreateMode;
use rowlock_proto::acl::Acl;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::cluster::{Cluster, FAST};
use crate::support::http::request;
use crate::support::secs;

/// Status, head and body of an answer.
async fn ask(api: &str, what: &str, lines: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
    let exchange = async {
        let mut stream = TcpStream::connect(api).await.unwrap();
        let length = body.len();
        let head = format!(
            "{what} HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\n{lines}Content-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase();
        let code = head.split_whitespace().nth(1).unwrap().parse().unwrap();
        (code, head, answer[end + 4..].to_vec())
    };
    tokio::time::timeout(secs(75), exchange).await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn znodes_by_http_are_those_of_zookeepers_protocol_at_whatever_node() {
    let it = Cluster::start_with_api(3, FAST).await;
    let (one, two, three) = (it.api(1), it.api(2), it.api(3));
    let client = it.client().await;
    let made = ask(one, "POST /v1/znodes/a%20b", "", b"\x00\xff").await;
    assert_eq!(made.0, 201, "{}", made.1);
    assert!(made.1.contains("location: /v1/znodes/a%20b"), "{}", made.1);
    let (data, stat) = client.get("/a b").await.map(|found| (found.data, found.stat)).unwrap();
    assert_eq!((data.unwrap_or_default().as_ref(), stat.version.0), (&b"\x00\xff"[..], 0));
    let (code, head, data) = ask(two, "GET /v1/znodes/a%20b", "", b"").await;
    assert_eq!((code, &data[..]), (200, &b"\x00\xff"[..]), "{head}");
    assert!(head.contains("etag: \"0\"") && head.contains("application/octet-stream"), "{head}");
    assert!(head.contains(&format!("rowlock-czxid: {}", stat.czxid.0)), "{head}");
    client.create("/a b/c", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let (_, page) = request(three, "GET /v1/znodes/a%20b?view=children", "", "").await.unwrap();
    assert_eq!((&page["children"], &page["more"]), (&json!(["c"]), &json!(false)), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_megabyte_comes_back_as_it_went_and_more_is_refused() {
    let it = Cluster::start_with_api(1, FAST).await;
    let data: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(ask(it.api(1), "POST /v1/znodes/big", "", &data).await.0, 201);
    let (code, head, back) = ask(it.api(1), "GET /v1/znodes/big?consistency=local", "", b"").await;
    assert!(code == 200 && back == data, "{head}");
    let client = it.client().await;
    let seen = client.get("/big").await.unwrap().data.unwrap_or_default();
    assert!(seen == data, "clients with frames can read it");
    let (code, document) =
        request(it.api(1), "PUT /v1/znodes/big", "", &"x".repeat(1_000_001)).await.unwrap();
    assert_eq!(code, 413, "{document}");
}
