//! A run as lines to read from top to bottom: which hosts there were, who led, what was broken, who held
//! which lock. Messages are counted and not listed.

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
    /// When; a line that sums up a spell has its beginning.
    pub at: Nanos,
    pub tone: Tone,
    pub text: String,
}

/// What a line is about, so that a terminal or a page can give it a color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tone {
    /// Something began or ended.
    Plain,
    /// Something was broken on purpose.
    Fault,
    Healed,
    /// A process ended or stands still.
    Down,
    Up,
    Leader,
    /// A client waits for, holds or releases a lock.
    Lock,
    Note,
    /// Nothing worth a line happened.
    Quiet,
    /// A promise was broken.
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

/// The story with a line for each thing.
pub fn in_full(record: &[Happening]) -> Vec<Line> {
    tell::lines(record).into_iter().map(|told| told.line).collect()
}

/// The story for a terminal: where locks pass quietly from hand to hand, one line sums that up; silence is
/// named; the verdict is the last line.
pub fn told(record: &[Happening], end: Nanos, verdict: &Verdict) -> Vec<Line> {
    let lines = fold::folded(tell::lines(record));
    let mut lines = fold::with_silence(lines, record, end);
    let text = match verdict {
        Verdict::Held => "every promise held".to_owned(),
        Verdict::Broken(promise) => format!("BROKEN: {promise}"),
    };
    lines.push(Line { at: end, tone: Tone::Verdict, text });
    lines
}

/// Seconds with milliseconds: finer than a person follows, coarse enough to read.
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
