//! multi and multiRead: records behind headers of their own, up to an end mark.

use bytes::BytesMut;

use super::put_stat;
use super::request::{put_create, put_path_version, put_set_data};
use crate::codec::Writer;
use crate::error::ErrorCode;
use crate::opcode::OpCode;
use crate::request::{Op, ReadOp};
use crate::response::OpResult;

/// `err` in the headers of questions and of the end mark.
const NO_ERR: i32 = -1;

/// Type of the result of an operation that failed, and of the end mark.
const ERROR_TYPE: i32 = -1;

pub(super) fn put_ops(out: &mut BytesMut, ops: &[Op]) {
    for op in ops {
        put_header(out, op.opcode().as_i32(), false, NO_ERR);
        match op {
            Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create) => put_create(out, create),
            Op::CreateTtl(create, ttl_ms) => {
                put_create(out, create);
                out.long(*ttl_ms);
            }
            Op::Delete { path, version } | Op::Check { path, version } => {
                put_path_version(out, path, *version);
            }
            Op::SetData(set) => put_set_data(out, set),
        }
    }
    put_end(out);
}

pub(super) fn put_read_ops(out: &mut BytesMut, ops: &[ReadOp]) {
    for op in ops {
        put_header(out, op.opcode().as_i32(), false, NO_ERR);
        let (ReadOp::GetData(path) | ReadOp::GetChildren(path)) = op;
        out.string(path);
        out.boolean(false);
    }
    put_end(out);
}

pub(super) fn put_results(out: &mut BytesMut, results: &[OpResult]) {
    for result in results {
        match result {
            OpResult::Error(err) => {
                let code = err.map_or(0, ErrorCode::code);
                put_header(out, ERROR_TYPE, false, code);
                out.int(code);
            }
            OpResult::Create(path) => {
                put_success(out, OpCode::Create);
                out.string(path);
            }
            OpResult::Create2(path, stat) => {
                put_success(out, OpCode::Create2);
                out.string(path);
                put_stat(out, stat);
            }
            OpResult::CreateContainer(path, stat) => {
                put_success(out, OpCode::CreateContainer);
                out.string(path);
                put_stat(out, stat);
            }
            OpResult::CreateTtl(path, stat) => {
                put_success(out, OpCode::CreateTtl);
                out.string(path);
                put_stat(out, stat);
            }
            OpResult::Delete => put_success(out, OpCode::Delete),
            OpResult::Check => put_success(out, OpCode::Check),
            OpResult::SetData(stat) => {
                put_success(out, OpCode::SetData);
                put_stat(out, stat);
            }
            OpResult::GetData(data, stat) => {
                put_success(out, OpCode::GetData);
                out.buffer(data.as_deref());
                put_stat(out, stat);
            }
            OpResult::GetChildren(names) => {
                put_success(out, OpCode::GetChildren);
                out.strings(names);
            }
        }
    }
    put_end(out);
}

fn put_success(out: &mut BytesMut, opcode: OpCode) {
    put_header(out, opcode.as_i32(), false, 0);
}

fn put_end(out: &mut BytesMut) {
    put_header(out, ERROR_TYPE, true, NO_ERR);
}

/// `MultiHeader{int type; bool done; int err}`.
fn put_header(out: &mut BytesMut, op_type: i32, done: bool, err: i32) {
    out.int(op_type);
    out.boolean(done);
    out.int(err);
}
