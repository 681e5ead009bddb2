//! Histories as text: facts in words, for tests of the checkers.
//!
//! A line holds facts, separated by `;`. `@MS` before a fact is its true time (0 without), `nN` a node,
//! `cN` a client. Facts about the log and the world stand in [`log`], facts of nodes in [`node`], facts of
//! clients in [`client`]. `for A..B:` repeats its line for each number, which replaces `#`.
//!
//! ```text
//! queued 1; granted 1; c1 holds 1
//! @500 n1 leads 3; @1050 n1 expires 1
//! for 10..13: c5 call # sync -> synced
//! ```

mod client;
mod log;
mod node;

use std::fmt::Debug;

use rowlock_proto::lock::Mode;
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_stories::{Words, parse};
use rowlock_world::time::Nanos;

use super::Fact;
use super::client::ClientId;

/// Reads a history. Panics with the fact that is not understood.
pub fn history(text: &str) -> Vec<Fact> {
    let lines = text.lines().flat_map(repeated);
    let facts: Vec<String> =
        lines.flat_map(|line| line.split(';').flat_map(both).collect::<Vec<_>>()).collect();
    facts.iter().map(|text| fact(text)).collect()
}

/// Returns the line, or its repetitions.
fn repeated(line: &str) -> Vec<String> {
    let Some(rest) = line.strip_prefix("for ") else { return vec![line.to_owned()] };
    let (range, line) = rest.split_once(": ").unwrap_or_else(|| panic!("a range, a colon, a fact: {rest:?}"));
    let (from, to) = range.split_once("..").unwrap_or_else(|| panic!("first..last: {range:?}"));
    (parse::<u64>(from)..=parse(to)).map(|number| line.replace('#', &number.to_string())).collect()
}

/// Returns the two facts of a whole call, or the fact itself.
fn both(fact: &str) -> Vec<String> {
    let parts = fact.split_once(" call ").and_then(|(client, rest)| {
        let ((call, answer), (number, _)) = (rest.split_once(" -> ")?, rest.split_once(' ')?);
        Some(vec![format!("{client} invokes {call}"), format!("{client} returns {number} {answer}")])
    });
    parts.unwrap_or_else(|| vec![fact.to_owned()])
}

fn fact(text: &str) -> Fact {
    let text = text.trim();
    let (at, rest) = match text.strip_prefix('@').and_then(|rest| rest.split_once(' ')) {
        Some((ms, rest)) => (millis(ms), rest),
        None => (Nanos(0), text),
    };
    let (first, tail) = rest.split_once(' ').unwrap_or((rest, ""));
    let number = |letter| first.strip_prefix(letter).and_then(|number| number.parse().ok());
    let fact = match (number('n'), number('c')) {
        (Some(node), _) => {
            node::fact(&Words::new(tail), at).map(|what| Fact::Node { node: NodeId(node), at, what })
        }
        (_, Some(client)) => client::fact(tail, client as usize).map(|what| Fact::Client {
            client: ClientId(client as usize),
            at,
            what,
        }),
        _ => log::fact(rest, at),
    };
    fact.unwrap_or_else(|| panic!("no such fact: {text:?}"))
}

fn millis(ms: &str) -> Nanos {
    Nanos::from_millis(parse(ms))
}

/// Reads `x` (also no word), `s`, or a number of permits.
fn mode(word: Option<&str>) -> Mode {
    match word {
        None | Some("x") => Mode::Exclusive,
        Some("s") => Mode::Shared,
        Some(permits) => Mode::Permits(parse(permits)),
    }
}

/// Returns the value whose name in Rust is `word`.
fn named<T: Debug + Copy>(values: &[T], word: &str) -> T {
    let found = values.iter().find(|value| format!("{value:?}").eq_ignore_ascii_case(word));
    *found.unwrap_or_else(|| panic!("{word:?} is none of {values:?}"))
}

fn code(word: &str) -> ErrorCode {
    let codes: Vec<ErrorCode> = (-200..0).filter_map(ErrorCode::from_code).collect();
    named(&codes, word)
}

/// Reads numbers with a character between them.
fn numbers<T: std::str::FromStr>(word: &str, between: char) -> Vec<T> {
    word.split(between).map(parse).collect()
}
