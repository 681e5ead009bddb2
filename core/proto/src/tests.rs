//! Properties of the codec: encoded records decode to themselves, and no input causes a panic.

use bytes::{BufMut, Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

use crate::frame::DEFAULT_MAX_BYTES;
use crate::lock::Notice;
use crate::wire::WireForm;
use crate::*;

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 1000,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Default::default()
    }
}

/// Returns the single frame in `wire`.
fn only_frame(mut wire: BytesMut) -> Bytes {
    let frame = frame::split(&mut wire, DEFAULT_MAX_BYTES).expect("length is right").expect("frame is whole");
    assert!(wire.is_empty(), "{} bytes behind the frame", wire.len());
    frame
}

fn encode_request(request: &RequestFrame) -> BytesMut {
    let mut wire = BytesMut::new();
    encode::request(request, &mut wire);
    wire
}

fn opcode() -> impl Strategy<Value = OpCode> {
    select(OpCode::ALL)
}

fn request_frame() -> impl Strategy<Value = RequestFrame> {
    (Xid::strategy(), opcode().prop_flat_map(Request::strategy_by))
        .prop_map(|(xid, request)| RequestFrame { xid, request })
}

/// Any event that a server may send.
fn event() -> impl Strategy<Value = WatchedEvent> {
    (Zxid::strategy(), EventType::strategy(), any::<i32>(), String::strategy())
        .prop_map(|(zxid, event_type, state, path)| WatchedEvent { zxid, event_type, state, path })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_request_round_trips(request in request_frame()) {
        prop_assert_eq!(decode::request(only_frame(encode_request(&request))), Ok(request));
    }

    #[test]
    fn every_response_round_trips(
        header in ReplyHeader::strategy(),
        (opcode, response) in opcode().prop_flat_map(|opcode| (Just(opcode), Response::strategy_by(opcode))),
    ) {
        let mut wire = BytesMut::new();
        encode::reply(header, Some(&response), &mut wire);
        let mut frame = only_frame(wire);
        prop_assert_eq!(decode::reply_header(&mut frame), Ok(header));
        if header.err.is_none() {
            prop_assert_eq!(decode::response(&mut frame, opcode), Ok(response));
        }
        prop_assert!(frame.is_empty());
    }

    #[test]
    fn every_event_round_trips(event in event()) {
        let mut wire = BytesMut::new();
        encode::event(&event, &mut wire);
        let mut frame = only_frame(wire);
        let header = decode::reply_header(&mut frame).expect("a header");
        prop_assert_eq!((header.xid, header.zxid, header.err), (Xid::EVENT, event.zxid, None));
        let mut read = decode::event(&mut frame).expect("an event");
        read.zxid = header.zxid;
        prop_assert_eq!(read, event);
        prop_assert!(frame.is_empty());
    }

    #[test]
    fn every_notice_round_trips(
        zxid in Zxid::strategy(),
        notice in Notice::strategy(),
    ) {
        let mut wire = BytesMut::new();
        encode::notice(zxid, &notice, &mut wire);
        let mut frame = only_frame(wire);
        let header = decode::reply_header(&mut frame).expect("a header");
        prop_assert_eq!((header.xid, header.zxid, header.err), (Xid::NOTICE, zxid, None));
        prop_assert_eq!(decode::notice(&mut frame), Ok(notice));
        prop_assert!(frame.is_empty());
    }

    #[test]
    fn both_handshakes_round_trip(
        request in ConnectRequest::strategy(),
        response in ConnectResponse::strategy(),
    ) {
        let (mut to_server, mut to_client) = (BytesMut::new(), BytesMut::new());
        encode::connect_request(&request, &mut to_server);
        encode::connect_response(&response, &mut to_client);
        prop_assert_eq!(decode::connect_request(only_frame(to_server)), Ok(request));
        prop_assert_eq!(decode::connect_response(only_frame(to_client)), Ok(response));
    }

    #[test]
    fn a_stream_in_pieces_has_the_same_frames(
        requests in vec(request_frame(), 0..5),
        piece_bytes in 1..200_usize,
    ) {
        let mut wire = BytesMut::new();
        requests.iter().for_each(|request| encode::request(request, &mut wire));
        let (mut buf, mut read) = (BytesMut::new(), Vec::new());
        for piece in wire.chunks(piece_bytes) {
            buf.put_slice(piece);
            while let Some(frame) = frame::split(&mut buf, DEFAULT_MAX_BYTES).expect("lengths are right") {
                read.push(decode::request(frame).expect("a request"));
            }
        }
        prop_assert!(buf.is_empty());
        prop_assert_eq!(read, requests);
    }

    #[test]
    fn any_bytes_are_a_request_or_an_error(
        opcode in opcode(),
        body in vec(prop_oneof![Just(0_u8), any::<u8>(), 0..8_u8], 0..200),
        with_header in any::<bool>(),
    ) {
        let mut bytes = BytesMut::new();
        if with_header {
            bytes.put_i32(1);
            bytes.put_i32(opcode.as_i32());
        }
        bytes.put_slice(&body);
        if let Ok(request) = decode::request(bytes.clone().freeze()) {
            prop_assert_eq!(decode::request(only_frame(encode_request(&request))), Ok(request));
        }
        let _ = decode::connect_request(bytes.clone().freeze());
        let _ = frame::split(&mut bytes, 100);
    }

    #[test]
    fn any_bytes_are_a_response_or_an_error(
        body in vec(prop_oneof![Just(0_u8), any::<u8>(), 0..8_u8], 0..200),
    ) {
        let bytes = Bytes::from(body);
        for opcode in OpCode::ALL {
            let _ = decode::response(&mut bytes.clone(), *opcode);
        }
        let _ = decode::reply_header(&mut bytes.clone());
        let _ = decode::event(&mut bytes.clone());
        let _ = decode::notice(&mut bytes.clone());
        let _ = decode::connect_response(bytes);
    }

    #[test]
    fn a_request_with_any_bytes_changed_does_not_panic(
        request in request_frame(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut wire = encode_request(&request).split_off(frame::LENGTH_BYTES);
        for (at, value) in changes {
            let at = at.index(wire.len());
            wire[at] = value;
        }
        if let Ok(request) = decode::request(wire.freeze()) {
            prop_assert_eq!(decode::request(only_frame(encode_request(&request))), Ok(request));
        }
    }
}
