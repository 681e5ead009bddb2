//! Valid conversations to corrupt: a handshake, then the frames of one client of a generated script, mixed
//! with lock requests.

use bytes::{Bytes, BytesMut};
use rowlock_proto::{FourLetterWord, OpCode, Xid, Zxid, encode};

use super::locks;
use crate::connection::{Session, connect_request};
use crate::generate;
use crate::script::{Action, body, frame, set_watches};
use rowlock_world::rng::Rng;

/// Largest body of a frame that servers accept, less some room for the header.
const LARGE_BYTES: usize = 0xf_ffff - 64;

/// Maximum number of Rowlock's own requests in a conversation.
const LOCK_REQUESTS_MAX: usize = 12;

/// Returns the frames of a conversation, handshake first.
pub fn conversation(rng: &mut Rng) -> Vec<Bytes> {
    if rng.chance(3) {
        return vec![word(rng)];
    }
    let script = generate::script(rng.u64(), "/fuzz/r");
    let mut handshake = BytesMut::new();
    encode::connect_request(&connect_request(&Session::default(), Zxid(0)), &mut handshake);
    let mut frames = vec![handshake.freeze()];
    let mut xid = 0;
    for step in &script.steps {
        xid += 1;
        match &step.action {
            Action::Send { opcode, body, .. } => frames.push(frame(Xid(xid), *opcode, body)),
            Action::SetWatches { watches, two, .. } => {
                let (opcode, body) = set_watches(watches, *two, Zxid(0));
                frames.push(frame(Xid::SET_WATCHES, opcode.as_i32(), &body));
            }
            Action::Close => frames.push(frame(Xid(xid), OpCode::CloseSession.as_i32(), &[])),
            Action::Reconnect(_) => {}
        }
    }
    if rng.chance(60) {
        for _ in 0..1 + rng.below(LOCK_REQUESTS_MAX) {
            xid += 1;
            let request = locks::request(rng);
            let at = 1 + rng.below(frames.len());
            frames.insert(at, frame(Xid(xid), request.opcode().as_i32(), &body(&request)));
        }
    }
    if rng.chance(1) {
        frames.push(frame(Xid(xid + 1), OpCode::GetData.as_i32(), &vec![0; LARGE_BYTES]));
    }
    frames
}

fn word(rng: &mut Rng) -> Bytes {
    let word = rng.pick(FourLetterWord::ALL);
    Bytes::copy_from_slice(word.as_str().as_bytes())
}
