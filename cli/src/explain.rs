//! The commands that explain locks: who holds, who waits and for what, what happened, whose session it is.
//!
//! Each asks one node for a report (`Client::report`: the document that its HTTP listener serves at the same
//! path) and shows it; `-o json` prints the document itself. Text from other clients (labels, names) is
//! sanitised before it reaches the terminal.

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

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Aligned columns, for people.
    #[default]
    Table,
    /// The node's JSON document.
    Json,
    /// Tab-separated fields, one line each; times in milliseconds, `-` for no value.
    Simple,
}

/// Asks the node for a report about `what`.
async fn ask(client: &Client, what: &str, question: &str) -> Result<Value, Failure> {
    let document = client.report(question).await.map_err(|e| failed(what, &e))?;
    read(what, &document)
}

/// A report about `what` as a document.
fn read(what: &str, document: &str) -> Result<Value, Failure> {
    serde_json::from_str(document)
        .map_err(|e| Failure::new(LOST, format!("{what}: the node's report cannot be read: {e}")))
}

/// One line of an answer: its cells and its style.
struct Line<const N: usize> {
    cells: [String; N],
    look: Look,
}

/// The style of a line at a terminal.
#[derive(Clone, Copy)]
enum Look {
    Plain,
    Good,
    Bad,
    Dim,
}

impl Look {
    fn paint(self, paint: &Paint, line: &str) -> String {
        match self {
            Look::Plain => line.to_owned(),
            Look::Good => paint.good(line),
            Look::Bad => paint.bad(line),
            Look::Dim => paint.dim(line),
        }
    }
}

/// Prints lines as a table, or with tabs.
///
/// `spare`: columns that are left out at a terminal which is too narrow, the first one first.
fn show<const N: usize>(
    form: Form,
    head: [&str; N],
    lines: &[Line<N>],
    spare: &[&str],
) -> Result<(), Failure> {
    let mut out = String::new();
    if form == Form::Simple {
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
            Some(row) => lines[row].look.paint(&paint, line),
        };
        out.push_str(&painted);
        out.push('\n');
    }
    if !left_out.is_empty() {
        let hint = format!("(for want of width without: {}; -o simple has all)", left_out.join(", "));
        out.push_str(&format!("{}\n", paint.dim(&hint)));
    }
    print(out.as_bytes())
}

/// The text of a field, safe for a terminal: text from other clients may contain escape codes. `-` for
/// nothing.
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

/// Milliseconds: a span for people, the plain number for scripts.
fn span(form: Form, value: &Value) -> String {
    match (form, value.as_i64()) {
        (Form::Table, Some(ms)) => crate::moment::span(ms),
        _ => text(value),
    }
}

/// A point in time: as a date for people, in milliseconds since 1970 for scripts.
fn moment(form: Form, value: &Value) -> String {
    match (form, value.as_i64()) {
        (Form::Table, Some(ms)) => crate::moment::rfc3339(ms),
        _ => text(value),
    }
}

fn items<'a>(document: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    document[list].as_array().into_iter().flatten()
}

/// Says on stderr that there is more than is shown.
fn hint_at_more(document: &Value) {
    if document["more"] == true {
        errln!("rowlock: there is more; ask for it with --limit");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_of_others_cannot_speak_to_the_terminal() {
        assert_eq!(text(&json!("a\x1b[2Jb\u{202e}")), "a [2Jb ");
        assert_eq!((text(&json!("")).as_str(), text(&Value::Null).as_str()), ("-", "-"));
        assert_eq!(text(&json!(7)), "7");
    }
}
