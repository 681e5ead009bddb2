//! Tests of `client.require_auth`: the rights of a client before its authentication.

use bytes::Bytes;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, Request};

use super::super::sasl;
use super::client::{Client, create, unwatched};
use super::node::{self, Node};
use crate::limits;

async fn strict() -> Node {
    let mut config = node::config();
    config.client.require_auth = true;
    Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await
}

/// Logs bob in by SASL. Returns the client and the reply.
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
async fn wrong_sasl_passwords_count_without_locking_known_users_out() {
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
async fn a_finished_sasl_login_admits_its_connection_and_half_a_login_does_not() {
    let node = strict().await;
    let (mut client, result) = login(&node, "secret").await;
    assert!(matches!(result, Ok(Response::Sasl(_))));
    assert!(client.call(create("/a", CreateMode::Persistent)).await.is_ok());
    let mut half = Client::connect(&node).await;
    half.call(Request::Sasl(Some(Bytes::new()))).await.unwrap();
    let read = half.call(Request::GetData(unwatched("/"))).await;
    assert_eq!(read, Err(ErrorCode::SessionClosedRequireSaslAuth));
    half.closed().await;
    node.stop().await;
}
