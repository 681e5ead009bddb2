//! Tests of watches from a client's view: order against replies, and missed events of a returning client.

use rowlock_proto::request::SetWatches;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, EventType, Request, Zxid};

use super::client::{Client, Frame, create, set, unwatched, watched};
use super::node::Node;
use crate::limits;

#[tokio::test]
async fn anothers_event_precedes_any_reply_that_shows_the_change() {
    let node = Node::start().await;
    let (mut reader, mut writer) = (Client::connect(&node).await, Client::connect(&node).await);
    writer.call(create("/a", CreateMode::Persistent)).await.unwrap();
    for round in 0..200 {
        let was = match reader.call(Request::Exists(watched("/a"))).await {
            Ok(Response::Stat(stat)) => stat.version,
            other => panic!("{other:?}"),
        };
        writer.send(set("/a", &round.to_string())).await;
        let mut told = false;
        loop {
            reader.send(Request::Exists(unwatched("/a"))).await;
            let mut frame = reader.next().await;
            if let Frame::Event(event) = &frame {
                assert_eq!((event.event_type, told), (EventType::NodeDataChanged, false));
                told = true;
                frame = reader.next().await;
            }
            let Frame::Reply(_, Ok(Response::Stat(stat))) = frame else { panic!("{frame:?}") };
            assert!(told || stat.version == was, "a change was shown before its event");
            if stat.version != was {
                break;
            }
        }
        writer.reply().await.1.unwrap();
    }
    node.stop().await;
}

/// Builds a list of watches on absent paths, each of `length` bytes.
fn absent(first: usize, count: usize, length: usize) -> Request {
    let paths =
        (first..first + count).map(|number| format!("/{number:0>width$}", width = length - 1)).collect();
    let (data, child, persistent, persistent_recursive) = Default::default();
    let relative_zxid = Zxid(0);
    Request::SetWatches2(SetWatches {
        relative_zxid,
        data,
        exist: paths,
        child,
        persistent,
        persistent_recursive,
    })
}

#[tokio::test]
async fn a_client_with_a_hundred_thousand_watches_gets_them_all_back() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    for first in (0..100_000).step_by(2_000) {
        assert_eq!(client.call(absent(first, 2_000, 200)).await, Ok(Response::Empty));
    }
    assert_eq!(node.context.metrics.watches.get(), 100_000);
    node.stop().await;
}

#[tokio::test]
async fn too_heavy_watches_close_only_their_connection() {
    let node = Node::start().await;
    let (mut greedy, mut modest) = (Client::connect(&node).await, Client::connect(&node).await);
    modest.call(Request::Exists(watched("/none"))).await.unwrap_err();
    let mut refused = None;
    for first in (0..40_000).step_by(200) {
        refused = greedy.call(absent(first, 200, 4_000)).await.err();
        let bytes = node.context.metrics.watch_bytes.get() as usize;
        assert!(bytes <= limits::WATCH_BYTES_PER_CONNECTION + 1_000, "{bytes}");
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused, Some(ErrorCode::SystemError));
    greedy.closed().await;
    modest.send(create("/none", CreateMode::Ephemeral)).await;
    assert_eq!(modest.event().await, (EventType::NodeCreated, "/none".to_owned()));
    node.stop().await;
}
