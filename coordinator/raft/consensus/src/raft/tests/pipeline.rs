//! Pipelined append requests against a scripted follower.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use openraft::errors::RPCError;
use openraft::network::RPCOption;
use openraft::raft::StreamAppendError;
use openraft::{RaftNetworkFactory, RaftNetworkV2};
use parking_lot::Mutex;
use rowlock_env::sync::watch;
use rowlock_env::time;
use rowlock_transport::limits::PEER_APPEND_WINDOW_REQUESTS;
use rowlock_wal::entry::Member;

use super::support::{Bytewise, PATIENCE, leased};
use crate::peer::RaftService;
use crate::peer::tests::support::{Node, Service, listen, pool, raft_by};
use crate::raft::acks::Acks;
use crate::raft::network::{Network, Target};
use crate::raft::testing::{entry, log_id, vote};
use crate::raft_types::{AppendRequest, AppendResponse, RaftRequest, RaftResponse};

/// Answers when its gate opens; remembers what came, and how much waited at most.
struct Follower {
    seen: Mutex<Vec<u64>>,
    arrived: watch::Sender<usize>,
    waiting: Mutex<(usize, usize)>,
    gate: watch::Sender<bool>,
    conflict_at: Option<u64>,
}

impl Follower {
    fn new(conflict_at: Option<u64>) -> Arc<Follower> {
        let (arrived, gate) = (watch::channel(0).0, watch::channel(false).0);
        Arc::new(Follower { seen: Mutex::default(), arrived, waiting: Mutex::default(), gate, conflict_at })
    }

    fn raft(self: &Arc<Self>) -> Arc<dyn RaftService> {
        let follower = self.clone();
        raft_by(move |request| {
            let follower = follower.clone();
            let request = match request {
                RaftRequest::Append(request) => request,
                other => panic!("only appends are sent: {other:?}"),
            };
            let index = request.entries.last().expect("has an entry").log_id.index;
            follower.seen.lock().push(index);
            let mut waiting = follower.waiting.lock();
            waiting.0 += 1;
            waiting.1 = waiting.1.max(waiting.0);
            drop(waiting);
            follower.arrived.modify(|arrived| *arrived += 1);
            async move {
                follower.gate.subscribe().wait_for(|open| *open).await.expect("the sender lives here");
                follower.waiting.lock().0 -= 1;
                let conflict = follower.conflict_at == Some(index);
                RaftResponse::Append(if conflict {
                    AppendResponse::Conflict
                } else {
                    AppendResponse::Success
                })
            }
            .boxed()
        })
    }
}

fn requests(count: u64) -> impl stream::Stream<Item = AppendRequest> + Send + Unpin + 'static {
    stream::iter((1..=count).map(|index| AppendRequest {
        vote: vote(1, 1),
        prev_log_id: Some(log_id(1, index - 1)),
        entries: vec![entry(1, index, b"payload")],
        leader_commit: None,
    }))
}

async fn target(address: &str) -> Target<Bytewise> {
    target_with(address, Acks::default()).await
}

async fn target_with(address: &str, acks: Acks) -> Target<Bytewise> {
    let member = Member { peer_addr: address.to_owned(), client_addr: String::new() };
    Network::new(pool(address), acks, leased().1).new_client(2, &member).await
}

async fn listening(follower: &Arc<Follower>) -> Node {
    listen("127.0.0.1:0", follower.raft(), Service::new()).await
}

fn option() -> RPCOption {
    RPCOption::new(Duration::from_millis(100))
}

#[tokio::test]
async fn the_pipeline_sends_a_window_and_keeps_the_answers_order() {
    let follower = Follower::new(None);
    let node = listening(&follower).await;
    let mut target = target(&node.address).await;
    let answers = target.stream_append(requests(500), option()).await.expect("streams");
    let opened = async {
        let mut arrived = follower.arrived.subscribe();
        arrived.wait_for(|arrived| *arrived == PEER_APPEND_WINDOW_REQUESTS).await.expect("lives");
        follower.gate.send(true);
    };
    let all = async { futures_util::join!(answers.collect::<Vec<_>>(), opened).0 };
    let answers = time::timeout(PATIENCE, all).await.expect("in time");
    let matched: Vec<u64> = answers
        .into_iter()
        .map(|answer| answer.expect("arrives").expect("is a success").expect("has a position").index)
        .collect();
    assert_eq!(matched, (1..=500).collect::<Vec<_>>());
    assert_eq!(*follower.seen.lock(), (1..=500).collect::<Vec<_>>());
    assert_eq!(follower.waiting.lock().1, PEER_APPEND_WINDOW_REQUESTS);
}

