//! The bytes on the wire, version 1. A difference to what was released is a new version
//! (`rowlock_types::versions`), and the old bytes are kept. But those of the handshake never change.

use std::fmt::Write;

use rowlock_proto::NodeId;
use rowlock_transport::handshake::{self, HandshakeRefusal};
use rowlock_types::codec;
use rowlock_types::versions::Versions;

use super::support::{framed, hello, proposal, versions, welcome};
use crate::peer::Lane;
use crate::peer::message::{Refusal, Request, Response};
use crate::raft::testing::{entry, log_id, vote};
use crate::raft_types::messages::{AppendRequest, AppendResponse, RaftRequest, RaftResponse};

use rowlock_types::limits::PEER_FRAME_MAX_BYTES;
use rowlock_world::spoilt::Spoiler;

const GOLDEN: &str = include_str!("../testdata/wire.txt");

fn append() -> AppendRequest {
    let (entries, leader_commit) = (vec![entry(3, 8, b"batch")], Some(log_id(3, 6)));
    AppendRequest { vote: vote(3, 1), prev_log_id: Some(log_id(2, 7)), entries, leader_commit }
}

#[test]
fn the_handshake_entries_and_forwarded_proposals_have_their_bytes() {
    let refusal = HandshakeRefusal::Node { wanted: NodeId(3) };
    let (least, most) = (2, 3);
    let ours = Versions { least, most, release: "0.4.0".to_owned() };
    let other = HandshakeRefusal::Version { ours, theirs: versions() };
    let forward = Request::Forward { term: 3, batch: vec![proposal(1), proposal(300)] };
    let appended_quiet = Response::Raft(RaftResponse::AppendQuiet(AppendResponse::Success));
    let not_leader = Response::Refused(Refusal::NotLeader { leader: Some(NodeId(3)) });
    let frames = [
        ("hello", framed(0, &handshake::encode_hello(&hello(Lane::Proposals)))),
        ("welcome", framed(0, &handshake::encode_verdict(&Ok(welcome(1 << 100))))),
        ("refused", framed(0, &handshake::encode_verdict(&Err(refusal)))),
        ("other-versions", framed(0, &handshake::encode_verdict(&Err(other)))),
        ("ping", framed(0, &[])),
        ("forward", framed(1, &forward.encode())),
        ("append", framed(2, &codec::encode(&Request::Raft(RaftRequest::Append(append()))))),
        ("appended-quiet", framed(2, &codec::encode(&appended_quiet))),
        ("forwarded", framed(1, &codec::encode(&Response::Forwarded))),
        ("not-leader", framed(1, &codec::encode(&not_leader))),
    ];
    let mut lines = String::new();
    for (name, bytes) in frames {
        let hex = bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        writeln!(lines, "{name} {hex}").expect("strings take everything");
    }
    assert_eq!(lines, GOLDEN, "\n{lines}");
}

#[test]
fn spoilt_requests_of_another_node_are_refused_or_can_be_written_again() {
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
