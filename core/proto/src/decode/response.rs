//! Decodes the frames of servers: headers, bodies by opcode, events. Used by clients.
//!
//! Leaves bytes after a record in `frame`, since a newer server may add fields.

use bytes::Bytes;

use super::{acl, ids, lock, multi, stat, zxid};
use crate::codec::{DecodeError, Decoded, Reader};
use crate::error::ErrorCode;
use crate::event::{EventType, WatchedEvent};
use crate::ids::{Xid, Zxid};
use crate::opcode::OpCode;
use crate::response::{ReplyHeader, Response};

/// Reads the 16 bytes in front of every reply and event. An [`event`] follows [`Xid::EVENT`]; nothing follows
/// a set `err`; otherwise the [`response`] to the request with this xid follows.
pub fn reply_header(frame: &mut Bytes) -> Result<ReplyHeader, DecodeError> {
    Reader::front(frame, |r| {
        Ok(ReplyHeader { xid: Xid(r.int()?), zxid: zxid(r)?, err: ErrorCode::from_code(r.int()?) })
    })
}

/// Decodes the body of a successful reply to `opcode`.
pub fn response(frame: &mut Bytes, opcode: OpCode) -> Result<Response, DecodeError> {
    Reader::front(frame, |r| body(r, opcode))
}

fn body(r: &mut Reader<'_>, opcode: OpCode) -> Decoded<Response> {
    Ok(match opcode {
        OpCode::Create | OpCode::Sync => Response::Path(r.string()?),
        OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => {
            Response::PathStat(r.string()?, stat(r)?)
        }
        OpCode::Exists | OpCode::SetData | OpCode::SetAcl => Response::Stat(stat(r)?),
        OpCode::GetData | OpCode::Reconfig => Response::Data(r.buffer()?, stat(r)?),
        OpCode::GetAcl => Response::Acl(acl(r)?.unwrap_or_default(), stat(r)?),
        OpCode::GetChildren | OpCode::GetEphemerals => Response::Children(r.strings()?),
        OpCode::GetChildren2 => Response::Children2(r.strings()?, stat(r)?),
        OpCode::Multi | OpCode::MultiRead => Response::Multi(multi::results(r)?),
        OpCode::AddWatch | OpCode::GetAllChildrenNumber | OpCode::Ask => Response::Number(r.int()?),
        OpCode::Sasl => Response::Sasl(r.buffer()?),
        OpCode::WhoAmI => Response::WhoAmI(ids(r)?),
        OpCode::Acquire | OpCode::Convert => Response::QueuePositions(lock::positions(r)?.into()),
        OpCode::Release | OpCode::Verify | OpCode::ForceRelease => {
            Response::Held(r.vector(1, Reader::boolean)?.into())
        }
        OpCode::Report | OpCode::Operate => Response::Report(r.string()?),
        OpCode::Delete
        | OpCode::Ping
        | OpCode::Check
        | OpCode::CheckWatches
        | OpCode::RemoveWatches
        | OpCode::Auth
        | OpCode::SetWatches
        | OpCode::SetWatches2
        | OpCode::CloseSession
        | OpCode::Abandon
        | OpCode::SessionOptions => Response::Empty,
        // The reply to an envelope is the reply to its content: callers pass the content's opcode.
        OpCode::Tagged => Response::Empty,
    })
}

/// Decodes the body of an event. Sets its zxid to -1: the caller takes the zxid from the header.
pub fn event(frame: &mut Bytes) -> Result<WatchedEvent, DecodeError> {
    Reader::front(frame, |r| {
        let event_type = r.int()?;
        let event_type = EventType::from_i32(event_type).ok_or(DecodeError::UnknownEvent { event_type })?;
        Ok(WatchedEvent { zxid: Zxid(-1), event_type, state: r.int()?, path: r.string()? })
    })
}
