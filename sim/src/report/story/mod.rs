//! A run as lines to read from top to bottom: hosts, leaders, faults, and holders of locks. The story counts
//! messages and does not list them.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};

use super::Verdict;
use crate::report::ends;

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
    lines(record).into_iter().map(|event| event.line).collect()
}

/// Returns the story for a terminal: one line condenses each row of quiet lock steps, silences have a line,
/// and the verdict is the last line.
pub fn condensed(record: &[Happening], end: Nanos, verdict: &Verdict) -> Vec<Line> {
    let lines = folded(lines(record));
    let mut lines = with_silence(lines, record, end);
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

/// Longest row of lines about locks that stays unfolded.
const ROW_MAX: usize = 8;
/// Time before a broken promise in which all lines stay.
const BEFORE_VIOLATION: Duration = Duration::from_secs(2);
/// Shortest silence with a line of its own.
const SILENCE: Duration = Duration::from_secs(2);

fn folded(events: Vec<StoryLine>) -> Vec<Line> {
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
fn with_silence(lines: Vec<Line>, record: &[Happening], end: Nanos) -> Vec<Line> {
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

/// A line of the story, with data for `fold`.
struct StoryLine {
    line: Line,
    /// Lock step that `fold` may condense.
    lock: Option<LockMove>,
}

struct LockMove {
    lock: String,
    who: String,
    what: Move,
}

enum Move {
    Waits,
    Holds(i64),
    LetGo,
    GaveUp,
}

fn lines(record: &[Happening]) -> Vec<StoryLine> {
    let mut narrator = Narrator::default();
    for Happening { at, what } in record {
        narrator.take(*at, what);
    }
    narrator.flush_together();
    let mut lines = narrator.lines;
    for (at, text) in ends::unrecorded(record) {
        lines.push(plain(at, Tone::Healed, format!("Over: {text}")));
    }
    lines.sort_by_key(|line| line.line.at);
    lines
}

#[derive(Default)]
struct Narrator {
    names: BTreeMap<HostId, String>,
    /// Whether each host's process runs; without hosts that never ran.
    runs: BTreeMap<HostId, bool>,
    /// Hosts with the same change at the same time, named in one line.
    together: Option<Together>,
    lines: Vec<StoryLine>,
}

struct Together {
    at: Nanos,
    tone: Tone,
    who: Vec<String>,
    /// Plural and singular, like `are back` and `is back`.
    phrase: (&'static str, String),
}

impl Narrator {
    fn take(&mut self, at: Nanos, what: &What) {
        match what {
            What::Host { host, name, .. } => drop(self.names.insert(*host, name.clone())),
            What::Up { host } => match self.runs.insert(*host, true) {
                None => self.together(at, *host, Tone::Plain, ("begin", "begins".to_owned())),
                Some(_) => self.together(at, *host, Tone::Up, ("are back", "is back".to_owned())),
            },
            What::Down { host, how } => {
                self.runs.insert(*host, false);
                self.together(at, *host, Tone::Down, (how, format!("is gone: {how}")));
            }
            // The end of a process drops its guards; no belief remains.
            What::LetGo { host, .. } | What::GaveUp { host, .. } if self.runs.get(host) == Some(&false) => {}
            What::Sent { .. }
            | What::Arrived { .. }
            | What::Lost { .. }
            | What::Cut { .. }
            | What::Joined { .. } => {}
            what => {
                self.flush_together();
                let name = |host: &HostId| self.name(*host);
                let line = of_locks(at, what, name).or_else(|| of_hosts(at, what, name));
                self.lines.extend(line);
            }
        }
    }

    fn name(&self, host: HostId) -> String {
        self.names.get(&host).cloned().unwrap_or_else(|| host.to_string())
    }

    fn together(&mut self, at: Nanos, host: HostId, tone: Tone, phrase: (&'static str, String)) {
        let who = self.name(host);
        match &mut self.together {
            Some(group) if group.at == at && group.phrase == phrase => group.who.push(who),
            _ => {
                self.flush_together();
                self.together = Some(Together { at, tone, who: vec![who], phrase });
            }
        }
    }

    fn flush_together(&mut self) {
        let Some(Together { at, tone, who, phrase: (many, one) }) = self.together.take() else { return };
        let phrase = match (who.len(), tone) {
            (1, _) => one,
            (_, Tone::Down) => format!("are gone: {many}"),
            _ => many.to_owned(),
        };
        self.lines.push(plain(at, tone, format!("{} {phrase}.", listed(&who))));
    }
}

fn plain(at: Nanos, tone: Tone, text: String) -> StoryLine {
    StoryLine { line: Line { at, tone, text }, lock: None }
}

fn of_hosts(at: Nanos, what: &What, name: impl Fn(&HostId) -> String) -> Option<StoryLine> {
    let (tone, text) = match what {
        What::Paused { host } => (Tone::Down, format!("{} stands still.", name(host))),
        What::Resumed { host } => (Tone::Up, format!("{} goes on.", name(host))),
        What::Fault { text, .. } => (Tone::Fault, format!("Fault: {text}")),
        What::Healed { text, .. } => (Tone::Healed, format!("Over: {text}")),
        What::Leads { host, term } => (Tone::Leader, format!("{} leads (term {term}).", name(host))),
        What::Note { host: Some(host), text } => (Tone::Note, format!("{}: {text}", name(host))),
        What::Note { host: None, text } => (Tone::Note, text.clone()),
        What::Violation { text } => (Tone::Violation, format!("BROKEN: {text}")),
        _ => return None,
    };
    Some(plain(at, tone, text))
}

fn of_locks(at: Nanos, what: &What, name: impl Fn(&HostId) -> String) -> Option<StoryLine> {
    let (host, lock, what) = match what {
        What::Waits { host, lock } => (host, lock, Move::Waits),
        What::Holds { host, lock, token } => (host, lock, Move::Holds(*token)),
        What::LetGo { host, lock, .. } => (host, lock, Move::LetGo),
        What::GaveUp { host, lock } => (host, lock, Move::GaveUp),
        _ => return None,
    };
    let who = name(host);
    let text = match what {
        Move::Waits => format!("{who} waits for {lock}."),
        Move::Holds(token) => format!("{who} holds {lock}{}.", with_token(token)),
        Move::LetGo => format!("{who} no longer holds {lock}."),
        Move::GaveUp => format!("{who} no longer waits for {lock}."),
    };
    let lock = LockMove { lock: lock.clone(), who, what };
    Some(StoryLine { line: Line { at, tone: Tone::Lock, text }, lock: Some(lock) })
}

/// Returns ` with token N`, or nothing for the negative tokens of designs without tokens.
fn with_token(token: i64) -> String {
    if token < 0 { String::new() } else { format!(" with token {token}") }
}

/// Joins names as `a, b and c`.
fn listed(names: &[String]) -> String {
    match names {
        [] => "nobody".to_owned(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}
