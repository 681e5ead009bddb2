//! Golden frames: the bytes on the wire and their meaning must never change.

mod file;

use std::fmt::Debug;

use bytes::{BufMut, Bytes, BytesMut};
use rowlock_proto::{OpCode, Xid, decode, encode};

use crate::golden::file::{Golden, parse};

const FILES: &[(&str, &str)] = &[
    ("handshake.txt", include_str!("../../../testdata/handshake.txt")),
    ("requests.txt", include_str!("../../../testdata/requests.txt")),
    ("replies.txt", include_str!("../../../testdata/replies.txt")),
    ("multi.txt", include_str!("../../../testdata/multi.txt")),
    ("events.txt", include_str!("../../../testdata/events.txt")),
    ("locks.txt", include_str!("../../../testdata/locks.txt")),
];

struct Decoded {
    /// Debug text of the decoded frame.
    meaning: String,
    /// The re-encoded frame, with its length.
    encoded: BytesMut,
    /// Number of unread bytes.
    left: usize,
}

fn golden_frames() -> impl Iterator<Item = (&'static str, Golden)> {
    FILES.iter().flat_map(|(file, text)| parse(text).into_iter().map(move |golden| (*file, golden)))
}

fn opcode(name: &str) -> OpCode {
    *OpCode::ALL
        .iter()
        .find(|opcode| opcode.as_str() == name)
        .unwrap_or_else(|| panic!("no operation {name}"))
}

/// Decodes and re-encodes a frame of this kind. Returns the Debug text of a decoding error.
fn reencode(kind: &str, frame: &[u8]) -> Result<Decoded, String> {
    let frame = Bytes::copy_from_slice(frame);
    let mut encoded = BytesMut::new();
    match kind.split_once(':').unwrap_or((kind, "")) {
        ("connect_request", "") => {
            let request = decode::connect_request(frame).map_err(debug)?;
            encode::connect_request(&request, &mut encoded);
            Ok(Decoded { meaning: debug(request), encoded, left: 0 })
        }
        ("connect_response", "") => {
            let response = decode::connect_response(frame).map_err(debug)?;
            encode::connect_response(&response, &mut encoded);
            Ok(Decoded { meaning: debug(response), encoded, left: 0 })
        }
        ("request", "") => {
            let request = decode::request(frame).map_err(debug)?;
            encode::request(&request, &mut encoded);
            Ok(Decoded { meaning: debug(request), encoded, left: 0 })
        }
        ("reply", operation) => reencode_reply(frame, opcode(operation)),
        ("event", "") => reencode_event(frame),
        ("notice", "") => reencode_notice(frame),
        _ => panic!("unknown kind {kind}"),
    }
}

fn reencode_reply(mut frame: Bytes, opcode: OpCode) -> Result<Decoded, String> {
    let header = decode::reply_header(&mut frame).map_err(debug)?;
    let body = match header.err {
        None => Some(decode::response(&mut frame, opcode).map_err(debug)?),
        Some(_) => None,
    };
    let mut encoded = BytesMut::new();
    encode::reply(header, body.as_ref(), &mut encoded);
    let body = body.map_or_else(|| "no body".to_owned(), debug);
    Ok(Decoded { meaning: format!("{header:?} {body}"), encoded, left: frame.len() })
}

fn reencode_event(mut frame: Bytes) -> Result<Decoded, String> {
    let header = decode::reply_header(&mut frame).map_err(debug)?;
    assert_eq!((header.xid, header.err), (Xid::EVENT, None));
    let mut event = decode::event(&mut frame).map_err(debug)?;
    event.zxid = header.zxid;
    let mut encoded = BytesMut::new();
    encode::event(&event, &mut encoded);
    Ok(Decoded { meaning: debug(event), encoded, left: frame.len() })
}

fn reencode_notice(mut frame: Bytes) -> Result<Decoded, String> {
    let header = decode::reply_header(&mut frame).map_err(debug)?;
    assert_eq!((header.xid, header.err), (Xid::NOTICE, None));
    let notice = decode::notice(&mut frame).map_err(debug)?;
    let mut encoded = BytesMut::new();
    encode::notice(header.zxid, &notice, &mut encoded);
    Ok(Decoded { meaning: format!("{:?} {notice:?}", header.zxid), encoded, left: frame.len() })
}

fn debug(value: impl Debug) -> String {
    format!("{value:?}")
}

fn with_length(frame: &[u8]) -> BytesMut {
    let mut wire = BytesMut::new();
    wire.put_i32(i32::try_from(frame.len()).expect("golden frames are short"));
    wire.put_slice(frame);
    wire
}

#[test]
fn golden_frames_decode_to_their_meaning_and_encode_the_same() {
    let mut wrong = String::new();
    for (file, golden) in golden_frames() {
        let Golden { kind, name, bytes, meaning } = golden;
        let refused = kind.strip_prefix("refused:");
        let lenient = kind.strip_prefix("lenient:");
        let decoded = reencode(refused.or(lenient).unwrap_or(&kind), &bytes);
        if refused.is_none() && lenient.is_none() {
            let decoded = decoded.as_ref().unwrap_or_else(|error| panic!("{file}, {name}: {error}"));
            assert_eq!(decoded.encoded, with_length(&bytes), "{file}, {name}");
            assert_eq!(decoded.left, 0, "{file}, {name}");
        }
        if refused.is_some() {
            assert!(decoded.is_err(), "{file}, {name} is not refused");
        }
        let got = decoded.map_or_else(|error| error, |decoded| decoded.meaning);
        if got != meaning {
            wrong.push_str(&format!("{file} {kind} {name}\n= {got}\n"));
        }
    }
    assert!(wrong.is_empty(), "these frames decode to another meaning:\n{wrong}");
}

#[test]
fn every_operation_has_a_golden_request_and_a_golden_reply() {
    let frames: Vec<Golden> = golden_frames().map(|(_, golden)| golden).collect();
    for opcode in OpCode::ALL {
        let is_request = |golden: &&Golden| {
            golden.kind == "request" && golden.bytes[4..8] == opcode.as_i32().to_be_bytes()
        };
        assert!(frames.iter().any(|golden| is_request(&golden)), "no request of {opcode}");
        let kind = format!("reply:{opcode}");
        assert!(frames.iter().any(|golden| golden.kind == kind), "no reply of {opcode}");
    }
}

#[test]
fn a_golden_frame_cut_at_any_byte_is_an_error() {
    for (file, Golden { kind, name, bytes, .. }) in golden_frames() {
        if kind.starts_with("lenient:") || kind.starts_with("refused:") {
            continue;
        }
        let optional_last_byte = kind.starts_with("connect_") && !name.starts_with("without_");
        for cut in 0..bytes.len() {
            let decoded = reencode(&kind, &bytes[..cut]);
            let legal = optional_last_byte && cut == bytes.len() - 1;
            assert_eq!(decoded.is_ok(), legal, "{file}, {name} cut at {cut}");
        }
    }
}

#[test]
fn a_golden_frame_with_any_one_byte_changed_does_not_panic() {
    for (_, Golden { kind, bytes, .. }) in golden_frames() {
        let kind = kind.trim_start_matches("lenient:").trim_start_matches("refused:");
        if kind == "event" || kind == "notice" {
            continue; // the decoder asserts the header
        }
        for at in 0..bytes.len() {
            for value in [0x00, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = reencode(kind, &changed);
            }
        }
    }
}
