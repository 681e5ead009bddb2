//! Tests of watches from a client's view: order against replies, and missed events of a returning client.

use rowlock_proto::request::SetWatches;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, EventType, Request, Xid, Zxid};
use rowlock_types::limits;

use super::client::{Client, Frame, connect_request, create, delete, set, unwatched, watched};
use super::node::Node;

#[tokio::test]
async fn an_own_writes_event_precedes_its_reply_with_its_zxid() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.call(create("/a", CreateMode::Persistent)).await.unwrap();
    client.call(Request::GetData(watched("/a"))).await.unwrap();
    let xid = client.send(set("/a", "1")).await;
    let event = match client.next().await {
        Frame::Event(event) if (event.event_type, &*event.path) == (EventType::NodeDataChanged, "/a") => {
            event.zxid
        }
        other => panic!("{other:?}"),
    };
    let (header, _) = client.reply().await;
    assert_eq!((header.xid, header.zxid), (xid, event));
    client.call(set("/a", "2")).await.expect("no second event: the watch is spent");
    node.stop().await;
}

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

#[tokio::test]
async fn watches_fire_once_and_in_the_order_of_the_changes() {
    let node = Node::start().await;
    let (mut a, mut b) = (Client::connect(&node).await, Client::connect(&node).await);
    b.call(create("/w", CreateMode::Persistent)).await.unwrap();
    a.call(Request::GetData(watched("/w"))).await.unwrap();
    a.call(Request::GetChildren2(watched("/w"))).await.unwrap();
    assert_eq!(a.call(Request::Exists(watched("/w2"))).await, Err(ErrorCode::NoNode));
    assert_eq!(a.call(Request::GetData(watched("/none"))).await, Err(ErrorCode::NoNode));
    for request in [
        set("/w", "1"),
        set("/w", "2"),
        create("/w/k", CreateMode::Persistent),
        create("/w2", CreateMode::Persistent),
        create("/none", CreateMode::Persistent),
    ] {
        b.call(request).await.unwrap();
    }
    assert_eq!(a.event().await, (EventType::NodeDataChanged, "/w".to_owned()));
    assert_eq!(a.event().await, (EventType::NodeChildrenChanged, "/w".to_owned()));
    assert_eq!(a.event().await, (EventType::NodeCreated, "/w2".to_owned()));
    a.call(Request::Sync("/".to_owned())).await.expect("nothing more");
    node.stop().await;
}

#[tokio::test]
async fn the_end_of_a_session_fires_the_watches_on_its_ephemerals() {
    let node = Node::start().await;
    let (mut a, mut b) = (Client::connect(&node).await, Client::connect(&node).await);
    b.call(create("/e", CreateMode::Ephemeral)).await.unwrap();
    a.call(Request::Exists(watched("/e"))).await.unwrap();
    a.call(Request::GetChildren(watched("/"))).await.unwrap();
    b.call(Request::CloseSession).await.unwrap();
    assert_eq!(a.event().await, (EventType::NodeDeleted, "/e".to_owned()));
    assert_eq!(a.event().await, (EventType::NodeChildrenChanged, "/".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn a_returning_client_gets_missed_events_and_its_watches() {
    let node = Node::start().await;
    let (mut a, mut b) = (Client::connect(&node).await, Client::connect(&node).await);
    for path in ["/gone", "/changed", "/parent", "/same"] {
        b.call(create(path, CreateMode::Persistent)).await.unwrap();
    }
    a.send(Request::Sync("/".to_owned())).await;
    let seen = a.reply().await.0.zxid;
    b.call(delete("/gone")).await.unwrap();
    b.call(set("/changed", "1")).await.unwrap();
    b.call(create("/parent/k", CreateMode::Persistent)).await.unwrap();
    b.call(create("/born", CreateMode::Persistent)).await.unwrap();
    let mut a = Client::open(&node, connect_request(Some(&a.opened))).await.unwrap();
    let paths = |list: &[&str]| list.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>();
    a.send(Request::SetWatches(SetWatches {
        relative_zxid: seen,
        data: paths(&["/gone", "/changed", "/same"]),
        exist: paths(&["/born", "/unborn"]),
        child: paths(&["/gone", "/parent"]),
        ..SetWatches::default()
    }))
    .await;
    let mut missed = Vec::new();
    let header = loop {
        match a.next().await {
            Frame::Event(event) => {
                assert_eq!(event.zxid, Zxid(-1));
                missed.push((event.event_type, event.path));
            }
            Frame::Reply(header, _) => break header,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((header.xid, header.err), (Xid::SET_WATCHES, None));
    let told = |event_type, path: &str| (event_type, path.to_owned());
    let want = [
        told(EventType::NodeDeleted, "/gone"),
        told(EventType::NodeDataChanged, "/changed"),
        told(EventType::NodeCreated, "/born"),
        told(EventType::NodeDeleted, "/gone"),
        told(EventType::NodeChildrenChanged, "/parent"),
    ];
    assert_eq!(missed, want);
    b.call(create("/unborn", CreateMode::Persistent)).await.unwrap();
    b.call(set("/same", "1")).await.unwrap();
    assert_eq!(a.event().await, told(EventType::NodeCreated, "/unborn"));
    assert_eq!(a.event().await, told(EventType::NodeDataChanged, "/same"));
    node.stop().await;
}

#[tokio::test]
async fn persistent_watches_stay_until_they_are_removed() {
    let node = Node::start().await;
    let (mut a, mut b) = (Client::connect(&node).await, Client::connect(&node).await);
    let add = |path: &str, mode| Request::AddWatch { path: path.to_owned(), mode };
    assert_eq!(a.call(add("/p", 0)).await, Ok(Response::Number(0)));
    assert_eq!(a.call(add("/r", 1)).await, Ok(Response::Number(0)));
    assert_eq!(a.call(add("/r", 7)).await, Err(ErrorCode::MarshallingError));
    for path in ["/p", "/p/k", "/r", "/r/k"] {
        b.call(create(path, CreateMode::Persistent)).await.unwrap();
    }
    for (event_type, path) in [
        (EventType::NodeCreated, "/p"),
        (EventType::NodeChildrenChanged, "/p"),
        (EventType::NodeCreated, "/r"),
        (EventType::NodeCreated, "/r/k"),
    ] {
        assert_eq!(a.event().await, (event_type, path.to_owned()));
    }
    let check = |kind| Request::CheckWatches { path: "/p".to_owned(), kind };
    let remove = |kind| Request::RemoveWatches { path: "/p".to_owned(), kind };
    assert_eq!(a.call(check(3)).await, Ok(Response::Empty));
    assert_eq!(a.call(check(9)).await, Err(ErrorCode::MarshallingError));
    assert_eq!(a.call(remove(3)).await, Ok(Response::Empty));
    assert_eq!(a.call(remove(3)).await, Err(ErrorCode::NoWatcher));
    b.call(set("/p", "1")).await.unwrap();
    a.call(Request::Sync("/".to_owned())).await.expect("silence after the removal");
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
