//! `rowlock history --follow`: prints history entries as they happen.
//!
//! The command polls the history of whichever node its session is on. Nodes agree about the order of entries,
//! so a poll continues after the last printed entry: an entry is identified by its change (zxid) and by its
//! index among the entries of that change. Invariant: no entry is printed twice, and none is missing without
//! a gap.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Client, Error};
use rowlock_env::time;
use rowlock_proto::ErrorCode;
use serde_json::{Value, json};

use super::history::{HEAD, History, line};
use super::{Line, OutputFormat};
use crate::cluster::{failed, leave};
use crate::exit::Failure;
use crate::paint::Paint;
use crate::print::{errln, print};
use crate::signals::{Stop, shell_code};

const PAUSE: Duration = Duration::from_millis(500);
/// Most entries printed per poll, the newest; a gap replaces the rest.
const BURST_MAX: usize = 10_000;
/// Widths of the columns: later lines are not known yet.
const WIDTHS: [usize; 9] = [24, 20, 9, 8, 9, 16, 18, 21, 0];

/// Position after the last printed entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    time_ms: i64,
    zxid: u64,
    /// Number of printed entries of this change.
    entries: usize,
    /// Lower bound of the time of new entries. Entries of other locks raise the bound too: a poll about a
    /// quiet lock need not read the history of all locks.
    since_ms: i64,
}

impl History {
    /// Prints the last entries, and each new one, until a signal. A session that ends is replaced.
    pub(super) async fn follow(&self) -> Result<ExitCode, Failure> {
        let mut stop = Stop::listen()?;
        let mut mark = None;
        let mut has_begun = false;
        loop {
            let client = tokio::select! {
                biased;
                signal = stop.signal() => {
                    return Ok(if has_begun { ExitCode::SUCCESS } else { ExitCode::from(shell_code(signal)) });
                }
                client = self.cluster.connect() => client?,
            };
            has_begun = true;
            let ended = tokio::select! {
                biased;
                _ = stop.signal() => Err(None),
                ended = self.follow_with(&client, &mut mark) => ended.map_err(Some),
            };
            leave(&client).await;
            match ended {
                Ok(()) => {}
                Err(None) => return Ok(ExitCode::SUCCESS),
                Err(Some(failure)) => return Err(failure),
            }
        }
    }

    /// Returns at the end of the session.
    async fn follow_with(&self, client: &Client, mark: &mut Option<Mark>) -> Result<(), Failure> {
        let about = self.about();
        loop {
            match self.poll(client, *mark).await? {
                Ok(Poll { newest_ms, entries, more }) => {
                    if mark.is_none() {
                        self.begin(more)?;
                    }
                    for entry in unseen(entries, mark, more) {
                        self.print_entry(&entry)?;
                    }
                    // Later polls print all new entries, even if there was none so far.
                    let mark = mark.get_or_insert_default();
                    mark.since_ms = mark.time_ms.max(newest_ms);
                }
                Err(error) if error.is_session_end() => return Ok(()),
                Err(
                    Error::ConnectionLoss
                    | Error::Rejected(ErrorCode::ThrottledOp | ErrorCode::OperationTimeout),
                ) => {}
                Err(error) => return Err(failed(about, &error)),
            }
            time::sleep(PAUSE).await;
        }
    }

    /// Fetches entries after `mark`; without a mark the last ones, as without `--follow`.
    async fn poll(&self, client: &Client, mark: Option<Mark>) -> Result<Result<Poll, Error>, Failure> {
        let (limit, since) = match mark {
            None => (self.limit, self.since),
            Some(mark) => (BURST_MAX, Some(mark.since_ms)),
        };
        // Fetched first: entries missing in the second query are newer.
        let newest_ms = match self.pages(client, "", 1).await? {
            Ok((newest, _)) => newest.last().map_or(0, time_of),
            Err(error) => return Ok(Err(error)),
        };
        let query = self.query(client, since)?;
        let pages = self.pages(client, &query, limit).await?;
        Ok(pages.map(|(entries, more)| Poll { newest_ms, entries, more }))
    }

    fn begin(&self, more: bool) -> Result<(), Failure> {
        if more {
            errln!("rowlock: there is more before that; raise --limit to see it");
        }
        if self.output == OutputFormat::Table {
            let head = laid_out(&HEAD.map(str::to_owned));
            print(format!("{}\n", Paint::stdout().bold(&head)).as_bytes())?;
        }
        Ok(())
    }

