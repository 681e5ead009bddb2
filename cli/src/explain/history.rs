//! `rowlock history`: prints the history of locks, as recorded by one node.
//!
//! With `--follow` the command polls the history of whichever node its session is on. Nodes agree about the
//! order of entries, so a poll continues after the last printed entry: an entry is identified by its change
//! (zxid) and by its index among the entries of that change. Invariant: no entry is printed twice, and none
//! is missing without a gap.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Client, Error};
use rowlock_env::time;
use rowlock_proto::report::in_query;
use rowlock_proto::{ErrorCode, Right};
use serde_json::{Value, json};

use super::queue::{mode, no_such_lock};
use super::{Line, OutputFormat, Style, moment, parse_report, print_lines, text};
use crate::acl::{self, LockRef};
use crate::cluster::{Cluster, failed, leave};
use crate::exit::Failure;
use crate::moment::{past, span};
use crate::name::mutex_of;
use crate::paint::Paint;
use crate::print::{count, errln, print};
use crate::signals::{Stop, shell_code};
use crate::znode::print_json;

/// Columns omitted at a narrow terminal, in this order.
const SPARE: [&str; 4] = ["address", "session", "mode", "token"];
pub(super) const HEAD: [&str; 9] =
    ["time", "lock", "event", "token", "mode", "label", "session", "address", "details"];
/// Entries per request; a node returns at most a thousand.
const PAGE: usize = 1_000;

/// Show a lock's history: requests, grants, releases, losses
#[derive(clap::Args)]
pub struct History {
    /// Only this lock: a name, or a path if it begins with a slash
    name: Option<String>,
    /// Treat NAME as a path
    #[arg(long, requires = "name")]
    path: bool,
    /// Only this session, e.g. 0x100000000000001
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only entries since 10m ago (s, m, h, d), 2026-11-20T13:42:05Z, or seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(super) since: Option<i64>,
    /// Maximum number of entries, the latest ones
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(super) limit: usize,
    /// Keep printing entries as they happen, until a signal
    #[arg(short, long)]
    follow: bool,
    /// Output format; json with --follow is one document a line
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: OutputFormat,
    #[command(flatten)]
    pub(super) cluster: Cluster,
}

fn since(text: &str) -> Result<i64, String> {
    past(text, time::wall_ms())
}

impl History {
    /// Prints the entries, the newest last.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        if self.follow {
            return self.follow().await;
        }
        let client = self.cluster.connect().await?;
        let answer = self.collect(&client).await;
        leave(&client).await;
        let (entries, more) = answer?;
        if self.output == OutputFormat::Json {
            print_json(&json!({ "entries": entries, "more": more }))?;
        } else {
            let lines: Vec<Line<9>> = entries.iter().map(|entry| line(self.output, entry)).collect();
            print_lines(self.output, HEAD, &lines, &SPARE)?;
        }
        if more {
            errln!("rowlock: there is more before that; raise --limit to see it");
        }
        Ok(ExitCode::SUCCESS)
    }

    pub(super) fn about(&self) -> &str {
        self.name.as_deref().unwrap_or("history")
    }

    async fn collect(&self, client: &Client) -> Result<(Vec<Value>, bool), Failure> {
        let query = self.query(client, self.since)?;
        let collected = self.pages(client, &query, self.limit).await?;
        let collected = match (collected, &self.name) {
            (Ok(collected), _) => collected,
            (Err(e), Some(name)) => {
                let lock = mutex_of(client, name, self.path).server_path();
                return Err(acl::refused(client, LockRef { name, path: &lock }, Right::See, &e).await);
            }
            (Err(e), None) => return Err(failed(self.about(), &e)),
        };
        let is_all = self.session.is_none() && self.since.is_none();
        if let Some(name) = self.name.as_deref().filter(|_| is_all && collected.0.is_empty()) {
            self.check_lock(client, name).await?;
        }
        Ok(collected)
    }

    /// Fails for a name without records and without a znode.
    async fn check_lock(&self, client: &Client, name: &str) -> Result<(), Failure> {
        let mutex = mutex_of(client, name, self.path);
        match client.exists(mutex.path()).await {
            Ok(None) => Err(no_such_lock(name, &mutex.server_path())),
            Ok(Some(_)) => Ok(()),
            Err(e) => Err(failed(name, &e)),
        }
    }

    /// Returns the query parameters that select the entries.
    pub(super) fn query(&self, client: &Client, since_ms: Option<i64>) -> Result<String, Failure> {
        let mut query = String::new();
        if let Some(name) = &self.name {
            let mutex = mutex_of(client, name, self.path);
            mutex.validate().map_err(|e| failed(name, &e))?;
            query.push_str(&format!("&lock={}", in_query(&mutex.server_path())));
        }
        if let Some(session) = &self.session {
            query.push_str(&format!("&session={}", in_query(session)));
        }
        if let Some(since) = since_ms {
            query.push_str(&format!("&since_ms={since}"));
        }
        Ok(query)
    }

    /// Returns the last `limit` entries, oldest first, and true if there are older ones.
    pub(super) async fn pages(
        &self,
        client: &Client,
        query: &str,
        limit: usize,
    ) -> Result<Result<(Vec<Value>, bool), Error>, Failure> {
        let mut pages = Vec::new();
        let walked = walk(client, (self.about(), query), limit, |page| pages.push(page.to_vec())).await?;
        pages.reverse();
        Ok(walked.map(|more| (pages.concat(), more)))
    }
}

