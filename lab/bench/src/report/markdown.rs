//! Report in Markdown: the run, its targets, then every figure of every workload.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::stats::{Figure, Spread, ratio, spread};
use super::targets::{self, Measure, Verdict};
use super::{headline, number};
use crate::results::Results;
use crate::system::System;

/// Returns the whole report. `plots` are the names of the files beside the report.
pub fn document(results: &Results, plots: &[&str]) -> String {
    let mut text = String::new();
    about(&mut text, results);
    missing(&mut text, results);
    floor(&mut text, results);
    systems(&mut text, results);
    wanted(&mut text, results);
    for workload in workloads(results) {
        figures(&mut text, results, workload);
    }
    if !plots.is_empty() {
        text.push_str("\n## Plots\n\n");
        for plot in plots {
            line(&mut text, &format!("![{}]({plot})", plot.trim_end_matches(".svg")));
        }
    }
    text
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Writes a row of a table, and escapes characters that would end a cell.
fn row(text: &mut String, cells: &[String]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    line(text, &format!("| {} |", cells.join(" | ")));
}

fn head(text: &mut String, cells: &[String]) {
    row(text, cells);
    line(text, &format!("|{}", "---|".repeat(cells.len())));
}

fn words(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn about(text: &mut String, results: &Results) {
    let about = &results.about;
    line(text, "# Lock services, measured in turns on one machine\n");
    line(
        text,
        &format!("{}, {} cores, {}; Rowlock at {}.", about.date, about.cores, about.machine, about.commit),
    );
    line(
        text,
        "Clients and all servers share the machine, over loopback. Round 0 of all systems, then round 1, ...:",
    );
    line(text, "figures are medians over the rounds with (least to most), ratios are of the same round.\n");
    line(text, &format!("`{}`", about.command));
}

fn missing(text: &mut String, results: &Results) {
    if !results.missing.is_empty() {
        line(text, "\n**Could not be measured:**\n");
        for what in &results.missing {
            line(text, &format!("- {what}"));
        }
    }
}

fn floor(text: &mut String, results: &Results) {
    let metrics: BTreeSet<&String> = results.floor.iter().flat_map(BTreeMap::keys).collect();
    if metrics.is_empty() {
        return;
    }
    line(text, "\n## Floor of this run\n");
    head(text, &words(&["what the machine allows, before each workload and at the end", ""]));
    for metric in metrics {
        let values = results.floor.iter().filter_map(|floor| floor.get(metric).copied());
        row(text, &[spoken(metric), shown(Spread::of(values))]);
    }
}

fn systems(text: &mut String, results: &Results) {
    if results.durability.is_empty() {
        return;
    }
    line(text, "\n## Systems\n");
    let heads =
        ["system", "servers", "durable before an answer", "waiters in order", "idle servers, % of a core"];
    head(text, &words(&heads));
    for (system, durability) in &results.durability {
        let version = results.about.versions.get(system).cloned().unwrap_or_default();
        let idle = results.idle_cpu_percent.get(system).map_or_else(|| "–".to_owned(), |idle| number(*idle));
        let order = if system.is_fair() { "yes" } else { "no" };
        row(text, &[system.to_string(), version, durability.clone(), order.to_owned(), idle]);
    }
}

fn wanted(text: &mut String, results: &Results) {
    let judged = targets::all().into_iter().map(|target| (target.evaluate(results), target));
    // A row without figures would hide the others; the list above names the failures.
    let judged: Vec<_> = judged.filter(|(judged, _)| judged.measured.is_some()).collect();
    if judged.is_empty() {
        return;
    }
    line(text, "\n## What must be shown\n");
    head(text, &words(&["row", "of", "measured", "against", "theirs", "ratio", "must", "aim"]));
    for (judged, target) in judged {
        let (against, ratio) = match target.measure {
            Measure::RatioTo(other) => (results.label(other), shown(judged.measured)),
            Measure::Value => ("–".to_owned(), "–".to_owned()),
            Measure::Beside(other) => (results.label(other), "–".to_owned()),
            Measure::FlatOver(_) => ("its other sizes".to_owned(), shown(judged.measured)),
        };
        row(
            text,
            &[
                target.title.to_owned(),
                results.label(target.subject),
                shown(judged.subject),
                against,
                shown(judged.other),
                ratio,
                bound(target.must.shown(&target.measure, results), judged.must),
                bound(target.aim.shown(&target.measure, results), judged.aim),
            ],
        );
    }
}

fn bound(shown: String, verdict: Verdict) -> String {
    match verdict {
        Verdict::NotAsked | Verdict::Unmeasured => shown,
        Verdict::Met => format!("{shown}: met"),
        Verdict::Missed => format!("{shown}: **missed**"),
    }
}

/// Returns the workloads in the order of measurement.
fn workloads(results: &Results) -> Vec<&str> {
    let mut seen: Vec<&str> = Vec::new();
    for trial in &results.trials {
        if !seen.contains(&trial.workload.as_str()) {
            seen.push(&trial.workload);
        }
    }
    seen
}

fn figures(text: &mut String, results: &Results, workload: &str) {
    let trials = || results.trials.iter().filter(|trial| trial.workload == workload);
    let first = headline(workload).map(|headline| headline.metric);
    let metrics: BTreeSet<&str> =
        trials().flat_map(|trial| trial.metrics.keys()).map(String::as_str).collect();
    let mut columns: Vec<&str> = first.into_iter().filter(|first| metrics.contains(first)).collect();
    columns.extend(metrics.iter().filter(|metric| Some(**metric) != first));
    line(text, &format!("\n## {workload}\n"));
    let mut heads = words(&["size", "system"]);
    heads.extend(columns.iter().map(|metric| spoken(metric)));
    let compares = first.is_some() && trials().any(|trial| trial.system != System::Rowlock);
    if compares {
        heads.push("rowlock by it".to_owned());
    }
    head(text, &heads);
    let rows: BTreeSet<(u64, System)> = trials().map(|trial| (trial.size, trial.system)).collect();
    for (size, system) in rows {
        let mut cells = vec![number(size as f64), results.label(system)];
        for metric in &columns {
            let spread = spread(results, Figure { workload, size, metric }, system);
            cells.push(if Some(*metric) == first {
                shown(spread)
            } else {
                spread.map_or_else(|| "–".to_owned(), |spread| number(spread.median))
            });
        }
        if let Some(metric) = first.filter(|_| compares) {
            let beside = (system != System::Rowlock)
                .then(|| ratio(results, Figure { workload, size, metric }, System::Rowlock, system));
            cells.push(beside.map_or_else(String::new, shown));
        }
        row(text, &cells);
    }
}

/// Returns `123 (120 to 131)`, or a single figure without a range.
fn shown(spread: Option<Spread>) -> String {
    match spread {
        None => "–".to_owned(),
        Some(Spread { median, min, max }) if min == max => number(median),
        Some(Spread { median, min, max }) => {
            let mut text = number(median);
            write!(text, " ({} to {})", number(min), number(max)).expect("a string takes everything");
            text
        }
    }
}

/// Returns a metric's name as a heading: `acquire_p50_ms` is `acquire p50 ms`, `cycles_per_s` is `cycles/s`.
fn spoken(metric: &str) -> String {
    metric.replace("_per_", "/").replace("_us", " µs").replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{About, Trial};

    #[test]
    fn a_small_run_is_told_like_this() {
        let mut results = Results {
            about: About {
                date: "2026-11-20 12:00 UTC".into(),
                command: "rowlock-bench run".into(),
                cores: 2,
                machine: "a processor, Linux 6".into(),
                commit: "abc".into(),
                versions: [
                    (System::Zookeeper, "ZooKeeper 3.9.4".to_owned()),
                    (System::Etcd, "etcd 3.5.1".to_owned()),
                ]
                .into(),
            },
            missing: vec!["redis: not installed".into()],
            durability: [(System::Etcd, "a quorum".to_owned())].into(),
            floor: vec![[("echo_p50_ms".to_owned(), 0.05)].into(), [("echo_p50_ms".to_owned(), 0.06)].into()],
            idle_cpu_percent: [(System::Etcd, 2.5)].into(),
            ..Results::default()
        };
        for (round, ours, theirs) in [(0, 3000.0, 1000.0), (1, 3300.0, 1000.0), (2, 2000.0, 1000.0)] {
            for (system, cycles) in [(System::Rowlock, ours), (System::Zookeeper, theirs)] {
                let trial =
                    Trial::new(system, "uncontended", 1, round).with("acquire_p50_ms", 1000.0 / cycles);
                results.trials.push(trial.with("cycles_per_s", cycles));
            }
        }
        let golden = include_str!("golden.md");
        let told = document(&results, &["throughput.svg"]);
        assert_eq!(told, golden, "\n{told}");
    }
}
