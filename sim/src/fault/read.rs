//! Parser of a script: one fault per line, `#` begins a comment, empty lines mean nothing.

use std::str::FromStr;

use rowlock_world::time::Nanos;

use super::kind::Kind;
use super::script::{CrashPoint, Fault, Moment, Script, Step};
use super::span;
use super::torrent::Torrent;
use super::words::Words;
use super::write::OVER_BUDGET;

/// Bound on a clock's deviation (a tenth): a larger deviation is a mistake in the script.
const PPM_MAX: i64 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    pub line: usize,
    /// Description of the mistake, and the right form.
    pub message: String,
}

impl std::fmt::Display for ScriptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ScriptError {}

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        let mut steps = Vec::new();
        let mut over_budget = false;
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            match line {
                "" => {}
                OVER_BUDGET => over_budget = true,
                line => steps.push(line.parse().map_err(|message| ScriptError { line: index + 1, message })?),
            }
        }
        Ok(Script::new(steps).with_over_budget(over_budget))
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = Words::of(line);
        let at = span::read(words.next("when it begins, like 4s,")?)?;
        let at = Nanos(u64::try_from(at.as_nanos()).map_err(|_| "that is too late".to_owned())?);
        let name = words.next("a fault")?;
        let kind = Kind::named(name).ok_or_else(|| {
            let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            format!("`{name}` is no fault; there are {}", names.join(", "))
        })?;
        let fault = fault(kind, words).map_err(|e| format!("{e}; for example: {}", kind.example()))?;
        Ok(Step { at, fault })
    }
}

fn disk_full(w: &mut Words<'_>) -> Result<Fault, String> {
    let target = w.target()?;
    let leaves_kib = if w.take("but") { w.number("", "KiB", "64KiB")? } else { 0 };
    Ok(Fault::DiskFull { target, leaves_kib, lasts: w.lasts()? })
}

fn slow(kind: Kind, w: &mut Words<'_>) -> Result<Fault, String> {
    let (target, times, lasts) = (w.target()?, w.number("x", "", "x20")?, w.lasts()?);
    Ok(match kind {
        Kind::SlowProcessor => Fault::SlowProcessor { target, times, lasts },
        _ => Fault::SlowDisk { target, times, lasts },
    })
}

fn flood(w: &mut Words<'_>) -> Result<Fault, String> {
    let target = w.target()?;
    w.expect("by")?;
    let word = w.next("what it is made of")?;
    let torrent = Torrent::named(word).ok_or_else(|| {
        let words = Torrent::ALL.map(Torrent::word);
        format!("`{word}` makes no flood; there are {}", words.join(", "))
    })?;
    Ok(Fault::Flood { target, torrent, connections: w.number("x", "", "x60")?, lasts: w.lasts()? })
}

