//! Output of an import: a progress line on stderr, tables and verdicts on stdout.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use rowlock_env::time::{self, Instant};
use serde_json::{Value, json};

use super::create::Amount;
use super::plan::{Issues, Plan};
use crate::print::{count, safe_lines};

/// Progress of one phase: an overwritten line at a terminal, else a line every few seconds.
pub struct Progress {
    verb: &'static str,
    total: Option<u64>,
    started: Instant,
    shown: Option<Instant>,
    last: Amount,
    is_terminal: bool,
}

impl Progress {
    /// Starts a phase; `verb` describes the work on `total` znodes, if known.
    pub fn new(verb: &'static str, total: Option<u64>) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Progress { verb, total, started: time::now(), shown: None, last: Amount::default(), is_terminal }
    }

    pub fn show(&mut self, amount: Amount) {
        self.last = amount;
        let pause = Duration::from_millis(if self.is_terminal { 100 } else { 5_000 });
        if self.shown.unwrap_or(self.started).elapsed() < pause {
            return;
        }
        self.shown = Some(time::now());
        let start = if self.is_terminal { "\r\x1b[K" } else { "" };
        let end = if self.is_terminal { "" } else { "\n" };
        // Ignores a vanished terminal.
        let _ = write!(std::io::stderr(), "{start}rowlock: {}{end}", self.line());
    }

    /// Ends the phase with a last line.
    pub fn done(self) {
        let start = if self.is_terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(std::io::stderr(), "{start}rowlock: {}", self.line());
    }

    fn line(&self) -> String {
        let Amount { znodes, bytes } = self.last;
        let znodes = match self.total {
            Some(total) => format!("{znodes} of {}", count(total, "znode")),
            None => count(znodes, "znode"),
        };
        let bytes = if bytes > 0 { format!(", {}", size(bytes)) } else { String::new() };
        let took = self.started.elapsed();
        let rate = self.last.znodes as f64 / took.as_secs_f64().max(0.001);
        format!("{} {znodes}{bytes} in {:.1} s, {rate:.0} per second", self.verb, took.as_secs_f64())
    }
}

pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// Describes the source and the plan; `is_full` adds the largest znodes.
pub fn plan_lines(plan: &Plan, floor: Option<i64>, is_full: bool) -> String {
    let mut out = format!(
        "to import:   {} with {} of data ({}, {} with a time to live)\n",
        count(plan.znodes, "znode"),
        size(plan.bytes),
        count(plan.containers, "container"),
        plan.ttl
    );
    if plan.existing > 0 {
        out += &format!("existing:    {} of them, equal to the source's\n", plan.existing);
    }
    let ephemerals = count(plan.ephemerals, "ephemeral znode");
    out += &format!("left out:    {ephemerals}, {} below /zookeeper\n", plan.system);
    out += &format!("versions:    {} kept, {} start at 0\n", plan.versions_kept, plan.versions_lost);
    out += &format!(
        "counters:    {} raised by {}, {} lower than in the source\n",
        plan.raised,
        count(plan.raise_steps, "create"),
        plan.lowered.count
    );
    out += &format!("ACLs:        {} different\n", plan.acls.len());
    out += &tokens_line(floor, plan);
    if plan.root_is_special {
        out +=
            "note:        data and ACL of the source's root are left out: the target's root exists already\n";
    }
    for (bytes, path) in plan.largest.iter().filter(|_| is_full) {
        out += &format!("largest:     {:>10}  {path}\n", size(*bytes as u64));
    }
    for (label, issues) in [
        ("lower:      ", &plan.lowered),
        ("conflict:   ", &plan.conflicts),
        ("impossible: ", &plan.obstacles),
    ] {
        out += &issue_lines(label, issues);
    }
    // The text contains paths from the source.
    safe_lines(&out)
}

/// Describes the effect on tokens. Tokens of this cluster follow its own count, and a resource that has seen
/// larger tokens of the source would refuse them.
fn tokens_line(floor: Option<i64>, plan: &Plan) -> String {
    match floor {
        Some(floor) => {
            format!("tokens:      larger than {floor} from now on, for each place that is taken\n")
        }
        None => format!(
            "tokens:      start again; resources that keep tokens of the source refuse smaller ones: use --token-floor \
             with the largest that one may have seen (the znodes show changes up to {})\n",
            plan.last_zxid
        ),
    }
}

fn issue_lines(label: &str, issues: &Issues) -> String {
    let mut out: String = issues.first.iter().map(|text| format!("{label} {text}\n")).collect();
    let more = issues.count - issues.first.len() as u64;
    if more > 0 {
        out += &format!("{label} and {more} more\n");
    }
    out
}

pub fn plan_json(plan: &Plan, floor: Option<i64>) -> Value {
    let issues = |issues: &Issues| json!({"count": issues.count, "first": issues.first});
    let largest: Vec<Value> =
        plan.largest.iter().map(|(bytes, path)| json!({"path": path, "bytes": bytes})).collect();
    json!({
        "znodes": plan.znodes,
        "bytes": plan.bytes,
        "existing": plan.existing,
        "containers": plan.containers,
        "ttl": plan.ttl,
        "ephemerals_left_out": plan.ephemerals,
        "system_left_out": plan.system,
        "versions_kept": plan.versions_kept,
        "versions_lost": plan.versions_lost,
        "counters_raised": plan.raised,
        "counter_steps": plan.raise_steps,
        "counters_lowered": issues(&plan.lowered),
        "acls": plan.acls.len(),
        "token_floor": floor.map(|floor| floor.to_string()),
        "last_zxid": plan.last_zxid.to_string(),
        "largest": largest,
        "conflicts": issues(&plan.conflicts),
        "impossible": issues(&plan.obstacles),
    })
}

pub fn verdict_line(plan: &Plan, read_back: &Plan) -> String {
    let mut out = format!(
        "imported and verified: {}, {}; data, ACLs and children are equal",
        count(read_back.znodes, "znode"),
        size(read_back.bytes)
    );
    for (number, kind) in [
        (plan.existing, "existed before this run"),
        (plan.containers, "containers"),
        (plan.ttl, "with a time to live"),
        (plan.ephemerals, "ephemeral znodes left out"),
        (plan.versions_lost, "data versions start at 0"),
        (plan.lowered.count, "next sequential numbers are lower than in the source"),
        (read_back.unreadable, "may not be read by this credential"),
        (read_back.ended, "containers or TTL znodes have ended already"),
    ] {
        if number > 0 {
            out += &format!("; {kind}: {number}");
        }
    }
    out + "\n"
}

pub fn verdict_json(plan: &Plan, read_back: &Plan, floor: Option<i64>) -> Value {
    json!({
        "plan": plan_json(plan, floor),
        "verified": {
            "znodes": read_back.znodes,
            "bytes": read_back.bytes,
            "unreadable": read_back.unreadable,
            "ended": read_back.ended,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_fits() {
        for (bytes, text) in [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2_000_000, "2.0 MB")] {
            assert_eq!(size(bytes), text);
        }
    }
}
