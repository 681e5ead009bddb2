//! `rowlock wal`: shows the log of a data folder. Works offline and changes nothing. `inspect` shows the
//! owner and the range of a log, and the result of a trial start.

mod dump;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_wal::log::record::{Checkpoint, Record};
use rowlock_wal::offline::{DumpItem, dump};
use rowlock_wal::{LogId, Stopped, StorageError, verify};
use serde_json::{Value, json};

use crate::exit::{Failure, IO, REFUSED};
use crate::print::print;
use crate::table::table;
use crate::znode::{Output, print_json};

/// Inspect the log of a data folder, even a damaged one
///
/// Works offline, changes nothing, and reports unreadable records with file and offset. The end of a running
/// node's log may look unfinished.
#[derive(clap::Args)]
pub struct Wal {
    #[command(subcommand)]
    command: WalCommand,
}

#[derive(clap::Subcommand)]
enum WalCommand {
    Inspect(Inspect),
    Dump(dump::Dump),
}

impl Wal {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            WalCommand::Inspect(inspect) => inspect.run(),
            WalCommand::Dump(dump) => dump.run(),
        }
    }
}

/// Failure to open or read the log in `folder`.
fn unreadable(folder: &Path, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => "; name the data folder of a node, in which `wal` is",
        _ => "",
    };
    Failure::new(IO, format!("{}: {error}{hint}", folder.display()))
}

/// Show the owner and the range of a log, and check whether a node would start
#[derive(clap::Args)]
pub struct Inspect {
    /// Data folder of a node
    folder: PathBuf,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Default)]
struct Segment {
    file: String,
    bytes: u64,
    records: u64,
    first: Option<u64>,
    last: Option<u64>,
    /// Unfinished end, or damage.
    remarks: Vec<String>,
}

#[derive(Default)]
struct Summary {
    segments: Vec<Segment>,
    /// State of the log after all records.
    amount: Checkpoint,
    damaged: bool,
}

impl Inspect {
    /// Exits with 1 if a node would not start with the folder.
    fn run(self) -> Result<ExitCode, Failure> {
        let found = Summary::in_folder(&self.folder)?;
        let verdict = verify(&self.folder);
        match self.output {
            Output::Simple => print(found.lines(&verdict).as_bytes())?,
            Output::Json => print_json(&found.document(&verdict))?,
        }
        let is_good = verdict.is_ok() || matches!(verdict, Err(StorageError::InUse(_)) if !found.damaged);
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
    }
}

/// Returns the document of `rowlock wal inspect -o json`, without the content of records.
pub fn document(folder: &Path) -> Result<Value, Failure> {
    Ok(Summary::in_folder(folder)?.document(&verify(folder)))
}

impl Summary {
    fn in_folder(folder: &Path) -> Result<Summary, Failure> {
        let mut found = Summary::default();
        let walked = dump(folder, |seen| {
            found.add(seen);
            Ok(())
        });
        walked.map_err(|error| unreadable(folder, &error))?;
        Ok(found)
    }

    fn add(&mut self, seen: DumpItem<'_>) {
        match seen {
            DumpItem::Segment { file, bytes, node } => {
                let remarks: Vec<String> = node.err().into_iter().collect();
                self.damaged |= !remarks.is_empty();
                self.segments.push(Segment { file: file.to_owned(), bytes, remarks, ..Segment::default() });
            }
            DumpItem::Record { file, offset, record } => {
                let segment = self.segment(file);
                segment.records += 1;
                match record {
                    Ok(record) => {
                        if let Record::Entry(entry) = &record {
                            segment.first.get_or_insert(entry.log_id.index);
                            segment.last = Some(entry.log_id.index);
                        }
                        match &record {
                            Record::Checkpoint(checkpoint) => self.amount = *checkpoint,
                            record => self.amount.update(record),
                        }
                    }
                    Err(why) => self.damage(file, offset, &why),
                }
            }
            DumpItem::Damage { file, offset, what } => self.damage(file, offset, &what),
            DumpItem::Torn { file, offset } => {
                self.segment(file).remarks.push(format!("offset {offset}: an unfinished write"));
            }
        }
    }

    fn damage(&mut self, file: &str, offset: u64, what: &str) {
        self.damaged = true;
        self.segment(file).remarks.push(format!("DAMAGED at offset {offset}: {what}"));
    }

    /// Returns the segment of this file, mostly the last one.
    fn segment(&mut self, file: &str) -> &mut Segment {
        if self.segments.last().is_none_or(|segment| segment.file != file) {
            self.segments.push(Segment { file: file.to_owned(), ..Segment::default() });
        }
        self.segments.last_mut().expect("Invariant: the list is not empty")
    }

    fn lines(&self, verdict: &Result<Stopped, StorageError>) -> String {
        let number = |index: Option<u64>| index.map_or("-".to_owned(), |index| index.to_string());
        let rows: Vec<[String; 6]> = self
            .segments
            .iter()
            .map(|one| {
                let (first, last) = (number(one.first), number(one.last));
                let remarks = one.remarks.join("; ");
                [one.file.clone(), one.bytes.to_string(), one.records.to_string(), first, last, remarks]
            })
            .collect();
        let Checkpoint { vote, committed, purged, last } = self.amount;
        let at = |id: Option<LogId>| id.map_or("-".to_owned(), |id| id.to_string());
        let vote = vote.map_or("-".to_owned(), |vote| {
            format!("node {} in term {}", vote.leader_id.node_id, vote.leader_id.term)
        });
        let mut out = table(["segment", "bytes", "records", "first", "last", ""], &rows);
        out.push_str(&format!(
            "vote       {vote}\ncommitted  {}\nsnapshot   {}\nlast       {}\n",
            at(committed),
            at(purged),
            at(last)
        ));
        match verdict {
            Ok(Stopped { identity, snapshot, .. }) => {
                let snapshot = snapshot.as_ref().and_then(|snapshot| snapshot.meta().last_log_id);
                let (cluster, node) = (&identity.cluster, identity.node);
                out.push_str(&format!(
                    "a start as node {node} of {cluster:?} would begin with the snapshot at {}\n",
                    at(snapshot)
                ));
            }
            Err(why) => out.push_str(&format!("a node does not start with this now: {why}\n")),
        }
        out
    }

    fn document(&self, verdict: &Result<Stopped, StorageError>) -> Value {
        let segments: Vec<Value> = self
            .segments
            .iter()
            .map(|one| {
                json!({ "file": one.file, "bytes": one.bytes, "records": one.records, "first": one.first,
                        "last": one.last, "remarks": one.remarks })
            })
            .collect();
        let id = |id: Option<LogId>| id.map(|id| json!({ "term": id.leader_id.term, "index": id.index }));
        let Checkpoint { vote, committed, purged, last } = self.amount;
        let vote = vote.map(|vote| json!({ "term": vote.leader_id.term, "node": vote.leader_id.node_id }));
        let (starts, why) = match verdict {
            Ok(stopped) => {
                let (cluster, node) = (&stopped.identity.cluster, stopped.identity.node.0);
                (json!({ "cluster": cluster, "node": node }), None)
            }
            Err(why) => (Value::Null, Some(why.to_string())),
        };
        json!({ "segments": segments, "vote": vote, "committed": id(committed), "purged": id(purged),
                "last": id(last), "damaged": self.damaged, "starts": starts, "why_not": why })
    }
}
