//! Two nodes over real sockets, with bytes that mean nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rowlock_env::net::Listener;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time;
use rowlock_proto::{ClusterId, Incarnation, NodeId};
use rowlock_state::version::Versions;

use super::*;
use crate::limits::DIAL_PAUSES;

mod security;

/// Long enough for anything that must happen on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Keeps no record of the nodes that it has met.
struct Anybody(u64, Option<ClusterId>);

impl KnownIncarnations for Anybody {
    fn incarnation(&self) -> Incarnation {
        Incarnation(self.0.into())
    }

    fn cluster(&self) -> Option<ClusterId> {
        self.1
    }

    fn versions(&self) -> Versions {
        Versions::of_this_release()
    }

    fn heard(&self, _: NodeId, _: Versions) {}

    fn record(&self, _: NodeId, _: Incarnation) -> BoxFuture<'_, Result<(), NotRecorded>> {
        std::future::ready(Ok(())).boxed()
    }
}

/// Gives each request back, "later" after a moment and "never" not at all; refuses the request "no", and does
/// not understand "?".
struct Echo;

impl Service for Echo {
    type Conversation = Echo;

    fn open(&self, _: NodeId, _: Lane) -> Echo {
        Echo
    }

    fn peer_disconnected(&self, _: NodeId, _: Lane) {}
}

impl Conversation for Echo {
    type Request = Bytes;

    fn decode(&mut self, body: &Bytes) -> Result<Bytes, String> {
        if body == "?" { Err("what?".to_owned()) } else { Ok(body.clone()) }
    }

    fn handle(&mut self, request: Bytes) -> BoxFuture<'static, Answer> {
        let refuses = request == "no";
        async move {
            match &request[..] {
                b"later" => time::sleep(Duration::from_millis(100)).await,
                b"never" => std::future::pending().await,
                _ => {}
            }
            Answer { body: request.to_vec(), refuses }
        }
        .boxed()
    }
}

fn identity(node: u64) -> Identity {
    Identity { cluster: "test".to_owned(), node: NodeId(node) }
}

/// Node 1's handle of node 2, which echoes.
async fn echo() -> (Peer, TaskGroup) {
    echo_of(None, None).await
}

/// The same, of nodes that know of which cluster they are.
async fn echo_of(theirs: Option<ClusterId>, ours: Option<ClusterId>) -> (Peer, TaskGroup) {
    let tasks = TaskGroup::new(Shutdown::new());
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().to_string();
    Server::new(identity(2), Arc::new(Anybody(2, ours)), Arc::new(Echo), tasks.clone()).start(listener);
    let pool = Pool::new(identity(1), Arc::new(Anybody(1, theirs)), tasks.clone());
    (pool.set_address(NodeId(2), &address), tasks)
}

#[tokio::test]
async fn bytes_are_echoed_and_garbage_ends_the_connection() {
    let (peer, tasks) = echo().await;
    let ask = async |bytes: &[u8]| peer.call(Lane::Control, bytes.to_vec(), time::now() + PATIENCE).await;
    assert_eq!(ask(b"\x00\xff anything").await.expect("is answered"), &b"\x00\xff anything"[..]);
    assert!(matches!(ask(b"?").await, Err(PeerError::Lost { .. })));
    assert_eq!(ask(b"again").await.expect("over another connection"), "again");
    tasks.stop().await;
}

#[tokio::test]
async fn a_connection_ends_the_pauses_between_attempts() {
    let (peer, tasks) = echo().await;
    let dialer = peer.dialer(Lane::Control);
    for _ in 0..5 {
        dialer.backoff.lock().failed(time::now(), &DIAL_PAUSES);
    }
    peer.call(Lane::Control, b"anything".to_vec(), time::now() + PATIENCE).await.expect("it listens");
    assert_eq!(dialer.backoff.lock().failures(), 0);
    assert_eq!(dialer.backoff.lock().not_before(), None);
    tasks.stop().await;
}

