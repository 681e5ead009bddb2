//! Turns the frames of a server into lines of a transcript, without the details that the dialects leave open.

use bytes::Bytes;
use rowlock_proto::decode;
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{Acl, ErrorCode, OpCode, Xid, Zxid};

use crate::dialect;
use crate::transcript::{Line, Transcript};

/// A request without its reply.
#[derive(Clone, Debug)]
pub struct PendingRequest {
    pub xid: Xid,
    pub opcode: i32,
    pub restrictive: bool,
}

#[derive(Debug)]
pub enum Frame {
    Event(Line),
    /// The reply to the oldest pending request.
    Reply {
        line: Line,
        zxid: Zxid,
    },
}

/// Reads a frame: an event, or the reply to `pending`.
pub fn read(
    mut frame: Bytes,
    pending: Option<&PendingRequest>,
    seen: Zxid,
    transcript: &mut Transcript,
) -> Frame {
    let Ok(header) = decode::reply_header(&mut frame) else {
        return Frame::Reply { line: Line::new(format!("not a reply: {frame:?}")), zxid: Zxid(0) };
    };
    if header.xid == Xid::EVENT {
        return Frame::Event(event(frame));
    }
    let Some(pending) = pending else {
        let line = Line::new(format!("reply without a request: xid {}", header.xid));
        return Frame::Reply { line, zxid: Zxid(0) };
    };
    let opcode = OpCode::from_i32(pending.opcode);
    let mut line = if dialect::is_open_to_dialect(pending.opcode, header.err, pending.restrictive) {
        Line::new("exists, or forbidden")
    } else {
        match (header.err, opcode) {
            (Some(err), _) => Line::new(format!("{err} ({}), {} bytes behind", err.code(), frame.len())),
            (None, Some(opcode)) => body(&mut frame, opcode, transcript),
            (None, None) => Line::new(format!("ok to an unknown opcode: {frame:?}")),
        }
    };
    if header.xid != pending.xid {
        line.text(format!(" WRONG xid {} instead of {}", header.xid, pending.xid));
    }
    if header.xid == Xid::AUTH {
        return Frame::Reply { line, zxid: Zxid(0) };
    }
    // ZooKeeper sends no zxid with some errors; clients ignore zxids of 0 and below.
    if header.zxid <= Zxid(0) && header.err.is_some() {
        return Frame::Reply { line, zxid: Zxid(0) };
    }
    if header.zxid < seen || line.max_zxid().is_some_and(|shown| shown > header.zxid) {
        line.text(format!(" BAD header zxid {} after {seen}", header.zxid));
    }
    if header.err.is_none() && opcode.is_some_and(dialect::header_has_own_zxid) {
        line.text(" @");
        line.zxid(header.zxid);
    }
    Frame::Reply { line, zxid: header.zxid }
}

fn event(mut frame: Bytes) -> Line {
    match decode::event(&mut frame) {
        Ok(event) => {
            let (kind, state, path) = (event.event_type, event.state, event.path);
            Line::new(format!("EVENT {kind:?} {path} (state {state}), {} bytes behind", frame.len()))
        }
        Err(error) => Line::new(format!("EVENT that cannot be read: {error}")),
    }
}

fn body(frame: &mut Bytes, opcode: OpCode, transcript: &mut Transcript) -> Line {
    let mut line = Line::new("ok");
    match decode::response(frame, opcode) {
        Ok(response) => write_response(&mut line, response, transcript),
        Err(error) => line.text(format!(" with a body that cannot be read: {error}")),
    }
    if !frame.is_empty() {
        line.text(format!(" and {} bytes behind", frame.len()));
    }
    line
}

fn write_response(line: &mut Line, response: Response, transcript: &mut Transcript) {
    match response {
        Response::Empty => {}
        Response::Path(path) => line.text(format!(" {path}")),
        Response::PathStat(path, stat) => {
            line.text(format!(" {path}"));
            transcript.stat(line, &stat);
        }
        Response::Stat(stat) => transcript.stat(line, &stat),
        Response::Data(data, stat) => {
            line.text(format!(" {data:?}"));
            transcript.stat(line, &stat);
        }
        Response::Acl(acl, stat) => {
            line.text(shown_acl(&acl));
            transcript.stat(line, &stat);
        }
        Response::Children(names) => line.text(sorted(names)),
        Response::Children2(names, stat) => {
            line.text(sorted(names));
            transcript.stat(line, &stat);
        }
        Response::Multi(results) => {
            for result in results {
                write_result(line, dialect::op_result(result), transcript);
            }
        }
        Response::Number(number) => line.text(format!(" {number}")),
        Response::Sasl(token) => line.text(format!(" {token:?}")),
        Response::WhoAmI(ids) => {
            line.text(sorted(ids.into_iter().map(|id| format!("{}:{}", id.scheme, id.id)).collect()));
        }
        // Replies to Rowlock's own opcodes, which no script sends.
        other @ (Response::QueuePositions(_) | Response::Held(_) | Response::Report(_)) => {
            line.text(format!(" {other:?}"));
        }
    }
}

fn write_result(line: &mut Line, result: OpResult, transcript: &mut Transcript) {
    line.text("; ");
    match result {
        OpResult::Create(path) => line.text(format!("create {path}")),
        OpResult::Create2(path, stat)
        | OpResult::CreateContainer(path, stat)
        | OpResult::CreateTtl(path, stat) => {
            line.text(format!("create.. {path}"));
            transcript.stat(line, &stat);
        }
        OpResult::Delete => line.text("delete"),
        OpResult::SetData(stat) => {
            line.text("set");
            transcript.stat(line, &stat);
        }
        OpResult::Check => line.text("check"),
        OpResult::Error(err) => line.text(format!("err {}", err.map_or(0, ErrorCode::code))),
        OpResult::GetData(data, stat) => {
            line.text(format!("get {data:?}"));
            transcript.stat(line, &stat);
        }
        OpResult::GetChildren(names) => line.text(format!("children{}", sorted(names))),
    }
}

fn sorted(mut names: Vec<String>) -> String {
    names.sort_unstable();
    format!(" {names:?}")
}

fn shown_acl(acl: &[Acl]) -> String {
    sorted(acl.iter().map(|entry| format!("{}:{}:{}", entry.id.scheme, entry.id.id, entry.perms)).collect())
}
