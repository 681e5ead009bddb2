//! Decodes frames: between `frame::split` and the server's or client's logic.
//!
//! Must never panic on any input, and never validates content: decoding accepts a bad path or flag. Bytes
//! after a record are left alone, since a newer peer may send more fields; only the handshake's two records
//! must fill their frames.

use bytes::Bytes;

pub use crate::codec::DecodeError;

use crate::codec::{Decoded, Reader};
use crate::ids::{Xid, Zxid};
use crate::lock::Notice;
use crate::opcode::OpCode;
use crate::request::{ConnectRequest, Request, RequestFrame};
use crate::response::{ConnectResponse, EventType, ReplyHeader, Response, WatchedEvent};
use crate::wire::WireForm;

/// Errors of decoding a request; each determines the server's reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// The frame is too short for a header: close without a reply.
    #[error("frame is too short for a request header")]
    Header,
    /// The opcode is unknown: reply Unimplemented, then close.
    #[error("request {xid} has the unknown opcode {opcode}")]
    UnknownOpcode {
        /// The xid of the frame's header.
        xid: Xid,
        /// The opcode of the frame's header.
        opcode: i32,
    },
    /// The body is invalid: reply MarshallingError and keep the connection, since frame boundaries are
    /// intact.
    #[error("request {xid} is not a {opcode}")]
    Body {
        /// The xid of the frame's header.
        xid: Xid,
        /// The opcode of the frame's header.
        opcode: OpCode,
        /// Error of decoding the body.
        source: DecodeError,
    },
}

/// Decodes the first frame of a client. A null password counts as empty.
pub fn connect_request(frame: Bytes) -> Result<ConnectRequest, DecodeError> {
    whole(frame)
}

/// Decodes the first frame of a server. A null password counts as empty.
pub fn connect_response(frame: Bytes) -> Result<ConnectResponse, DecodeError> {
    whole(frame)
}

/// Decodes a record that fills its frame.
fn whole<T: WireForm>(frame: Bytes) -> Decoded<T> {
    let mut r = Reader::new(&frame);
    let record = T::read(&mut r)?;
    r.finish()?;
    Ok(record)
}

/// Decodes any frame of a client after the first.
pub fn request(frame: Bytes) -> Result<RequestFrame, BadRequest> {
    let mut r = Reader::new(&frame);
    let (xid, opcode) = header(&mut r).map_err(|_| BadRequest::Header)?;
    let opcode = OpCode::from_i32(opcode).ok_or(BadRequest::UnknownOpcode { xid, opcode })?;
    match Request::read_by(&mut r, opcode) {
        Ok(request) => {
            debug_assert_eq!(request.opcode(), opcode, "the body decodes to another request");
            Ok(RequestFrame { xid, request })
        }
        Err(source) => Err(BadRequest::Body { xid, opcode, source }),
    }
}

fn header(r: &mut Reader<'_>) -> Decoded<(Xid, i32)> {
    Ok((Xid::read(r)?, r.int()?))
}

wire! {
    // The content of an envelope, behind its opcode. Refuses content that may not be tagged, nested envelopes
    // included. Invariant: the client cannot choose the depth of the recursion.
    Box<Request>, 4,
        |r| {
            let number = r.int()?;
            let opcode = OpCode::from_i32(number).filter(|opcode| opcode.may_be_tagged());
            let opcode = opcode.ok_or(DecodeError::UnknownVariant { number })?;
            Request::read_by(r, opcode).map(Box::new)
        },
        |request, out| crate::encode::write_request(request, out),
        {
            let tagged = OpCode::ALL.iter().copied().filter(|opcode| opcode.may_be_tagged());
            prop::sample::select(tagged.collect::<Vec<_>>()).prop_flat_map(Request::strategy_by).prop_map(Box::new)
        };
}

/// Reads the 16 bytes in front of every reply and event. An [`event`] follows [`Xid::EVENT`]; nothing follows
/// a set `err`; otherwise the [`response`] to the request with this xid follows.
pub fn reply_header(frame: &mut Bytes) -> Result<ReplyHeader, DecodeError> {
    Reader::front(frame, ReplyHeader::read)
}

/// Decodes the body of a successful reply to `opcode`. The reply to an envelope is the reply to its content:
/// callers pass the content's opcode.
pub fn response(frame: &mut Bytes, opcode: OpCode) -> Result<Response, DecodeError> {
    Reader::front(frame, |r| Response::read_by(r, opcode))
}

