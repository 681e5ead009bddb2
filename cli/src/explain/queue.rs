//! `rowlock queue`: shows the holders and waiters of a lock, and the reason for each wait.

use std::process::ExitCode;

use rowlock_client::{Client, Error};
use rowlock_proto::report::in_query;
use rowlock_proto::{ErrorCode, Right};
use serde_json::Value;

use super::{Line, OutputFormat, Style, hint_at_more, items, moment, parse_report, print_lines, span, text};
use crate::acl::{self, LockRef};
use crate::cluster::{Cluster, failed, leave};
use crate::exit::{Failure, REFUSED};
use crate::name::Name;
use crate::paint::Paint;
use crate::print::{count, print};
use crate::znode::print_json;

const HEAD: [&str; 10] =
    ["#", "state", "since", "for", "token", "mode", "label", "session", "address", "waits for"];

/// Columns omitted at a narrow terminal, in this order: `since` repeats `for`.
const SPARE: [&str; 5] = ["since", "session", "address", "mode", "token"];

/// Show a lock's holders and waiters
#[derive(clap::Args)]
pub struct Queue {
    #[command(flatten)]
    name: Name,
    /// Maximum number of holders and waiters
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(flatten)]
    cluster: Cluster,
}

impl Queue {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let answer = self.fetch(&client).await;
        leave(&client).await;
        let document = answer?;
        if self.output == OutputFormat::Json {
            print_json(&document)?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.output == OutputFormat::Table {
            print(format!("{}\n", Paint::stdout().dim(&summary(&document))).as_bytes())?;
        }
        if self.output == OutputFormat::Table {
            let lines: String = questions(&document).map(|line| format!("{line}\n")).collect();
            print(lines.as_bytes())?;
        }
        let lines = lines(self.output, &document);
        if self.output == OutputFormat::Simple || !lines.is_empty() {
            print_lines(self.output, HEAD, &lines, &SPARE)?;
        }
        hint_at_more(&document);
        Ok(ExitCode::SUCCESS)
    }

    async fn fetch(&self, client: &Client) -> Result<Value, Failure> {
        let mutex = self.name.mutex(client);
        mutex.validate().map_err(|e| failed(self.name.as_typed(), &e))?;
        report(client, self.name.as_typed(), &mutex.server_path(), &format!("limit={}", self.limit)).await
    }
}

/// Fetches the report about a lock's queue; `selection` selects the positions.
pub(super) async fn report(
    client: &Client,
    name: &str,
    lock: &str,
    selection: &str,
) -> Result<Value, Failure> {
    match client.report(&format!("/v1/queue?lock={}&{selection}", in_query(lock))).await {
        Ok(document) => parse_report(name, &document),
        Err(Error::Rejected(ErrorCode::NoNode)) => Err(no_such_lock(name, lock)),
        Err(e) => Err(acl::refused(client, LockRef { name, path: lock }, Right::See, &e).await),
    }
}

/// Failure for a lock without a znode.
pub(super) fn no_such_lock(name: &str, path: &str) -> Failure {
    let problem = format!("{name}: no such lock: there is no {path}; `rowlock locks` lists the locks in use");
    Failure::new(REFUSED, problem)
}

fn summary(document: &Value) -> String {
    let mut summary = format!(
        "{}: {} hold{}, {} wait{}",
        text(&document["lock"]),
        document["holder_count"],
        if document["holder_count"] == 1 { "s" } else { "" },
        document["waiter_count"],
        if document["waiter_count"] == 1 { "s" } else { "" },
    );
    if let Some(limit) = document["limit"].as_u64() {
        summary.push_str(&format!(", {}", count(limit, "permit")));
    }
    if let Some(until) = document["delayed_until_ms"].as_i64() {
        let until = crate::moment::rfc3339(until);
        summary.push_str(&format!(", not granted before {until} (lock-delay or minimum hold)"));
    }
    summary
}

/// Returns a line per holder with a pending request to release.
fn questions(document: &Value) -> impl Iterator<Item = String> {
    items(document, "holders").filter_map(|position| {
        let asked = position.get("asked").filter(|asked| !asked.is_null())?;
        let ago = span(OutputFormat::Table, &asked["asked_ms_ago"]);
        let (by, reason) = (text(&asked["by"]), text(&asked["reason"]));
        let left = match asked["revoked_in_ms"].as_i64() {
            None => String::new(),
            Some(0) => "; the time to give it back is over".to_owned(),
            Some(left) => format!("; to be given back in {}", crate::moment::span(left)),
        };
        Some(format!("#{} was asked {ago} ago by {by}: {reason}{left}", position["position"]))
    })
}

