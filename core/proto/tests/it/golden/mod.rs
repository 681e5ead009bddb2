//! Golden frames: what is on the wire and what it means must never change.

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

/// What a frame was decoded to.
struct Seen {
    /// As Debug prints it.
    meaning: String,
    /// Encoded again, with its length.
    again: BytesMut,
    /// Bytes that were not read.
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

/// Decodes a frame as a kind says, and encodes it again; `Err` is the error as Debug prints it.
fn see(kind: &str, frame: &[u8]) -> Result<Seen, String> {
    let frame = Bytes::copy_from_slice(frame);
    let mut again = BytesMut::new();
    match kind.split_once(':').unwrap_or((kind, "")) {
        ("connect_request", "") => {
            let request = decode::connect_request(frame).map_err(debug)?;
            encode::connect_request(&request, &mut again);
            Ok(Seen { meaning: debug(request), again, left: 0 })
        }
        ("connect_response", "") => {
            let response = decode::connect_response(frame).map_err(debug)?;
            encode::connect_response(&response, &mut again);
            Ok(Seen { meaning: debug(response), again, left: 0 })
        }
        ("request", "") => {
            let request = decode::request(frame).map_err(debug)?;
            encode::request(&request, &mut again);
            Ok(Seen { meaning: debug(request), again, left: 0 })
        }
        ("reply", operation) => see_reply(frame, opcode(operation)),
        ("event", "") => see_event(frame),
        ("notice", "") => see_notice(frame),
        _ => panic!("unknown kind {kind}"),
    }
}

fn see_reply(mut frame: Bytes, opcode: OpCode) -> Result<Seen, String> {
    let header = decode::reply_header(&mut frame).map_err(debug)?;
    let body = match header.err {
        None => Some(decode::response(&mut frame, opcode).map_err(debug)?),
        Some(_) => None,
    };
    let mut again = BytesMut::new();
    encode::reply(header, body.as_ref(), &mut again);
    let body = body.map_or_else(|| "no body".to_owned(), debug);
    Ok(Seen { meaning: format!("{header:?} {body}"), again, left: frame.len() })
}

fn see_event(mut frame: Bytes) -> Result<Seen, String> {
    let header = decode::reply_header(&mut frame).map_err(debug)?;
    assert_eq!((header.xid, header.err), (Xid::EVENT, None));
    let mut event = decode::event(&mut frame).map_err(debug)?;
    event.zxid = header.zxid;
    let mut again = BytesMut::new();
    encode::event(&event, &mut again);
    Ok(Seen { meaning: debug(event), again, left: frame.len() })
}

fn see_notice(mut frame: Bytes) -> Result<Seen, String> {
    let header = decode::reply_header(&mut frame).map_err(debug)?;
    assert_eq!((header.xid, header.err), (Xid::NOTICE, None));
    let notice = decode::notice(&mut frame).map_err(debug)?;
    let mut again = BytesMut::new();
    encode::notice(header.zxid, &notice, &mut again);
    Ok(Seen { meaning: format!("{:?} {notice:?}", header.zxid), again, left: frame.len() })
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
fn golden_frames_mean_what_they_say_and_are_written_the_same() {
    let mut wrong = String::new();
    for (file, golden) in golden_frames() {
        let Golden { kind, name, bytes, meaning } = golden;
        let refused = kind.strip_prefix("refused:");
        let lenient = kind.strip_prefix("lenient:");
        let seen = see(refused.or(lenient).unwrap_or(&kind), &bytes);
        if refused.is_none() && lenient.is_none() {
            let seen = seen.as_ref().unwrap_or_else(|error| panic!("{file}, {name}: {error}"));
            assert_eq!(seen.again, with_length(&bytes), "{file}, {name}");
            assert_eq!(seen.left, 0, "{file}, {name}");
        }
        if refused.is_some() {
            assert!(seen.is_err(), "{file}, {name} is not refused");
        }
        let got = seen.map_or_else(|error| error, |seen| seen.meaning);
        if got != meaning {
            wrong.push_str(&format!("{file} {kind} {name}\n= {got}\n"));
        }
    }
    assert!(wrong.is_empty(), "these mean something else:\n{wrong}");
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
            let seen = see(&kind, &bytes[..cut]);
            let legal = optional_last_byte && cut == bytes.len() - 1;
            assert_eq!(seen.is_ok(), legal, "{file}, {name} cut at {cut}");
        }
    }
}

#[test]
fn a_golden_frame_with_any_one_byte_changed_does_not_panic() {
    for (_, Golden { kind, bytes, .. }) in golden_frames() {
        let kind = kind.trim_start_matches("lenient:").trim_start_matches("refused:");
        if kind == "event" || kind == "notice" {
            continue; // its header says that it is one
        }
        for at in 0..bytes.len() {
            for value in [0x00, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = see(kind, &changed);
            }
        }
    }
}