/// The next event but `Moved`.
async fn next(link: &mut PeerLink<u32>) -> LinkEvent<u32> {
    let next = async {
        loop {
            match link.next().await {
                LinkEvent::Moved => {}
                event => break event,
            }
        }
    };
    time::timeout(PATIENCE, next).await.expect("in time")
}

/// A link to the node that echoes, with requests of these tags sent: the tag is the request.
async fn sent(peer: &Peer, lane: Lane, tags: &[&str]) -> PeerLink<u32> {
    let mut link = peer.link(lane);
    assert!(!link.has_room(), "it has not dialed");
    assert_eq!(time::timeout(PATIENCE, link.next()).await.expect("in time"), LinkEvent::Moved);
    for (tag, body) in (1..).zip(tags) {
        link.send(body.as_bytes(), tag).expect("it fits a frame");
    }
    link
}

fn answered(tag: u32, answer: &'static str) -> LinkEvent<u32> {
    LinkEvent::Answered { tag, answer: Bytes::from_static(answer.as_bytes()) }
}

#[tokio::test]
async fn no_request_is_accepted_after_a_refusal() {
    let (peer, tasks) = echo().await;
    let mut link = sent(&peer, Lane::Proposals, &["one", "no", "three"]).await;
    for (tag, answer) in [(1, "one"), (2, "no"), (3, "no")] {
        assert_eq!(next(&mut link).await, answered(tag, answer));
    }
    tasks.stop().await;
}

#[tokio::test]
async fn answers_keep_their_order_on_ordered_lanes() {
    for (lane, expected) in [(Lane::Raft, [1, 2, 3]), (Lane::Control, [2, 3, 1])] {
        let (peer, tasks) = echo().await;
        let mut link = sent(&peer, lane, &["later", "two", "three"]).await;
        for tag in expected {
            let answer = ["later", "two", "three"][tag as usize - 1];
            assert_eq!(next(&mut link).await, answered(tag, answer), "{lane}");
        }
        tasks.stop().await;
    }
}

#[tokio::test]
async fn an_ended_link_returns_exactly_the_unanswered_tags() {
    let (peer, tasks) = echo().await;
    let mut link = sent(&peer, Lane::Raft, &["one", "never", "three", "never"]).await;
    assert_eq!(next(&mut link).await, answered(1, "one"));
    link.retain(|tag| *tag != 3);
    tasks.stop().await;
    let LinkEvent::Ended { unanswered, error } = next(&mut link).await else { panic!("answered") };
    assert_eq!(unanswered, [2, 4]);
    assert!(error.may_have_happened() && link.has_ended() && !link.has_room());
    assert!(time::timeout(Duration::from_millis(50), link.next()).await.is_err(), "it was the last event");
}

#[tokio::test]
async fn a_link_has_room_for_one_window() {
    let (peer, tasks) = echo().await;
    let mut link = sent(&peer, Lane::Raft, &[]).await;
    let (requests, _) = Lane::Raft.window();
    for tag in 0.. {
        if !link.has_room() {
            assert_eq!(tag as usize, requests);
            break;
        }
        link.send(b"never", tag).expect("it fits a frame");
    }
    link.retain(|_| false);
    assert!(link.has_room());
    tasks.stop().await;
}

#[tokio::test]
async fn only_a_different_cluster_id_is_refused() {
    let refusal = HandshakeRefusal::ClusterId;
    let refused = Err(PeerError::Refused { node: NodeId(2), refusal });
    for (theirs, ours, expected) in [
        (Some(1), Some(2), refused),
        (Some(1), Some(1), Ok(())),
        (None, Some(1), Ok(())),
        (Some(1), None, Ok(())),
    ] {
        let (peer, tasks) = echo_of(theirs.map(ClusterId), ours.map(ClusterId)).await;
        let answer = peer.call(Lane::Control, b"anything".to_vec(), time::now() + PATIENCE).await;
        assert_eq!(answer.map(drop), expected);
        tasks.stop().await;
    }
}
