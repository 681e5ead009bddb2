//! The lists of multi and multiRead: records with headers of their own, up to an end mark.

use bytes::{BufMut, BytesMut};

use crate::codec::{DecodeError, Decoded, Reader};
use crate::error::ErrorCode;
use crate::request::{CreateMode, Op, ReadOp};
use crate::response::OpResult;
use crate::wire::WireForm;

#[cfg(test)]
use proptest::prelude::*;

/// `err` in the headers of requests and of the end mark.
const NO_ERR: i32 = -1;

/// `type` of the end mark.
const END: i32 = -1;

/// Size of `MultiHeader{int type; bool done; int err}`.
const HEADER_BYTES: usize = 4 + 1 + 4;

/// A list without a count: a header before each record, and a header that says `done` at the end.
pub(crate) struct UntilEnd;

/// A path with the watch flag of a read, which multiRead ignores.
pub(crate) struct Unwatched;

wire! {
    String as Unwatched, 4 + 1,
        |r| {
            let path = String::read(r)?;
            r.boolean().map(|_| path)
        },
        |path, out| {
            String::write(path, out);
            bool::write(&false, out);
        },
        String::strategy();
    Vec<Op> as UntilEnd, HEADER_BYTES, |r| read_all(r, read_op),
        |ops, out| write_all(ops, out, |op| (op.number(), NO_ERR), Op::write_fields),
        proptest::collection::vec(op(), 0..6);
    Vec<ReadOp> as UntilEnd, HEADER_BYTES, |r| read_all(r, ReadOp::read_fields),
        |ops, out| write_all(ops, out, |op| (op.number(), NO_ERR), ReadOp::write_fields),
        proptest::collection::vec(ReadOp::strategy(), 0..6);
    // The type in a result's header decides, not the request: servers before 3.8.3 answer a create2 as a
    // create, without Stat.
    Vec<OpResult> as UntilEnd, HEADER_BYTES, |r| read_all(r, OpResult::read_fields),
        |results, out| write_all(results, out, |result| (result.number(), err(result)), OpResult::write_fields),
        proptest::collection::vec(OpResult::strategy(), 0..6);
}

/// Follows Apache's `MultiOperationRecord`: a mode with a time to live makes the whole multi unreadable
/// unless the operation is createTTL, and a createTTL with another mode is a create, with its time ignored.
fn read_op(r: &mut Reader<'_>, op_type: i32) -> Decoded<Option<Op>> {
    match Op::read_fields(r, op_type)? {
        Some(Op::CreateTtl(create, _)) if !has_ttl(create.flags) => Ok(Some(Op::Create(create))),
        Some(Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create))
            if has_ttl(create.flags) =>
        {
            Err(DecodeError::BadMultiOp { op_type })
        }
        op => Ok(op),
    }
}

fn has_ttl(flags: i32) -> bool {
    CreateMode::from_flags(flags).is_some_and(CreateMode::has_ttl)
}

/// Returns `err` of a result's header, which repeats the error of the record.
fn err(result: &OpResult) -> i32 {
    match result {
        OpResult::Error(err) => err.map_or(0, ErrorCode::code),
        _ => 0,
    }
}

/// Reads headers with their records up to the end mark. The size of the list follows the received bytes. As
/// in Apache, only `done` ends the list, and `err` has no effect.
fn read_all<T>(
    r: &mut Reader<'_>,
    read_fields: impl Fn(&mut Reader<'_>, i32) -> Decoded<Option<T>>,
) -> Decoded<Vec<T>> {
    let mut all = Vec::new();
    loop {
        let (op_type, done, _err) = (r.int()?, r.boolean()?, r.int()?);
        if done {
            return Ok(all);
        }
        all.push(read_fields(r, op_type)?.ok_or(DecodeError::BadMultiOp { op_type })?);
    }
}

fn write_all<T>(
    all: &[T],
    out: &mut BytesMut,
    type_and_err: impl Fn(&T) -> (i32, i32),
    write_fields: impl Fn(&T, &mut BytesMut),
) {
    for one in all {
        write_header(out, type_and_err(one), false);
        write_fields(one, out);
    }
    write_header(out, (END, NO_ERR), true);
}

fn write_header(out: &mut BytesMut, (op_type, err): (i32, i32), done: bool) {
    out.put_i32(op_type);
    bool::write(&done, out);
    out.put_i32(err);
}

/// Returns a strategy of the operations that decode to themselves.
#[cfg(test)]
fn op() -> impl Strategy<Value = Op> {
    (Op::strategy(), 5..=6_i32).prop_map(|(mut op, with_ttl)| {
        match &mut op {
            Op::CreateTtl(create, _) => create.flags = with_ttl,
            Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create)
                if has_ttl(create.flags) =>
            {
                create.flags = 0;
            }
            _ => {}
        }
        op
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::request::Create;

    fn reread(op: Op) -> Result<Vec<Op>, DecodeError> {
        let mut out = BytesMut::new();
        UntilEnd::write(&vec![op], &mut out);
        UntilEnd::read(&mut Reader::new(&out.freeze()))
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
