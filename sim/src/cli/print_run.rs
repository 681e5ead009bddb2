//! Output of one run: story, figures, verdict, and paths of its files.

use std::path::Path;
use std::time::Duration;

use rowlock_sim::cluster::Outcome;
use rowlock_sim::report::story::{self, Line, Tone};
use rowlock_sim::report::{Heading, Verdict, html};

use super::case::Case;
use super::case_file;
use super::figures::{counted, faults};
use crate::exit::Failure;
use crate::paint::Paint;
use crate::print::print;

/// Prints the story of a run and its verdict. `took`: real time.
pub fn story(case: &Case, outcome: &Outcome, took: Duration) -> Result<(), Failure> {
    let paint = Paint::stdout();
    let mut text = String::new();
    text.push_str(&paint.bold(&format!("{}\n", title(case))));
    let mut lines = story::condensed(&outcome.record, outcome.end, &verdict(outcome));
    // The verdict is printed below, with the figures.
    lines.pop();
    lines.iter().for_each(|line| text.push_str(&format!("{}\n", painted(paint, line))));
    text.push('\n');
    for (name, value) in facts(case, outcome) {
        text.push_str(&format!("{name:>16}  {value}\n"));
    }
    text.push_str(&format!("{:>16}  {:.2} s\n", "took", took.as_secs_f64()));
    text.push_str(&match &outcome.violation {
        None => paint.good("\nEvery promise held.\n"),
        Some(violation) => paint.bad(&format!("\nBROKEN  {violation}\n")),
    });
    print(text.as_bytes())
}

fn painted(paint: Paint, line: &Line) -> String {
    let text = line.to_string();
    match line.tone {
        Tone::Fault | Tone::Down | Tone::Violation => paint.bad(&text),
        Tone::Healed | Tone::Up => paint.good(&text),
        Tone::Leader | Tone::Verdict => paint.bold(&text),
        Tone::Note | Tone::Quiet => paint.dim(&text),
        Tone::Plain | Tone::Lock => text,
    }
}

pub fn title(case: &Case) -> String {
    format!("Seed {}: {} simulated seconds, scenario {}", case.seed, case.seconds, case.scenario)
}

fn verdict(outcome: &Outcome) -> Verdict {
    match &outcome.violation {
        None => Verdict::Held,
        Some(violation) => Verdict::Broken(violation.to_string()),
    }
}

fn facts(case: &Case, outcome: &Outcome) -> Vec<(String, String)> {
    let stats = &outcome.stats;
    let mut facts = vec![
        ("locks granted".to_owned(), counted(stats.grants)),
        ("calls answered".to_owned(), counted(stats.acknowledged)),
        ("simulated".to_owned(), format!("{:.1} s", outcome.end.0 as f64 / 1e9)),
        ("faults".to_owned(), faults(&stats.faults)),
    ];
    if !stats.longest_wait.is_zero() {
        facts.push(("longest wait".to_owned(), format!("{:.1?}, of a quiet client", stats.longest_wait)));
    }
    if let Some(mistake) = &case.mistake {
        facts.push(("mutant".to_owned(), mistake.to_string()));
    }
    facts.push(("fingerprint".to_owned(), format!("{:016x}", outcome.fingerprint)));
    facts
}

/// Writes the space-time diagram of a run that was recorded.
pub fn page(case: &Case, outcome: &Outcome, reproduce: String, file: &Path) -> Result<(), Failure> {
    let heading =
        Heading { title: title(case), verdict: verdict(outcome), facts: facts(case, outcome), reproduce };
    case_file::save(file, html::page(&heading, &outcome.record, outcome.end).as_bytes())
}
