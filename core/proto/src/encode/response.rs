//! What servers send: replies and events.

use bytes::BytesMut;

use super::{last_frame, lock, multi, put_acl, put_id, put_stat};
use crate::codec::{Writer, put_frame};
use crate::decode;
use crate::error::ErrorCode;
use crate::event::WatchedEvent;
use crate::frame::LENGTH_BYTES;
use crate::ids::{Xid, Zxid};
use crate::response::{ReplyHeader, Response};

/// A reply. With an error in the header no body goes out, whatever `body` is: clients would not read it. (A
/// failed multi has err 0 and tells its errors in the body.)
pub fn reply(header: ReplyHeader, body: Option<&Response>, out: &mut BytesMut) {
    let start = out.len();
    put_frame(out, |out| {
        put_header(out, header);
        if let (None, Some(body)) = (header.err, body) {
            put_body(out, body);
        }
    });
    debug_assert_eq!(
        decode::reply_header(&mut last_frame(out, start)),
        Ok(ReplyHeader { err: header.err.and_then(|err| ErrorCode::from_code(err.code())), ..header }),
        "a header is read back as it was written"
    );
    debug_assert!(
        header.err.is_none() || out.len() == start + LENGTH_BYTES + HEADER_BYTES,
        "nothing is behind an error"
    );
}

/// Bytes of a reply's header.
pub(super) const HEADER_BYTES: usize = 4 + 8 + 4;

/// Encodes a watch event with its header.
pub fn event(event: &WatchedEvent, out: &mut BytesMut) {
    let start = out.len();
    put_frame(out, |out| {
        put_header(out, ReplyHeader { xid: Xid::EVENT, zxid: event.zxid, err: None });
        out.int(event.event_type.as_i32());
        out.int(event.state);
        out.string(&event.path);
    });
    debug_assert_eq!(
        decode::event(&mut last_frame(out, start).slice(HEADER_BYTES..)),
        Ok(WatchedEvent { zxid: Zxid(-1), ..event.clone() }),
        "an event is read back as it was written"
    );
}

pub(super) fn put_header(out: &mut BytesMut, header: ReplyHeader) {
    out.int(header.xid.0);
    out.long(header.zxid.0);
    out.int(header.err.map_or(0, ErrorCode::code));
}

fn put_body(out: &mut BytesMut, body: &Response) {
    match body {
        Response::Empty => {}
        Response::Path(path) => out.string(path),
        Response::PathStat(path, stat) => {
            out.string(path);
            put_stat(out, stat);
        }
        Response::Stat(stat) => put_stat(out, stat),
        Response::Data(data, stat) => {
            out.buffer(data.as_deref());
            put_stat(out, stat);
        }
        Response::Acl(acl, stat) => {
            put_acl(out, Some(acl));
            put_stat(out, stat);
        }
        Response::Children(names) => out.strings(names),
        Response::Children2(names, stat) => {
            out.strings(names);
            put_stat(out, stat);
        }
        Response::Multi(results) => multi::put_results(out, results),
        Response::Number(number) => out.int(*number),
        Response::Sasl(token) => out.buffer(token.as_deref()),
        Response::PlaceStates(place_states) => lock::put_place_states(out, place_states),
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
                put_id(out, id);
            }
        }
    }
}
