//! Text form of a script: one fault per line, `#` begins a comment, empty lines mean nothing. Every error of
//! the parser names the expected word.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rowlock_world::time::Nanos;

use super::kind::Kind;
use super::script::{CrashPoint, Down, Fault, Moment, Script, Step, Target};
use super::span::{self, show};
use super::torrent::Torrent;

/// Rest of a line.
struct Words<'a> {
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        Words { rest: line.split_whitespace().peekable() }
    }

    /// Returns the next word. The error names `what` as the expected word.
    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.rest.next().ok_or_else(|| format!("the line ends where {what} should stand"))
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        let found = self.next(&format!("`{word}`"))?;
        if found == word { Ok(()) } else { Err(format!("`{found}` stands where `{word}` should")) }
    }

    /// Consumes the next word if it equals `word`, and reports whether it did.
    fn take(&mut self, word: &str) -> bool {
        self.rest.next_if_eq(&word).is_some()
    }

    fn target(&mut self) -> Result<Target, String> {
        let word = self.next("a target")?;
        target(word).ok_or_else(|| {
            format!("`{word}` is no target; write node1, leader, follower1, client1, nodes or clients")
        })
    }

    /// Reads one or more targets, up to the first other word.
    fn targets(&mut self) -> Result<Vec<Target>, String> {
        let mut targets = vec![self.target()?];
        while let Some(more) = self.rest.peek().copied().and_then(target) {
            self.rest.next();
            targets.push(more);
        }
        Ok(targets)
    }

    /// Reads `A B -> C D`.
    fn way(&mut self) -> Result<(Vec<Target>, Vec<Target>), String> {
        let from = self.targets()?;
        self.expect("->")?;
        Ok((from, self.targets()?))
    }

    fn node(&mut self) -> Result<usize, String> {
        match self.target()? {
            Target::Node(n) => Ok(n),
            other => Err(format!("`{other}` stands where a node's number should, like node4")),
        }
    }

    fn client(&mut self) -> Result<usize, String> {
        match self.target()? {
            Target::Client(n) => Ok(n),
            other => Err(format!("`{other}` stands where a client's number should, like client1")),
        }
    }

    fn after(&mut self) -> Result<Duration, String> {
        self.expect("after")?;
        span::read(self.next("a length of time")?)
    }

    fn lasts(&mut self) -> Result<Duration, String> {
        self.expect("for")?;
        span::read(self.next("a length of time")?)
    }

    /// Reads `for 4s` or `for good`.
    fn down(&mut self) -> Result<Down, String> {
        self.expect("for")?;
        match self.next("a length of time or `good`")? {
            "good" => Ok(Down::ForGood),
            span => Ok(Down::For(span::read(span)?)),
        }
    }

    fn range(&mut self) -> Result<(Duration, Duration), String> {
        let word = self.next("a range of times")?;
        let (least, most) = word
            .split_once("..")
            .ok_or_else(|| format!("`{word}` is no range of times; write for example 100ms..400ms"))?;
        let (least, most) = (span::read(least)?, span::read(most)?);
        if least > most {
            return Err(format!("`{word}` ends before it begins; write the shorter time first"));
        }
        Ok((least, most))
    }

    /// Reads a number between a prefix and a suffix, like `x20`, `30%`, `+50000ppm`.
    fn number<N: std::str::FromStr>(
        &mut self,
        prefix: &str,
        suffix: &str,
        example: &str,
    ) -> Result<N, String> {
        let word = self.next(&format!("a number like {example}"))?;
        word.strip_prefix(prefix)
            .and_then(|word| word.strip_suffix(suffix))
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| format!("`{word}` stands where a number like {example} should"))
    }

    fn end(mut self) -> Result<(), String> {
        match self.rest.next() {
            None => Ok(()),
            Some(more) => Err(format!("`{more}` is too much; remove it and what follows")),
        }
    }
}

fn target(word: &str) -> Option<Target> {
    match word {
        "leader" => return Some(Target::Leader),
        "nodes" => return Some(Target::AllNodes),
        "clients" => return Some(Target::AllClients),
        _ => {}
    }
    let split = word.find(|c: char| c.is_ascii_digit())?;
    let number = word[split..].parse().ok().filter(|n| *n > 0)?;
    match &word[..split] {
        "node" => Some(Target::Node(number)),
        "follower" => Some(Target::Follower(number)),
        "client" => Some(Target::Client(number)),
        _ => None,
    }
}

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
        Kind::Regain | Kind::RestoreBackup => after(kind, w)?,
        Kind::Depose => depose(w)?,
        Kind::FallBehind => Fault::FallBehind { target: w.target()?, lasts: w.lasts()? },
        Kind::Recover => Fault::Recover { target: w.target()?, lasts: w.lasts()? },
        Kind::DieWaiting => Fault::DieWaiting { client: w.client()?, down: w.down()? },
        Kind::Disconnect => Fault::Disconnect { client: w.client()? },
        Kind::EndRuntime => Fault::EndRuntime { client: w.client()? },
        Kind::ReturnFromMain => Fault::ReturnFromMain { client: w.client()?, down: w.down()? },
    };
    words.end()?;
    Ok(fault)
}

fn after(kind: Kind, w: &mut Words<'_>) -> Result<Fault, String> {
    let (target, after, lasts) = (w.target()?, w.after()?, w.lasts()?);
    Ok(match kind {
        Kind::Regain => Fault::Regain { late: target, after, lasts },
        _ => Fault::RestoreBackup { from: target, after, lasts },
    })
}