/// Decodes the body of an event. Sets its zxid to -1: the caller takes the zxid from the header.
pub fn event(frame: &mut Bytes) -> Result<WatchedEvent, DecodeError> {
    Reader::front(frame, |r| {
        let (event_type, state, path) = (EventType::read(r)?, r.int()?, String::read(r)?);
        Ok(WatchedEvent { zxid: Zxid(-1), event_type, state, path })
    })
}

/// Decodes the body of a frame with [`crate::Xid::NOTICE`].
pub fn notice(frame: &mut Bytes) -> Result<Notice, DecodeError> {
    Reader::front(frame, Notice::read)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::{BufMut, BytesMut};

    use super::*;
    use crate::acl::{Acl, Id};
    use crate::encode;
    use crate::lock::{Acquire, Attempt, Claim, Party, QueuePosition};
    use crate::response::Stat;

    fn encoded(request: Request) -> Bytes {
        let mut out = BytesMut::new();
        encode::request(&RequestFrame { xid: Xid(1), request }, &mut out);
        out.freeze().slice(4..)
    }

    #[test]
    fn bytes_after_a_record_are_ignored() {
        let asked = Request::GetAcl("/a".to_owned());
        let longer = [&encoded(asked.clone())[..], &[1, 2, 3]].concat();
        assert_eq!(request(longer.into()), Ok(RequestFrame { xid: Xid(1), request: asked }));
    }

    #[test]
    fn an_envelope_carries_a_write_and_nothing_else() {
        for opcode in OpCode::ALL {
            let mut frame = BytesMut::new();
            frame.put_i32(1);
            frame.put_i32(OpCode::Tagged.as_i32());
            frame.put_u64(7);
            frame.put_u64(6);
            frame.put_i32(opcode.as_i32());
            let refused =
                request(frame.freeze()).expect_err("the frame lacks the record that every tagged write has");
            let BadRequest::Body { source, .. } = refused else { panic!("{opcode}: {refused}") };
            let unknown = DecodeError::UnknownVariant { number: opcode.as_i32() };
            assert_eq!(source != unknown, opcode.may_be_tagged(), "{opcode}: {source}");
        }
        for opcode in [OpCode::GetData, OpCode::Sync, OpCode::Verify, OpCode::Tagged, OpCode::CloseSession] {
            assert!(!opcode.may_be_tagged(), "{opcode}");
        }
    }

    /// Decodes a record of zeros: each string, buffer and vector in it is empty, so no record is shorter.
    fn zeros<T: WireForm + std::fmt::Debug>(first: &[u8]) {
        let bytes = [first, &vec![0; T::MIN_BYTES - first.len()]].concat();
        whole::<T>(bytes.clone().into()).expect("the shortest record has the minimum size");
        let shorter = T::read(&mut Reader::new(&bytes[1..].to_owned().into()));
        assert!(matches!(shorter, Err(DecodeError::Truncated { .. })), "{shorter:?}");
    }

    #[test]
    fn the_minimum_size_of_a_record_is_the_size_of_its_shortest_value() {
        zeros::<Acquire>(&[]);
        zeros::<Claim>(&[]);
        zeros::<Attempt>(&[]);
        zeros::<Party>(&[]);
        zeros::<Acl>(&[]);
        zeros::<Id>(&[]);
        zeros::<Stat>(&[]);
        zeros::<bool>(&[]);
        zeros::<QueuePosition>(&QueuePosition::Absent.number().to_be_bytes());
    }

    #[test]
    fn the_acl_of_an_open_znode_is_one_list_for_all() {
        let acls = [
            Some(Acl::open().into()),
            None,
            Some([].into()),
            Some([Acl::open(), Acl::open()].concat().into()),
        ];
        let all = acls.into_iter().map(|acl| Acquire { acl, ..Acquire::exclusive("", "") }).collect();
        let sent = Request::Acquire(all);
        let read = request(encoded(sent.clone())).unwrap();
        assert_eq!(read.request, sent);
        let Request::Acquire(all) = read.request else { unreachable!("that was sent") };
        assert!(Arc::ptr_eq(all[0].acl.as_ref().unwrap(), &Acl::shared_open()));
    }

    #[test]
    fn a_count_beyond_the_frame_is_refused_before_anything_is_reserved() {
        for opcode in [OpCode::Acquire, OpCode::Release, OpCode::Abandon, OpCode::Verify] {
            let mut out = BytesMut::new();
            out.put_i32(1);
            out.put_i32(opcode.as_i32());
            out.put_i32(i32::MAX);
            let beyond = DecodeError::CountBeyondFrame { count: i32::MAX as usize, left: 0 };
            assert_eq!(request(out.freeze()), Err(BadRequest::Body { xid: Xid(1), opcode, source: beyond }));
        }
    }
}
