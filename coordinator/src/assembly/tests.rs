//! Tests of one node from inside: input from other nodes and entries of its log.

#[cfg(feature = "cluster")]
mod comparison;

use bytes::Bytes;
use rowlock_consensus::limits::TERM_AHEAD_MAX;
use rowlock_consensus::peer::message::{Request, Response};
use rowlock_consensus::peer::{Lane, Refusal};
use rowlock_consensus::raft::facts;
use rowlock_consensus::raft_types::{AppendRequest, RaftRequest, RaftResponse, VoteRequest};
use rowlock_consensus::raft_types::{Entry, EntryOutcome, EntryPayload, LogId, Payload, Vote};
use rowlock_env::net::Stream;
use rowlock_env::time::Instant;
use rowlock_proto::{Incarnation, NodeId, SessionId};
use rowlock_state::command::{Attachment, Batch, Command, Ordinal, Proposal};
use rowlock_state::version::Versions;
use rowlock_state::{Proof, codec};
use rowlock_transport::handshake::{self, Hello, Identity};
use std::time::Duration;

use crate::peer_support::Raw;
use crate::{Node, NodeConfig};

const PATIENCE: Duration = Duration::from_secs(30);

async fn serving() -> (Node, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let node = Node::start(NodeConfig::single(folder.path())).await.expect("starts");
    node.serving(Instant::now() + PATIENCE).await.expect("serves");
    (node, folder)
}

fn opening() -> Proposal {
    Proposal {
        origin: Default::default(),
        session: SessionId::NONE,
        attachment: Attachment(0),
        identities: Default::default(),
        command: Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 30_000 },
    }
}

fn sessions(node: &Node) -> u64 {
    node.context.replica.state.read().counts().sessions
}

async fn forward(node: &Node, term: u64) -> Response {
    call(node, Lane::Proposals, &Request::Forward { term, batch: vec![opening()] }).await
}

async fn call(node: &Node, lane: Lane, request: &Request) -> Response {
    let address = node.addresses.peer.to_string();
    let stream = Stream::connect(&address, PATIENCE).await.expect("the node listens");
    let mut raw = Raw::on(stream);
    let from = Identity { cluster: "rowlock".to_owned(), node: NodeId(2) };
    let hello = Hello {
        from,
        to: NodeId(1),
        lane,
        incarnation: Incarnation(2),
        cluster: None,
        versions: Versions::of_this_release(),
    };
    raw.send(0, &handshake::encode_hello(&hello)).await;
    let verdict = raw.receive().await.expect("a verdict");
    handshake::check_verdict(&verdict.body).expect("is welcome");
    raw.send(1, &request.encode()).await;
    let answer = raw.receive().await.expect("an answer");
    codec::decode(&answer.body, 1 << 10).expect("decodes")
}

/// A leader that has lost and regained its leadership has dropped its earlier proposals: the same node must
/// not accept their successors in its next term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_takes_forwarded_writes_of_its_own_term_only() {
    let (node, _folder) = serving().await;
    let term = node.status().borrow().term;
    for other in [term - 1, term + 1] {
        let refusal = Refusal::NotLeader { leader: None };
        assert_eq!(forward(&node, other).await, Response::Refused(refusal), "term {other} of {term}");
    }
    assert_eq!(forward(&node, term).await, Response::Forwarded);
    let wait = node.context.raft.wait(Some(PATIENCE));
    wait.metrics(|_| sessions(&node) > 0, "is applied").await.expect("the write of this term is applied");
    assert_eq!(sessions(&node), 1, "the others were refused");
    node.shutdown().await;
}

fn refused(response: Response) -> String {
    let Response::Raft(RaftResponse::Failed(why)) = response else { panic!("must be refused: {response:?}") };
    why
}

fn lane(request: &RaftRequest) -> Lane {
    if matches!(request, RaftRequest::Vote(_)) { Lane::Control } else { Lane::Heartbeat }
}