#[tokio::test]
async fn a_conflict_ends_the_stream() {
    let follower = Follower::new(Some(5));
    let node = listening(&follower).await;
    follower.gate.send(true);
    let mut target = target(&node.address).await;
    let answers = target.stream_append(requests(50).skip(4), option()).await.expect("streams");
    let answers = time::timeout(PATIENCE, answers.collect::<Vec<_>>()).await.expect("ends");
    assert_eq!(answers, [Ok(Err(StreamAppendError::Conflict(log_id(1, 4))))]);
}

#[tokio::test]
async fn entries_behind_a_gap_are_not_sent_and_end_the_stream() {
    let follower = Follower::new(None);
    let node = listening(&follower).await;
    follower.gate.send(true);
    let mut target = target(&node.address).await;
    let gap = AppendRequest { entries: vec![entry(1, 5, b"payload")], ..news_of(3) };
    let input = requests(3).chain(stream::iter([gap])).chain(requests(9).skip(3));
    let answers = target.stream_append(input, option()).await.expect("streams");
    let answers = time::timeout(PATIENCE, answers.collect::<Vec<_>>()).await.expect("ends");
    assert_eq!(*follower.seen.lock(), [1, 2, 3]);
    assert!(matches!(answers[..], [Ok(_), Ok(_), Ok(_), Err(RPCError::Unreachable(_))]), "{answers:?}");
}

#[tokio::test]
async fn a_follower_that_lacks_what_it_had_stored_is_not_counted_on() {
    let follower = Follower::new(Some(5));
    let node = listening(&follower).await;
    follower.gate.send(true);
    let mut target = target(&node.address).await;
    let answers = target.stream_append(requests(50), option()).await.expect("streams");
    let answers = time::timeout(PATIENCE, answers.collect::<Vec<_>>()).await.expect("ends");
    assert_eq!(answers.len(), 5);
    assert!(answers[..4].iter().all(|answer| matches!(answer, Ok(Ok(Some(_))))));
    assert!(matches!(&answers[4], Err(RPCError::Unreachable(_))), "{:?}", answers[4]);
}

#[tokio::test]
async fn a_follower_that_never_answers_ends_the_stream_in_time() {
    let follower = Follower::new(None);
    let node = listening(&follower).await;
    let mut target = target(&node.address).await;
    let answers = target.stream_append(requests(3), option()).await.expect("streams");
    let answers = time::timeout(PATIENCE, answers.collect::<Vec<_>>()).await.expect("ends");
    assert!(matches!(answers[..], [Err(RPCError::Timeout(_))]), "{answers:?}");
}

#[tokio::test]
async fn only_broken_connections_are_retried_at_once() {
    let follower = Follower::new(None);
    let node = listening(&follower).await;
    let mut target = target(&node.address).await;
    let answers = target.stream_append(requests(3), option()).await.expect("streams");
    let stopped = async {
        follower.arrived.subscribe().wait_for(|arrived| *arrived == 3).await.expect("lives");
        node.tasks.stop().await;
    };
    let all = async { futures_util::join!(answers.collect::<Vec<_>>(), stopped).0 };
    let answers = time::timeout(PATIENCE, all).await.expect("ends");
    assert!(matches!(answers[..], [Err(RPCError::Network(_))]), "{answers:?}");
    let answers = target.stream_append(requests(3), option()).await.expect("streams");
    let answers = time::timeout(PATIENCE, answers.collect::<Vec<_>>()).await.expect("ends");
    assert!(matches!(answers[..], [Err(RPCError::Unreachable(_))]), "{answers:?}");
}

