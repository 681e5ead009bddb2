//! Writes the initial corpus of the fuzz targets into `corpus/TARGET/`: real encodings of every kind. Git
//! ignores the corpus.
//!
//! Built as a target with zero running time, so a single build produces all seeds.

#![cfg_attr(feature = "libfuzzer", no_main)]

use std::fs;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use openraft::Membership;
use rowlock_consensus::peer::{Refusal, Request, Response};
use rowlock_consensus::raft::stored;
use rowlock_consensus::raft_types::{AppendRequest, RaftRequest, SnapshotStep, VoteRequest};
use rowlock_consensus::raft_types::{
    Entry, EntryPayload, LeaderId, LogId, Payload, SnapshotMeta, StoredMembership, Vote,
};
use rowlock_fuzz::fuzz_target;
use rowlock_proto::{ClusterId, Incarnation, NodeId, OpCode, SessionId};
use rowlock_state::command::{Batch, Proposal};
use rowlock_state::version::Versions;
use rowlock_state::{Machine, codec};
use rowlock_transport::handshake::{self, Hello, Welcome};
use rowlock_transport::{Identity, Lane};
use rowlock_wal::entry::Member;
use rowlock_wal::log::record::{Checkpoint, Record};
use rowlock_wal::snapshot::file::SnapshotHeader;

#[path = "../../../core/proto/tests/it/golden/file.rs"]
mod golden;
#[allow(dead_code, reason = "a module of tests; this target uses a part")]
#[path = "../../../core/state/tests/it/formats/sample.rs"]
mod sample;

const FRAMES: [&str; 6] = [
    include_str!("../../../core/proto/testdata/handshake.txt"),
    include_str!("../../../core/proto/testdata/requests.txt"),
    include_str!("../../../core/proto/testdata/replies.txt"),
    include_str!("../../../core/proto/testdata/multi.txt"),
    include_str!("../../../core/proto/testdata/events.txt"),
    include_str!("../../../core/proto/testdata/locks.txt"),
];
const QUERIES: [&str; 6] = [
    "/v1/locks?limit=5",
    "/v1/queue?lock=/locks/a%20b&token=12&limit=7",
    "/v1/sessions?session=0xfffffffffffffff1&limit=10000",
    "/v1/history?before=1.2.3&since_ms=-3&lock=/locks/x&session=0x5",
    "/v1/contention?since_ms=-3&prefix=/locks/x&by=session&limit=7",
    "/v1/queue?lock=/%C3%A4",
];

fuzz_target!(init: write_all(), |_input| {});

fn write_all() {
    clients();
    write_corpus("report", QUERIES.map(|query| query.into()));
    write_corpus("config", [include_str!("../../../cluster.toml").into(), include_str!("full.toml").into()]);
    write_corpus("import", [include_bytes!("../../../tests/testdata/zookeeper-3.8.0.snapshot").to_vec()]);
    let chosen = |choice: u8, bytes: Vec<u8>| [vec![choice], bytes].concat();
    let requests = requests().map(|request| chosen(4, request.encode()));
    let responses = responses().map(|response| chosen(3, codec::encode(&response)));
    write_corpus("peer_frames", requests.into_iter().chain(responses).chain(handshakes()));
    let batches = batches();
    let whole = batches.iter().map(|batch| chosen(1, batch.encode().to_vec()));
    let lists = batches.iter().map(|batch| {
        let mut list = vec![0];
        Proposal::encode_all(&batch.proposals, &mut list);
        list
    });
    write_corpus("entries", whole.chain(lists));
    let records = records();
    let alone = records.iter().map(|(kind, body)| chosen(2, chosen(*kind, body.clone())));
    let mut all = vec![1];
    for (kind, body) in &records {
        all.push(*kind);
        all.extend_from_slice(&u16::try_from(body.len()).expect("short").to_le_bytes());
        all.extend_from_slice(body);
    }
    write_corpus("wal", alone.chain([all]));
    write_corpus("snapshot", snapshots());
}

fn write_corpus(target: &str, inputs: impl IntoIterator<Item = Vec<u8>>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder).expect("cannot create a folder in this package");
    let mut count = 0;
    for (number, input) in inputs.into_iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), input).expect("cannot write into the corpus");
        count = number + 1;
    }
    eprintln!("{target}: {count} inputs");
}

/// Writes the golden frames, each also with a leading byte that selects its operation.
fn clients() {
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for frame in FRAMES.iter().flat_map(|text| golden::parse(text)) {
        let opcode = frame.kind.split_once(':').and_then(|(_, name)| opcode_index(name)).unwrap_or(0);
        if frame.kind.contains("request") {
            let mut stream = BytesMut::new();
            stream.put_u32(u32::try_from(frame.bytes.len()).expect("short"));
            stream.put_slice(&frame.bytes);
            requests.extend([frame.bytes, stream.to_vec()]);
        } else {
            replies.push([&[opcode][..], &frame.bytes].concat());
        }
    }
    write_corpus("decode_request", requests);
    write_corpus("decode_response", replies);
}

fn opcode_index(name: &str) -> Option<u8> {
    let index = OpCode::ALL.iter().position(|opcode| opcode.as_str() == name)?;
    u8::try_from(index).ok()
}

fn batches() -> [Batch; 3] {
    [sample::batch(), sample::lock_batch(), sample::other_batch()]
}

