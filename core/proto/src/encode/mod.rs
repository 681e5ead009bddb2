//! Encodes records: each function appends one whole frame, length first, to `out`.
//!
//! The last step before the socket. Must never allocate except to grow `out`. Callers bound the size of their
//! records: a frame of 2 GiB is a bug and panics.

mod handshake;
mod lock;
mod multi;
mod request;
mod response;

pub use self::handshake::{connect_request, connect_response};
pub use self::lock::notice;
pub use self::request::{request, request_of, tagged};
pub use self::response::{event, reply};

use bytes::{Bytes, BytesMut};

use crate::acl::{Acl, Id};
use crate::codec::Writer;
use crate::frame::LENGTH_BYTES;
use crate::stat::Stat;

/// Returns the record of the frame appended at `start`, for assertions that decode the frame again.
fn last_frame(out: &BytesMut, start: usize) -> Bytes {
    Bytes::copy_from_slice(&out[start + LENGTH_BYTES..])
}

fn write_id(out: &mut BytesMut, id: &Id) {
    out.string(&id.scheme);
    out.string(&id.id);
}

fn write_acl(out: &mut BytesMut, acl: Option<&[Acl]>) {
    let Some(acl) = acl else { return out.int(-1) };
    out.count(acl.len());
    for entry in acl {
        out.int(entry.perms);
        write_id(out, &entry.id);
    }
}

fn write_stat(out: &mut BytesMut, stat: &Stat) {
    out.long(stat.czxid.0);
    out.long(stat.mzxid.0);
    out.long(stat.ctime_ms);
    out.long(stat.mtime_ms);
    out.int(stat.version.0);
    out.int(stat.cversion.0);
    out.int(stat.aversion.0);
    out.long(stat.ephemeral_owner.0);
    out.int(stat.data_length);
    out.int(stat.num_children);
    out.long(stat.pzxid.0);
}
