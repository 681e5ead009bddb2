//! Who may connect, and what becomes of noise.

use std::time::Duration;

use proptest::prelude::*;
use rowlock_env::net::Listener;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::{task, time};
use rowlock_proto::NodeId;
use rowlock_state::codec;
use rowlock_state::version::Versions;
use rowlock_transport::handshake::{self, HandshakeRefusal, Hello};
use tokio::io::AsyncWriteExt;

use super::support::{PATIENCE, Raw, Service, hello, identity, listen_anywhere, pool};
use crate::peer::{Identity, Lane, PeerError, PeerPool, Request, Response};

async fn ask(pool: &PeerPool, node: u64) -> Result<Response, PeerError> {
    pool.call(NodeId(node), Lane::Control, &Request::Status, time::now() + PATIENCE).await
}

async fn still_serves(address: &str) {
    assert!(matches!(ask(&pool(address), 2).await, Ok(Response::Status(_))), "others are still served");
}

#[tokio::test]
async fn a_refused_foreign_node_learns_nothing_of_this_cluster() {
    let node = listen_anywhere(Service::new()).await;
    let stranger = Identity { cluster: "other".into(), node: NodeId(1) };
    let pool = PeerPool::new(stranger, TaskGroup::new(Shutdown::new()));
    pool.set_address(NodeId(2), &node.address);
    let error = ask(&pool, 2).await.expect_err("must be refused");
    let refusal = HandshakeRefusal::Cluster { theirs: "other".into() };
    assert_eq!(error, PeerError::Refused { node: NodeId(2), refusal });
    assert!(!error.may_have_happened());
    assert!(!error.to_string().contains("test"), "{error}");
    // A call while the next attempt is put off gets the same error.
    let mut impatient = Ok(Response::Forwarded);
    for _ in 0..10 {
        let deadline = time::now() + Duration::from_millis(5);
        impatient = pool.call(NodeId(2), Lane::Control, &Request::Status, deadline).await;
    }
    assert_eq!(impatient, Err(error));
    still_serves(&node.address).await;
}

#[tokio::test]
async fn a_node_that_dials_the_wrong_address_is_told_so() {
    let node = listen_anywhere(Service::new()).await;
    let pool = pool(&node.address);
    pool.set_address(NodeId(3), &node.address);
    let error = ask(&pool, 3).await.expect_err("must be refused");
    let refusal = HandshakeRefusal::Node { wanted: NodeId(3) };
    assert_eq!(error, PeerError::Refused { node: NodeId(3), refusal });
    let itself = PeerPool::new(identity(2), TaskGroup::new(Shutdown::new()));
    itself.set_address(NodeId(2), &node.address);
    let refusal = HandshakeRefusal::Itself { node: NodeId(2) };
    assert_eq!(ask(&itself, 2).await.expect_err("refused"), PeerError::Refused { node: NodeId(2), refusal });
}

#[tokio::test]
async fn a_version_refusal_reports_both_releases() {
    let node = listen_anywhere(Service::new()).await;
    let mut raw = Raw::connect(&node.address).await;
    let theirs = Versions { least: 8, most: 9, release: "9.1.0".to_owned(), build: Box::default() };
    let hello = Hello { versions: theirs.clone(), ..hello(Lane::Raft) };
    raw.send(0, &handshake::encode_hello(&hello)).await;
    let verdict = raw.receive().await.expect("is told why");
    let ours = Versions { build: Box::default(), ..Versions::of_this_release() };
    let refusal = HandshakeRefusal::Version { ours, theirs };
    let told = refusal.to_string();
    assert!(told.contains("9.1.0") && told.contains(env!("CARGO_PKG_VERSION")), "{told}");
    assert_eq!(handshake::check_verdict(&verdict.body), Err(refusal));
    assert_eq!(raw.receive().await, None, "and the connection is closed");
}

#[tokio::test]
async fn a_node_of_another_build_is_refused_before_its_record() {
    let node = listen_anywhere(Service::new()).await;
    let mut raw = Raw::connect(&node.address).await;
    let mut hello = hello(Lane::Control);
    hello.versions.build.layouts.iter_mut().for_each(|(_, layout)| layout.0 ^= 1);
    raw.send(0, &handshake::encode_hello(&hello)).await;
    let verdict = raw.receive().await.expect("is told why");
    let refusal = handshake::check_verdict(&verdict.body).expect_err("is refused");
    assert!(matches!(&refusal, HandshakeRefusal::OtherBuild { .. }), "{refusal}");
    assert_eq!(raw.receive().await, None, "and the connection is closed");
}

#[tokio::test]
async fn noise_is_closed_without_an_answer_and_harms_nobody() {
    let node = listen_anywhere(Service::new()).await;
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 64]] {
        let mut raw = Raw::connect(&node.address).await;
        raw.send_bytes(noise).await;
        assert_eq!(raw.receive().await, None);
    }
    still_serves(&node.address).await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let node = listen_anywhere(Service::new()).await;
    let mut raw = Raw::connect(&node.address).await;
    assert_eq!(raw.receive().await, None);
}

#[tokio::test]
async fn an_oversized_frame_closes_the_connection_whenever_it_comes() {
    let node = listen_anywhere(Service::new()).await;
    let oversized = [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];
    let mut raw = Raw::connect(&node.address).await;
    raw.send_bytes(&oversized).await;
    assert_eq!(raw.receive().await, None);
    for (lane, most) in [(Lane::Control, 1 << 20), (Lane::Heartbeat, 1 << 20), (Lane::Raft, 16 << 20)] {
        let mut raw = Raw::greeted(&node.address, lane).await;
        raw.send_bytes(&(most + 9_u32).to_be_bytes()).await;
        assert_eq!(raw.receive().await, None, "{lane}");
    }
    still_serves(&node.address).await;
}

#[tokio::test]
async fn a_request_that_cannot_be_understood_closes_the_connection() {
    let node = listen_anywhere(Service::new()).await;
    for body in [&[][..], &[0xff; 32], &codec::encode(&Request::Forward { term: 3, batch: Vec::new() })] {
        let mut raw = Raw::greeted(&node.address, Lane::Control).await;
        raw.send(1, body).await;
        assert_eq!(raw.receive().await, None);
    }
    still_serves(&node.address).await;
}

#[tokio::test]
async fn a_listener_that_is_no_node_is_told_apart() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let pool = pool(&listener.local_addr().to_string());
    let _web = task::spawn("web-server", async move {
        let mut stream = listener.accept().await;
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("writes");
        std::future::pending::<()>().await;
    });
    let error = ask(&pool, 2).await.expect_err("must fail");
    assert_eq!(error, PeerError::Refused { node: NodeId(2), refusal: HandshakeRefusal::NotRowlock });
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = codec::decode::<Request>(&bytes, 1024);
        let _ = codec::decode::<Response>(&bytes, 1024);
        let _ = handshake::check_hello(&bytes, &identity(2));
        let _ = handshake::check_verdict(&bytes);
    }
}
