//! The bytes on the wire, version 1. A difference is a new fingerprint (`rowlock_state::version::MESSAGES`),
//! and a new version if these were released: then the old bytes are kept. The frames of the handshake never
//! change.

use std::fmt::Write;

use bytes::Bytes;
use rowlock_metrics::Role;
use rowlock_proto::{ErrorCode, FencingToken, Incarnation, NodeId, SessionId};
use rowlock_state::command::Attachment;
use rowlock_state::version::{Build, MESSAGES, Versions};
use rowlock_state::{Layout, codec};
use rowlock_transport::handshake::{self, HandshakeRefusal, Hello, Welcome};
use rowlock_transport::limits::PEER_FRAME_MAX_BYTES;
use rowlock_wal::entry::Member;
use rowlock_world::samples::missing;
use rowlock_world::spoilt::Spoiler;

use super::support::{framed, hello, proposal};
use crate::operation::{LogLevelChange, Operation, UpgradeStep};
use crate::peer::message::{ClientDisconnect, Refusal, Request, Response};
use crate::peer::{Introduction, Lane};
use crate::raft::testing::{entry, log_id, snapshot_meta, vote};
use crate::raft_types::{
    AppendRequest, AppendResponse, RaftRequest, RaftResponse, SnapshotResponse, SnapshotStep,
    TransferRequest, VoteRequest, VoteResponse,
};
use crate::reconfiguration::Wanted;
use crate::status::Status;

/// The golden file, after writing it again if that is asked for: `ROWLOCK_UPDATE=1 cargo test -p
/// rowlock-consensus --lib golden`.
#[expect(clippy::disallowed_methods, reason = "tests read their own files, no product code runs in between")]
fn golden(lines: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/peer/testdata/wire.txt");
    if std::env::var_os("ROWLOCK_UPDATE").is_some() {
        std::fs::write(path, lines).expect("writes");
    }
    std::fs::read_to_string(path).expect("reads")
}

fn append() -> AppendRequest {
    let (entries, leader_commit) = (vec![entry(3, 8, b"batch")], Some(log_id(3, 6)));
    AppendRequest { vote: vote(3, 1), prev_log_id: Some(log_id(2, 7)), entries, leader_commit }
}

/// The first release as a build that never was.
fn versions() -> Versions {
    let build = Build { commit: "c0ffee".to_owned(), layouts: vec![(1, Layout(0x1122_3344))] };
    Versions { least: 1, most: 1, release: "0.2.0".to_owned(), build: Box::new(build) }
}

fn raft_requests() -> Vec<RaftRequest> {
    let vote_request =
        VoteRequest { vote: vote(3, 1), last_log_id: Some(log_id(2, 7)), leadership_transfer: true };
    vec![
        RaftRequest::Append(append()),
        RaftRequest::Vote(vote_request.clone()),
        RaftRequest::PreVote(vote_request.clone()),
        RaftRequest::TransferLeader(TransferRequest::new(vote(3, 1), 2, Some(log_id(3, 8)))),
        RaftRequest::Snapshot(SnapshotStep::Install),
        RaftRequest::RestartVote(vote_request),
    ]
}

fn raft_responses() -> Vec<RaftResponse> {
    let voted = VoteResponse { vote: vote(3, 1), vote_granted: true, last_log_id: Some(log_id(2, 7)) };
    vec![
        RaftResponse::Append(AppendResponse::HigherVote(vote(4, 2))),
        RaftResponse::Vote(voted.clone()),
        RaftResponse::TransferLeader(Ok(())),
        RaftResponse::SnapshotProceed,
        RaftResponse::SnapshotInstalled(SnapshotResponse::new(vote(3, 1))),
        RaftResponse::Failed("no room".to_owned()),
        RaftResponse::AppendQuiet(AppendResponse::Conflict),
        RaftResponse::ForgetfulVote(voted),
        RaftResponse::ForgetfulAppend(AppendResponse::Conflict),
    ]
}

fn snapshot_steps() -> Vec<SnapshotStep> {
    vec![
        SnapshotStep::Begin { vote: vote(3, 1), meta: snapshot_meta(2, 7), len: 1 << 20 },
        SnapshotStep::Chunk { offset: 300, data: Bytes::from_static(b"chunk") },
        SnapshotStep::Install,
    ]
}

fn operations() -> Vec<Operation> {
    let set = LogLevelChange::Set { filter: "debug".to_owned(), for_ms: Some(5) };
    vec![
        Operation::HandOver { to: Some(NodeId(2)) },
        Operation::Drain { node: NodeId(2), on: true },
        Operation::Rebalance { node: NodeId(2), percent: 30 },
        Operation::EndSession { session: SessionId(0x51) },
        Operation::Upgrade(UpgradeStep::Hold),
        Operation::LogLevel { node: NodeId(2), change: set },
        Operation::RaiseTokens { above: FencingToken(5_000) },
    ]
}

fn refusals() -> Vec<Refusal> {
    vec![
        Refusal::NotLeader { leader: Some(NodeId(3)) },
        Refusal::NoQuorum,
        Refusal::Overloaded,
        Refusal::NotServing,
        Refusal::Invalid("no".to_owned()),
    ]
}

fn requests() -> Vec<Request> {
    let member = Member { peer_addr: "a:1".to_owned(), client_addr: "b:2".to_owned() };
    let left = ClientDisconnect { session: SessionId(0x51), attachment: Attachment(2), grace_ms: 300 };
    let wanted = Wanted { joining: Some("server.4=a".to_owned()), config_id: -1, ..Wanted::default() };
    let plain = [
        Request::Forward { term: 3, batch: vec![proposal(1), proposal(300)] },
        Request::Touches { sessions: vec![SessionId(0x51)], term: 3, is_short: true },
        Request::ReadIndex,
        Request::Status,
        Request::AddLearner { node: NodeId(4), member },
        Request::Reconfigure(wanted),
        Request::ClientDisconnects { disconnects: vec![left], term: 3 },
        Request::Introduce,
    ];
    let steps = snapshot_steps().into_iter().map(RaftRequest::Snapshot);
    let raft = raft_requests().into_iter().chain(steps).map(Request::Raft);
    raft.chain(plain).chain(operations().into_iter().map(Request::Operate)).collect()
}

