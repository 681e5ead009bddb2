//! `rowlock contention`: shows which locks clients waited for, how long, and who held them meanwhile, as the
//! node's report `/v1/contention` has it.

use std::process::ExitCode;

use clap::ValueEnum as _;
use rowlock_client::Client;
use rowlock_env::time;
use rowlock_proto::Right;
use rowlock_proto::report::{self, GapReason, LockWaits, WaitedBehind, WaitingPair, in_query};
use serde_json::Value;

use super::{Line, OutputFormat, Style, parse_report, print_lines};
use crate::acl::{self, LockRef};
use crate::cluster::{Cluster, failed, leave};
use crate::exit::{Failure, LOST};
use crate::moment::{past, rfc3339, span};
use crate::name::mutex_of;
use crate::paint::Paint;
use crate::print::{count, errln, print};
use crate::znode::print_json;

/// Rows of a document in JSON, the most that a node returns.
const ROWS_MAX: usize = 10_000;
const HEAD: [&str; 7] = ["lock", "waited", "share", "waits", "longest", "mostly behind", "mostly waiting"];
const SPARE: [&str; 3] = ["waits", "share", "longest"];
const PAIRS_HEAD: [&str; 4] = ["waiting", "behind", "waited", "share"];

/// Show which locks clients waited for, how long, and who held them meanwhile
///
/// Reads the history of one node, and the queues of this moment.
#[derive(clap::Args)]
pub struct Contention {
    /// Only this lock, with all pairs of waiter and holder: a name, or a path if it begins with a slash
    name: Option<String>,
    /// Treat NAME as a path
    #[arg(long, requires = "name")]
    path: bool,
    /// Since 10m ago (s, m, h, d), 2026-11-20T13:42:05Z, or seconds since 1970
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = moment_of)]
    since: i64,
    /// How clients are told apart
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Output format; json has all rows
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Their label, else their address
    #[default]
    Label,
    /// The address from which they connect
    Address,
    /// The id of their session
    Session,
}

fn moment_of(text: &str) -> Result<i64, String> {
    past(text, time::wall_ms())
}

impl Contention {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let answer = self.fetch(&client).await;
        leave(&client).await;
        let document = answer?;
        let unreadable = |e| Failure::new(LOST, format!("the node's report cannot be read: {e}"));
        let report: report::Contention = serde_json::from_value(document.clone()).map_err(unreadable)?;
        match self.output {
            OutputFormat::Json => print_json(&document)?,
            _ => self.print(&report)?,
        }
        for line in warnings(&report) {
            errln!("rowlock: {line}");
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn fetch(&self, client: &Client) -> Result<Value, Failure> {
        let limit = if self.output == OutputFormat::Json { ROWS_MAX } else { self.limit as usize };
        let by = self.by.to_possible_value().map(|by| by.get_name().to_owned()).unwrap_or_default();
        let mut query = format!("/v1/contention?limit={limit}&by={by}&since_ms={}", self.since);
        let Some(name) = &self.name else {
            let document = client.report(&query).await.map_err(|e| failed("contention", &e))?;
            return parse_report("contention", &document);
        };
        let mutex = mutex_of(client, name, self.path);
        mutex.validate().map_err(|e| failed(name, &e))?;
        let lock = mutex.server_path();
        query.push_str(&format!("&lock={}", in_query(&lock)));
        match client.report(&query).await {
            Ok(document) => parse_report(name, &document),
            Err(e) => Err(acl::refused(client, LockRef { name, path: &lock }, Right::See, &e).await),
        }
    }

    fn print(&self, report: &report::Contention) -> Result<(), Failure> {
        if self.output == OutputFormat::Table {
            print(format!("{}\n", Paint::stdout().dim(&summary(report))).as_bytes())?;
            if report.locks.is_empty() {
                return Ok(());
            }
        }
        let all = report.waited_ms;
        if self.name.is_none() {
            let lines: Vec<_> = report.locks.iter().map(|lock| line(self.output, lock, all)).collect();
            print_lines(self.output, HEAD, &lines, &SPARE)?;
        } else {
            let pairs = report.locks.iter().flat_map(|lock| &lock.pairs);
            let lines: Vec<_> = pairs.map(|pair| pair_line(self.output, pair, all)).collect();
            print_lines(self.output, PAIRS_HEAD, &lines, &[])?;
        }
        let left = report.lock_count.saturating_sub(report.locks.len() as u64);
        if left > 0 {
            errln!("rowlock: {} more; raise --limit to see them", count(left, "lock"));
        }
        Ok(())
    }
}

/// Returns lines about the time of which the report has no records.
fn warnings(report: &report::Contention) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(cut) = report.cut {
        let why = match cut {
            GapReason::Trimmed => "the history begins then",
            GapReason::TooMany => "the time has too many records; use a later --since, or name a lock",
            _ => "the history could not be read further in time; use a later --since, or name a lock",
        };
        lines.push(format!("only the time since {} is known: {why}", rfc3339(report.from_ms)));
    }
    if !report.gaps.is_empty() {
        let (gaps, missing) =
            (report.gaps.len() as u64, report.gaps.iter().map(|gap| gap.to_ms - gap.from_ms));
        let (gaps, time) = (count(gaps, "gap"), span(missing.sum()));
        lines.push(format!("the history has {gaps}, {time} in all; rowlock history shows where"));
    }
    let lost = report.lost;
    if lost.waits > 0 {
        let [least, most] = [lost.at_least_ms, lost.at_most_ms].map(span);
        let waits = count(lost.waits, "wait");
        lines.push(format!("the sums lack {waits} without a recorded end, of {least} to {most}"));
    }
    lines
}

