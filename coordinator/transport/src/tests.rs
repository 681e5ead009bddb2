//! Two nodes over real sockets, with bytes that mean nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rowlock_env::backoff::Backoff;
use rowlock_env::net::Listener;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time;
use rowlock_proto::{ClusterId, NodeId};
use rowlock_types::incarnation::Incarnation;
use rowlock_types::pacing::DIAL_PAUSES;
use rowlock_types::versions::Versions;

use super::*;

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

/// Gives each request back; refuses the request "no", and does not understand "?".
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
        std::future::ready(Answer { body: request.to_vec(), refuses }).boxed()
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
async fn bytes_come_back_as_they_went_and_what_is_not_understood_ends_the_connection() {
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
    let backoff: Arc<Mutex<Backoff>> = Arc::default();
    for _ in 0..5 {
        backoff.lock().failed(time::now(), &DIAL_PAUSES);
    }
    peer.dialer(Lane::Control, backoff.clone()).dial().await.expect("it listens");
    assert_eq!(backoff.lock().failures(), 0);
    assert_eq!(backoff.lock().not_before(), None);
    tasks.stop().await;
}

#[tokio::test]
async fn behind_a_refusal_nothing_of_a_stream_is_taken() {
    let (peer, tasks) = echo().await;
    let judge = |answer: &[u8]| if answer == b"no" { Verdict::Refused("no") } else { Verdict::Taken };
    let mut stream = peer.stream(judge);
    for batch in ["one", "two", "no", "four"] {
        stream.send(batch.into(), batch).expect("is queued");
    }
    let last = loop {
        match time::timeout(PATIENCE, stream.next()).await.expect("in time") {
            StreamEvent::Acked => {}
            last => break last,
        }
    };
    assert_eq!(last, StreamEvent::Refused { untaken: vec!["no", "four"], refusal: "no" });
    assert_eq!(stream.send("five".into(), "five"), Err((NotSent::Ended, "five")));
    tasks.stop().await;
}

#[tokio::test]
async fn a_node_of_another_cluster_of_the_same_name_is_refused_and_one_that_knows_none_is_not() {
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