fn responses() -> Vec<Response> {
    let status = Status {
        node: NodeId(2),
        role: Role::Learner,
        term: 3,
        leader: Some(NodeId(1)),
        leaderless_since_ms: Some(1_000),
        serving: true,
        not_serving: None,
        applied_index: 6,
        committed_index: 7,
        last_log_index: 8,
        snapshot_index: 5,
        purged_index: 4,
        voters: vec![NodeId(1)],
        learners: vec![NodeId(2)],
        replicated: vec![(NodeId(2), 8)],
        silent: vec![(NodeId(2), 40)],
        waits_for: vec![NodeId(3)],
    };
    let introduction = Introduction {
        voters: vec![NodeId(1)],
        learners: vec![NodeId(2)],
        members_at: Some(0),
        last_index: Some(8),
        is_admitted: true,
        term: 3,
        leader: Some(NodeId(1)),
        acknowledged: Some(7),
        known: vec![(NodeId(1), Incarnation(9))],
        addresses: vec![(NodeId(1), "a:1".to_owned())],
        leads_with: Some((7, 300)),
    };
    let plain = [
        Response::Forwarded,
        Response::TouchesNoted { refused: vec![SessionId(0x51)], invites_per_second: 50 },
        Response::ReadIndex { index: 8 },
        Response::Status(status),
        Response::MembershipChanged { index: 9 },
        Response::Reconfigured(Err(ErrorCode::BadVersion)),
        Response::ClientDisconnectsNoted,
        Response::Introduced(introduction),
        Response::Operated(Ok("{}".to_owned())),
    ];
    let raft = raft_responses().into_iter().map(Response::Raft);
    raft.chain(refusals().into_iter().map(Response::Refused)).chain(plain).collect()
}

fn lines(frames: impl IntoIterator<Item = (String, Vec<u8>)>) -> String {
    frames.into_iter().fold(String::new(), |mut lines, (name, bytes)| {
        let hex = bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        writeln!(lines, "{name} {hex}").expect("strings take everything");
        lines
    })
}

#[test]
fn the_handshake_and_each_message_have_their_bytes() {
    let refusal = HandshakeRefusal::Node { wanted: NodeId(3) };
    let (least, most) = (2, 3);
    let ours = Versions { least, most, release: "0.4.0".to_owned(), ..versions() };
    let other = HandshakeRefusal::Version { ours, theirs: versions() };
    let (ours, theirs) = ("release 0.2.0".to_owned(), "release 0.2.0 of commit 1".to_owned());
    let build = HandshakeRefusal::OtherBuild { ours, theirs };
    let hello = Hello { versions: versions(), ..hello(Lane::Proposals) };
    let welcome = Welcome { incarnation: Incarnation(1 << 100), versions: versions() };
    let frames = [
        ("hello", framed(0, &handshake::encode_hello(&hello))),
        ("welcome", framed(0, &handshake::encode_verdict(&Ok(welcome)))),
        ("refused", framed(0, &handshake::encode_verdict(&Err(refusal)))),
        ("other-versions", framed(0, &handshake::encode_verdict(&Err(other)))),
        ("other-build", framed(0, &handshake::encode_verdict(&Err(build)))),
        ("ping", framed(0, &[])),
    ];
    let frames = frames.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.to_vec()));
    let requests = requests().into_iter().map(|request| ("request".to_owned(), request.encode()));
    let responses = responses().into_iter().map(|answer| ("response".to_owned(), codec::encode(&answer)));
    let lines = lines(frames.chain(requests).chain(responses));
    let golden = golden(&lines);
    assert_eq!(lines, golden, "the bytes have changed: that needs a new fingerprint");
    let samples = Layout::of_samples([golden]);
    assert_eq!(MESSAGES, samples, "MESSAGES in versions.rs is to be {samples}");
}

#[test]
fn each_message_has_a_sample() {
    assert_eq!(missing(&requests()), [] as [&str; 0]);
    assert_eq!(missing(&responses()), [] as [&str; 0]);
    assert_eq!(missing(&raft_requests()), [] as [&str; 0]);
    assert_eq!(missing(&raft_responses()), [] as [&str; 0]);
    assert_eq!(missing(&operations()), [] as [&str; 0]);
    assert_eq!(missing(&refusals()), [] as [&str; 0]);
    assert_eq!(snapshot_steps().len(), 3);
}

#[test]
fn corrupted_requests_are_refused_or_round_trip() {
    let forward = Request::Forward { term: 3, batch: vec![proposal(1), proposal(300)] };
    let append = Request::Raft(RaftRequest::Append(append()));
    let (mut spoiler, mut read, mut refused) = (Spoiler::new(4), 0, 0);
    for good in [forward.encode(), append.encode(), Request::ReadIndex.encode()] {
        for _ in 0..5_000 {
            let bytes = spoiler.spoil(&good).into();
            let Ok(request) = Request::decode(&bytes, PEER_FRAME_MAX_BYTES) else {
                refused += 1;
                continue;
            };
            let again = request.encode();
            assert!(again.len() <= 64 + 16 * bytes.len(), "{} bytes of {}", again.len(), bytes.len());
            assert!(Request::decode(&again.into(), PEER_FRAME_MAX_BYTES).is_ok());
            read += 1;
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}
