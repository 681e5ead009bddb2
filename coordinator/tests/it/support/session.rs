//! What opens a session.

use bytes::{Bytes, BytesMut};
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::{SessionId, Zxid, encode};

/// The connect request of a new session of 30 s, encoded.
pub fn connect_request() -> BytesMut {
    let request = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: Zxid(0),
        timeout_ms: 30_000,
        session_id: SessionId::NONE,
        password: Bytes::from_static(&[0; 16]),
        read_only: Some(false),
    };
    let mut out = BytesMut::new();
    encode::connect_request(&request, &mut out);
    out
}
