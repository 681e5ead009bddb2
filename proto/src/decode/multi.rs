//! multi and multiRead: records behind headers of their own, up to an end mark.

use super::request::{create, path_watch, set_data};
use super::{stat, version};
use crate::codec::{DecodeError, Decoded, Reader};
use crate::error::ErrorCode;
use crate::opcode::OpCode;
use crate::request::{Op, ReadOp};
use crate::response::OpResult;

/// Type of the result of an operation that failed, and of the end mark.
const ERROR_TYPE: i32 = -1;

/// The operations of a multi: writes and checks only.
pub(super) fn ops(r: &mut Reader<'_>) -> Decoded<Vec<Op>> {
    until_end(r, |r, op_type| {
        Ok(match OpCode::from_i32(op_type) {
            Some(OpCode::Create) => Op::Create(create(r)?),
            Some(OpCode::Create2) => Op::Create2(create(r)?),
            Some(OpCode::CreateContainer) => Op::CreateContainer(create(r)?),
            Some(OpCode::CreateTtl) => Op::CreateTtl(create(r)?, r.long()?),
            Some(OpCode::Delete) => Op::Delete { path: r.string()?, version: version(r)? },
            Some(OpCode::SetData) => Op::SetData(set_data(r)?),
            Some(OpCode::Check) => Op::Check { path: r.string()?, version: version(r)? },
            _ => return Err(DecodeError::BadMultiOp { op_type }),
        })
    })
}

/// The operations of a multiRead; their watch flags have no meaning.
pub(super) fn read_ops(r: &mut Reader<'_>) -> Decoded<Vec<ReadOp>> {
    until_end(r, |r, op_type| match OpCode::from_i32(op_type) {
        Some(OpCode::GetData) => Ok(ReadOp::GetData(path_watch(r)?.path)),
        Some(OpCode::GetChildren) => Ok(ReadOp::GetChildren(path_watch(r)?.path)),
        _ => Err(DecodeError::BadMultiOp { op_type }),
    })
}

/// The results of a multi or multiRead. Servers before 3.8.3 answer a create2 as a create, without Stat: the type in
/// the header tells, not the question.
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

/// Reads `MultiHeader{int type; bool done; int err}` and, unless done, what belongs to it. There is no count to trust:
/// the list grows with what was read. As in Apache, `done` alone ends it, and `err` repeats what the record says.
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
