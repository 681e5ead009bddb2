//! Decodes the two records of the handshake, which have no header.

use bytes::Bytes;

use super::zxid;
use crate::codec::{DecodeError, Decoded, Reader};
use crate::ids::SessionId;
use crate::request::ConnectRequest;
use crate::response::ConnectResponse;

/// Decodes the first frame of a client. A null password counts as empty.
pub fn connect_request(frame: Bytes) -> Result<ConnectRequest, DecodeError> {
    let mut r = Reader::new(&frame);
    let request = ConnectRequest {
        protocol_version: r.int()?,
        last_zxid_seen: zxid(&mut r)?,
        timeout_ms: r.int()?,
        session_id: SessionId(r.long()?),
        password: r.buffer()?.unwrap_or_default(),
        read_only: read_only(&mut r)?,
    };
    r.finish()?;
    Ok(request)
}

/// Decodes the first frame of a server. A null password counts as empty.
pub fn connect_response(frame: Bytes) -> Result<ConnectResponse, DecodeError> {
    let mut r = Reader::new(&frame);
    let response = ConnectResponse {
        protocol_version: r.int()?,
        timeout_ms: r.int()?,
        session_id: SessionId(r.long()?),
        password: r.buffer()?.unwrap_or_default(),
        read_only: read_only(&mut r)?,
    };
    r.finish()?;
    Ok(response)
}

/// Reads the byte that protocols before 3.4 lack; `None` if no byte is left.
fn read_only(r: &mut Reader<'_>) -> Decoded<Option<bool>> {
    if r.left() == 0 { Ok(None) } else { r.boolean().map(Some) }
}
