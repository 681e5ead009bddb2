//! `rowlock history --follow`: what happens to locks, as it happens.
//!
//! It asks for the history again and again, at whatever node its session is. Nodes agree about the order of
//! entries, so it goes on behind the last one that it has shown: entries are known by the change (zxid) that
//! they belong to, and by their place among those of this change. Invariant: no entry is shown twice, and
//! none is left out without a gap.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Client, Error};
use rowlock_env::time;
use rowlock_proto::ErrorCode;
use serde_json::{Value, json};

use super::history::{HEAD, History, line};
use super::{Form, Line};
use crate::cluster::{failed, leave};
use crate::exit::Failure;
use crate::paint::Paint;
use crate::print::{errln, print};
use crate::signals::{Stop, shell_code};

const PAUSE: Duration = Duration::from_millis(500);
/// Of what happened between two looks only this much is shown, the newest; a gap says so.
const BURST_MAX: usize = 10_000;
/// Widths of the columns of a table whose later lines are not known yet.
const WIDTHS: [usize; 9] = [24, 20, 9, 8, 9, 16, 18, 21, 0];

/// What has been shown last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    time_ms: i64,
    zxid: u64,
    /// How many entries of this change.
    entries: usize,
    /// Nothing new is older than this. Entries that are not meant move it on, too, so that a look at a quiet
    /// lock need not read what has happened to others meanwhile.
    since_ms: i64,
}

impl History {
    /// Shows the last entries, and each new one, until a signal. Another session follows one that ends.
    pub(super) async fn follow(&self) -> Result<ExitCode, Failure> {
        let mut stop = Stop::listen()?;
        let mut mark = None;
        let mut is_begun = false;
        loop {
            let client = tokio::select! {
                biased;
                signal = stop.signal() => {
                    return Ok(if is_begun { ExitCode::SUCCESS } else { ExitCode::from(shell_code(signal)) });
                }
                client = self.cluster.connect() => client?,
            };
            is_begun = true;
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

    /// Returns when the session has ended.
    async fn follow_with(&self, client: &Client, mark: &mut Option<Mark>) -> Result<(), Failure> {
        let about = self.about();
        loop {
            match self.news(client, *mark).await? {
                Ok(News { newest_ms, entries, more }) => {
                    if mark.is_none() {
                        self.begin(more)?;
                    }
                    for entry in unseen(entries, mark, more) {
                        self.tell(&entry)?;
                    }
                    // From now on a look shows all that is new, also when nothing has happened yet.
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

    /// Before there is a mark the last ones, as without `--follow`.
    async fn news(&self, client: &Client, mark: Option<Mark>) -> Result<Result<News, Error>, Failure> {
        let (limit, since) = match mark {
            None => (self.limit, self.since),
            Some(mark) => (BURST_MAX, Some(mark.since_ms)),
        };
        // First: what the second question does not find is newer.
        let newest_ms = match self.pages(client, "", 1).await? {
            Ok((newest, _)) => newest.last().map_or(0, time_of),
            Err(error) => return Ok(Err(error)),
        };
        let question = self.question(client, since)?;
        let pages = self.pages(client, &question, limit).await?;
        Ok(pages.map(|(entries, more)| News { newest_ms, entries, more }))
    }

    fn begin(&self, more: bool) -> Result<(), Failure> {
        if more {
            errln!("rowlock: there is more before that; ask for it with --limit");
        }
        if self.output == Form::Table {
            let head = laid_out(&HEAD.map(str::to_owned));
            print(format!("{}\n", Paint::stdout().bold(&head)).as_bytes())?;
        }
        Ok(())
    }

    fn tell(&self, entry: &Value) -> Result<(), Failure> {
        let text = match self.output {
            Form::Json => entry.to_string(),
            Form::Simple => line(self.output, entry).cells.join("\t"),
            Form::Table => {
                let Line { cells, look } = line(self.output, entry);
                look.paint(&Paint::stdout(), &laid_out(&cells))
            }
        };
        print(format!("{text}\n").as_bytes())
    }
}

struct News {
    /// When the newest entry of all locks happened.
    newest_ms: i64,
    entries: Vec<Value>,
    /// There are more before.
    more: bool,
}

fn time_of(entry: &Value) -> i64 {
    entry["time_ms"].as_i64().unwrap_or_default()
}

fn laid_out(cells: &[String; 9]) -> String {
    let padded = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:width$}"));
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// Those behind the mark, which moves to the last of them. In front of them a gap, if entries between the
/// mark and them are not there any more.
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
    let lacks =
        before.filter(|mark| mark.entries > 0 && at_mark == 0 && (more || mark.since_ms <= mark.time_ms));
    if let (Some(before), Some(first)) = (lacks, new.first().filter(|first| first["event"] != "gap")) {
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
    fn each_entry_is_shown_once_also_when_those_of_a_change_come_in_parts() {
        let mut mark = None;
        let all = [entry(1, "requested"), entry(2, "granted"), entry(2, "requested"), entry(3, "released")];
        assert_eq!(unseen(all[..2].to_vec(), &mut mark, false), all[..2]);
        assert_eq!(mark, Some(Mark { time_ms: 1_002, zxid: 2, entries: 1, since_ms: 0 }));
        assert_eq!(unseen(all[1..3].to_vec(), &mut mark, false), all[2..3]);
        // A node that lags behind.
        assert_eq!(unseen(all[..1].to_vec(), &mut mark, false), [Value::Null; 0]);
        assert_eq!(unseen(all.to_vec(), &mut mark, false), all[3..]);
        assert_eq!(unseen(all[3..].to_vec(), &mut mark, false), [Value::Null; 0]);
    }

    #[test]
    fn what_is_not_there_any_more_is_a_gap() {
        let known = Some(Mark { time_ms: 1_002, zxid: 2, entries: 1, since_ms: 0 });
        for (more, reason) in [(false, "trimmed"), (true, "too-many")] {
            let mut mark = known;
            let told = unseen(vec![entry(7, "granted")], &mut mark, more);
            let gap = json!({
                "time_ms": 1_007, "zxid": 7, "event": "gap", "reason": reason, "from_zxid": 2
            });
            assert_eq!(told, [gap, entry(7, "granted")]);
            assert_eq!(mark, Some(Mark { time_ms: 1_007, zxid: 7, entries: 1, since_ms: 0 }));
        }
        // The node says so itself.
        assert_eq!(unseen(vec![entry(7, "gap")], &mut known.clone(), false), [entry(7, "gap")]);
        // Nothing was there before.
        assert_eq!(
            unseen(vec![entry(7, "granted")], &mut Some(Mark::default()), false),
            [entry(7, "granted")]
        );
    }
}