fn summary(report: &report::Contention) -> String {
    let (from, time) = (rfc3339(report.from_ms), span(report.until_ms - report.from_ms));
    if report.waits == 0 {
        return format!("Since {from} no client waited for a lock.");
    }
    format!(
        "Since {from} ({time}) clients waited {} in all: {} of {} waited, for {}.",
        span(report.waited_ms),
        report.waits,
        count(report.requests, "request"),
        count(report.lock_count, "lock")
    )
}

fn line(form: OutputFormat, lock: &LockWaits, all: i64) -> Line<7> {
    let most = |who: Option<(String, i64)>| {
        who.map_or_else(|| "-".to_owned(), |(who, ms)| format!("{who} {}", percent(ms, lock.waited_ms)))
    };
    let waits = match lock.gave_up {
        0 => format!("{} of {}", lock.waits, lock.requests),
        gave_up => format!("{} of {}, {gave_up} gave up", lock.waits, lock.requests),
    };
    Line {
        cells: [
            text(&lock.lock),
            time_text(form, lock.waited_ms),
            percent(lock.waited_ms, all),
            waits,
            time_text(form, lock.longest_ms),
            most(lock.behind.first().map(|of| (behind(of), of.waited_ms))),
            most(lock.waiting.first().map(|of| (text(&of.waiter), of.waited_ms))),
        ],
        style: Style::Plain,
    }
}

fn pair_line(form: OutputFormat, pair: &WaitingPair, all: i64) -> Line<4> {
    let ms = pair.behind.waited_ms;
    let cells = [text(&pair.waiter), behind(&pair.behind), time_text(form, ms), percent(ms, all)];
    Line { cells, style: Style::Plain }
}

fn behind(of: &WaitedBehind) -> String {
    match &of.holder {
        Some(holder) => text(holder),
        None if of.unknown => "(unknown)".to_owned(),
        None => "(no holder)".to_owned(),
    }
}

fn text(name: &str) -> String {
    super::text(&Value::from(name))
}

fn time_text(form: OutputFormat, ms: i64) -> String {
    match form {
        OutputFormat::Table => span(ms),
        _ => ms.to_string(),
    }
}

fn percent(part: i64, all: i64) -> String {
    if all > 0 { format!("{:.0} %", 100.0 * part as f64 / all as f64) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> report::Contention {
        let lock = json!({
            "lock": "/locks/l", "waited_ms": 4_000, "requests": 3, "waits": 2, "gave_up": 1, "longest_ms": 2_500,
            "behind": [{ "holder": null, "unknown": true, "waited_ms": 3_000 },
                       { "holder": "a\u{1b}[2J", "waited_ms": 1_000 }],
            "waiting": [{ "waiter": "b", "waited_ms": 4_000 }],
            "pairs": [{ "waiter": "b", "holder": null, "waited_ms": 1_000 }],
        });
        serde_json::from_value(json!({
            "zxid": 9, "since_ms": 0, "from_ms": 60_000, "until_ms": 120_000, "cut": "trimmed",
            "gaps": [{ "from_ms": 70_000, "to_ms": 72_000, "reason": "too-fast", "missing": 3 }],
            "unknown_ms": 62_000, "lost": { "waits": 1, "at_least_ms": 500, "at_most_ms": 2_000 },
            "waited_ms": 5_000, "requests": 4, "waits": 3, "lock_count": 2,
            "slices": { "step_ms": 2_000, "waited_ms": [null, 1] }, "locks": [lock], "more": true,
        }))
        .unwrap()
    }

    #[test]
    fn a_row_names_the_holder_and_the_waiter_with_most_of_the_time() {
        let cells = line(OutputFormat::Table, &report().locks[0], 5_000).cells;
        let expected =
            ["/locks/l", "4.00 s", "80 %", "2 of 3, 1 gave up", "2.50 s", "(unknown) 75 %", "b 100 %"];
        assert_eq!(cells, expected);
        let pair = pair_line(OutputFormat::Simple, &report().locks[0].pairs[0], 4_000).cells;
        assert_eq!(pair, ["b", "(no holder)", "1000", "25 %"]);
        assert_eq!(behind(&report().locks[0].behind[1]), "a [2J", "names come from clients");
    }

    #[test]
    fn the_unknown_time_is_printed() {
        let said = warnings(&report());
        assert_eq!(said[0], "only the time since 1970-01-01T00:01:00.000Z is known: the history begins then");
        assert_eq!(said[1], "the history has 1 gap, 2.00 s in all; rowlock history shows where");
        assert_eq!(said[2], "the sums lack 1 wait without a recorded end, of 0.50 s to 2.00 s");
        let none = report::Contention { waits: 0, ..report() };
        assert!(summary(&none).ends_with("no client waited for a lock."));
        assert!(
            summary(&report()).starts_with("Since 1970-01-01T00:01:00.000Z (1 min) clients waited 5.00 s")
        );
    }
}
