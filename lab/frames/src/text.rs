//! Responses as text, for tests in the form of stories.

use std::fmt::Write as _;

use rowlock_proto::acl::{Acl, perms};
use rowlock_proto::lock::{Claim, Notice, NoticeEvent, Party, QueuePosition};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{ErrorCode, SessionId, Stat};

use crate::raw::Frame;

pub fn result(result: &Result<Response, ErrorCode>) -> String {
    match result {
        Ok(response) => self::response(response),
        Err(code) => error(*code),
    }
}

fn response(response: &Response) -> String {
    let lines = |lines: Vec<String>| lines.join("\n");
    match response {
        Response::Empty => "done".to_owned(),
        Response::Path(path) => format!("path {path}"),
        Response::PathStat(path, it) => format!("created {path}\n{}", stat(it)),
        Response::Stat(it) => format!("stat\n{}", stat(it)),
        Response::Data(data, it) => format!("{data:?}\n{}", stat(it)),
        Response::Acl(acl, it) => format!("{} aversion {}", acl_text(acl), it.aversion),
        Response::Children(names) => format!("{names:?}"),
        Response::Children2(names, it) => format!("{names:?}\n{}", stat(it)),
        Response::Multi(results) => {
            let results: String = results.iter().map(|result| format!("\n{}", op_result(result))).collect();
            format!("multi{results}")
        }
        Response::Number(number) => format!("number {number}"),
        Response::Sasl(token) => format!("sasl {token:?}"),
        Response::WhoAmI(ids) => lines(ids.iter().map(|id| format!("{}:{}", id.scheme, id.id)).collect()),
        Response::QueuePositions(positions) => lines(positions.iter().map(position).collect()),
        Response::Held(held) => format!("held {held:?}"),
        Response::Report(document) => format!("report {document}"),
    }
}

/// Returns a received frame with its zxid.
pub fn frame(frame: &Frame) -> String {
    match frame {
        Frame::Event(event) => format!("event zxid {}: {:?} {}", event.zxid.0, event.event_type, event.path),
        Frame::Notice(zxid, Notice { claim: Claim { path, token }, event }) => {
            let event = match event {
                NoticeEvent::Asked(question) => {
                    format!("asked for {:?} by {:?}", question.reason, question.by)
                }
                other => format!("{other:?}").to_lowercase(),
            };
            format!("notice zxid {}: {path} token {token} {event}", zxid.0)
        }
        Frame::Reply(header, body) => {
            format!("reply {} zxid {}: {}", header.xid, header.zxid.0, result(body))
        }
        Frame::Closed => "closed".to_owned(),
    }
}

pub fn position(position: &QueuePosition) -> String {
    match position {
        QueuePosition::Held(Claim { path, token }) => format!("held {path} token {token}"),
        QueuePosition::Waiting { claim: Claim { path, token }, ahead, holder } => {
            format!("waiting {path} token {token} ahead {ahead} {}", holder_text(holder))
        }
        QueuePosition::Busy { ahead, holder } => format!("busy ahead {ahead} {}", holder_text(holder)),
        QueuePosition::Deadlock(circle) => {
            format!("deadlock {}", circle.iter().map(party).collect::<Vec<_>>().join(" -> "))
        }
        QueuePosition::LimitIs(limit) => format!("limit is {limit}"),
        QueuePosition::Absent => "absent".to_owned(),
    }
}

fn holder_text(holder: &Option<Party>) -> String {
    holder.as_ref().map_or("holder none".to_owned(), |holder| format!("holder {}", party(holder)))
}

fn party(Party { path, session, token, label, since_ms }: &Party) -> String {
    let label = String::from_utf8_lossy(label);
    format!("{path} of {session} token {token} label {label:?} since {since_ms}")
}

fn op_result(result: &OpResult) -> String {
    match result {
        OpResult::Create(path) => format!("create {path}"),
        OpResult::Create2(path, it) => format!("create2 {path} {}", stat(it)),
        OpResult::CreateContainer(path, it) => format!("container {path} {}", stat(it)),
        OpResult::CreateTtl(path, it) => format!("ttl {path} {}", stat(it)),
        OpResult::Delete => "delete".to_owned(),
        OpResult::SetData(it) => format!("set {}", stat(it)),
        OpResult::Check => "check".to_owned(),
        OpResult::Error(code) => code.map_or("error 0".to_owned(), error),
        OpResult::GetData(data, it) => format!("get {data:?} {}", stat(it)),
        OpResult::GetChildren(names) => format!("ls {names:?}"),
    }
}

pub fn error(code: ErrorCode) -> String {
    format!("error {} ({code})", code.code())
}

/// Returns the fields of a stat; the owner only if there is one.
pub fn stat(it: &Stat) -> String {
    let mut out = format!(
        "c {} m {} p {} ctime {} mtime {} version {} cversion {} aversion {} length {} children {}",
        it.czxid.0,
        it.mzxid.0,
        it.pzxid.0,
        it.ctime_ms,
        it.mtime_ms,
        it.version,
        it.cversion,
        it.aversion,
        it.data_length,
        it.num_children
    );
    if it.ephemeral_owner != SessionId::NONE {
        let _ = write!(out, " owner {}", it.ephemeral_owner);
    }
    out
}

pub fn acl_text(acl: &[Acl]) -> String {
    let letters = [
        (perms::CREATE, 'c'),
        (perms::DELETE, 'd'),
        (perms::READ, 'r'),
        (perms::WRITE, 'w'),
        (perms::ADMIN, 'a'),
    ];
    let entry = |entry: &Acl| {
        let letters: String =
            letters.iter().filter(|(bit, _)| entry.perms & bit != 0).map(|(_, letter)| letter).collect();
        format!("{letters}:{}:{}", entry.id.scheme, entry.id.id)
    };
    acl.iter().map(entry).collect::<Vec<_>>().join(",")
}
