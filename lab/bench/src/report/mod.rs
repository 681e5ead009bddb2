//! Report of [`Results`]: tables in Markdown, plots in SVG, and JSON.
//!
//! Nothing here measures; the same results always give the same report.

mod markdown;
mod plots;
mod stats;
mod svg;
mod targets;

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::results::Results;

/// Main metric of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headline {
    /// Name of the metric in a trial.
    pub metric: &'static str,
    pub more_is_better: bool,
}

pub fn headline(workload: &str) -> Option<Headline> {
    let (metric, more_is_better) = match workload {
        "uncontended" | "posted" | "shared" | "scale-locks" | "scale-paths" | "scale-depth"
        | "scale-places" => ("cycles_per_s", true),
        "light" => ("servers_cpu_us_per_cycle", false),
        "contended" | "scale-queue" => ("handovers_per_s", true),
        "read-mostly" => ("ops_per_s", true),
        "herd" => ("release_to_grant_p50_ms", false),
        "crash" => ("crash_to_grant_p50_s", false),
        "leader-kill" => ("kill_to_acquire_ms", false),
        "idle" => ("servers_resident_mb", false),
        "storm" => ("kill_to_served_p99_ms", false),
        "overload" => ("goodput_of_capacity", true),
        "snapshot" => ("beside_longest_ms", false),
        "scale-sessions" | "scale-znodes" | "scale-watches" => ("full_cycles_per_s", true),
        _ => return None,
    };
    Some(Headline { metric, more_is_better })
}

/// Writes only `results.json`, which remains of an interrupted run.
///
/// # Errors
/// The file cannot be written.
pub fn keep(results: &Results, folder: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(results)?;
    write_file(folder, "results.json", &text)
}

/// Writes the report with tables, plots and figures.
///
/// # Errors
/// A file cannot be written.
pub fn write(results: &Results, folder: &Path) -> Result<()> {
    keep(results, folder)?;
    let plots = plots::all(results);
    for (name, plot) in &plots {
        write_file(folder, name, plot)?;
    }
    let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    write_file(folder, "report.md", &markdown::document(results, &names))
}

/// Writes the report of stored results.
///
/// # Errors
/// The file is not `results.json` of this layout, or the report cannot be written.
pub fn again(results: &Path, folder: Option<&Path>) -> Result<()> {
    let text = std::fs::read_to_string(results).with_context(|| format!("reading {}", results.display()))?;
    let read: Results = serde_json::from_str(&text).with_context(|| format!("in {}", results.display()))?;
    if read.version != Results::VERSION {
        bail!("{} has layout {}; this program reads {}", results.display(), read.version, Results::VERSION);
    }
    let beside = results.parent().unwrap_or(Path::new("."));
    write(&read, folder.unwrap_or(beside))
}

fn write_file(folder: &Path, name: &str, text: &str) -> Result<()> {
    let file = folder.join(name);
    let write = || {
        std::fs::create_dir_all(folder)?;
        std::fs::write(&file, text)
    };
    write().with_context(|| format!("writing {}", file.display()))
}

/// Formats a number with about three significant digits: `12,345`, `123`, `12.3`, `1.23`, `0.123`; whole
/// numbers have no fraction.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 || v.fract() == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::new();
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_show_about_three_digits_and_group_thousands() {
        let shown: Vec<String> =
            [0.0, 2.0, 0.0421, 0.9999, 1.234, 12.34, 123.4, 999.96, 1234.5, 1234567.0, -54321.0]
                .map(number)
                .into();
        assert_eq!(
            shown,
            ["0", "2", "0.042", "1.00", "1.23", "12.3", "123", "1,000", "1,234", "1,234,567", "-54,321"]
        );
    }
}
