//! Decodes requests: a header, then the record of its opcode.

use bytes::Bytes;

use super::{lock, multi, shared_acl, version, zxid};
use crate::codec::{DecodeError, Decoded, Reader};
use crate::ids::Xid;
use crate::lock::SessionOptions;
use crate::opcode::OpCode;
use crate::request::{Create, PathWatch, Request, RequestFrame, SetAcl, SetData, SetWatches};

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

/// Decodes any frame of a client after the first. Ignores bytes after the record, as ZooKeeper does: a newer
/// client may send more fields.
pub fn request(frame: Bytes) -> Result<RequestFrame, BadRequest> {
    let mut r = Reader::new(&frame);
    let (xid, opcode) = header(&mut r).map_err(|_| BadRequest::Header)?;
    let opcode = OpCode::from_i32(opcode).ok_or(BadRequest::UnknownOpcode { xid, opcode })?;
    match body(&mut r, opcode) {
        Ok(request) => {
            debug_assert_eq!(request.opcode(), opcode, "the body decodes to another request");
            Ok(RequestFrame { xid, request })
        }
        Err(source) => Err(BadRequest::Body { xid, opcode, source }),
    }
}

fn header(r: &mut Reader<'_>) -> Decoded<(Xid, i32)> {
    Ok((Xid(r.int()?), r.int()?))
}

fn body(r: &mut Reader<'_>, opcode: OpCode) -> Decoded<Request> {
    Ok(match opcode {
        OpCode::Create => Request::Create(create(r)?),
        OpCode::Delete => Request::Delete { path: r.string()?, version: version(r)? },
        OpCode::Exists => Request::Exists(path_watch(r)?),
        OpCode::GetData => Request::GetData(path_watch(r)?),
        OpCode::SetData => Request::SetData(set_data(r)?),
        OpCode::GetAcl => Request::GetAcl(r.string()?),
        OpCode::SetAcl => {
            Request::SetAcl(SetAcl { path: r.string()?, acl: shared_acl(r)?, version: version(r)? })
        }
        OpCode::GetChildren => Request::GetChildren(path_watch(r)?),
        OpCode::Sync => Request::Sync(r.string()?),
        OpCode::Ping => Request::Ping,
        OpCode::GetChildren2 => Request::GetChildren2(path_watch(r)?),
        OpCode::Check => Request::Check { path: r.string()?, version: version(r)? },
        OpCode::Multi => Request::Multi(multi::ops(r)?),
        OpCode::Create2 => Request::Create2(create(r)?),
        OpCode::Reconfig => Request::Reconfig {
            joining: r.nullable_string()?,
            leaving: r.nullable_string()?,
            new_members: r.nullable_string()?,
            config_id: r.long()?,
        },
        OpCode::CheckWatches => Request::CheckWatches { path: r.string()?, kind: r.int()? },
        OpCode::RemoveWatches => Request::RemoveWatches { path: r.string()?, kind: r.int()? },
        OpCode::CreateContainer => Request::CreateContainer(create(r)?),
        OpCode::CreateTtl => Request::CreateTtl(create(r)?, r.long()?),
        OpCode::MultiRead => Request::MultiRead(multi::read_ops(r)?),
        OpCode::Auth => {
            Request::Auth { auth_type: r.int()?, scheme: r.string()?, auth: r.buffer()?.unwrap_or_default() }
        }
        OpCode::SetWatches => Request::SetWatches(set_watches(r)?),
        OpCode::Sasl => Request::Sasl(r.buffer()?),
        OpCode::GetEphemerals => Request::GetEphemerals(r.string()?),
        OpCode::GetAllChildrenNumber => Request::GetAllChildrenNumber(r.string()?),
        OpCode::SetWatches2 => {
            let mut watches = set_watches(r)?;
            watches.persistent = r.strings()?;
            watches.persistent_recursive = r.strings()?;
            Request::SetWatches2(watches)
        }
        OpCode::AddWatch => Request::AddWatch { path: r.string()?, mode: r.int()? },
        OpCode::WhoAmI => Request::WhoAmI,
        OpCode::CloseSession => Request::CloseSession,
        OpCode::Tagged => tagged(r)?,
        OpCode::Acquire => Request::Acquire(lock::acquires(r)?),
        OpCode::Release => Request::Release(lock::claims(r)?),
        OpCode::Abandon => Request::Abandon(lock::attempts(r)?),
        OpCode::Verify => Request::Verify(lock::claims(r)?),
        OpCode::Convert => {
            Request::Convert { claim: lock::claim(r)?, mode: lock::mode(r)?, prefix: r.string()? }
        }
        OpCode::ForceRelease => Request::ForceRelease(lock::claim(r)?),
        OpCode::Ask => Request::Ask(lock::ask(r)?),
        OpCode::SessionOptions => {
            Request::SessionOptions(SessionOptions { disconnect_grace_ms: lock::number(r)? })
        }
        OpCode::Report => Request::Report(r.string()?),
        OpCode::Operate => Request::Operate(r.string()?),
    })
}

/// Decodes an envelope. Refuses content that may not be tagged, nested envelopes included.
///
/// Invariant: the client cannot choose the depth of the recursion.
fn tagged(r: &mut Reader<'_>) -> Decoded<Request> {
    let (id, acked, number) = (r.long()? as u64, r.long()? as u64, r.int()?);
    let opcode = OpCode::from_i32(number).filter(|opcode| opcode.may_be_tagged());
    let opcode = opcode.ok_or(DecodeError::UnknownVariant { number })?;
    Ok(Request::Tagged { id, acked, request: Box::new(body(r, opcode)?) })
}

pub(super) fn create(r: &mut Reader<'_>) -> Decoded<Create> {
    Ok(Create { path: r.string()?, data: r.buffer()?, acl: shared_acl(r)?, flags: r.int()? })
}

pub(super) fn set_data(r: &mut Reader<'_>) -> Decoded<SetData> {
    Ok(SetData { path: r.string()?, data: r.buffer()?, version: version(r)? })
}

pub(super) fn path_watch(r: &mut Reader<'_>) -> Decoded<PathWatch> {
    Ok(PathWatch { path: r.string()?, watch: r.boolean()? })
}

/// Decodes the fields common to setWatches and setWatches2.
fn set_watches(r: &mut Reader<'_>) -> Decoded<SetWatches> {
    Ok(SetWatches {
        relative_zxid: zxid(r)?,
        data: r.strings()?,
        exist: r.strings()?,
        child: r.strings()?,
        ..SetWatches::default()
    })
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};

    use super::*;
    use crate::encode;

    #[test]
    fn bytes_after_a_record_are_ignored() {
        let frame = RequestFrame { xid: Xid(1), request: Request::GetAcl("/a".to_owned()) };
        let mut out = BytesMut::new();
        encode::request(&frame, &mut out);
        out.extend_from_slice(&[1, 2, 3]);
        assert_eq!(request(out.freeze().slice(4..)), Ok(frame));
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
}