fn lines(form: OutputFormat, document: &Value) -> Vec<Line<10>> {
    let positions: Vec<(&Value, bool)> = items(document, "holders")
        .map(|position| (position, true))
        .chain(items(document, "waiters").map(|position| (position, false)))
        .collect();
    // A table shows a predecessor by its number: its path is long.
    let number = |path: &Value| match positions.iter().find(|(position, _)| position["path"] == *path) {
        Some((position, _)) if form == OutputFormat::Table => format!("#{}", position["position"]),
        _ => text(path),
    };
    let line = |(position, holds): &(&Value, bool)| Line {
        cells: [
            text(&position["position"]),
            if *holds { "holds" } else { "waits" }.to_owned(),
            moment(form, &position["since_ms"]),
            span(form, &position[if *holds { "held_ms" } else { "waited_ms" }]),
            text(&position["token"]),
            mode(position),
            text(&position["label"]),
            text(&position["session"]),
            text(&position["address"]),
            if *holds { "-".to_owned() } else { number(&position["waits_for"]) },
        ],
        style: if *holds { Style::Good } else { Style::Plain },
    };
    positions.iter().map(line).collect()
}

/// Formats the mode: `exclusive`, `shared`, `3 permits`.
pub(super) fn mode(position: &Value) -> String {
    match position["permits"].as_u64() {
        Some(permits) => count(permits, "permit"),
        None => text(&position["mode"]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn asked_holders_are_shown_with_client_reason_and_deadline() {
        let asked =
            |left| json!({"reason": "hot\nfix", "by": "ci", "asked_ms_ago": 12_000, "revoked_in_ms": left});
        let holders = json!([
            {"position": 1, "asked": asked(json!(18_000))}, {"position": 2}, {"position": 3, "asked": asked(json!(null))},
            {"position": 4, "asked": asked(json!(0))},
        ]);
        let lines: Vec<String> = questions(&json!({ "holders": holders })).collect();
        let expected = [
            "#1 was asked 12 s ago by ci: hot fix; to be given back in 18 s",
            "#3 was asked 12 s ago by ci: hot fix",
            "#4 was asked 12 s ago by ci: hot fix; the time to give it back is over",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn waiters_point_at_their_predecessors() {
        let document = json!({
            "lock": "/locks/l", "holder_count": 1, "waiter_count": 2, "limit": null, "delayed_until_ms": null,
            "holders": [{"position": 1, "path": "/locks/l/a", "since_ms": 0, "held_ms": 65_000, "token": "3",
                         "mode": "exclusive", "permits": null, "label": "w-1", "session": "0x1", "address": null}],
            "waiters": [{"position": 2, "path": "/locks/l/b", "since_ms": 1, "waited_ms": 1_000, "token": "4",
                         "mode": "permits", "permits": 2, "label": "", "session": "0x2", "address": "h:1",
                         "waits_for": "/locks/l/a"},
                        {"position": 3, "path": "/locks/l/c", "since_ms": 1, "waited_ms": 1_000, "token": "5",
                         "mode": "shared", "permits": null, "label": "", "session": "0x3", "address": "h:1",
                         "waits_for": "/locks/l/z"}],
        });
        let shown: Vec<String> =
            lines(OutputFormat::Table, &document).iter().map(|line| line.cells.join("|")).collect();
        assert_eq!(
            shown,
            [
                "1|holds|1970-01-01T00:00:00.000Z|1 min 5 s|3|exclusive|w-1|0x1|-|-",
                "2|waits|1970-01-01T00:00:00.001Z|1.00 s|4|2 permits|-|0x2|h:1|#1",
                "3|waits|1970-01-01T00:00:00.001Z|1.00 s|5|shared|-|0x3|h:1|/locks/l/z",
            ]
        );
        assert!(
            lines(OutputFormat::Simple, &document)[1]
                .cells
                .join("\t")
                .ends_with("\t1000\t4\t2 permits\t-\t0x2\th:1\t/locks/l/a")
        );
        assert_eq!(summary(&document), "/locks/l: 1 holds, 2 wait");
    }
}