fn log_id(index: u64) -> LogId {
    LogId { leader_id: LeaderId { term: 3, node_id: 1 }, index }
}

fn vote() -> Vote {
    Vote { leader_id: LeaderId { term: 3, node_id: 1 }, committed: true }
}

fn member() -> Member {
    Member { peer_addr: "a:1".to_owned(), client_addr: "b:2".to_owned() }
}

fn membership() -> Membership<u64, Member> {
    Membership::new([[1].into()].into(), std::collections::BTreeMap::from([(1, member())])).expect("is valid")
}

fn entries() -> Vec<Entry> {
    let normal =
        Entry { log_id: log_id(7), payload: EntryPayload::Normal(Payload(sample::lock_batch().encode())) };
    let change = Entry { log_id: log_id(8), payload: EntryPayload::Membership(membership()) };
    vec![normal, change, Entry { log_id: log_id(9), payload: EntryPayload::Blank }]
}

fn meta() -> SnapshotMeta {
    let last_membership = StoredMembership::new(Some(log_id(1)), membership());
    SnapshotMeta { last_log_id: Some(log_id(40)), last_membership }
}

fn requests() -> [Request; 11] {
    let append = AppendRequest {
        vote: vote(),
        prev_log_id: Some(log_id(6)),
        entries: entries(),
        leader_commit: Some(log_id(6)),
    };
    let vote_request = VoteRequest { vote: vote(), last_log_id: Some(log_id(6)), leadership_transfer: false };
    let chunk = SnapshotStep::Chunk { offset: 7, data: Bytes::from_static(b"chunk") };
    let begin = SnapshotStep::Begin { vote: vote(), meta: meta(), len: 1_000 };
    [
        Request::Raft(RaftRequest::Append(append)),
        Request::Raft(RaftRequest::Vote(vote_request.clone())),
        Request::Raft(RaftRequest::PreVote(vote_request)),
        Request::Raft(RaftRequest::Snapshot(begin)),
        Request::Raft(RaftRequest::Snapshot(chunk)),
        Request::Forward { term: 3, batch: sample::lock_batch().proposals },
        Request::Forward { term: 3, batch: sample::batch().proposals },
        Request::Touches { sessions: vec![SessionId(1), SessionId(i64::MIN)], term: 3, is_short: true },
        Request::ReadIndex,
        Request::AddLearner { node: NodeId(4), member: member() },
        Request::Introduce,
    ]
}

fn responses() -> [Response; 4] {
    [
        Response::Forwarded,
        Response::TouchesNoted { refused: vec![SessionId(1)], invites_per_second: 50 },
        Response::Refused(Refusal::NotLeader { leader: Some(NodeId(3)) }),
        Response::Refused(Refusal::Invalid("no".to_owned())),
    ]
}

fn handshakes() -> [Vec<u8>; 3] {
    let us = Identity { cluster: "fuzz".to_owned(), node: NodeId(1) };
    let hello = Hello {
        from: Identity { node: NodeId(2), ..us },
        to: NodeId(1),
        lane: Lane::Raft,
        incarnation: Incarnation(1 << 100),
        cluster: Some(ClusterId(1 << 99)),
        versions: Versions::of_this_release(),
    };
    let welcome = Welcome { incarnation: Incarnation(7), versions: Versions::of_this_release() };
    let refusal = handshake::HandshakeRefusal::Node { wanted: NodeId(3) };
    [
        [&[1], &handshake::encode_hello(&hello)[..]].concat(),
        [&[2], &handshake::encode_verdict(&Ok(welcome))[..]].concat(),
        [&[2], &handshake::encode_verdict(&Err(refusal))[..]].concat(),
    ]
}

fn records() -> Vec<(u8, Vec<u8>)> {
    let stored_id = |index| stored::log_id(log_id(index));
    let checkpoint =
        Checkpoint { last: Some(stored_id(6)), purged: Some(stored_id(6)), ..Checkpoint::default() };
    let marks = [
        Record::Checkpoint(checkpoint),
        Record::Vote(stored::vote(vote())),
        Record::Committed(stored_id(7)),
        Record::Mark(1 << 40),
    ];
    let behind = [Record::Truncate(Some(stored_id(8))), Record::Purge(stored_id(7))];
    let all = marks
        .into_iter()
        .chain(entries().into_iter().map(|entry| Record::Entry(stored::entry(entry))))
        .chain(behind);
    let encoded = all.map(|record| {
        let mut body = Vec::new();
        (record.encode_into(&mut body), body)
    });
    encoded.collect()
}

/// Returns the header of a file, whole states, and the records of their first block without the end.
fn snapshots() -> Vec<Vec<u8>> {
    const BEFORE_BLOCK: usize = 8 + 2 + 4 + 4;
    const END_BYTES: usize = 1 + 9;
    let meta = stored::meta(&meta());
    let header = SnapshotHeader { cluster_hash: 7, node: 2, meta, body_len: 1_000, body_crc: 0xabcd_ef01 };
    let mut all = vec![[&[0], &header.encode()[..]].concat()];
    for machine in [Machine::new(), sample::machine(), sample::machine_with_locks()] {
        let mut bytes = vec![1];
        machine.freeze().encode(&mut bytes).expect("memory takes everything");
        let records = &bytes[1 + BEFORE_BLOCK..bytes.len() - END_BYTES];
        all.push([&[2], records].concat());
        all.push(bytes);
    }
    all
}
