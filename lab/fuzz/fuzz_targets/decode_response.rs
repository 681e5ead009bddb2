//! Everything that a client decodes: the handshake's response, replies to any operation, events, notices.
//!
//! The first byte of the input selects the operation. Nothing may panic or allocate more than the frame
//! justifies. A decoded record survives a round trip through the encoder.

#![cfg_attr(feature = "libfuzzer", no_main)]

use bytes::{Bytes, BytesMut};
use rowlock_fuzz::fuzz_target;
use rowlock_proto::{OpCode, ReplyHeader, Xid, Zxid, decode, encode, frame};

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    let rest = Bytes::copy_from_slice(rest);
    let opcode = OpCode::ALL[usize::from(*choice) % OpCode::ALL.len()];
    response(rest.clone(), opcode);
    event(rest.clone());
    notice(rest.clone());
    connect_response(rest);
});

fn response(mut body: Bytes, opcode: OpCode) {
    let Ok(read) = decode::response(&mut body, opcode) else { return };
    let header = ReplyHeader { xid: Xid(1), zxid: Zxid(2), err: None };
    let mut wire = BytesMut::new();
    encode::reply(header, Some(&read), &mut wire);
    let mut frame = only_frame(wire);
    assert_eq!(decode::reply_header(&mut frame), Ok(header));
    assert_eq!(decode::response(&mut frame, opcode), Ok(read));
    assert!(frame.is_empty());
}

fn event(mut frame: Bytes) {
    let Ok(header) = decode::reply_header(&mut frame) else { return };
    let Ok(mut read) = decode::event(&mut frame) else { return };
    read.zxid = header.zxid;
    let mut wire = BytesMut::new();
    encode::event(&read, &mut wire);
    let mut frame = only_frame(wire);
    let header = decode::reply_header(&mut frame).expect("the encoded event decodes");
    let mut again = decode::event(&mut frame).expect("the encoded event decodes");
    again.zxid = header.zxid;
    assert_eq!(again, read);
}

fn notice(mut frame: Bytes) {
    let Ok(read) = decode::notice(&mut frame) else { return };
    let mut wire = BytesMut::new();
    encode::notice(Zxid(2), &read, &mut wire);
    let mut frame = only_frame(wire);
    let header = decode::reply_header(&mut frame).expect("the encoded event decodes");
    assert_eq!((header.xid, header.zxid, header.err), (Xid::NOTICE, Zxid(2), None));
    assert_eq!(decode::notice(&mut frame), Ok(read));
}

fn connect_response(frame: Bytes) {
    let Ok(read) = decode::connect_response(frame) else { return };
    let mut wire = BytesMut::new();
    encode::connect_response(&read, &mut wire);
    assert_eq!(decode::connect_response(only_frame(wire)), Ok(read));
}

fn only_frame(mut wire: BytesMut) -> Bytes {
    let frame = frame::split(&mut wire, usize::MAX).expect("length is right").expect("frame is whole");
    assert!(wire.is_empty());
    frame
}
