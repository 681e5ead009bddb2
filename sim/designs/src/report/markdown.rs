//! The table in Markdown.

use std::fmt::Write;

use super::{COLUMNS, EXPLANATION, LEGEND, command, corrections, figures, mark, preface, reason, verdicts};
use crate::claims::{self, Judgment};
use crate::scenario::Scenario;
use crate::table::{Cell, Table};

pub fn write(table: &Table) -> String {
    let judgments = claims::evaluate(table);
    let mut out = format!("# Lock designs compared\n\n{}\n\n", preface(table));
    overview(table, &judgments, &mut out);
    let _ = writeln!(out, "\n## Claims\n");
    claims_table(judgments.iter(), &mut out);
    let _ = writeln!(out, "\n## Where the notes are wrong, or need a limit\n");
    claims_table(corrections(&judgments).into_iter(), &mut out);
    let _ = writeln!(out, "\n## Figures\n\n{EXPLANATION}");
    for scenario in &table.scenarios {
        one_scenario(table, *scenario, &mut out);
    }
    out
}

fn line(cells: impl IntoIterator<Item = String>, out: &mut String) {
    let cells: Vec<String> = cells.into_iter().collect();
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

fn overview(table: &Table, judgments: &[Judgment], out: &mut String) {
    let heads = || table.scenarios.iter().map(|s| s.id().replace('-', " "));
    let first = ["design".to_owned()].into_iter();
    line(first.chain(heads()).chain(["claims".to_owned()]), out);
    line((0..table.scenarios.len() + 2).map(|_| "---".to_owned()), out);
    for row in &table.rows {
        let marks = row.cells.iter().map(|(_, cell)| mark(row, cell));
        line([row.about.name.to_owned()].into_iter().chain(marks).chain([verdicts(row, judgments)]), out);
    }
    let _ = writeln!(out, "\n{LEGEND}.");
}

fn claims_table<'a>(judgments: impl Iterator<Item = &'a Judgment>, out: &mut String) {
    line(["", "claim", "verdict", "evidence", "run"].map(str::to_owned), out);
    line((0..5).map(|_| "---".to_owned()), out);
    for j in judgments {
        let run = j.shown.as_ref().map_or(String::new(), |shown| format!("`{}`", shown.command()));
        let cells =
            [j.id.to_owned(), j.claim.to_owned(), j.verdict.word().to_owned(), j.evidence.clone(), run];
        line(cells, out);
    }
}

fn one_scenario(table: &Table, scenario: Scenario, out: &mut String) {
    let _ = writeln!(out, "\n### {}: {}\n", scenario.id(), scenario.story());
    line(["design"].into_iter().chain(COLUMNS).chain(["run"]).map(str::to_owned), out);
    line((0..COLUMNS.len() + 2).map(|_| "---".to_owned()), out);
    for row in &table.rows {
        let Some((_, cell)) = row.cells.iter().find(|(s, _)| *s == scenario) else { continue };
        let first = [row.about.name.to_owned()].into_iter();
        match cell {
            Cell::Measured(m) => {
                let run = command(row, scenario, m);
                let run = if run.is_empty() { run } else { format!("`{run}`") };
                line(first.chain(figures(m)).chain([run]), out);
            }
            _ => line(first.chain([reason(cell).unwrap_or_default()]), out),
        }
    }
}
