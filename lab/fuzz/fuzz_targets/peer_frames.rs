//! Everything that a node decodes from another node: framing, the handshake and its response, requests and
//! responses, and the log entries inside.
//!
//! The first byte of the input selects the case, so that the fuzzer need not guess checksums. Nothing may
//! panic or take more memory than the input's size justifies. A decoded message survives a round trip through
//! the encoder.

#![cfg_attr(feature = "libfuzzer", no_main)]

use bytes::{Bytes, BytesMut};
use rowlock_consensus::peer::{Request, Response};
use rowlock_fuzz::{fuzz_target, within_worth};
use rowlock_proto::NodeId;
use rowlock_state::codec;
use rowlock_transport::frame::{self, FrameReader, RequestId};
use rowlock_transport::limits::PEER_FRAME_MAX_BYTES;
use rowlock_transport::{Identity, Lane, handshake};

/// Memory reserved in advance for a list with a long announced length, at each level.
const ADVANCE: usize = 4 << 20;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 6 {
        0 => within_worth(rest, ADVANCE, 64, || frames(rest)),
        1 => within_worth(rest, ADVANCE, 64, || hello(rest)),
        2 => drop(within_worth(rest, ADVANCE, 64, || handshake::check_verdict(rest))),
        3 => response(rest),
        _ => request(&Bytes::copy_from_slice(rest)),
    }
});

fn frames(stream: &[u8]) {
    let mut reader = FrameReader::new(64 << 10);
    reader.room().extend_from_slice(stream);
    while let Ok(Some(frame)) = reader.next_frame() {
        let _ = Request::decode(&frame.body, PEER_FRAME_MAX_BYTES);
    }
    // The same bytes with the right checksum.
    let mut out = BytesMut::new();
    frame::push(&mut out, RequestId(1), stream);
    let mut reader = FrameReader::new(stream.len());
    reader.room().extend_from_slice(&out);
    let frame = reader.next_frame().expect("the checksum is right").expect("the frame is complete");
    assert_eq!(frame.body, stream);
}

fn hello(body: &[u8]) {
    let us = Identity { cluster: "fuzz".to_owned(), node: NodeId(1) };
    if let Ok(hello) = handshake::check_hello(body, &us) {
        assert_eq!(handshake::check_hello(&handshake::encode_hello(&hello), &us), Ok(hello));
    }
}

fn response(body: &[u8]) {
    let read = within_worth(body, ADVANCE, 64, || codec::decode::<Response>(body, PEER_FRAME_MAX_BYTES));
    if let Ok(response) = read {
        let again = codec::encode(&response);
        assert_eq!(
            codec::decode::<Response>(&again, PEER_FRAME_MAX_BYTES).expect("an encoded message decodes"),
            response
        );
    }
}

fn request(body: &Bytes) {
    let read = within_worth(body, ADVANCE, 64, || Request::decode(body, PEER_FRAME_MAX_BYTES));
    let Ok(request) = read else { return };
    let lanes = [Lane::Raft, Lane::Heartbeat, Lane::Proposals, Lane::Control, Lane::Snapshot];
    assert!(lanes.iter().any(|lane| request.belongs_to(*lane)));
    let _ = format!("{request:?}");
    let again = Bytes::from(request.encode());
    assert!(again.len() <= 64 + 16 * body.len(), "{} bytes of {}", again.len(), body.len());
    let twice = Request::decode(&again, PEER_FRAME_MAX_BYTES).expect("an encoded message decodes");
    assert_eq!(Bytes::from(twice.encode()), again);
}