    fn print_entry(&self, entry: &Value) -> Result<(), Failure> {
        let text = match self.output {
            OutputFormat::Json => entry.to_string(),
            OutputFormat::Simple => line(self.output, entry).cells.join("\t"),
            OutputFormat::Table => {
                let Line { cells, style } = line(self.output, entry);
                style.paint(&Paint::stdout(), &laid_out(&cells))
            }
        };
        print(format!("{text}\n").as_bytes())
    }
}

struct Poll {
    /// Time of the newest entry of all locks.
    newest_ms: i64,
    entries: Vec<Value>,
    /// True if there are more entries before `entries`.
    more: bool,
}

fn time_of(entry: &Value) -> i64 {
    entry["time_ms"].as_i64().unwrap_or_default()
}

fn laid_out(cells: &[String; 9]) -> String {
    let padded = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:width$}"));
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// Returns the entries after the mark and moves the mark to the last of them. Puts a gap in front if entries
/// after the mark were trimmed or exceed the limit.
fn unseen(entries: Vec<Value>, mark: &mut Option<Mark>, more: bool) -> Vec<Value> {
    let (before, mut seen) = (*mark, mark.unwrap_or_default());
    let mut at_mark = 0;
    let mut new = Vec::new();
    for entry in entries {
        let zxid = entry["zxid"].as_u64().unwrap_or_default();
        if let Some(before) = before {
            if zxid == before.zxid {
                at_mark += 1;
            }
            if zxid < before.zxid || (zxid == before.zxid && at_mark <= before.entries) {
                continue;
            }
        }
        let entries = if zxid == seen.zxid { seen.entries + 1 } else { 1 };
        seen = Mark { time_ms: time_of(&entry), zxid, entries, since_ms: seen.since_ms };
        new.push(entry);
    }
    let lost =
        before.filter(|mark| mark.entries > 0 && at_mark == 0 && (more || mark.since_ms <= mark.time_ms));
    if let (Some(before), Some(first)) = (lost, new.first().filter(|first| first["event"] != "gap")) {
        let reason = if more { "too-many" } else { "trimmed" };
        let gap = json!({
            "time_ms": first["time_ms"], "zxid": first["zxid"], "event": "gap", "reason": reason,
            "from_zxid": before.zxid,
        });
        new.insert(0, gap);
    }
    if !new.is_empty() {
        *mark = Some(seen);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(zxid: u64, event: &str) -> Value {
        json!({ "time_ms": 1_000 + zxid, "zxid": zxid, "event": event })
    }

    #[test]
    fn each_entry_is_printed_once_even_if_a_change_comes_in_parts() {
        let mut mark = None;
        let all = [entry(1, "requested"), entry(2, "granted"), entry(2, "requested"), entry(3, "released")];
        assert_eq!(unseen(all[..2].to_vec(), &mut mark, false), all[..2]);
        assert_eq!(mark, Some(Mark { time_ms: 1_002, zxid: 2, entries: 1, since_ms: 0 }));
        assert_eq!(unseen(all[1..3].to_vec(), &mut mark, false), all[2..3]);
        // A lagging node.
        assert_eq!(unseen(all[..1].to_vec(), &mut mark, false), [Value::Null; 0]);
        assert_eq!(unseen(all.to_vec(), &mut mark, false), all[3..]);
        assert_eq!(unseen(all[3..].to_vec(), &mut mark, false), [Value::Null; 0]);
    }

    #[test]
    fn trimmed_entries_are_a_gap() {
        let known = Some(Mark { time_ms: 1_002, zxid: 2, entries: 1, since_ms: 0 });
        for (more, reason) in [(false, "trimmed"), (true, "too-many")] {
            let mut mark = known;
            let printed = unseen(vec![entry(7, "granted")], &mut mark, more);
            let gap = json!({
                "time_ms": 1_007, "zxid": 7, "event": "gap", "reason": reason, "from_zxid": 2
            });
            assert_eq!(printed, [gap, entry(7, "granted")]);
            assert_eq!(mark, Some(Mark { time_ms: 1_007, zxid: 7, entries: 1, since_ms: 0 }));
        }
        // The node reports the gap.
        assert_eq!(unseen(vec![entry(7, "gap")], &mut known.clone(), false), [entry(7, "gap")]);
        // No entry was printed before.
        assert_eq!(
            unseen(vec![entry(7, "granted")], &mut Some(Mark::default()), false),
            [entry(7, "granted")]
        );
    }
}
