//! Tests that the answer to the largest request of every local kind has a bound.

use rowlock_frames::{At, LOCAL, bytes};
use rowlock_proto::{CreateMode, FencingToken, frame};

use crate::access::tests::Node;
use crate::limits;
use crate::node::zk::tests::client::{Client, Frame, create};

#[tokio::test]
async fn the_answer_to_the_largest_request_of_every_kind_is_bounded() {
    let node = Node::start().await;
    for (number, kind) in LOCAL.iter().enumerate() {
        let root = format!("/{number:04}");
        let mut client = Client::connect(&node).await;
        client.call(create(&root, CreateMode::Persistent)).await.unwrap();
        for before in (kind.prepare)(&root) {
            client.call(before).await.unwrap();
        }
        let at = At { root: &root, token: FencingToken::default() };
        let request = (kind.request)(&at, kind.full(&at));
        let (asked, before) = (bytes(&request), client.bytes_in);
        assert!(asked <= frame::DEFAULT_MAX_BYTES);
        client.send(request).await;
        let refused = loop {
            match client.next().await {
                Frame::Event(_) => {}
                Frame::Reply(header, _) => break header.err,
                other => panic!("{}: {other:?}", kind.name),
            }
        };
        assert_eq!(refused, kind.refused, "{}", kind.name);
        let answered = client.bytes_in - before;
        println!("{:40} {asked:>8} bytes, answered with {answered:>8}", kind.name);
        // The bound of unread bytes of a connection.
        assert!(answered <= limits::WRITE_BACKLOG_MAX_BYTES, "{}: {answered} bytes", kind.name);
    }
    node.stop().await;
}