/// The entries up to `last`, from the first on.
fn entries_to(last: u64) -> AppendRequest {
    let entries = (1..=last).map(|index| entry(1, index, b"payload")).collect();
    AppendRequest { vote: vote(1, 1), prev_log_id: Some(log_id(1, 0)), entries, leader_commit: None }
}

/// The news that the entries up to `last` are committed.
fn news_of(last: u64) -> AppendRequest {
    let last = Some(log_id(1, last));
    AppendRequest { vote: vote(1, 1), prev_log_id: last, entries: Vec::new(), leader_commit: last }
}

#[tokio::test]
async fn an_answer_acknowledges_no_later_request() {
    // Answers entries when what was sent behind them has come, and that never.
    let (news_came, _) = watch::channel(false);
    let seen = news_came.clone();
    let raft = raft_by(move |request| {
        let RaftRequest::Append(request) = request else { panic!("only appends are sent: {request:?}") };
        let seen = seen.clone();
        async move {
            if request.entries.is_empty() {
                seen.send(true);
                std::future::pending::<()>().await;
            }
            seen.subscribe().wait_for(|came| *came).await.expect("the sender lives here");
            RaftResponse::Append(AppendResponse::Success)
        }
        .boxed()
    });
    let node = listen("127.0.0.1:0", raft, Service::new()).await;
    let acks = Acks::default();
    let mut target = target_with(&node.address, acks.clone()).await;
    let between = Arc::new(Mutex::new(None));
    let news = {
        let between = between.clone();
        stream::once(Box::pin(async move {
            time::sleep(Duration::from_millis(20)).await;
            *between.lock() = Some(time::now());
            news_of(3)
        }))
    };
    let input = stream::iter([entries_to(3)]).chain(news).chain(stream::pending());
    let mut answers = target.stream_append(input, option()).await.expect("streams");
    let answer = time::timeout(PATIENCE, answers.next()).await.expect("in time");
    assert!(matches!(answer, Some(Ok(Ok(Some(last)))) if last == log_id(1, 3)), "{answer:?}");
    let acknowledged = acks.acknowledged_by(2).expect("it answered");
    assert!(Some(acknowledged) < *between.lock(), "the news behind the entries is not answered");
}

/// Sends three entries, the news that they are committed when these are answered, and then (if `more`) an
/// entry more. Gives how many entries came with each request, when as many requests have come as were to be
/// expected.
async fn arrived(quiet: bool, more: bool, expected: usize) -> Vec<usize> {
    let (came, mut seen) = watch::channel(Vec::new());
    let raft = raft_by(move |request| {
        let RaftRequest::Append(request) = request else { panic!("only appends are sent: {request:?}") };
        came.modify(|came| came.push(request.entries.len()));
        let answer = if quiet { RaftResponse::AppendQuiet } else { RaftResponse::Append };
        std::future::ready(answer(AppendResponse::Success)).boxed()
    });
    let node = listen("127.0.0.1:0", raft, Service::new()).await;
    let mut target = target(&node.address).await;
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let input = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let mut answers = target.stream_append(Box::pin(input), option()).await.expect("streams");
    sender.send(entries_to(3)).expect("is read");
    let first = time::timeout(PATIENCE, answers.next()).await.expect("in time");
    assert!(matches!(first, Some(Ok(Ok(Some(_))))), "{first:?}");
    sender.send(news_of(3)).expect("is read");
    if more {
        let entries = vec![entry(1, 4, b"payload")];
        sender.send(AppendRequest { entries, ..news_of(3) }).expect("is read");
    }
    let all = async {
        tokio::select! {
            _ = answers.by_ref().for_each(|_| std::future::ready(())) => panic!("the stream goes on"),
            came = seen.wait_for(|came| came.len() == expected) => came.expect("the node runs"),
        }
    };
    time::timeout(PATIENCE, all).await.expect("in time");
    seen.borrow().clone()
}

#[tokio::test]
async fn a_follower_without_clients_learns_of_commits_later() {
    assert_eq!(arrived(false, true, 3).await, [3, 0, 1]);
    assert_eq!(arrived(true, true, 2).await, [3, 1]);
    assert_eq!(arrived(true, false, 2).await, [3, 0]);
}
