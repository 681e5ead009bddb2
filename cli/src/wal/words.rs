//! Description of the log's commands as JSON documents and lines.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rowlock_proto::Request;
use rowlock_proto::request::{Create, Op, SetData};
use rowlock_state::command::{Command, Proposal};
use serde_json::{Value, json};

use crate::print::safe;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    Counted,
    Shown,
}

/// Describes a proposal as a document. Never includes proofs of passwords.
pub fn proposal(proposal: &Proposal, data: Data) -> Value {
    let mut document = command(&proposal.command, data);
    if proposal.session.0 != 0 {
        document["session"] = proposal.session.to_string().into();
    }
    if proposal.origin.node.0 != 0 {
        document["origin"] = proposal.origin.node.0.into();
    }
    document
}

fn command(command: &Command, data: Data) -> Value {
    match command {
        Command::Client(request) => self::request(request, data),
        Command::Noop => json!({ "op": "noop" }),
        Command::OpenSession { timeout_ms, .. } => json!({ "op": "openSession", "timeout_ms": timeout_ms }),
        Command::Reattach { session, timeout_ms, .. } => {
            json!({ "op": "reattach", "of": session.to_string(), "timeout_ms": timeout_ms })
        }
        Command::ExpireSession { session, .. } => json!({ "op": "expireSession", "of": session.to_string() }),
        Command::Reap { path } => json!({ "op": "reap", "path": path }),
        Command::Configure { config } => json!({ "op": "configure", "config": config }),
        Command::Tagged { id, command: tagged, .. } => {
            let mut document = self::command(tagged, data);
            document["tag"] = (*id).into();
            document
        }
        Command::LockDue { lock } => json!({ "op": "lockDue", "path": lock }),
        Command::CompareDigests => json!({ "op": "compareDigests" }),
        Command::DigestAt { index, digest } => {
            json!({ "op": "digestAt", "of": index, "digest": format!("{digest:016x}") })
        }
        Command::Refused(code) => json!({ "op": "refused", "why": code.to_string() }),
        Command::Found { cluster } => json!({ "op": "found", "cluster": cluster.to_string() }),
        Command::EndGrace => json!({ "op": "endGrace" }),
        Command::RaiseVersion { to } => {
            json!({ "op": "raiseVersion", "to": to.number, "release": to.release })
        }
        Command::HoldVersion { hold } => json!({ "op": "holdVersion", "hold": hold }),
        Command::Fenced { claim, change } => {
            json!({ "op": "fenced", "places": claimed(std::slice::from_ref(claim)), "change": part(change, data) })
        }
        Command::RaiseTokens { above } => json!({ "op": "raiseTokens", "above": above.to_string() }),
    }
}

/// Formats a client's request; `op` is the opcode's name.
fn request(request: &Request, data: Data) -> Value {
    let mut document = fields(request, data);
    document["op"] = request.opcode().as_str().into();
    document
}

fn fields(request: &Request, data: Data) -> Value {
    match request {
        Request::Create(create) | Request::Create2(create) | Request::CreateContainer(create) => {
            created("create", create, None, data)
        }
        Request::CreateTtl(create, ttl_ms) => created("create", create, Some(*ttl_ms), data),
        Request::Delete { path, version } => json!({ "path": path, "version": version.0 }),
        Request::SetData(set) => data_set(set, data),
        Request::SetAcl(set) => {
            let entries = set.acl.as_ref().map(|acl| acl.len());
            json!({ "path": set.path, "version": set.version.0, "entries": entries })
        }
        Request::Multi(ops) => {
            json!({ "ops": ops.iter().map(|op| part(op, data)).collect::<Vec<Value>>() })
        }
        Request::Acquire(all) => {
            json!({ "locks": all.iter().map(|one| &*one.lock).collect::<Vec<&str>>() })
        }
        Request::Abandon(all) => {
            json!({ "locks": all.iter().map(|one| one.lock.as_str()).collect::<Vec<&str>>() })
        }
        Request::Release(claims) | Request::Verify(claims) => json!({ "places": claimed(claims) }),
        Request::Convert { claim, mode, .. } => {
            json!({ "places": claimed(std::slice::from_ref(claim)), "mode": format!("{mode:?}") })
        }
        Request::ForceRelease(claim) => json!({ "places": claimed(std::slice::from_ref(claim)) }),
        Request::Ask(ask) => {
            let mut document = json!({ "path": ask.lock, "by": ask.by, "within_ms": ask.within_ms });
            insert_data(&mut document, Some(ask.reason.as_bytes()), data);
            document
        }
        Request::Sync(path) => json!({ "path": path }),
        _ => json!({}),
    }
}

