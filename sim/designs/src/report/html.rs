//! The table as one HTML file: no script, no external resources; light and dark.

use std::fmt::Write;

use super::{COLUMNS, EXPLANATION, LEGEND, command, corrections, figures, mark, preface, reason, verdicts};
use crate::claims::{self, Judgment, Verdict};
use crate::scenario::Scenario;
use crate::table::{Cell, Row, Table};

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --bad: #c0392b2e; --warn: #d4a01738; --good: #2e8b5726; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin-top: 2rem; }
p { max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .5rem; text-align: right; vertical-align: top; }
th { font-weight: 600; text-align: right; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
.overview th.turn { height: 8.5rem; white-space: nowrap; padding: 0; position: relative; min-width: 2.6rem; }
.overview th.turn span { position: absolute; bottom: .3rem; left: 60%; transform-origin: 0 100%; transform: rotate(-55deg); font-weight: 400; }
.overview td { text-align: center; font-variant-numeric: tabular-nums; }
.overview td:first-child, .overview td:last-child { text-align: left; }
.overview td:last-child { font-size: 12px; min-width: 16rem; }
.bad { background: var(--bad); } .warn { background: var(--warn); } .good { background: var(--good); } .none { color: #8889; }
.text td, .text th, .overview th:last-child { text-align: left; }
.figures td, .figures th { white-space: nowrap; }
.figures td.run { white-space: normal; min-width: 18rem; } code { font: 12px ui-monospace, monospace; }
td.reason { text-align: left; color: #888; }
tr:hover td { background-color: var(--soft); }
";

pub fn write(table: &Table) -> String {
    let judgments = claims::evaluate(table);
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.push_str(
        "<meta name=\"viewport\" content=\"width=device-width\"><title>Lock designs compared</title>",
    );
    let _ = writeln!(out, "<style>{STYLE}</style></head><body>\n<h1>Lock designs compared</h1>");
    let _ = writeln!(out, "<p>{}</p>", escape(&preface(table)));
    overview(table, &judgments, &mut out);
    let _ = writeln!(out, "<p>{}.</p>\n<h2>Claims</h2>", escape(LEGEND));
    claims_table(judgments.iter(), &mut out);
    let _ = writeln!(out, "<h2>Where the notes are wrong, or need a limit</h2>");
    claims_table(corrections(&judgments).into_iter(), &mut out);
    let _ = writeln!(out, "<h2>Figures</h2><p>{}</p>", escape(EXPLANATION));
    for scenario in &table.scenarios {
        one_scenario(table, *scenario, &mut out);
    }
    out.push_str("</body></html>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn class(row: &Row, cell: &Cell) -> &'static str {
    match cell {
        Cell::NotApplicable(_) => "none",
        Cell::Halted { .. } => "bad",
        Cell::Measured(m) if m.windows > 0 || m.stuck > 0 => "bad",
        Cell::Measured(m) if m.lost_fenced > 0 && row.about.has_tokens => "bad",
        Cell::Measured(m) if row.lost(m) > 0 || m.starved > 0 => "warn",
        Cell::Measured(_) => "good",
    }
}

fn overview(table: &Table, judgments: &[Judgment], out: &mut String) {
    out.push_str("<div class=\"wide\"><table class=\"overview\"><tr><th>design</th>");
    for scenario in &table.scenarios {
        let (story, id) = (escape(scenario.story()), scenario.id());
        let _ =
            write!(out, "<th class=\"turn\" title=\"{story}\"><span><a href=\"#{id}\">{id}</a></span></th>");
    }
    out.push_str("<th>claims</th></tr>\n");
    for row in &table.rows {
        let _ = write!(out, "<tr><td title=\"{}\">{}</td>", escape(row.about.source), escape(row.about.name));
        for (scenario, cell) in &row.cells {
            let title = match cell {
                Cell::Measured(m) => command(row, *scenario, m),
                _ => reason(cell).unwrap_or_default(),
            };
            let (class, mark) = (class(row, cell), mark(row, cell));
            let _ = write!(out, "<td class=\"{class}\" title=\"{}\">{mark}</td>", escape(&title));
        }
        let _ = writeln!(out, "<td>{}</td></tr>", escape(&verdicts(row, judgments)));
    }
    out.push_str("</table></div>\n");
}

fn claims_table<'a>(judgments: impl Iterator<Item = &'a Judgment>, out: &mut String) {
    out.push_str("<div class=\"wide\"><table class=\"text\"><tr><th></th><th>claim</th><th>verdict</th>");
    out.push_str("<th>evidence</th><th>run</th></tr>\n");
    for j in judgments {
        let class = match j.verdict {
            Verdict::Confirmed => "good",
            Verdict::Partly => "warn",
            Verdict::Refuted => "bad",
        };
        let run = j.shown.as_ref().map_or(String::new(), |shown| format!("<code>{}</code>", shown.command()));
        let (id, claim, evidence) = (escape(j.id), escape(j.claim), escape(&j.evidence));
        let _ = writeln!(
            out,
            "<tr><td>{id}</td><td>{claim}</td><td class=\"{class}\">{}</td><td>{evidence}</td><td class=\"run\">{run}</td></tr>",
            j.verdict.word()
        );
    }
    out.push_str("</table></div>\n");
}

fn one_scenario(table: &Table, scenario: Scenario, out: &mut String) {
    let (id, story) = (scenario.id(), escape(scenario.story()));
    let _ = writeln!(
        out,
        "<h3 id=\"{id}\">{id}: {story}</h3><div class=\"wide\"><table class=\"figures\"><tr><th>design</th>"
    );
    for column in COLUMNS {
        let _ = write!(out, "<th>{column}</th>");
    }
    out.push_str("<th>run</th></tr>\n");
    for row in &table.rows {
        let Some((_, cell)) = row.cells.iter().find(|(s, _)| *s == scenario) else { continue };
        let _ = write!(out, "<tr><td>{}</td>", escape(row.about.name));
        match cell {
            Cell::Measured(m) => {
                let is_bad = [
                    m.windows > 0,
                    m.windows > 0,
                    m.lost_plain > 0,
                    m.lost_fenced > 0,
                    m.stuck > 0,
                    m.starved > 0,
                ];
                for (index, figure) in figures(m).iter().enumerate() {
                    let class = if is_bad.get(index) == Some(&true) { " class=\"bad\"" } else { "" };
                    let _ = write!(out, "<td{class}>{figure}</td>");
                }
                let _ = write!(out, "<td class=\"run\"><code>{}</code></td>", command(row, scenario, m));
            }
            _ => {
                let reason = escape(&reason(cell).unwrap_or_default());
                let _ = write!(out, "<td class=\"reason\" colspan=\"{}\">{reason}</td>", COLUMNS.len() + 1);
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}
