//! Tests of clients that fill everything that a client can make a node hold: each stays within its bound, by
//! the node's own count, and the node serves other clients meanwhile.

use rowlock_metrics::memory::{CONNECTION_BYTES, Part};
use rowlock_proto::request::{Create, Op, SetWatches};
use rowlock_proto::{Acl, CreateMode, ErrorCode, Request, Zxid};
use rowlock_state::OUTCOMES_MAX_BYTES;
use tokio::io::AsyncWriteExt;

use super::client::{Client, connect_request, create, delete, raw, set, unwatched};
use super::node::{Node, config};
use crate::limits;

/// A client that checks that the node serves it.
struct Witness(Client);

impl Witness {
    async fn is_served(&mut self) {
        self.0.call(create("/witness", CreateMode::Ephemeral)).await.unwrap();
        self.0.call(Request::GetData(unwatched("/witness"))).await.unwrap();
        self.0.call(delete("/witness")).await.unwrap();
    }
}

fn held(node: &Node) -> u64 {
    node.context.replica.memory.get(Part::Connections)
}

/// Returns a path of `length` bytes, a different one for each number.
fn path(number: usize, length: usize) -> String {
    format!("/{number:0>width$}", width = length - 1)
}

#[tokio::test]
async fn half_handshakes_hold_no_more_than_a_connection_does() {
    let node = Node::start().await;
    let mut witness = Witness(Client::connect(&node).await);
    let mut half_open = Vec::new();
    for _ in 0..100 {
        let mut stream = raw(&node).await;
        // All bytes that the first frame may have, except the last one.
        let length = u32::try_from(limits::HANDSHAKE_FRAME_MAX_BYTES).unwrap();
        stream.write_all(&length.to_be_bytes()).await.unwrap();
        stream.write_all(&vec![0; limits::HANDSHAKE_FRAME_MAX_BYTES - 1]).await.unwrap();
        half_open.push(stream);
        witness.is_served().await;
    }
    assert!(held(&node) <= 101 * (CONNECTION_BYTES + limits::HELD_SMALL_BYTES), "{}", held(&node));
    drop(half_open);
    while node.context.registry.len() > 1 {
        witness.is_served().await;
    }
    node.stop().await;
}

#[tokio::test]
async fn watches_of_a_greedy_client_end_at_their_bound() {
    let node = Node::start().await;
    let mut witness = Witness(Client::connect(&node).await);
    let mut greedy = Client::connect(&node).await;
    for first in (0..).step_by(250) {
        let exist = (first..first + 250).map(|number| path(number, 4_000)).collect();
        let (data, child, persistent, persistent_recursive) = Default::default();
        let relative_zxid = Zxid(0);
        let watches = SetWatches { relative_zxid, data, exist, child, persistent, persistent_recursive };
        let answer = greedy.call(Request::SetWatches2(watches)).await;
        let bytes = node.context.replica.watches.lock().bytes();
        assert!(bytes <= limits::WATCH_BYTES_PER_CONNECTION, "{bytes}");
        witness.is_served().await;
        if answer.is_err() {
            break;
        }
    }
    greedy.closed().await;
    node.stop().await;
}

#[tokio::test]
async fn sessions_end_at_their_bound_and_known_ones_come_back() {
    let mut config = config();
    config.limits.sessions = 20;
    config.limits.sessions_share = 0;
    let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    let mut witness = Witness(Client::connect(&node).await);
    let mut all = Vec::new();
    for _ in 0..60 {
        all.extend(Client::open(&node, connect_request(None)).await);
        witness.is_served().await;
    }
    assert_eq!((all.len(), node.context.metrics.sessions_refused_total.get()), (19, 41));
    Client::open(&node, connect_request(Some(&all[0].opened))).await.expect("a known session comes back");
    all[1].call(Request::CloseSession).await.unwrap();
    Client::open(&node, connect_request(None)).await.expect("one that has ended makes room");
    node.stop().await;
}

#[tokio::test]
async fn outcomes_that_are_never_acknowledged_end_at_their_bound() {
    let node = Node::start().await;
    let mut witness = Witness(Client::connect(&node).await);
    for session in 0..3 {
        let mut greedy = Client::connect(&node).await;
        let mut answers = async |id: usize| {
            let op = |at: usize| {
                let path = path(session * 1_000_000 + id * 1_000 + at, 3_900);
                let (data, flags) = (None, CreateMode::EphemeralSequential.flags());
                Op::Create(Create { path, data, acl: Some(Acl::shared_open()), flags })
            };
            let request = Box::new(Request::Multi((0..100).map(op).collect()));
            greedy.call(Request::Tagged { id: id as u64, acked: 0, request }).await
        };
        let mut refused = None;
        for id in 1..20 {
            refused = answers(id).await.err();
            witness.is_served().await;
            if refused.is_some() {
                break;
            }
        }
        assert_eq!(refused, Some(ErrorCode::ThrottledOp));
    }
    let (all, each) = {
        let state = node.context.replica.state.read();
        let each: Vec<usize> = state.sessions().map(|(_, session)| session.outcome_bytes()).collect();
        (state.outcome_bytes(), each)
    };
    assert!(each.iter().all(|bytes| *bytes < 2 * OUTCOMES_MAX_BYTES), "{each:?}");
    assert_eq!(all, each.iter().sum::<usize>());
    node.stop().await;
}

/// Fills the node with replies that no client reads.
#[tokio::test]
async fn large_connections_are_closed_while_all_hold_too_much() {
    let node = Node::start().await;
    node.context.replica.memory.limit_to(16 << 20);
    let mut witness = Witness(Client::connect(&node).await);
    witness.0.call(create("/large", CreateMode::Persistent)).await.unwrap();
    witness.0.call(set("/large", &"x".repeat(900_000))).await.unwrap();
    let mut deaf = Vec::new();
    for _ in 0..20 {
        let Some(mut client) = Client::open(&node, connect_request(None)).await else { break };
        for _ in 0..20 {
            client.send(Request::GetData(unwatched("/large"))).await;
        }
        deaf.push(client);
        witness.is_served().await;
        // A reply in progress comes on top of the bound.
        assert!(held(&node) < (4 << 20) + 4_000_000, "{}", held(&node));
    }
    assert!(node.context.metrics.connections_overflowed_total.get() > 0);
    witness.is_served().await;
    node.stop().await;
}

#[tokio::test]
async fn the_memory_limit_refuses_sessions_and_watches_not_reads() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let memory = &node.context.replica.memory;
    memory.limit_to(1 << 20);
    memory.set(Part::State, 2 << 20);
    let watch = || Request::AddWatch { path: "/".to_owned(), mode: 0 };
    assert_eq!(client.call(watch()).await, Err(ErrorCode::QuotaExceeded));
    assert!(Client::open(&node, connect_request(None)).await.is_none());
    assert_eq!(node.context.metrics.sessions_refused_total.get(), 1);
    assert!(client.call(Request::GetData(unwatched("/"))).await.is_ok());
    client.send(Request::Ping).await;
    assert!(client.reply().await.0.err.is_none());
    let mut back = Client::open(&node, connect_request(Some(&client.opened))).await.expect("it is known");
    memory.set(Part::State, 0);
    assert!(back.call(watch()).await.is_ok());
    assert!(Client::open(&node, connect_request(None)).await.is_some());
    node.stop().await;
}
