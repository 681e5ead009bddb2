//! Encodes the two records of the handshake, which have no header.

use bytes::BytesMut;

use super::last_frame;
use crate::codec::{Writer, write_frame};
use crate::decode;
use crate::request::ConnectRequest;
use crate::response::ConnectResponse;

/// Appends the first frame of a client.
pub fn connect_request(request: &ConnectRequest, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| {
        out.int(request.protocol_version);
        out.long(request.last_zxid_seen.0);
        out.int(request.timeout_ms);
        out.long(request.session_id.0);
        out.buffer(Some(&request.password));
        write_read_only(out, request.read_only);
    });
    debug_assert_eq!(decode::connect_request(last_frame(out, start)).as_ref(), Ok(request), "not read back");
}

/// Appends the first frame of a server.
pub fn connect_response(response: &ConnectResponse, out: &mut BytesMut) {
    let start = out.len();
    write_frame(out, |out| {
        out.int(response.protocol_version);
        out.int(response.timeout_ms);
        out.long(response.session_id.0);
        out.buffer(Some(&response.password));
        write_read_only(out, response.read_only);
    });
    debug_assert_eq!(
        decode::connect_response(last_frame(out, start)).as_ref(),
        Ok(response),
        "not read back"
    );
}

/// Appends the byte that protocols before 3.4 lack; `None` leaves the byte out.
fn write_read_only(out: &mut BytesMut, read_only: Option<bool>) {
    if let Some(read_only) = read_only {
        out.boolean(read_only);
    }
}
