//! The bytes on the wire, version 1. A difference here is a new protocol version: raise `handshake::VERSION`.

use std::fmt::Write;

use rowlock_proto::NodeId;

use super::support::{framed, hello, proposal};
use crate::codec;
use crate::peer::Lane;
use crate::peer::handshake::{self, HandshakeRefusal};
use crate::peer::message::{Refusal, Request, Response};

const GOLDEN: &str = include_str!("../testdata/wire-v1.txt");

#[test]
fn the_handshake_and_forwarded_proposals_have_their_bytes() {
    let refusal = HandshakeRefusal::Node { ours: NodeId(2), wanted: NodeId(3) };
    let forward = Request::Forward { batch: vec![proposal(1), proposal(300)] };
    let not_leader = Response::Refused(Refusal::NotLeader { leader: Some(NodeId(3)) });
    let frames = [
        ("hello", framed(0, &handshake::encode_hello(&hello(Lane::Proposals)))),
        ("welcome", framed(0, &handshake::encode_verdict(&Ok(())))),
        ("refused", framed(0, &handshake::encode_verdict(&Err(refusal)))),
        ("ping", framed(0, &[])),
        ("forward", framed(1, &forward.encode())),
        ("forwarded", framed(1, &codec::encode(&Response::Forwarded))),
        ("not-leader", framed(1, &codec::encode(&not_leader))),
    ];
    assert_eq!(forward.encode(), codec::encode(&forward));
    let mut lines = String::new();
    for (name, bytes) in frames {
        let hex = bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        writeln!(lines, "{name} {hex}").expect("strings take everything");
    }
    assert_eq!(lines, GOLDEN, "\n{lines}");
}
