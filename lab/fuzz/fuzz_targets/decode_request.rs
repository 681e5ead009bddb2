//! Everything that a server decodes: framing, the handshake, requests.
//!
//! The first byte of the input also selects an operation, decoded bare and in an envelope, so that the fuzzer
//! need not guess opcodes. Nothing may panic or allocate more than the frame justifies. A decoded record
//! survives a round trip through the encoder.

#![cfg_attr(feature = "libfuzzer", no_main)]

use bytes::{BufMut, Bytes, BytesMut};
use rowlock_fuzz::fuzz_target;
use rowlock_proto::{OpCode, decode, encode, frame};

/// Smaller than libFuzzer's largest input (4096), so inputs lie on both sides of the limit.
const MAX_BYTES: usize = 2048;

fuzz_target!(|input: &[u8]| {
    request(Bytes::copy_from_slice(input));
    if let Some((choice, body)) = input.split_first() {
        let opcode = OpCode::ALL[usize::from(*choice) % OpCode::ALL.len()];
        request(header(opcode, body));
        request(header(OpCode::Tagged, &envelope(opcode, body)));
    }
    connect_request(Bytes::copy_from_slice(input));
    let mut stream = BytesMut::from(input);
    while let Ok(Some(frame)) = frame::split(&mut stream, MAX_BYTES) {
        request(frame);
    }
});

fn header(opcode: OpCode, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_i32(1);
    frame.put_i32(opcode.as_i32());
    frame.put_slice(body);
    frame.freeze()
}

fn envelope(opcode: OpCode, body: &[u8]) -> Bytes {
    let mut record = BytesMut::new();
    record.put_u64(2);
    record.put_u64(1);
    record.put_i32(opcode.as_i32());
    record.put_slice(body);
    record.freeze()
}

fn request(frame: Bytes) {
    let Ok(read) = decode::request(frame) else { return };
    let mut wire = BytesMut::new();
    encode::request(&read, &mut wire);
    assert_eq!(decode::request(only_frame(wire)), Ok(read));
}

fn connect_request(frame: Bytes) {
    let Ok(read) = decode::connect_request(frame) else { return };
    let mut wire = BytesMut::new();
    encode::connect_request(&read, &mut wire);
    assert_eq!(decode::connect_request(only_frame(wire)), Ok(read));
}

fn only_frame(mut wire: BytesMut) -> Bytes {
    let frame = frame::split(&mut wire, usize::MAX).expect("length is right").expect("frame is whole");
    assert!(wire.is_empty());
    frame
}
