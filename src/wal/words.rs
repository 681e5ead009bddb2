//! A command of the log in words.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rowlock_proto::Request;
use rowlock_proto::request::{Create, Op};
use rowlock_state::command::{Command, Proposal};
use serde_json::{Value, json};

use crate::print::safe;

/// Whether the data of znodes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    Counted,
    Shown,
}

/// A proposal as a document. Proofs of passwords are never shown.
pub fn proposal(proposal: &Proposal, data: Data) -> Value {
    let mut said = command(&proposal.command, data);
    if proposal.session.0 != 0 {
        said["session"] = proposal.session.to_string().into();
    }
    if proposal.origin.node.0 != 0 {
        said["origin"] = proposal.origin.node.0.into();
    }
    said
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
            let mut said = self::command(tagged, data);
            said["tag"] = (*id).into();
            said
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
            json!({ "op": "fenced", "places": places(std::slice::from_ref(claim)), "change": part(change, data) })
        }
        Command::RaiseTokens { above } => json!({ "op": "raiseTokens", "above": above.to_string() }),
    }
}

/// A client's request by the name of its opcode.
fn request(request: &Request, data: Data) -> Value {
    let mut said = fields(request, data);
    said["op"] = request.opcode().as_str().into();
    said
}

fn fields(request: &Request, data: Data) -> Value {
    match request {
        Request::Create(create) | Request::Create2(create) | Request::CreateContainer(create) => {
            created("create", create, None, data)
        }
        Request::CreateTtl(create, ttl_ms) => created("create", create, Some(*ttl_ms), data),
        Request::Delete { path, version } => json!({ "path": path, "version": version.0 }),
        Request::SetData(set) => {
            let mut said = json!({ "path": set.path, "version": set.version.0 });
            put(&mut said, set.data.as_deref(), data);
            said
        }
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
        Request::Release(claims) | Request::Verify(claims) => json!({ "places": places(claims) }),
        Request::Convert { claim, mode, .. } => {
            json!({ "places": places(std::slice::from_ref(claim)), "mode": format!("{mode:?}") })
        }
        Request::ForceRelease(claim) => json!({ "places": places(std::slice::from_ref(claim)) }),
        Request::Ask(ask) => {
            let mut said = json!({ "path": ask.lock, "by": ask.by, "within_ms": ask.within_ms });
            put(&mut said, Some(ask.reason.as_bytes()), data);
            said
        }
        Request::Sync(path) => json!({ "path": path }),
        _ => json!({}),
    }
}

fn places(claims: &[rowlock_proto::lock::Claim]) -> Vec<Value> {
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
        Op::SetData(set) => {
            let mut said = json!({ "op": "setData", "path": set.path, "version": set.version.0 });
            put(&mut said, set.data.as_deref(), data);
            said
        }
    }
}

fn created(op: &str, create: &Create, ttl_ms: Option<i64>, data: Data) -> Value {
    let mut said = json!({ "op": op, "path": create.path, "flags": create.flags });
    if let Some(ttl_ms) = ttl_ms {
        said["ttl_ms"] = ttl_ms.into();
    }
    put(&mut said, create.data.as_deref(), data);
    said
}

/// Data that is no text is in base64.
fn put(said: &mut Value, bytes: Option<&[u8]>, data: Data) {
    let Some(bytes) = bytes else { return };
    said["bytes"] = bytes.len().into();
    if data == Data::Shown {
        match std::str::from_utf8(bytes) {
            Ok(text) => said["data"] = text.into(),
            Err(_) => said["data_base64"] = STANDARD.encode(bytes).into(),
        }
    }
}

/// A command's document as a line: its name, then what belongs to it. Text of clients cannot speak to the
/// terminal: it is written as JSON does.
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
    use rowlock_proto::request::SetData;
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
    fn data_are_counted_and_shown_only_when_they_are_asked_for() {
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
        let said = line(&proposal(&set(b"x"), Data::Shown));
        assert!(said.starts_with("setData ") && !said.contains(char::is_control), "{said:?}");
    }
}
