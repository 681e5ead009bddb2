//! The table as text, Markdown, and one self-contained HTML file. All three show the same content.

mod html;
mod markdown;
mod text;

use std::time::Duration;

use crate::claims::{self, Judgment, Verdict};
use crate::scenario::Scenario;
use crate::table::{Cell, Row, Summary, Table};

/// Meaning of the letters in the overview.
pub const LEGEND: &str = "T two holders at once; L updates lost on a store that accepts every write (for designs with \
    fencing: on a store that checks tokens); F updates lost even on a store that checks tokens; S stuck for ever; \
    V a client starves; ok none of these; - the scenario means nothing to the design; ! a model came to a halt";

pub const EXPLANATION: &str = "Seen from outside, in true time. Two holders: stretches in which two processes that could \
    act both believed that they held the lock. Lost: accepted writes that are not in the number. Stuck: runs that ended \
    with half a minute without a grant though a client waited. Overtakes: grants that passed over a request which was \
    100 ms older or more (of clients that were not cut off or standing still). Messages: per release, those that the \
    lock costs, also pings of sessions and what goes to replicas, but not pings between servers; of Rowlock those between \
    clients and nodes that belong to locks (neither pings nor Raft's). Useless: requests and wake-ups without a grant. Recovery: from the fault to the next \
    grant, the longest. Unavailable: no client that could act held the lock though a client waited, in stretches of more \
    than a second, the longest sum of a run.";

impl Table {
    pub fn to_text(&self) -> String {
        text::write(self)
    }

    pub fn to_markdown(&self) -> String {
        markdown::write(self)
    }

    /// Returns one HTML file without external resources.
    pub fn to_html(&self) -> String {
        html::write(self)
    }
}

fn mark(row: &Row, cell: &Cell) -> String {
    let m = match cell {
        Cell::NotApplicable(_) => return "-".to_owned(),
        Cell::Halted { .. } => return "!".to_owned(),
        Cell::Measured(m) => m,
    };
    let letters = [
        (m.windows > 0, 'T'),
        (row.lost(m) > 0, 'L'),
        (m.lost_fenced > 0 && row.about.has_tokens && !row.about.is_fenced, 'F'),
        (m.stuck > 0, 'S'),
        (m.starved > 0, 'V'),
    ];
    let found: String = letters.iter().filter(|(is_so, _)| *is_so).map(|(_, letter)| *letter).collect();
    if found.is_empty() { "ok".to_owned() } else { found }
}

/// Columns of a scenario's table.
const COLUMNS: [&str; 13] = [
    "two holders",
    "for ms",
    "lost",
    "lost, fenced",
    "stuck",
    "starved",
    "overtakes",
    "wait p50",
    "wait p99",
    "messages",
    "useless",
    "recovery",
    "unavailable",
];

fn figures(m: &Summary) -> [String; 13] {
    [
        m.windows.to_string(),
        m.overlap.as_millis().to_string(),
        m.lost_plain.to_string(),
        m.lost_fenced.to_string(),
        format!("{}/{}", m.stuck, m.runs),
        m.starved.to_string(),
        format!("{}/{}", m.overtakes, m.grants),
        duration(m.wait_p50),
        duration(m.wait_p99),
        format!("{:.1}", m.messages_per_release()),
        format!("{:.1}", m.wasted_per_release()),
        m.recovery.map_or("-".to_owned(), duration),
        if m.unavailable.is_zero() { "0".to_owned() } else { duration(m.unavailable) },
    ]
}

/// Writes a duration with about three digits.
fn duration(time: Duration) -> String {
    match time.as_millis() {
        ms @ 0..1_000 => format!("{ms} ms"),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// Returns the command that repeats the first run with a failure.
fn command(row: &Row, scenario: Scenario, m: &Summary) -> String {
    let Some(seed) = row.first_bad_seed(m) else { return String::new() };
    claims::Shown { design: row.about.id, scenario, seed }.command()
}

/// Returns the text of a cell without figures.
fn reason(cell: &Cell) -> Option<String> {
    match cell {
        Cell::NotApplicable(why) => Some(format!("n/a: {why}")),
        Cell::Halted { seed, why } => Some(format!("halted with seed {seed}: {why}")),
        Cell::Measured(_) => None,
    }
}

/// Returns the verdicts on the claims that a row cites: `S1-4 confirmed`.
fn verdicts(row: &Row, judgments: &[Judgment]) -> String {
    let on = |id: &&str| {
        let cites = |j: &&Judgment| j.id.split([',', ' ', '(', ')']).any(|part| part == *id);
        judgments.iter().filter(cites).map(|j| format!("{id} {}", j.verdict.word())).next()
    };
    let said: Vec<String> = row.about.claims.iter().filter_map(on).collect();
    said.join(", ")
}

/// Returns the claims of the notes that the runs contradict, wholly or in part, and the confirmed
/// corrections.
fn corrections(judgments: &[Judgment]) -> Vec<&Judgment> {
    let is_correction = |j: &&Judgment| j.id.starts_with('E') || j.verdict != Verdict::Confirmed;
    judgments.iter().filter(is_correction).collect()
}

fn preface(table: &Table) -> String {
    format!(
        "{} designs, {} scenarios, seeds 1 to {} each. The time to live of every lock and the timeout of every session \
         is {} s.",
        table.rows.len(),
        table.scenarios.len(),
        table.seeds,
        crate::TTL.as_secs()
    )
}
