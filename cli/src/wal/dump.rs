//! `rowlock wal dump`: prints the log record by record.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use rowlock_state::command::Batch;
use rowlock_wal::log::record::Record;
use rowlock_wal::offline::{DumpItem, dump};
use rowlock_wal::{Entry, Payload};
use serde_json::{Map, Value, json};

use super::unreadable;
use super::words::{self, Data};
use crate::exit::{Failure, REFUSED};
use crate::moment;
use crate::print::print;

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
                document["commands"] = batch.proposals.iter().map(|one| words::proposal(one, data)).collect();
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
        out.push_str(&format!("    {}\n", words::line(command)));
    }
    out
}
