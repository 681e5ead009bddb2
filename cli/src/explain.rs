//! Commands that explain locks: the list of locks, holders, waiters and the reasons for waiting, history,
//! contention, sessions.
//!
//! Each command fetches a report from one node (`Client::report`: the document served by the node's HTTP
//! listener at the same path) and prints the report; `-o json` prints the document itself. Text from other
//! clients (labels, names) is sanitized before printing.

pub mod ask;
pub mod contention;
pub mod history;
pub mod queue;
pub mod session;

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::Client;
use rowlock_env::time;
use serde_json::Value;

use crate::cluster::{Cluster, failed, leave};
use crate::exit::{Failure, LOST};
use crate::moment::duration;
use crate::paint::Paint;
use crate::print::{errln, print, safe};
use crate::signals::{Stop, shell_code};
use crate::znode::print_json;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// Aligned columns, for people.
    #[default]
    Table,
    /// JSON document of the node.
    Json,
    /// Tab-separated fields, one line each; times in milliseconds, `-` for no value.
    Simple,
}

/// Fetches a report about `subject` from the node.
async fn fetch_report(client: &Client, subject: &str, query: &str) -> Result<Value, Failure> {
    let document = client.report(query).await.map_err(|e| failed(subject, &e))?;
    parse_report(subject, &document)
}

fn parse_report(subject: &str, document: &str) -> Result<Value, Failure> {
    serde_json::from_str(document)
        .map_err(|e| Failure::new(LOST, format!("{subject}: the node's report cannot be read: {e}")))
}

/// Line of a table with its style.
struct Line<const N: usize> {
    cells: [String; N],
    style: Style,
}

/// Style of a line at a terminal.
#[derive(Clone, Copy)]
enum Style {
    Plain,
    Good,
    Bad,
    Dim,
}

impl Style {
    fn paint(self, paint: &Paint, line: &str) -> String {
        match self {
            Style::Plain => line.to_owned(),
            Style::Good => paint.good(line),
            Style::Bad => paint.bad(line),
            Style::Dim => paint.dim(line),
        }
    }
}

/// Prints lines as a table, or with tabs.
///
/// `spare`: columns omitted at a narrow terminal, in this order.
fn print_lines<const N: usize>(
    form: OutputFormat,
    head: [&str; N],
    lines: &[Line<N>],
    spare: &[&str],
) -> Result<(), Failure> {
    let mut out = String::new();
    if form == OutputFormat::Simple {
        for line in lines {
            out.push_str(&line.cells.join("\t"));
            out.push('\n');
        }
        return print(out.as_bytes());
    }
    let paint = Paint::stdout();
    let cells: Vec<[String; N]> = lines.iter().map(|line| line.cells.clone()).collect();
    let (laid_out, left_out) = crate::table::fitted(head, &cells, spare, crate::table::terminal_width());
    for (at, line) in laid_out.lines().enumerate() {
        let painted = match at.checked_sub(1) {
            None => paint.bold(line),
            Some(row) => lines[row].style.paint(&paint, line),
        };
        out.push_str(&painted);
        out.push('\n');
    }
    if !left_out.is_empty() {
        let hint = format!("(columns omitted for lack of width: {}; -o simple has all)", left_out.join(", "));
        out.push_str(&format!("{}\n", paint.dim(&hint)));
    }
    print(out.as_bytes())
}

/// Returns the text of a field, safe for a terminal: text from other clients may contain escape codes. `-`
/// for nothing.
fn text(value: &Value) -> String {
    let text = match value {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.trim(),
        other => return other.to_string(),
    };
    if text.is_empty() {
        return "-".to_owned();
    }
    safe(text)
}

/// Formats milliseconds: a span for people, the plain number for scripts.
fn span(form: OutputFormat, value: &Value) -> String {
    match (form, value.as_i64()) {
        (OutputFormat::Table, Some(ms)) => crate::moment::span(ms),
        _ => text(value),
    }
}

/// Formats a point in time: a date for people, milliseconds since 1970 for scripts.
fn moment(form: OutputFormat, value: &Value) -> String {
    match (form, value.as_i64()) {
        (OutputFormat::Table, Some(ms)) => crate::moment::rfc3339(ms),
        _ => text(value),
    }
}

fn items<'a>(document: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    document[list].as_array().into_iter().flatten()
}

/// Prints a hint on stderr if the node has more rows than printed.
fn hint_at_more(document: &Value) {
    if document["more"] == true {
        errln!("rowlock: there is more; raise --limit to see it");
    }
}

const HEAD: [&str; 6] = ["lock", "waiting", "longest", "holding", "permits", "delayed until"];

const SPARE: [&str; 3] = ["delayed until", "permits", "longest"];

/// Shortest pause: each refresh is work for a node.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// List locks that are held or waited for, most contended first
#[derive(clap::Args)]
pub struct Locks {
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// Refresh at this interval, until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = duration, num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Duration>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(flatten)]
    cluster: Cluster,
}

impl Locks {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let Some(pause) = self.watch else {
            let client = self.cluster.connect().await?;
            let answer = self.fetch(&client).await;
            leave(&client).await;
            self.print(&answer?)?;
            return Ok(ExitCode::SUCCESS);
        };
        let mut stop = Stop::listen()?;
        let client = tokio::select! {
            client = self.cluster.connect() => client?,
            signal = stop.signal() => return Ok(ExitCode::from(shell_code(signal))),
        };
        let ended = tokio::select! {
            failed = self.follow(&client, pause.max(PAUSE_MIN)) => Err(failed),
            _ = stop.signal() => Ok(ExitCode::SUCCESS),
        };
        leave(&client).await;
        ended
    }

    /// Prints the locks repeatedly, at a terminal over the previous output. Returns the failure that ends the
    /// loop.
    async fn follow(&self, client: &Client, pause: Duration) -> Failure {
        let clear = if Paint::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
        loop {
            let shown = match self.fetch(client).await {
                Ok(document) => print(clear.as_bytes()).and_then(|()| self.print(&document)),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = shown {
                return failure;
            }
            time::sleep(pause).await;
        }
    }

    async fn fetch(&self, client: &Client) -> Result<Value, Failure> {
        fetch_report(client, "locks", &format!("/v1/locks?limit={}", self.limit)).await
    }

    fn print(&self, document: &Value) -> Result<(), Failure> {
        if self.output == OutputFormat::Json {
            return print_json(document);
        }
        let lines: Vec<Line<6>> = items(document, "locks").map(|lock| line(self.output, lock)).collect();
        print_lines(self.output, HEAD, &lines, &SPARE)?;
        hint_at_more(document);
        Ok(())
    }
}

fn line(form: OutputFormat, lock: &Value) -> Line<6> {
    Line {
        cells: [
            text(&lock["lock"]),
            text(&lock["waiters"]),
            span(form, &lock["oldest_wait_ms"]),
            text(&lock["holders"]),
            text(&lock["limit"]),
            moment(form, &lock["delayed_until_ms"]),
        ],
        style: Style::Plain,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_from_clients_cannot_control_the_terminal() {
        assert_eq!(text(&json!("a\x1b[2Jb\u{202e}")), "a [2Jb ");
        assert_eq!((text(&json!("")).as_str(), text(&Value::Null).as_str()), ("-", "-"));
        assert_eq!(text(&json!(7)), "7");
    }
}
