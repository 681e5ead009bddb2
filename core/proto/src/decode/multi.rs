//! Decodes multi and multiRead: records with their own headers, up to an end mark.

use super::request::{create, path_watch, set_data};
use super::{stat, version};
use crate::codec::{DecodeError, Decoded, Reader};
use crate::create_mode::CreateMode;
use crate::error::ErrorCode;
use crate::opcode::OpCode;
use crate::request::{Create, Op, ReadOp};
use crate::response::OpResult;

/// Type of a failed operation's result, and of the end mark.
const ERROR_TYPE: i32 = -1;

/// Decodes the operations of a multi: writes and checks only.
///
/// Follows Apache's `MultiOperationRecord`: a mode with a time to live makes the whole multi unreadable
/// unless the operation is createTTL, and a createTTL with another mode is a create, with its time ignored.
pub(super) fn ops(r: &mut Reader<'_>) -> Decoded<Vec<Op>> {
    until_end(r, |r, op_type| {
        let without_ttl = |r: &mut Reader<'_>| match create(r)? {
            create if has_ttl(&create) => Err(DecodeError::BadMultiOp { op_type }),
            create => Ok(create),
        };
        Ok(match OpCode::from_i32(op_type) {
            Some(OpCode::Create) => Op::Create(without_ttl(r)?),
            Some(OpCode::Create2) => Op::Create2(without_ttl(r)?),
            Some(OpCode::CreateContainer) => Op::CreateContainer(without_ttl(r)?),
            Some(OpCode::CreateTtl) => match (create(r)?, r.long()?) {
                (create, ttl_ms) if has_ttl(&create) => Op::CreateTtl(create, ttl_ms),
                (create, _) => Op::Create(create),
            },
            Some(OpCode::Delete) => Op::Delete { path: r.string()?, version: version(r)? },
            Some(OpCode::SetData) => Op::SetData(set_data(r)?),
            Some(OpCode::Check) => Op::Check { path: r.string()?, version: version(r)? },
            _ => return Err(DecodeError::BadMultiOp { op_type }),
        })
    })
}

fn has_ttl(create: &Create) -> bool {
    CreateMode::from_flags(create.flags).is_some_and(CreateMode::has_ttl)
}

/// Decodes the operations of a multiRead. Ignores their watch flags.
pub(super) fn read_ops(r: &mut Reader<'_>) -> Decoded<Vec<ReadOp>> {
    until_end(r, |r, op_type| match OpCode::from_i32(op_type) {
        Some(OpCode::GetData) => Ok(ReadOp::GetData(path_watch(r)?.path)),
        Some(OpCode::GetChildren) => Ok(ReadOp::GetChildren(path_watch(r)?.path)),
        _ => Err(DecodeError::BadMultiOp { op_type }),
    })
}

/// Decodes the results of a multi or multiRead. The type in a result's header decides, not the request:
/// servers before 3.8.3 answer a create2 as a create, without Stat.
pub(super) fn results(r: &mut Reader<'_>) -> Decoded<Vec<OpResult>> {
    until_end(r, |r, op_type| {
        if op_type == ERROR_TYPE {
            return Ok(OpResult::Error(ErrorCode::from_code(r.int()?)));
        }
        Ok(match OpCode::from_i32(op_type) {
            Some(OpCode::Create) => OpResult::Create(r.string()?),
            Some(OpCode::Create2) => OpResult::Create2(r.string()?, stat(r)?),
            Some(OpCode::CreateContainer) => OpResult::CreateContainer(r.string()?, stat(r)?),
            Some(OpCode::CreateTtl) => OpResult::CreateTtl(r.string()?, stat(r)?),
            Some(OpCode::Delete) => OpResult::Delete,
            Some(OpCode::SetData) => OpResult::SetData(stat(r)?),
            Some(OpCode::Check) => OpResult::Check,
            Some(OpCode::GetData) => OpResult::GetData(r.buffer()?, stat(r)?),
            Some(OpCode::GetChildren) => OpResult::GetChildren(r.strings()?),
            _ => return Err(DecodeError::BadMultiOp { op_type }),
        })
    })
}

/// Reads `MultiHeader{int type; bool done; int err}` and, unless done, the following record, repeatedly. The
/// list has no count, so its size follows the received bytes. As in Apache, only `done` ends the list; `err`
/// repeats the error of the record.
fn until_end<T>(
    r: &mut Reader<'_>,
    mut one: impl FnMut(&mut Reader<'_>, i32) -> Decoded<T>,
) -> Decoded<Vec<T>> {
    let mut all = Vec::new();
    loop {
        let (op_type, done, _err) = (r.int()?, r.boolean()?, r.int()?);
        if done {
            return Ok(all);
        }
        all.push(one(r, op_type)?);
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};

    use super::*;
    use crate::encode;
    use crate::ids::Xid;
    use crate::request::{Request, RequestFrame};

    fn reread(op: Op) -> Result<Vec<Op>, DecodeError> {
        let mut out = BytesMut::new();
        encode::request(&RequestFrame { xid: Xid(1), request: Request::Multi(vec![op]) }, &mut out);
        let body = out.freeze().slice(12..);
        ops(&mut Reader::new(&body))
    }

    fn create_with(mode: CreateMode) -> Create {
        Create { path: "/a".to_owned(), data: Some(Bytes::new()), acl: None, flags: mode.flags() }
    }

    #[test]
    fn only_create_ttl_accepts_a_mode_with_a_time_to_live() {
        let with_ttl = create_with(CreateMode::PersistentWithTtl);
        for op in [
            Op::Create(with_ttl.clone()),
            Op::Create2(with_ttl.clone()),
            Op::CreateContainer(with_ttl.clone()),
        ] {
            assert!(matches!(reread(op), Err(DecodeError::BadMultiOp { .. })));
        }
        let op = Op::CreateTtl(with_ttl, 5);
        assert_eq!(reread(op.clone()), Ok(vec![op]));
    }

    #[test]
    fn a_create_ttl_with_a_mode_without_ttl_is_a_create() {
        let plain = create_with(CreateMode::Ephemeral);
        assert_eq!(reread(Op::CreateTtl(plain.clone(), 5)), Ok(vec![Op::Create(plain)]));
    }
}