/// The last term is the end of every cluster: no election is possible after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_term_is_refused_and_a_later_one_is_not() {
    let (node, folder) = serving().await;
    let term = node.status().borrow().term;
    let vote = |term| VoteRequest { vote: Vote::new(term, 2), last_log_id: None, leadership_transfer: false };
    let append = |term| AppendRequest {
        vote: Vote::new_committed(term, 2),
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
    };
    for far in [term + TERM_AHEAD_MAX + 1, u64::MAX] {
        let requests =
            [RaftRequest::Vote(vote(far)), RaftRequest::PreVote(vote(far)), RaftRequest::Append(append(far))];
        for request in requests {
            let said = refused(call(&node, lane(&request), &Request::Raft(request)).await);
            assert!(said.contains(&format!("the term {far} is too far ahead of {term}")), "{said}");
        }
    }
    assert_eq!(node.status().borrow().term, term);
    let near = Request::Raft(RaftRequest::Vote(vote(term + TERM_AHEAD_MAX)));
    assert!(matches!(call(&node, Lane::Control, &near).await, Response::Raft(RaftResponse::Vote(_))));
    node.shutdown().await;
    let node = Node::start(NodeConfig::single(folder.path())).await.expect("starts");
    node.serving(Instant::now() + PATIENCE).await.expect("serves");
    node.shutdown().await;
}

/// Once stored, the entry would stop the node at each start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_cannot_be_read_is_refused_before_it_is_stored() {
    let (node, folder) = serving().await;
    let before = facts::facts(&node.context.raft).last_index.expect("is not empty");
    let term = node.status().borrow().term + 1;
    let last = Some(LogId::new(Vote::new_committed(term - 1, 1).leader_id, before));
    let log_id = LogId::new(Vote::new_committed(term, 2).leader_id, before + 1);
    let garbage = Bytes::from_static(b"no batch");
    let entries = vec![Entry { log_id, payload: EntryPayload::Normal(Payload(garbage)) }];
    let append = AppendRequest {
        vote: Vote::new_committed(term, 2),
        prev_log_id: last,
        entries,
        leader_commit: Some(log_id),
    };
    let said = refused(call(&node, Lane::Raft, &Request::Raft(RaftRequest::Append(append))).await);
    assert!(said.contains("cannot be read: the batch has version"), "{said}");
    assert_eq!(facts::facts(&node.context.raft).term, term - 1, "it has not followed the sender");
    node.serving(Instant::now() + PATIENCE).await.expect("serves");
    node.shutdown().await;
    let node = Node::start(NodeConfig::single(folder.path())).await.expect("starts");
    node.serving(Instant::now() + PATIENCE).await.expect("serves");
    node.shutdown().await;
}

/// Raft may refuse one entry and accept the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_overtook_another_is_skipped_and_may_return() {
    let (node, folder) = serving().await;
    // No entry has a number in the next term. In the present term, the node may use the next number for its
    // own entry.
    let term = node.status().borrow().term + 1;
    let last = Ordinal { term, number: 1 };
    let write = async |ordinal| {
        let batch = Batch { ordinal, proposals: vec![opening()], ..Batch::default() };
        node.context.raft.client_write(Payload(batch.encode())).await.expect("is committed").data
    };
    let then = last.next_in(term);
    assert_eq!(write(then).await, EntryOutcome::Skipped, "the one before it is missing");
    assert_eq!((sessions(&node), node.metrics().batches_skipped_total.get()), (0, 1));
    assert_eq!((write(last).await, write(then).await), (EntryOutcome::Applied, EntryOutcome::Applied));
    for _ in 0..2 {
        assert_eq!(write(last).await, EntryOutcome::Skipped, "it comes again");
    }
    assert_eq!(sessions(&node), 2);
    node.shutdown().await;
    let survivor = rowlock_backup::survivor::read(folder.path()).expect("its folder is whole");
    assert_eq!(survivor.machine.counts().sessions, 2, "recovery skips the same entries");
}