fn depose(w: &mut Words<'_>) -> Result<Fault, String> {
    w.expect("by")?;
    let kills = w.take("kill");
    if !kills {
        w.expect("cut")?;
    }
    Ok(Fault::Depose { kills, copies: w.number("x", "", "x2")?, lasts: w.lasts()? })
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

/// Line that marks a script as over budget.
const OVER_BUDGET: &str = "over-budget";

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Node(n) => write!(f, "node{n}"),
            Target::Leader => f.write_str("leader"),
            Target::Follower(n) => write!(f, "follower{n}"),
            Target::Client(n) => write!(f, "client{n}"),
            Target::AllNodes => f.write_str("nodes"),
            Target::AllClients => f.write_str("clients"),
        }
    }
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Down::For(lasts) => write!(f, "for {}", show(*lasts)),
            Down::ForGood => f.write_str("for good"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, span) = (self.kind().name(), show(self.lasts().unwrap_or_default()));
        match self {
            Fault::Partition { groups, lasts } => {
                let groups: Vec<String> = groups.iter().map(|group| list(group)).collect();
                write!(f, "{name} {} for {}", groups.join(" | "), show(*lasts))
            }
            Fault::OneWay { from, to, lasts } | Fault::Distrust { from, to, lasts } => {
                write!(f, "{name} {} for {}", way(from, to), show(*lasts))
            }
            Fault::Bridge { left, middle, right, lasts } => {
                write!(f, "{name} {} | {middle} | {} for {}", list(left), list(right), show(*lasts))
            }
            Fault::Clog { from, to, least, most, lasts } => {
                let (least, most) = (show(*least), show(*most));
                write!(f, "{name} {} by {least}..{most} for {}", way(from, to), show(*lasts))
            }
            Fault::Lose { from, to, percent, lasts } => {
                write!(f, "{name} {} {percent}% for {}", way(from, to), show(*lasts))
            }
            Fault::Reset { from, to } => write!(f, "{name} {}", way(from, to)),
            Fault::PowerLoss { target, point: CrashPoint::At(moment, n), down } => {
                write!(f, "{name} {target} {} {n} {down}", moment.word())
            }
            Fault::Kill { target, down }
            | Fault::PowerLoss { target, point: CrashPoint::AtOnce, down }
            | Fault::SyncFailure { target, down } => write!(f, "{name} {target} {down}"),
            Fault::Isolate { target, lasts }
            | Fault::Pause { target, lasts }
            | Fault::DiskFull { target, leaves_kib: 0, lasts }
            | Fault::Wipe { target, lasts }
            | Fault::Readdress { target, lasts }
            | Fault::RotTail { target, lasts }
            | Fault::Restore { target, lasts }
            | Fault::Recover { target, lasts }
            | Fault::FallBehind { target, lasts } => write!(f, "{name} {target} for {}", show(*lasts)),
            Fault::Depose { kills, copies, lasts } => {
                let by = if *kills { "kill" } else { "cut" };
                write!(f, "{name} by {by} x{copies} for {}", show(*lasts))
            }
            Fault::DiskFull { target, leaves_kib, .. } => {
                write!(f, "{name} {target} but {leaves_kib}KiB for {span}")
            }
            Fault::ClockRate { target, ppm, .. } => write!(f, "{name} {target} {ppm:+}ppm for {span}"),
            Fault::ClockJump { target, by_ms } => write!(f, "{name} {target} {by_ms:+}ms"),
            Fault::Flood { target, torrent, connections, lasts } => {
                write!(f, "{name} {target} by {} x{connections} for {}", torrent.word(), show(*lasts))
            }
            Fault::SlowDisk { target, times, lasts } | Fault::SlowProcessor { target, times, lasts } => {
                write!(f, "{name} {target} x{times} for {}", show(*lasts))
            }
            Fault::NewChoices { seed } => write!(f, "{name} {seed}"),
            Fault::BitRot { target, bits } => write!(f, "{name} {target} {bits}bits"),
            Fault::LoseDisk { .. }
            | Fault::Remove { .. }
            | Fault::Transfer { .. }
            | Fault::AddLearner { .. }
            | Fault::AddVoter { .. }
            | Fault::Disconnect { .. }
            | Fault::EndRuntime { .. } => write!(f, "{name} {}", self.targets()[0]),
            Fault::Regain { late: target, after, lasts }
            | Fault::RestoreBackup { from: target, after, lasts } => {
                write!(f, "{name} {target} after {} for {}", show(*after), show(*lasts))
            }
            Fault::Replace { target, node } => write!(f, "{name} {target} by {}", Target::Node(*node)),
            Fault::DieWaiting { client, down } | Fault::ReturnFromMain { client, down } => {
                write!(f, "{name} {} {down}", Target::Client(*client))
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", show(Duration::from_nanos(self.at.0)), self.fault)
    }
}

impl fmt::Display for Script {
    /// Writes one line per fault.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_over_budget() {
            writeln!(f, "{OVER_BUDGET}")?;
        }
        self.steps().iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

fn list(targets: &[Target]) -> String {
    targets.iter().map(Target::to_string).collect::<Vec<_>>().join(" ")
}

fn way(from: &[Target], to: &[Target]) -> String {
    format!("{} -> {}", list(from), list(to))
}