/// Calls `take` with each page of the last `limit` entries: pages come newest first, entries within a page
/// oldest first. Returns true if there are older entries.
async fn walk(
    client: &Client,
    (subject, query): (&str, &str),
    limit: usize,
    mut take: impl FnMut(&[Value]),
) -> Result<Result<bool, Error>, Failure> {
    let (mut found, mut before) = (0, None);
    loop {
        let page_limit = PAGE.min(limit - found);
        let cursor = before.map(|before: String| format!("&before={}", in_query(&before)));
        let page = format!("/v1/history?limit={page_limit}{query}{}", cursor.unwrap_or_default());
        let document = match client.report(&page).await {
            Ok(document) => parse_report(subject, &document)?,
            Err(error) => return Ok(Err(error)),
        };
        let entries = document["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
        take(entries);
        found += entries.len();
        before = document["before"].as_str().map(str::to_owned);
        if before.is_none() || found >= limit {
            return Ok(Ok(before.is_some()));
        }
    }
}

pub(super) fn line(form: OutputFormat, entry: &Value) -> Line<9> {
    let is_gap = entry["event"] == "gap";
    Line {
        cells: [
            moment(form, &entry["time_ms"]),
            text(&entry["lock"]),
            text(&entry["event"]),
            text(&entry["token"]),
            mode(entry),
            text(&entry["label"]),
            text(&entry["session"]),
            text(&entry["address"]),
            details(entry),
        ],
        style: match entry["event"].as_str() {
            Some("granted") => Style::Good,
            Some("lost") => Style::Bad,
            _ if is_gap => Style::Bad,
            Some("requested") => Style::Dim,
            _ => Style::Plain,
        },
    }
}

/// Formats the details: `3 ahead`, `waited 1.20 s`, `held 4 s, session-expired`.
fn details(entry: &Value) -> String {
    let mut parts = Vec::new();
    match entry["ahead"].as_u64() {
        Some(0) => parts.push("free".to_owned()),
        Some(ahead) => parts.push(format!("{ahead} ahead")),
        None => {}
    }
    match (entry["held_ms"].as_i64(), entry["waited_ms"].as_i64()) {
        (Some(held), _) => parts.push(format!("held {}", span(held))),
        (None, Some(waited)) => parts.push(format!("waited {}", span(waited))),
        (None, None) => {}
    }
    if !entry["question"].is_null() {
        parts.push(text(&entry["question"]));
    }
    // The reason of a normal release equals the event.
    if let Some(reason) = entry["reason"].as_str().filter(|reason| *reason != "released") {
        let by = entry["by"].as_str().map(|by| format!(" by {}", crate::print::safe(by)));
        parts.push(format!("{reason}{}", by.unwrap_or_default()));
    }
    if entry["event"] == "gap" {
        parts.push(match entry["missing"].as_u64() {
            Some(missing) => format!("{} missing", count(missing, "entry")),
            None => "entries may be missing".to_owned(),
        });
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

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

    #[test]
    fn details_add_facts_to_the_event() {
        for (entry, text) in [
            (json!({"event": "requested", "ahead": 2}), "2 ahead"),
            (json!({"event": "requested", "ahead": 0}), "free"),
            (json!({"event": "granted", "waited_ms": 1_200}), "waited 1.20 s"),
            (
                json!({"event": "released", "held_ms": 4_000, "waited_ms": 3, "reason": "released"}),
                "held 4.00 s",
            ),
            (
                json!({"event": "lost", "held_ms": 64_000, "waited_ms": 3, "reason": "session-expired"}),
                "held 1 min 4 s, session-expired",
            ),
            (
                json!({"event": "lost", "held_ms": 1_000, "reason": "forced", "by": "x509:CN=ops"}),
                "held 1.00 s, forced by x509:CN=ops",
            ),
            (json!({"event": "gap", "missing": 3, "reason": "too-fast"}), "too-fast, 3 entries missing"),
            (
                json!({"event": "asked", "question": "ip:10.0.0.1: hot\u{1b}[31mfix"}),
                "ip:10.0.0.1: hot [31mfix",
            ),
            (json!({"event": "converted"}), "-"),
        ] {
            assert_eq!(details(&entry), text);
        }
    }

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
