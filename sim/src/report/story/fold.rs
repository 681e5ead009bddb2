//! Shortens a story: many quiet steps of locks become one line per lock, and silence becomes one line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_world::time::Nanos;
use rowlock_world::trace::{Happening, What};

use super::tell::{LockMove, Move, StoryLine, listed, with_token};
use super::{Line, Tone, thousands};

/// Longest row of lines about locks that stays unfolded.
const ROW_MAX: usize = 8;
/// Time before a broken promise in which all lines stay.
const BEFORE_VIOLATION: Duration = Duration::from_secs(2);
/// Shortest silence with a line of its own.
const SILENCE: Duration = Duration::from_secs(2);

pub(super) fn folded(events: Vec<StoryLine>) -> Vec<Line> {
    let violations: Vec<Nanos> =
        events.iter().filter(|event| event.line.tone == Tone::Violation).map(|event| event.line.at).collect();
    let is_in_full = |at: Nanos| {
        violations.iter().any(|violation| at <= *violation && at + BEFORE_VIOLATION >= *violation)
    };
    let mut lines = Vec::new();
    let mut row: Vec<(Line, LockMove)> = Vec::new();
    for StoryLine { line, lock } in events {
        match lock {
            Some(step) if !is_in_full(line.at) => row.push((line, step)),
            _ => {
                flush(&mut row, &mut lines);
                lines.push(line);
            }
        }
    }
    flush(&mut row, &mut lines);
    lines
}

fn flush(row: &mut Vec<(Line, LockMove)>, lines: &mut Vec<Line>) {
    let row = std::mem::take(row);
    if row.len() <= ROW_MAX {
        lines.extend(row.into_iter().map(|(line, _)| line));
        return;
    }
    let mut by_lock: BTreeMap<&str, Vec<&(Line, LockMove)>> = BTreeMap::new();
    for step in &row {
        by_lock.entry(&step.1.lock).or_default().push(step);
    }
    let mut sums: Vec<Line> = by_lock.into_iter().map(|(lock, steps)| sum(lock, &steps)).collect();
    sums.sort_by_key(|line| line.at);
    lines.extend(sums);
}

/// Returns a line like `orders: granted 14 times, tokens 17 to 31, to client1 and client2; then client1 holds
/// it with token 31, ...`.
fn sum(lock: &str, steps: &[&(Line, LockMove)]) -> Line {
    let mut tokens: Vec<i64> = Vec::new();
    let mut holders: BTreeSet<&String> = BTreeSet::new();
    let mut waiting: BTreeSet<&String> = BTreeSet::new();
    let mut holding: BTreeMap<&String, i64> = BTreeMap::new();
    let mut gave_up = 0usize;
    for (_, LockMove { who, what, .. }) in steps {
        waiting.remove(who);
        match what {
            Move::Waits => drop(waiting.insert(who)),
            Move::Holds(token) => {
                tokens.push(*token);
                holders.insert(who);
                holding.insert(who, *token);
            }
            Move::LetGo => drop(holding.remove(who)),
            Move::GaveUp => gave_up += 1,
        }
    }
    let names = |all: &BTreeSet<&String>| listed(&all.iter().map(|name| (*name).clone()).collect::<Vec<_>>());
    let mut text = match (tokens.iter().min(), tokens.iter().max()) {
        // A design without tokens.
        (Some(least), _) if *least < 0 => {
            format!("{lock}: granted {}, to {}", times(tokens.len()), names(&holders))
        }
        (Some(least), Some(most)) if tokens.len() > 1 => {
            format!(
                "{lock}: granted {} times, tokens {least} to {most}, to {}",
                tokens.len(),
                names(&holders)
            )
        }
        (Some(token), _) => format!("{lock}: granted to {} with token {token}", names(&holders)),
        _ => format!("{lock}: granted to nobody"),
    };
    if gave_up > 0 {
        text.push_str(&format!(", given up {}", times(gave_up)));
    }
    let mut after: Vec<String> =
        holding.iter().map(|(who, token)| format!("{who} holds it{}", with_token(*token))).collect();
    if !waiting.is_empty() {
        after.push(format!("{} {}", names(&waiting), if waiting.len() == 1 { "waits" } else { "wait" }));
    }
    if !after.is_empty() {
        text.push_str(&format!("; then {}", listed(&after)));
    }
    text.push('.');
    Line { at: steps[0].0.at, tone: Tone::Lock, text }
}

fn times(n: usize) -> String {
    if n == 1 { "once".to_owned() } else { format!("{n} times") }
}

/// Adds a line with the number of messages wherever nothing else happens.
pub(super) fn with_silence(lines: Vec<Line>, record: &[Happening], end: Nanos) -> Vec<Line> {
    // Silence is where the trace has no event for the story; folded lines have had events.
    let mut times: Vec<Nanos> =
        record.iter().filter(|happening| has_line(&happening.what)).map(|h| h.at).collect();
    times.extend([Nanos(0), end]);
    times.sort_unstable();
    let mut silences = Vec::new();
    for pair in times.windows(2).filter(|pair| pair[1] - pair[0] >= SILENCE) {
        let within = |happening: &&Happening| happening.at >= pair[0] && happening.at < pair[1];
        let spell = record.iter().filter(within);
        let (mut sent, mut lost) = (0usize, 0usize);
        for happening in spell {
            sent += usize::from(matches!(happening.what, What::Sent { .. }));
            lost += usize::from(matches!(happening.what, What::Lost { .. }));
        }
        let seconds = (pair[1] - pair[0]).as_millis() as f64 / 1_000.0;
        let mut text = format!("… {seconds:.1} s in which nothing changes; {} messages", thousands(sent));
        if lost > 0 {
            text.push_str(&format!(", {} lost", thousands(lost)));
        }
        silences.push(Line { at: pair[0], tone: Tone::Quiet, text });
    }
    let mut all = lines;
    all.extend(silences);
    // Stable: a silence follows the events at its beginning.
    all.sort_by_key(|line| line.at);
    all
}

fn has_line(what: &What) -> bool {
    !matches!(
        what,
        What::Sent { .. } | What::Arrived { .. } | What::Lost { .. } | What::Cut { .. } | What::Joined { .. }
    )
}
