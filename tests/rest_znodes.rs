//! Znodes by HTTP, at nodes of their own processes, beside a client of the ZooKeeper protocol.

use rowlock_proto::CreateMode;
use rowlock_proto::acl::Acl;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::cluster::{Cluster, FAST};
use crate::support::http::{post, request};
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
    let known = ask(two, "GET /v1/znodes/a%20b", "If-None-Match: \"7\", \"0\"\r\n", b"").await;
    assert_eq!((known.0, known.2.len()), (304, 0), "{}", known.1);
    // The second of two who have read the same version loses.
    for (api, code) in [(two, 200), (three, 412)] {
        let set = ask(api, "PUT /v1/znodes/a%20b", "If-Match: \"0\"\r\n", b"new").await;
        assert_eq!(set.0, code, "{}", set.1);
    }
    for (what, code) in [
        ("POST /v1/znodes/a%20b", 409),
        ("POST /v1/znodes/none/x", 404),
        ("PUT /v1/znodes/none", 404),
        ("GET /v1/znodes/none", 404),
        ("GET /v1/znodes/a/", 400),
        ("GET /v1/znodes/%ff", 400),
        ("GET /v1/znodes/a%20b?view=all", 400),
        ("PUT /v1/znodes/a%20b?version=x", 400),
        ("DELETE /v1/znodes/", 405),
        ("DELETE /v1/znodes/a%20b?version=5", 412),
        ("PATCH /v1/znodes/a%20b", 405),
    ] {
        let (got, document) = request(one, what, "", "").await.unwrap();
        assert_eq!((got, &document["status"]), (code, &json!(code)), "{what}: {document}");
    }
    client.create("/a b/c", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let (_, page) = request(three, "GET /v1/znodes/a%20b?view=children", "", "").await.unwrap();
    assert_eq!((&page["children"], &page["more"]), (&json!(["c"]), &json!(false)), "{page}");
    let (_, root) = request(three, "GET /v1/znodes/?view=children&limit=1", "", "").await.unwrap();
    assert_eq!((&root["children"], &root["more"]), (&json!(["a b"]), &json!(true)), "{root}");
    assert_eq!(request(three, "DELETE /v1/znodes/a%20b", "", "").await.unwrap().0, 409, "it has a child");
    assert_eq!(request(three, "DELETE /v1/znodes/a%20b/c?version=0", "", "").await.unwrap().0, 204);
    let (_, acl) = request(three, "GET /v1/znodes/a%20b?view=acl", "", "").await.unwrap();
    assert_eq!(acl["acl"], json!(["world:anyone:cdrwa"]), "{acl}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_with_two_fences_is_refused_although_the_first_holds_its_lock() {
    let it = Cluster::start_with_api(1, FAST).await;
    let api = it.api(1);
    let (status, granted) = post(api, "/v1/locks/a/acquire", &json!({"ttl_ms": 60_000})).await.unwrap();
    assert_eq!(status, 200, "{granted}");
    let one = format!("Rowlock-Fence: a;{}\r\n", granted["token"].as_str().unwrap());
    let two = format!("{one}Rowlock-Fence: b;1\r\n");
    let (code, _, body) = ask(api, "POST /v1/znodes/fenced", &two, b"x").await;
    let text = String::from_utf8_lossy(&body);
    assert!(code == 400 && text.contains("Rowlock-Fence stands here twice"), "{code} {text}");
    assert_eq!(ask(api, "GET /v1/znodes/fenced", "", b"").await.0, 404, "nothing was written");
    assert_eq!(ask(api, "POST /v1/znodes/fenced", &one, b"x").await.0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_method_that_a_path_does_not_take_is_refused_with_those_that_it_does() {
    let it = Cluster::start_with_api(1, FAST).await;
    for (what, allow) in [
        ("PATCH /v1/znodes/a", "GET,HEAD,PUT,POST,DELETE"),
        ("PUT /v1/znodes/", "GET,HEAD"),
        ("PUT /v1/leases", "POST"),
        ("PATCH /v1/locks/a", "GET, HEAD"),
        ("PUT /v1/locks/a/acquire", "GET, HEAD, POST"),
        ("DELETE /v1/locks/a/verify", "GET, HEAD, POST"),
        ("POST /v1/locks/a/holders/1", "GET, HEAD, DELETE"),
        ("POST /v1/openapi.json", "GET,HEAD"),
        ("POST /docs", "GET,HEAD"),
        ("POST /ui/", "GET,HEAD"),
        ("POST /", "GET,HEAD"),
    ] {
        let (code, head, body) = ask(it.api(1), what, "", b"").await;
        assert_eq!(code, 405, "{what}: {head}");
        let allow = format!("allow: {}", allow.to_lowercase());
        assert!(head.lines().any(|line| line == allow), "{what}: {head}");
        assert!(head.contains("application/problem+json"), "{what}: {head}");
        let detail = String::from_utf8(body).unwrap();
        assert!(!detail.contains(" here: "), "no other listener takes it: {detail}");
    }
    let (code, document) = request(it.api(1), "PATCH /livez", "", "").await.unwrap();
    assert!(code == 404 && document["detail"].as_str().unwrap().contains(" here: ask 127."), "{document}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_not_taken_for_the_fields_of_a_document() {
    let it = Cluster::start_with_api(1, FAST).await;
    for (body, code) in [("[]", 400), ("[10000]", 400), (" {}", 201), ("", 201)] {
        assert_eq!(request(it.api(1), "POST /v1/leases", "", body).await.unwrap().0, code, "{body:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_lease_take_effect_once_and_its_ephemeral_znodes_go_with_it() {
    let it = Cluster::start_with_api(3, FAST).await;
    let (_, lease) = post(it.api(1), "/v1/leases", &json!({ "ttl_ms": 40_000 })).await.unwrap();
    let secret = lease["secret"].as_str().unwrap();
    let lines = format!("Rowlock-Lease: {secret}\r\nIdempotency-Key: \"one\"\r\n");
    let mut made = Vec::new();
    for id in it.ids() {
        let what = "POST /v1/znodes/job-?sequential&ephemeral=lease";
        let (code, document) = request(it.api(id), what, &lines, "x").await.unwrap();
        assert_eq!(code, 201, "{document}");
        made.push(document);
    }
    assert!(made.iter().all(|it| *it == made[0]), "{made:?}");
    assert_eq!(made[0]["stat"]["ephemeral_owner"], lease["lease"]);
    let at = format!("/v1/znodes{}", made[0]["path"].as_str().unwrap());
    let end = format!("DELETE /v1/leases/{}", lease["lease"].as_str().unwrap());
    let body = json!({ "secret": secret }).to_string();
    assert_eq!(request(it.api(2), &end, "", &body).await.unwrap(), (204, Value::Null));
    assert_eq!(ask(it.api(3), &format!("HEAD {at}"), "", b"").await.0, 404, "it is gone");
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
