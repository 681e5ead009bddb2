//! `rowlock history`: prints the history of locks, as recorded by one node.

use std::process::ExitCode;

use rowlock_client::{Client, Error};
use rowlock_env::time;
use rowlock_proto::Right;
use rowlock_proto::report::in_query;
use serde_json::{Value, json};

use super::queue::{mode, no_such_lock};
use super::{Line, OutputFormat, Style, items, moment, parse_report, print_lines, text};
use crate::acl::{self, LockRef};
use crate::cluster::{Cluster, failed, leave};
use crate::exit::Failure;
use crate::moment::{past, span};
use crate::name::mutex_of;
use crate::print::errln;
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
        // Pages come newest first, entries within a page oldest first.
        let (mut pages, mut found, mut before) = (Vec::new(), 0, None);
        loop {
            let page_limit = PAGE.min(limit - found);
            let cursor = before.map(|before: String| format!("&before={}", in_query(&before)));
            let page = format!("/v1/history?limit={page_limit}{query}{}", cursor.unwrap_or_default());
            let document = match client.report(&page).await {
                Ok(document) => parse_report(self.about(), &document)?,
                Err(error) => return Ok(Err(error)),
            };
            let entries: Vec<Value> = items(&document, "entries").cloned().collect();
            found += entries.len();
            pages.push(entries);
            before = document["before"].as_str().map(str::to_owned);
            if before.is_none() || found >= limit {
                pages.reverse();
                return Ok(Ok((pages.concat(), before.is_some())));
            }
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
            Some(missing) => format!("{missing} entries are missing"),
            None => "entries may be missing".to_owned(),
        });
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
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
            (json!({"event": "gap", "missing": 3, "reason": "too-fast"}), "too-fast, 3 entries are missing"),
            (
                json!({"event": "asked", "question": "ip:10.0.0.1: hot\u{1b}[31mfix"}),
                "ip:10.0.0.1: hot [31mfix",
            ),
            (json!({"event": "converted"}), "-"),
        ] {
            assert_eq!(details(&entry), text);
        }
    }
}
