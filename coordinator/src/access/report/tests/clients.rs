//! Tests of reports to clients: their order among other requests, and their access rights.

use rowlock_proto::response::Response;
use rowlock_proto::{Acl, CreateMode, ErrorCode, Id, Request, perms};
use serde_json::{Value, json};

use super::super::*;
use crate::access::report::{ReportSlot, Requester};
use crate::access::tests::Node;
use crate::limits::{REPORTS_FOR_SUPERUSERS, REPORTS_MAX};
use crate::node::zk::tests::client::{Client, create, set, unwatched};
use crate::node::zk::tests::locks::acquire;

fn report_request(what: &str) -> Request {
    Request::Report(what.to_owned())
}

fn document(answer: Result<Response, ErrorCode>) -> Value {
    match answer {
        Ok(Response::Report(text)) => serde_json::from_str(&text).unwrap(),
        other => panic!("a report was expected: {other:?}"),
    }
}

#[tokio::test]
async fn a_report_shows_earlier_writes_and_no_later_ones() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    for (n, prefix) in ["a-lock-", "b-lock-", "c-lock-"].into_iter().enumerate() {
        client.send(Request::Acquire([acquire(prefix)].into())).await;
        client.send(report_request("/v1/queue?lock=/locks/a")).await;
        client.send(create(&format!("/{n}"), CreateMode::Persistent)).await;
    }
    for n in 0..3 {
        assert!(matches!(client.reply().await.1, Ok(Response::QueuePositions(_))));
        let (header, report) = client.reply().await;
        let report = document(report);
        assert_eq!((&report["holder_count"], &report["waiter_count"]), (&json!(1), &json!(n)));
        assert_eq!(report["zxid"], header.zxid.0);
        assert!(client.reply().await.1.is_ok());
    }
    let mut other = Client::connect(&node).await;
    assert_eq!(
        document(other.call(report_request("/v1/sessions")).await)["sessions"][0]["locks_held"],
        0,
        "its own"
    );
    let sessions = document(client.call(report_request("/v1/sessions")).await);
    let first = &sessions["sessions"][0];
    assert_eq!((&first["locks_held"], &first["locks_waiting"]), (&json!(1), &json!(2)));
    assert!(first["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{first}");
    node.stop().await;
}

#[tokio::test]
async fn an_impossible_report_is_refused_and_the_connection_stays() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let secret = Request::Auth { auth_type: 0, scheme: "digest".to_owned(), auth: "bob:secret".into() };
    client.call(secret).await.unwrap();
    let Request::Create(mut private) = create("/p", CreateMode::Persistent) else { unreachable!() };
    let mine = Id { scheme: "auth".to_owned(), id: String::new() };
    private.acl = Some([Acl { perms: perms::ALL, id: mine }].into());
    client.call(Request::Create(private)).await.unwrap();

    let mut other = Client::connect(&node).await;
    for (what, code) in [
        ("/v1/queue?lock=/p", ErrorCode::NoAuth),
        ("/v1/history?lock=/p/l", ErrorCode::NoAuth),
        ("/v1/queue?lock=/none", ErrorCode::NoNode),
        ("/v1/sessions?session=0x1234", ErrorCode::NoAuth),
        ("/v1/locks?limit=no", ErrorCode::BadArguments),
        ("/v1/nothing", ErrorCode::BadArguments),
        ("", ErrorCode::BadArguments),
        // This node keeps no history.
        ("/v1/history", ErrorCode::Unimplemented),
    ] {
        assert_eq!(other.call(report_request(what)).await, Err(code), "{what}");
    }
    assert_eq!(document(other.call(report_request("/v1/locks")).await)["locks"], json!([]));
    assert_eq!(document(client.call(report_request("/v1/queue?lock=/p")).await)["holders"], json!([]));
    node.stop().await;
}

