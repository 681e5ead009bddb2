//! Encodes the frames of servers: replies and events.

use bytes::BytesMut;

use super::{last_frame, lock, multi, write_acl, write_id, write_stat};
use crate::codec::{Writer, write_frame};
use crate::decode;
use crate::error::ErrorCode;
use crate::event::WatchedEvent;
use crate::frame::LENGTH_BYTES;
use crate::ids::{Xid, Zxid};
use crate::response::{ReplyHeader, Response};

/// Appends a reply. An error in the header leaves `body` out: clients would not read the body. A failed multi
/// has err 0 and lists its errors in the body.
pub fn reply(header: ReplyHeader, body: Option<&Response>, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| {
        write_header(out, header);
        if let (None, Some(body)) = (header.err, body) {
            write_body(out, body);
        }
    });
    debug_assert_eq!(
        decode::reply_header(&mut last_frame(out, start)),
        Ok(ReplyHeader { err: header.err.and_then(|err| ErrorCode::from_code(err.code())), ..header }),
        "the frame decodes to another header"
    );
    debug_assert!(
        header.err.is_none() || out.len() == start + LENGTH_BYTES + HEADER_BYTES,
        "a body follows an error"
    );
}

/// Size of a reply's header.
pub(super) const HEADER_BYTES: usize = 4 + 8 + 4;

/// Appends a watch event with its header.
pub fn event(event: &WatchedEvent, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| {
        write_header(out, ReplyHeader { xid: Xid::EVENT, zxid: event.zxid, err: None });
        out.int(event.event_type.as_i32());
        out.int(event.state);
        out.string(&event.path);
    });
    debug_assert_eq!(
        decode::event(&mut last_frame(out, start).slice(HEADER_BYTES..)),
        Ok(WatchedEvent { zxid: Zxid(-1), ..event.clone() }),
        "the frame decodes to another event"
    );
}

pub(super) fn write_header(out: &mut BytesMut, header: ReplyHeader) {
    out.int(header.xid.0);
    out.long(header.zxid.0);
    out.int(header.err.map_or(0, ErrorCode::code));
}

fn write_body(out: &mut BytesMut, body: &Response) {
    match body {
        Response::Empty => {}
        Response::Path(path) => out.string(path),
        Response::PathStat(path, stat) => {
            out.string(path);
            write_stat(out, stat);
        }
        Response::Stat(stat) => write_stat(out, stat),
        Response::Data(data, stat) => {
            out.buffer(data.as_deref());
            write_stat(out, stat);
        }
        Response::Acl(acl, stat) => {
            write_acl(out, Some(acl));
            write_stat(out, stat);
        }
        Response::Children(names) => out.strings(names),
        Response::Children2(names, stat) => {
            out.strings(names);
            write_stat(out, stat);
        }
        Response::Multi(results) => multi::write_results(out, results),
        Response::Number(number) => out.int(*number),
        Response::Sasl(token) => out.buffer(token.as_deref()),
        Response::QueuePositions(positions) => lock::write_positions(out, positions),
        Response::Held(held) => {
            out.count(held.len());
            for one in held {
                out.boolean(*one);
            }
        }
        Response::Report(text) => out.string(text),
        Response::WhoAmI(ids) => {
            out.count(ids.len());
            for id in ids {
                write_id(out, id);
            }
        }
    }
}
