//! Commands that explain locks: holders, waiters and the reasons for waiting, history, sessions.
//!
//! Each command fetches a report from one node (`Client::report`: the document served by the node's HTTP
//! listener at the same path) and prints the report; `-o json` prints the document itself. Text from other
//! clients (labels, names) is sanitized before printing.

pub mod ask;
mod follow;
pub mod history;
pub mod locks;
pub mod queue;
pub mod release;
pub mod session;

use rowlock_client::Client;
use serde_json::Value;

use crate::cluster::failed;
use crate::exit::{Failure, LOST};
use crate::paint::Paint;
use crate::print::{errln, print, safe};

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
