//! The table for a terminal: columns of a fixed width.

use std::fmt::Write;

use super::{COLUMNS, EXPLANATION, LEGEND, command, corrections, figures, mark, preface, reason, verdicts};
use crate::claims::{self, Judgment};
use crate::scenario::Scenario;
use crate::table::{Cell, Table};

pub fn write(table: &Table) -> String {
    let judgments = claims::evaluate(table);
    let mut out = format!("Lock designs compared\n\n{}\n\n", preface(table));
    overview(table, &mut out);
    for scenario in &table.scenarios {
        one_scenario(table, *scenario, &mut out);
    }
    let _ = writeln!(out, "\n{EXPLANATION}");
    let _ = writeln!(out, "\nClaims\n");
    judgments.iter().for_each(|j| claim(j, &mut out));
    let _ = writeln!(
        out,
        "\nClaims of the notes that are wrong or need a limit, and the corrections confirmed\n"
    );
    corrections(&judgments).iter().for_each(|j| claim(j, &mut out));
    let _ = writeln!(out, "\nDesigns\n");
    for row in &table.rows {
        let _ = writeln!(
            out,
            "{}: {} ({}). {}",
            row.about.id,
            row.about.name,
            row.about.source,
            verdicts(row, &judgments)
        );
    }
    out
}

fn name_width(table: &Table) -> usize {
    table.rows.iter().map(|row| row.about.id.len()).max().unwrap_or(0)
}

fn overview(table: &Table, out: &mut String) {
    let width = name_width(table);
    for (index, scenario) in table.scenarios.iter().enumerate() {
        let _ = writeln!(out, "{:>3} {}: {}", index + 1, scenario.id(), scenario.story());
    }
    let _ = write!(out, "\n{:width$}", "");
    for index in 1..=table.scenarios.len() {
        let _ = write!(out, " {index:>4}");
    }
    out.push('\n');
    for row in &table.rows {
        let _ = write!(out, "{:width$}", row.about.id);
        for (_, cell) in &row.cells {
            let _ = write!(out, " {:>4}", mark(row, cell));
        }
        out.push('\n');
    }
    let _ = writeln!(out, "\n{LEGEND}");
}

fn one_scenario(table: &Table, scenario: Scenario, out: &mut String) {
    let width = name_width(table);
    let _ = writeln!(out, "\n{}: {}", scenario.id(), scenario.story());
    let _ = write!(out, "{:width$}", "");
    for column in COLUMNS {
        let _ = write!(out, " {column:>12}");
    }
    out.push('\n');
    for row in &table.rows {
        let Some((_, cell)) = row.cells.iter().find(|(s, _)| *s == scenario) else { continue };
        let _ = write!(out, "{:width$}", row.about.id);
        if let Some(reason) = reason(cell) {
            let _ = write!(out, " {reason}");
        }
        if let Cell::Measured(m) = cell {
            for figure in figures(m) {
                let _ = write!(out, " {figure:>12}");
            }
            let again = command(row, scenario, m);
            if !again.is_empty() {
                let _ = write!(out, "  {again}");
            }
        }
        out.push('\n');
    }
}

fn claim(j: &Judgment, out: &mut String) {
    let _ = writeln!(out, "{:9}  {}: {}", j.verdict.word(), j.id, j.claim);
    let _ = writeln!(out, "           {}", j.evidence);
    if let Some(shown) = &j.shown {
        let _ = writeln!(out, "           {}", shown.command());
    }
}
