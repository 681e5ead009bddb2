//! Encodes records: each function appends one whole frame, length first, to `out`.
//!
//! The last step before the socket. Must never allocate except to grow `out`. Callers bound the size of their
//! records: a frame of 2 GiB is a bug and panics.

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::write_frame;
use crate::decode;
use crate::error::ErrorCode;
use crate::frame::LENGTH_BYTES;
use crate::ids::{Xid, Zxid};
use crate::lock::Notice;
use crate::opcode::OpCode;
use crate::request::{ConnectRequest, Request, RequestFrame};
use crate::response::{ConnectResponse, EventType, ReplyHeader, Response, WatchedEvent};
use crate::wire::WireForm;

/// Returns the record of the frame appended at `start`, for assertions that decode the frame again.
fn last_frame(out: &BytesMut, start: usize) -> Bytes {
    Bytes::copy_from_slice(&out[start + LENGTH_BYTES..])
}

/// Appends the first frame of a client.
pub fn connect_request(request: &ConnectRequest, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| ConnectRequest::write(request, out));
    debug_assert_eq!(decode::connect_request(last_frame(out, start)).as_ref(), Ok(request), "not read back");
}

/// Appends the first frame of a server.
pub fn connect_response(response: &ConnectResponse, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| ConnectResponse::write(response, out));
    debug_assert_eq!(
        decode::connect_response(last_frame(out, start)).as_ref(),
        Ok(response),
        "not read back"
    );
}

/// Encodes any frame of a client after its connect request.
pub fn request(frame: &RequestFrame, out: &mut BytesMut) {
    request_of(frame.xid, &frame.request, out);
}

/// Encodes a borrowed request.
pub fn request_of(xid: Xid, request: &Request, out: &mut BytesMut) {
    write_frame(out, |out| {
        Xid::write(&xid, out);
        write_request(request, out);
    });
}

/// Encodes a [`Request::Tagged`] around a borrowed request.
pub fn tagged(xid: Xid, id: u64, acked: u64, request: &Request, out: &mut BytesMut) {
    write_frame(out, |out| {
        Xid::write(&xid, out);
        out.put_i32(OpCode::Tagged.as_i32());
        out.put_u64(id);
        out.put_u64(acked);
        write_request(request, out);
    });
}

/// Appends the opcode of a request and its fields.
pub(crate) fn write_request(request: &Request, out: &mut BytesMut) {
    out.put_i32(request.opcode().as_i32());
    request.write_fields(out);
}

/// Appends a reply. An error in the header leaves `body` out: clients would not read the body. A failed multi
/// has err 0 and lists its errors in the body.
pub fn reply(header: ReplyHeader, body: Option<&Response>, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| {
        ReplyHeader::write(&header, out);
        if let (None, Some(body)) = (header.err, body) {
            body.write_fields(out);
        }
    });
    debug_assert_eq!(
        decode::reply_header(&mut last_frame(out, start)),
        Ok(ReplyHeader { err: header.err.and_then(|err| ErrorCode::from_code(err.code())), ..header }),
        "the frame decodes to another header"
    );
    debug_assert!(
        header.err.is_none() || out.len() == start + LENGTH_BYTES + ReplyHeader::MIN_BYTES,
        "a body follows an error"
    );
}

/// Appends a watch event with its header.
pub fn event(event: &WatchedEvent, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| {
        ReplyHeader::write(&ReplyHeader { xid: Xid::EVENT, zxid: event.zxid, err: None }, out);
        EventType::write(&event.event_type, out);
        out.put_i32(event.state);
        String::write(&event.path, out);
    });
    debug_assert_eq!(
        decode::event(&mut last_frame(out, start).slice(ReplyHeader::MIN_BYTES..)),
        Ok(WatchedEvent { zxid: Zxid(-1), ..event.clone() }),
        "the frame decodes to another event"
    );
}

/// Appends a notice as a frame.
pub fn notice(zxid: Zxid, notice: &Notice, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| {
        ReplyHeader::write(&ReplyHeader { xid: Xid::NOTICE, zxid, err: None }, out);
        Notice::write(notice, out);
    });
    debug_assert_eq!(
        decode::notice(&mut last_frame(out, start).slice(ReplyHeader::MIN_BYTES..)).as_ref(),
        Ok(notice),
        "the frame decodes to another notice"
    );
}
