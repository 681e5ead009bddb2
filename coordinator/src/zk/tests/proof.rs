//! `client.require_auth`: what a client may do before it has proven who it is.

use bytes::{BufMut, Bytes, BytesMut};
use rowlock_proto::lock::Claim;
use rowlock_proto::request::{Op, SetWatches};
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, OpCode, Request, Xid, Zxid};
use rowlock_types::limits;

use super::super::sasl;
use super::client::{Client, connect_request, create, delete, set, unwatched, watched};
use super::node::{self, Node};

async fn strict() -> Node {
    let mut config = node::config();
    config.client.require_auth = true;
    Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await
}

fn auth(scheme: &str, secret: &'static str) -> Request {
    Request::Auth { auth_type: 0, scheme: scheme.to_owned(), auth: Bytes::from_static(secret.as_bytes()) }
}

#[tokio::test]
async fn a_client_that_has_proven_nothing_is_answered_minus_124_and_closed_whatever_it_asks_for() {
    let node = strict().await;
    let watches = SetWatches {
        relative_zxid: Zxid(0),
        data: vec!["/".to_owned()],
        exist: Vec::new(),
        child: Vec::new(),
        persistent: Vec::new(),
        persistent_recursive: Vec::new(),
    };
    for request in [
        create("/a", CreateMode::Persistent),
        set("/", "x"),
        delete("/none"),
        Request::GetData(unwatched("/")),
        Request::Exists(watched("/none")),
        Request::SetWatches2(watches),
        Request::Sync("/".to_owned()),
        Request::Multi(vec![Op::Delete { path: "/none".to_owned(), version: rowlock_proto::Version::ANY }]),
        Request::Verify([Claim { path: "/l/x".into(), token: FencingToken(1) }].into()),
        Request::Report("/v1/locks".to_owned()),
        Request::WhoAmI,
    ] {
        let mut client = Client::connect(&node).await;
        let xid = client.send(request.clone()).await;
        let (header, result) = client.reply().await;
        assert_eq!((header.xid, header.zxid), (xid, Zxid(0)), "{request:?}");
        assert_eq!(result, Err(ErrorCode::SessionClosedRequireSaslAuth), "{request:?}");
        client.closed().await;
    }
    assert!(node.context.replica.state.read().exists("/a", &[]).is_err(), "nothing was done");
    node.stop().await;
}

#[tokio::test]
async fn what_cannot_be_read_as_a_request_is_answered_minus_124_too() {
    let node = strict().await;
    for (opcode, body) in [(OpCode::Create.as_i32(), &b"\xff"[..]), (12_345, b"")] {
        let mut client = Client::connect(&node).await;
        let mut frame = BytesMut::new();
        frame.put_i32(8 + body.len() as i32);
        frame.put_i32(7);
        frame.put_i32(opcode);
        frame.put_slice(body);
        client.send_raw(&frame, Some((Xid(7), OpCode::Create))).await;
        assert_eq!(client.reply().await.1, Err(ErrorCode::SessionClosedRequireSaslAuth), "{opcode}");
        client.closed().await;
    }
    node.stop().await;
}

#[tokio::test]
async fn without_a_proof_a_client_may_ping_and_close_its_session() {
    let node = strict().await;
    let mut client = Client::connect(&node).await;
    assert_eq!(client.call(Request::Ping).await, Ok(Response::Empty));
    assert_eq!(client.call(Request::CloseSession).await, Ok(Response::Empty));
    client.closed().await;
    node.stop().await;
}

/// A SASL login of bob, and its answer.
async fn login(node: &Node, password: &str) -> (Client, Result<Response, ErrorCode>) {
    let mut client = Client::connect(node).await;
    let Ok(Response::Sasl(Some(challenge))) = client.call(Request::Sasl(Some(Bytes::new()))).await else {
        panic!("a challenge was expected")
    };
    let challenge = String::from_utf8(challenge.to_vec()).unwrap();
    let nonce = challenge.split("nonce=\"").nth(1).unwrap().split('"').next().unwrap();
    let token = sasl::tests::token("bob", password, nonce);
    let result = client.call(Request::Sasl(Some(token.into()))).await;
    (client, result)
}

#[tokio::test]
async fn sasl_passwords_are_counted_when_wrong_and_a_user_known_at_the_address_is_not_locked_out() {
    let node = strict().await;
    assert!(login(&node, "secret").await.1.is_ok());
    for n in 1..=3 * u64::from(limits::WRONG_PASSWORDS_PER_SECOND) {
        assert_eq!(login(&node, "guess").await.1, Err(ErrorCode::AuthFailed));
        assert_eq!(node.context.metrics.sasl_passwords_wrong_total.get(), n);
    }
    assert!(login(&node, "secret").await.1.is_ok(), "it was right here before");
    node.stop().await;
}

#[tokio::test]
async fn a_digest_or_sasl_opens_the_door_for_the_connection_that_has_proven_it() {
    let node = strict().await;
    for secret in ["u:pw", "super:test"] {
        let mut client = Client::connect(&node).await;
        client.call(auth("digest", secret)).await.unwrap();
        assert!(client.call(Request::GetData(unwatched("/"))).await.is_ok(), "{secret}");
        // Of the same session, and it has proven nothing.
        let mut again = Client::open(&node, connect_request(Some(&client.opened))).await.unwrap();
        assert_eq!(again.opened.session_id, client.opened.session_id);
        let read = again.call(Request::GetData(unwatched("/"))).await;
        assert_eq!(read, Err(ErrorCode::SessionClosedRequireSaslAuth));
    }
    let (mut client, result) = login(&node, "secret").await;
    assert!(matches!(result, Ok(Response::Sasl(_))));
    assert!(client.call(create("/a", CreateMode::Persistent)).await.is_ok());
    node.stop().await;
}

#[tokio::test]
async fn an_address_and_half_a_sasl_negotiation_prove_nothing() {
    let node = strict().await;
    for first in [auth("ip", ""), Request::Sasl(Some(Bytes::new()))] {
        let mut client = Client::connect(&node).await;
        client.call(first).await.unwrap();
        let read = client.call(Request::GetData(unwatched("/"))).await;
        assert_eq!(read, Err(ErrorCode::SessionClosedRequireSaslAuth));
        client.closed().await;
    }
    node.stop().await;
}
