//! A run as lines to read from top to bottom: hosts, leaders, faults, and holders of locks. The story counts
//! messages and does not list them.

mod fold;
mod tell;
#[cfg(test)]
mod tests;

use std::fmt;

use rowlock_world::time::Nanos;
use rowlock_world::trace::Happening;

use super::Verdict;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Time of the event; a condensed line has the time of its first event.
    pub at: Nanos,
    pub tone: Tone,
    pub text: String,
}

/// Kind of a line; terminals and pages choose a color by the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tone {
    Plain,
    /// An injected fault begins.
    Fault,
    Healed,
    /// A process has ended or is paused.
    Down,
    Up,
    Leader,
    /// A client waits for, holds or releases a lock.
    Lock,
    Note,
    /// A period without events for the story.
    Quiet,
    Violation,
    Verdict,
}

impl Tone {
    pub fn name(self) -> &'static str {
        match self {
            Tone::Plain => "plain",
            Tone::Fault => "fault",
            Tone::Healed => "healed",
            Tone::Down => "down",
            Tone::Up => "up",
            Tone::Leader => "leader",
            Tone::Lock => "lock",
            Tone::Note => "note",
            Tone::Quiet => "quiet",
            Tone::Violation => "violation",
            Tone::Verdict => "verdict",
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9} s  {}", seconds(self.at), self.text)
    }
}

/// Returns the story with a line for each event.
pub fn in_full(record: &[Happening]) -> Vec<Line> {
    tell::lines(record).into_iter().map(|event| event.line).collect()
}

/// Returns the story for a terminal: one line condenses each row of quiet lock steps, silences have a line,
/// and the verdict is the last line.
pub fn condensed(record: &[Happening], end: Nanos, verdict: &Verdict) -> Vec<Line> {
    let lines = fold::folded(tell::lines(record));
    let mut lines = fold::with_silence(lines, record, end);
    let text = match verdict {
        Verdict::Held => "every promise held".to_owned(),
        Verdict::Broken(promise) => format!("BROKEN: {promise}"),
    };
    lines.push(Line { at: end, tone: Tone::Verdict, text });
    lines
}

/// Formats a time in seconds with milliseconds.
pub(super) fn seconds(at: Nanos) -> String {
    format!("{}.{:03}", at.0 / 1_000_000_000, at.0 / 1_000_000 % 1_000)
}

pub(super) fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
