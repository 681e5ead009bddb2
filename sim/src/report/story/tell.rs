//! Writes one line for each event that deserves a line.

use std::collections::BTreeMap;

use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};

use super::{Line, Tone};
use crate::report::ends;

/// A line of the story, with data for `fold`.
pub(super) struct StoryLine {
    pub(super) line: Line,
    /// Lock step that `fold` may condense.
    pub(super) lock: Option<LockMove>,
}

pub(super) struct LockMove {
    pub(super) lock: String,
    pub(super) who: String,
    pub(super) what: Move,
}

pub(super) enum Move {
    Waits,
    Holds(i64),
    LetGo,
    GaveUp,
}

pub(super) fn lines(record: &[Happening]) -> Vec<StoryLine> {
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
pub(super) fn with_token(token: i64) -> String {
    if token < 0 { String::new() } else { format!(" with token {token}") }
}

/// Joins names as `a, b and c`.
pub(super) fn listed(names: &[String]) -> String {
    match names {
        [] => "nobody".to_owned(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}
