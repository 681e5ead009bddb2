//! One line for each happening that deserves one.

use std::collections::BTreeMap;

use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};

use super::{Line, Tone};
use crate::report::ends;

/// A line, and what `fold` must know of it.
pub(super) struct Told {
    pub(super) line: Line,
    /// Set if the line may be summed up.
    pub(super) lock: Option<LockMove>,
}

/// A step in the life of a lock.
pub(super) struct LockMove {
    pub(super) lock: String,
    pub(super) who: String,
    pub(super) what: Move,
}

/// Which step.
pub(super) enum Move {
    Waits,
    Holds(i64),
    LetGo,
    GaveUp,
}

pub(super) fn lines(record: &[Happening]) -> Vec<Told> {
    let mut names: BTreeMap<HostId, String> = BTreeMap::new();
    let mut seen_up: BTreeMap<HostId, bool> = BTreeMap::new();
    let mut told = Vec::new();
    let mut cast: Vec<String> = Vec::new();
    let mut cast_at = Nanos::default();
    for Happening { at, what } in record {
        if let What::Host { host, name, .. } = what {
            names.insert(*host, name.clone());
            continue;
        }
        // Whoever begins together is named together.
        if !cast.is_empty() && *at > cast_at {
            told.push(begins(cast_at, &std::mem::take(&mut cast)));
        }
        let name = |host: &HostId| names.get(host).cloned().unwrap_or_else(|| host.to_string());
        let again = |host: &HostId| seen_up.get(host).copied().unwrap_or(false);
        if let Some(line) = of_locks(*at, what, name).or_else(|| of_hosts(*at, what, name, again)) {
            told.push(line);
        }
        if let What::Up { host } = what {
            if seen_up.insert(*host, true).is_none() {
                cast_at = *at;
                cast.push(names.get(host).cloned().unwrap_or_else(|| host.to_string()));
            }
        }
    }
    if !cast.is_empty() {
        told.push(begins(cast_at, &cast));
    }
    for (at, text) in ends::untold(record) {
        told.push(plain(at, Tone::Healed, format!("Over: {text}")));
    }
    told.sort_by_key(|told| told.line.at);
    told
}

fn begins(at: Nanos, who: &[String]) -> Told {
    let verb = if who.len() == 1 { "begins" } else { "begin" };
    plain(at, Tone::Plain, format!("{} {verb}.", listed(who)))
}

fn plain(at: Nanos, tone: Tone, text: String) -> Told {
    Told { line: Line { at, tone, text }, lock: None }
}

fn of_hosts(
    at: Nanos,
    what: &What,
    name: impl Fn(&HostId) -> String,
    again: impl Fn(&HostId) -> bool,
) -> Option<Told> {
    let (tone, text) = match what {
        // That everybody starts is said by the list of who there is.
        What::Up { host } if again(host) => (Tone::Up, format!("{} is back.", name(host))),
        What::Down { host, how } => (Tone::Down, format!("{} is gone: {how}.", name(host))),
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

fn of_locks(at: Nanos, what: &What, name: impl Fn(&HostId) -> String) -> Option<Told> {
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
        Move::Holds(token) => format!("{who} holds {lock} with token {token}."),
        Move::LetGo => format!("{who} no longer holds {lock}."),
        Move::GaveUp => format!("{who} no longer waits for {lock}."),
    };
    let lock = LockMove { lock: lock.clone(), who, what };
    Some(Told { line: Line { at, tone: Tone::Lock, text }, lock: Some(lock) })
}

/// `a, b and c`
pub(super) fn listed(names: &[String]) -> String {
    match names {
        [] => "nobody".to_owned(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}
