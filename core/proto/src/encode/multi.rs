//! Encodes multi and multiRead: records with their own headers, up to an end mark.

use bytes::BytesMut;

use super::request::{write_create, write_path_version, write_set_data};
use super::write_stat;
use crate::codec::Writer;
use crate::error::ErrorCode;
use crate::opcode::OpCode;
use crate::request::{Op, ReadOp};
use crate::response::OpResult;

/// `err` in the headers of requests and of the end mark.
const NO_ERR: i32 = -1;

/// Type of a failed operation's result, and of the end mark.
const ERROR_TYPE: i32 = -1;

pub(super) fn write_ops(out: &mut BytesMut, ops: &[Op]) {
    for op in ops {
        write_header(out, op.opcode().as_i32(), false, NO_ERR);
        match op {
            Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create) => {
                write_create(out, create)
            }
            Op::CreateTtl(create, ttl_ms) => {
                write_create(out, create);
                out.long(*ttl_ms);
            }
            Op::Delete { path, version } | Op::Check { path, version } => {
                write_path_version(out, path, *version);
            }
            Op::SetData(set) => write_set_data(out, set),
        }
    }
    write_end(out);
}

pub(super) fn write_read_ops(out: &mut BytesMut, ops: &[ReadOp]) {
    for op in ops {
        write_header(out, op.opcode().as_i32(), false, NO_ERR);
        let (ReadOp::GetData(path) | ReadOp::GetChildren(path)) = op;
        out.string(path);
        out.boolean(false);
    }
    write_end(out);
}

pub(super) fn write_results(out: &mut BytesMut, results: &[OpResult]) {
    for result in results {
        match result {
            OpResult::Error(err) => {
                let code = err.map_or(0, ErrorCode::code);
                write_header(out, ERROR_TYPE, false, code);
                out.int(code);
            }
            OpResult::Create(path) => {
                write_success(out, OpCode::Create);
                out.string(path);
            }
            OpResult::Create2(path, stat) => {
                write_success(out, OpCode::Create2);
                out.string(path);
                write_stat(out, stat);
            }
            OpResult::CreateContainer(path, stat) => {
                write_success(out, OpCode::CreateContainer);
                out.string(path);
                write_stat(out, stat);
            }
            OpResult::CreateTtl(path, stat) => {
                write_success(out, OpCode::CreateTtl);
                out.string(path);
                write_stat(out, stat);
            }
            OpResult::Delete => write_success(out, OpCode::Delete),
            OpResult::Check => write_success(out, OpCode::Check),
            OpResult::SetData(stat) => {
                write_success(out, OpCode::SetData);
                write_stat(out, stat);
            }
            OpResult::GetData(data, stat) => {
                write_success(out, OpCode::GetData);
                out.buffer(data.as_deref());
                write_stat(out, stat);
            }
            OpResult::GetChildren(names) => {
                write_success(out, OpCode::GetChildren);
                out.strings(names);
            }
        }
    }
    write_end(out);
}

fn write_success(out: &mut BytesMut, opcode: OpCode) {
    write_header(out, opcode.as_i32(), false, 0);
}

fn write_end(out: &mut BytesMut) {
    write_header(out, ERROR_TYPE, true, NO_ERR);
}

/// Appends `MultiHeader{int type; bool done; int err}`.
fn write_header(out: &mut BytesMut, op_type: i32, done: bool, err: i32) {
    out.int(op_type);
    out.boolean(done);
    out.int(err);
}