#[tokio::test]
async fn pipelined_reports_arrive_in_order() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.send(create("/a", CreateMode::Persistent)).await;
    for n in 0..50 {
        client.send(report_request("/v1/locks")).await;
        client.send(set("/a", &n.to_string())).await;
        client.send(Request::GetData(unwatched("/a"))).await;
    }
    assert!(client.reply().await.1.is_ok());
    let mut last = None;
    for _ in 0..50 {
        let zxid = document(client.reply().await.1)["zxid"].as_i64();
        assert!(zxid > last);
        last = zxid;
        assert!(client.reply().await.1.is_ok() && client.reply().await.1.is_ok());
    }
    assert_eq!(node.context.registry.len(), 1);
    assert_eq!(node.reports.free(), REPORTS_MAX);
    node.stop().await;
}

/// Takes all slots except the reserve of superusers, with as many hosts as necessary.
fn all_places(node: &Node) -> Vec<ReportSlot> {
    let party = |last| Requester::Http([10, 0, 0, last].into());
    let hosts = (REPORTS_FOR_SUPERUSERS..REPORTS_MAX).map(|host| party(host as u8));
    hosts.map(|party| node.reports.begin(&[], party).unwrap()).collect()
}

#[tokio::test]
async fn greedy_sessions_leave_reports_for_http_of_their_address() {
    let node = Node::start().await;
    let local = [127, 0, 0, 1].into();
    let of = |party| node.reports.begin(&[], party);
    let places: Vec<_> = std::iter::from_fn(|| of(Requester::Sessions(local)).ok()).collect();
    let mut client = Client::connect(&node).await;
    assert_eq!(client.call(report_request("/v1/locks")).await, Err(ErrorCode::ThrottledOp));
    assert!(of(Requester::Http(local)).is_ok());
    drop(places);
    node.stop().await;
}

#[tokio::test]
async fn too_many_concurrent_reports_throttle_a_client() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let places = all_places(&node);
    client.send(report_request("/v1/locks")).await;
    client.send(report_request("/v1/sessions")).await;
    assert_eq!(client.reply().await.1, Err(ErrorCode::ThrottledOp));
    assert_eq!(client.reply().await.1, Err(ErrorCode::ThrottledOp));
    drop(places);
    assert!(client.call(report_request("/v1/locks")).await.is_ok());
    node.stop().await;
}

#[tokio::test]
async fn a_superuser_gets_a_report_beside_greedy_clients() {
    let node = Node::start().await;
    let (mut other, mut superuser) = (Client::connect(&node).await, Client::connect(&node).await);
    let test = Request::Auth { auth_type: 0, scheme: "digest".to_owned(), auth: "super:test".into() };
    superuser.call(test).await.unwrap();
    let places = all_places(&node);
    assert_eq!(other.call(report_request("/v1/locks")).await, Err(ErrorCode::ThrottledOp));
    for _ in 0..20 {
        assert!(superuser.call(report_request("/v1/locks")).await.is_ok());
    }
    drop(places);
    assert!(other.call(report_request("/v1/locks")).await.is_ok());
    node.stop().await;
}

#[test]
fn greedy_party_leaves_slots_to_others_and_superusers() {
    let slots = Arc::new(ReportSlots::default());
    let host = |last| IpAddr::from([10, 0, 0, last]);
    let all = |party| -> Vec<Permit> { std::iter::from_fn(|| slots.take(party, false)).collect() };
    let greedy = all(Requester::Sessions(host(1)));
    assert_eq!(greedy.len(), 3);
    let by_http = slots.take(Requester::Http(host(1)), false);
    assert!(by_http.is_some(), "HTTP of the same host is another party");
    let next = all(Requester::Sessions(host(2)));
    assert_eq!(next.len(), 1);
    let superusers: Vec<_> = std::iter::from_fn(|| slots.take(Requester::Sessions(host(1)), true)).collect();
    assert_eq!(superusers.len(), REPORTS_FOR_SUPERUSERS);
    drop((greedy, by_http, next, superusers));
    assert_eq!(slots.free(), REPORTS_MAX);
    assert!(slots.0.lock().of_party.is_empty());
}