fn fault(kind: Kind, mut words: Words<'_>) -> Result<Fault, String> {
    let w = &mut words;
    let fault = match kind {
        Kind::Partition
        | Kind::OneWay
        | Kind::Bridge
        | Kind::Clog
        | Kind::Lose
        | Kind::Distrust
        | Kind::Reset => of_links(kind, w)?,
        Kind::Isolate => Fault::Isolate { target: w.target()?, lasts: w.lasts()? },
        Kind::Kill => Fault::Kill { target: w.target()?, down: w.down()? },
        Kind::PowerLoss => {
            let target = w.target()?;
            let point = match Moment::ALL.into_iter().find(|moment| w.take(moment.word())) {
                Some(moment) => CrashPoint::At(moment, w.number("", "", "17")?),
                None => CrashPoint::AtOnce,
            };
            Fault::PowerLoss { target, point, down: w.down()? }
        }
        Kind::Pause => Fault::Pause { target: w.target()?, lasts: w.lasts()? },
        Kind::ClockRate => {
            let (target, ppm) = (w.target()?, w.number("", "ppm", "+50000ppm")?);
            if !(-PPM_MAX..=PPM_MAX).contains(&ppm) {
                return Err(format!("{ppm} millionths are too many; at most {PPM_MAX} are allowed"));
            }
            Fault::ClockRate { target, ppm, lasts: w.lasts()? }
        }
        Kind::ClockJump => Fault::ClockJump { target: w.target()?, by_ms: w.number("", "ms", "-30000ms")? },
        Kind::SlowDisk | Kind::SlowProcessor => slow(kind, w)?,
        Kind::Flood => flood(w)?,
        Kind::NewChoices => Fault::NewChoices { seed: w.number("", "", "4711")? },
        Kind::SyncFailure => Fault::SyncFailure { target: w.target()?, down: w.down()? },
        Kind::DiskFull => disk_full(w)?,
        Kind::BitRot => Fault::BitRot { target: w.target()?, bits: w.number("", "bits", "3bits")? },
        Kind::LoseDisk => Fault::LoseDisk { target: w.target()? },
        Kind::Readdress => Fault::Readdress { target: w.target()?, lasts: w.lasts()? },
        Kind::Wipe => Fault::Wipe { target: w.target()?, lasts: w.lasts()? },
        Kind::RotTail => Fault::RotTail { target: w.target()?, lasts: w.lasts()? },
        Kind::Restore => Fault::Restore { target: w.target()?, lasts: w.lasts()? },
        Kind::AddLearner => Fault::AddLearner { node: w.node()? },
        Kind::AddVoter => Fault::AddVoter { node: w.node()? },
        Kind::Remove => Fault::Remove { target: w.target()? },
        Kind::Replace => {
            let target = w.target()?;
            w.expect("by")?;
            Fault::Replace { target, node: w.node()? }
        }
        Kind::Transfer => Fault::Transfer { to: w.target()? },
        Kind::Regain => {
            let late = w.target()?;
            let after = w.after()?;
            Fault::Regain { late, after, lasts: w.lasts()? }
        }
        Kind::FallBehind => Fault::FallBehind { target: w.target()?, lasts: w.lasts()? },
        Kind::RestoreBackup => {
            let from = w.target()?;
            let after = w.after()?;
            Fault::RestoreBackup { from, after, lasts: w.lasts()? }
        }
        Kind::Recover => Fault::Recover { target: w.target()?, lasts: w.lasts()? },
        Kind::DieWaiting => Fault::DieWaiting { client: w.client()?, down: w.down()? },
        Kind::Disconnect => Fault::Disconnect { client: w.client()? },
        Kind::EndRuntime => Fault::EndRuntime { client: w.client()? },
        Kind::ReturnFromMain => Fault::ReturnFromMain { client: w.client()?, down: w.down()? },
    };
    words.end()?;
    Ok(fault)
}

fn of_links(kind: Kind, w: &mut Words<'_>) -> Result<Fault, String> {
    if kind == Kind::Partition {
        let mut groups = vec![w.targets()?];
        while w.take("|") {
            groups.push(w.targets()?);
        }
        if groups.len() < 2 {
            return Err("there is one group only; put `|` between groups".to_owned());
        }
        return Ok(Fault::Partition { groups, lasts: w.lasts()? });
    }
    if kind == Kind::Bridge {
        let left = w.targets()?;
        w.expect("|")?;
        let middle = w.target()?;
        w.expect("|")?;
        return Ok(Fault::Bridge { left, middle, right: w.targets()?, lasts: w.lasts()? });
    }
    let (from, to) = w.way()?;
    Ok(match kind {
        Kind::OneWay => Fault::OneWay { from, to, lasts: w.lasts()? },
        Kind::Clog => {
            w.expect("by")?;
            let (least, most) = w.range()?;
            Fault::Clog { from, to, least, most, lasts: w.lasts()? }
        }
        Kind::Lose => {
            let percent = w.number("", "%", "30%")?;
            if percent > 100 {
                return Err(format!("{percent} of a hundred are too many"));
            }
            Fault::Lose { from, to, percent, lasts: w.lasts()? }
        }
        Kind::Distrust => Fault::Distrust { from, to, lasts: w.lasts()? },
        _ => Fault::Reset { from, to },
    })
}
