//! `rowlock wal dump`: prints the log record by record, with commands as JSON documents and lines.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rowlock_proto::Request;
use rowlock_proto::request::{Create, Op, SetData};
use rowlock_state::command::{Batch, Command, Proposal};
use rowlock_wal::log::record::Record;
use rowlock_wal::offline::{DumpItem, dump};
use rowlock_wal::{Entry, Payload};
use serde_json::{Map, Value, json};

use super::unreadable;
use crate::exit::{Failure, REFUSED};
use crate::moment;
use crate::print::{print, safe};

/// Print the log record by record. Data of znodes only with --data
#[derive(clap::Args)]
pub struct Dump {
    /// Data folder of a node
    folder: PathBuf,
    /// First log index to print
    #[arg(long, value_name = "INDEX")]
    from: Option<u64>,
    /// Last log index to print
    #[arg(long, value_name = "INDEX")]
    to: Option<u64>,
    /// Include the data of znodes, which may be secret
    #[arg(long)]
    data: bool,
    /// Output format; one line for each record
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum OutputFormat {
    /// Aligned columns, for people.
    #[default]
    Table,
    /// One JSON document per line.
    Json,
}

impl Dump {
    /// Exits with 1 if some part is unreadable; the output names the damage in its place.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let (mut damaged, mut failed) = (false, None);
        let walked = dump(&self.folder, |seen| {
            let Some((line, is_damage)) = self.line(seen) else { return Ok(()) };
            damaged |= is_damage;
            let text = match self.output {
                OutputFormat::Json => format!("{line}\n"),
                OutputFormat::Table => lines_of(&line),
            };
            print(text.as_bytes()).map_err(|failure| {
                failed = Some(failure);
                io::Error::other("the output cannot be written")
            })
        });
        if let Some(failure) = failed {
            return Err(failure);
        }
        walked.map_err(|error| unreadable(&self.folder, &error))?;
        Ok(if damaged { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
    }

    /// Returns the document of a record, and true for damage.
    fn line(&self, seen: DumpItem<'_>) -> Option<(Value, bool)> {
        let (file, offset) = match &seen {
            DumpItem::Segment { file, node: Err(_), .. } => ((*file).to_owned(), 0),
            DumpItem::Segment { .. } => return None,
            DumpItem::Record { file, offset, .. }
            | DumpItem::Damage { file, offset, .. }
            | DumpItem::Torn { file, offset } => ((*file).to_owned(), *offset),
        };
        let (kind, mut rest, damage) = match seen {
            DumpItem::Segment { node, .. } => ("damage", json!({ "what": node.err() }), true),
            DumpItem::Damage { what, .. } => ("damage", json!({ "what": what }), true),
            DumpItem::Torn { .. } => ("torn", json!({}), false),
            DumpItem::Record { record: Err(why), .. } => ("damage", json!({ "what": why }), true),
            DumpItem::Record { record: Ok(Record::Entry(entry)), .. } => {
                let index = entry.log_id.index;
                if self.from.is_some_and(|from| index < from) || self.to.is_some_and(|to| index > to) {
                    return None;
                }
                let (rest, damage) =
                    entry_document(&entry, if self.data { Data::Shown } else { Data::Counted });
                ("entry", rest, damage)
            }
            DumpItem::Record { record: Ok(record), .. } => {
                let (kind, rest) = mark_document(&record)?;
                (kind, rest, false)
            }
        };
        if let Value::Object(rest) = &mut rest {
            let mut all = Map::new();
            all.insert("kind".to_owned(), kind.into());
            all.append(rest);
            all.insert("file".to_owned(), file.into());
            all.insert("offset".to_owned(), offset.into());
            return Some((Value::Object(all), damage));
        }
        None
    }
}

/// Describes an entry; also returns true if its commands are unreadable.
fn entry_document(entry: &Entry, data: Data) -> (Value, bool) {
    let id = entry.log_id;
    let mut document = json!({ "index": id.index, "term": id.leader_id.term, "node": id.leader_id.node_id });
    let mut damage = false;
    match &entry.payload {
        Payload::Blank => document["commands"] = json!([]),
        Payload::Membership(members) => {
            let nodes: Map<String, Value> =
                members.nodes.iter().map(|(id, at)| (id.to_string(), json!(at))).collect();
            document["members"] = json!({ "voters": members.configs, "nodes": nodes });
        }
        Payload::Normal(bytes) => match Batch::decode(bytes) {
            Ok(batch) => {
                document["time_ms"] = batch.time_ms.into();
                document["commands"] = batch.proposals.iter().map(|one| proposal(one, data)).collect();
            }
            Err(error) => {
                damage = true;
                document["what"] =
                    format!("its {} bytes of commands cannot be read: {error}", bytes.len()).into();
            }
        },
    }
    (document, damage)
}

/// Describes a record other than an entry, if the record changes the log. Marks and commit positions do not.
fn mark_document(record: &Record) -> Option<(&'static str, Value)> {
    Some(match record {
        Record::Vote(vote) => {
            let (term, node) = (vote.leader_id.term, vote.leader_id.node_id);
            ("vote", json!({ "term": term, "for": node, "committed": vote.committed }))
        }
        Record::Purge(upto) => ("purge", json!({ "up_to": upto.index, "term": upto.leader_id.term })),
        Record::Truncate(after) => ("truncate", json!({ "after": after.map(|id| id.index) })),
        Record::Entry(_) | Record::Committed(_) | Record::Checkpoint(_) | Record::Mark(_) => return None,
    })
}

/// Formats a document for people: a line per record, and a line per command.
fn lines_of(line: &Value) -> String {
    let location = format!("{}:{}", line["file"].as_str().unwrap_or_default(), line["offset"]);
    let what = line["what"].as_str();
    let mut out = match (line["kind"].as_str(), what) {
        (Some("entry"), None) => {
            let when = line["time_ms"].as_i64().map(moment::rfc3339).unwrap_or_default();
            format!("{} term {} node {} {when}", line["index"], line["term"], line["node"])
        }
        (Some("entry"), Some(what)) => format!("{} DAMAGED: {what}", line["index"]),
        (Some("vote"), _) => format!("vote for node {} in term {}", line["for"], line["term"]),
        (Some("purge"), _) => format!("purged up to {}: a snapshot covers it", line["up_to"]),
        (Some("truncate"), _) => format!("cut behind {}: another leader's entries follow", line["after"]),
        (Some("torn"), _) => "an unfinished write".to_owned(),
        (_, what) => format!("DAMAGED: {}", what.unwrap_or_default()),
    };
    out = format!("{}  [{location}]\n", out.trim_end());
    if !line["members"].is_null() {
        out.push_str(&format!("    members {}\n", line["members"]));
    }
    for command in line["commands"].as_array().into_iter().flatten() {
        out.push_str(&format!("    {}\n", command_line(command)));
    }
    out
}

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
        Command::Restart { grace_ms, .. } => json!({ "op": "restart", "grace_ms": grace_ms }),
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
    claims.iter().map(|claim| json!({ "path": *claim.path, "token": claim.token.to_string() })).collect()
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
fn command_line(command: &Value) -> String {
    let mut out = command["op"].as_str().unwrap_or_default().to_owned();
    for (name, value) in command.as_object().into_iter().flatten().filter(|(name, _)| *name != "op") {
        out.push_str(&format!(" {name}={}", safe(&value.to_string())));
    }
    out
}

#[cfg(test)]
mod tests {
    use rowlock_proto::{NodeId, SessionId, Version};
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
        let text = command_line(&proposal(&set(b"x"), Data::Shown));
        assert!(text.starts_with("setData ") && !text.contains(char::is_control), "{text:?}");
    }
}