fn claimed(claims: &[rowlock_proto::lock::Claim]) -> Vec<Value> {
    claims.iter().map(|claim| json!({ "path": *claim.path, "token": claim.token.0 })).collect()
}

fn part(op: &Op, data: Data) -> Value {
    match op {
        Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create) => {
            created("create", create, None, data)
        }
        Op::CreateTtl(create, ttl_ms) => created("create", create, Some(*ttl_ms), data),
        Op::Delete { path, version } => json!({ "op": "delete", "path": path, "version": version.0 }),
        Op::Check { path, version } => json!({ "op": "check", "path": path, "version": version.0 }),
        Op::SetData(set) => data_set(set, data),
    }
}

fn data_set(set: &SetData, data: Data) -> Value {
    let mut document = json!({ "op": "setData", "path": set.path, "version": set.version.0 });
    insert_data(&mut document, set.data.as_deref(), data);
    document
}

fn created(op: &str, create: &Create, ttl_ms: Option<i64>, data: Data) -> Value {
    let mut document = json!({ "op": op, "path": create.path, "flags": create.flags });
    if let Some(ttl_ms) = ttl_ms {
        document["ttl_ms"] = ttl_ms.into();
    }
    insert_data(&mut document, create.data.as_deref(), data);
    document
}

/// Adds the length of data, and the data if shown; base64 if not UTF-8.
fn insert_data(document: &mut Value, bytes: Option<&[u8]>, data: Data) {
    let Some(bytes) = bytes else { return };
    document["bytes"] = bytes.len().into();
    if data == Data::Shown {
        match std::str::from_utf8(bytes) {
            Ok(text) => document["data"] = text.into(),
            Err(_) => document["data_base64"] = STANDARD.encode(bytes).into(),
        }
    }
}

/// Formats a command's document as a line: name, then fields. Text of clients cannot control the terminal:
/// strings are written as JSON.
pub fn line(command: &Value) -> String {
    let mut out = command["op"].as_str().unwrap_or_default().to_owned();
    for (name, value) in command.as_object().into_iter().flatten().filter(|(name, _)| *name != "op") {
        out.push_str(&format!(" {name}={}", safe(&value.to_string())));
    }
    out
}

#[cfg(test)]
mod tests {
    use rowlock_proto::SessionId;
    use rowlock_proto::{NodeId, Version};
    use rowlock_state::command::{Attachment, Origin};

    use super::*;

    fn set(bytes: &'static [u8]) -> Proposal {
        let data = Some(bytes::Bytes::from_static(bytes));
        let command = Command::Client(Request::SetData(SetData {
            path: "/a\u{9b}b".to_owned(),
            data,
            version: Version(3),
        }));
        let tagged = Command::Tagged { id: 7, acked: 0, command: Box::new(command) };
        let origin = Origin { node: NodeId(2), incarnation: 1, request: 1 };
        let (session, attachment) = (SessionId(0x10), Attachment(1));
        Proposal { origin, session, attachment, identities: Default::default(), command: tagged }
    }

    #[test]
    fn data_is_counted_and_shown_only_on_request() {
        let counted = proposal(&set(b"secret"), Data::Counted);
        assert_eq!(
            (&counted["op"], &counted["bytes"], &counted["tag"]),
            (&"setData".into(), &6.into(), &7.into())
        );
        assert!(!counted.to_string().contains("secret"), "{counted}");
        assert_eq!(proposal(&set(b"secret"), Data::Shown)["data"], "secret");
        assert_eq!(proposal(&set(b"\xff"), Data::Shown)["data_base64"], "/w==");
        assert_eq!(counted["session"], "0x10");
    }

    #[test]
    fn a_line_has_no_control_characters() {
        let text = line(&proposal(&set(b"x"), Data::Shown));
        assert!(text.starts_with("setData ") && !text.contains(char::is_control), "{text:?}");
    }
}
