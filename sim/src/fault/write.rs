//! Writer of a script's text form, for the parser in `read`.

use std::fmt;
use std::time::Duration;

use super::script::{CrashPoint, Down, Fault, Script, Step, Target};
use super::span::show;

/// Line that marks a script as over budget.
pub(super) const OVER_BUDGET: &str = "over-budget";

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
        let name = self.kind().name();
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
            Fault::DiskFull { target, leaves_kib, lasts } => {
                write!(f, "{name} {target} but {leaves_kib}KiB for {}", show(*lasts))
            }
            Fault::ClockRate { target, ppm, lasts } => {
                write!(f, "{name} {target} {ppm:+}ppm for {}", show(*lasts))
            }
            Fault::ClockJump { target, by_ms } => write!(f, "{name} {target} {by_ms:+}ms"),
            Fault::Flood { target, torrent, connections, lasts } => {
                write!(f, "{name} {target} by {} x{connections} for {}", torrent.word(), show(*lasts))
            }
            Fault::SlowDisk { target, times, lasts } | Fault::SlowProcessor { target, times, lasts } => {
                write!(f, "{name} {target} x{times} for {}", show(*lasts))
            }
            Fault::NewChoices { seed } => write!(f, "{name} {seed}"),
            Fault::BitRot { target, bits } => write!(f, "{name} {target} {bits}bits"),
            Fault::LoseDisk { target } | Fault::Remove { target } | Fault::Transfer { to: target } => {
                write!(f, "{name} {target}")
            }
            Fault::Regain { late: target, after, lasts }
            | Fault::RestoreBackup { from: target, after, lasts } => {
                write!(f, "{name} {target} after {} for {}", show(*after), show(*lasts))
            }
            Fault::Replace { target, node } => write!(f, "{name} {target} by {}", Target::Node(*node)),
            Fault::AddLearner { node } | Fault::AddVoter { node } => {
                write!(f, "{name} {}", Target::Node(*node))
            }
            Fault::DieWaiting { client, down } | Fault::ReturnFromMain { client, down } => {
                write!(f, "{name} {} {down}", Target::Client(*client))
            }
            Fault::Disconnect { client } | Fault::EndRuntime { client } => {
                write!(f, "{name} {}", Target::Client(*client))
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
