//! `rowlock sim run`: runs one seed, prints its story and a verdict.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rowlock_env::{time, worker};
use rowlock_sim::cluster::Outcome;
use rowlock_sim::report::story::{self, Line, Tone};
use rowlock_sim::report::{Heading, Verdict, html};

use super::case::Case;
use super::figures::{counted, faults, model_rows};
use super::options::{Common, Data};
use super::{case_file, log};
use crate::exit::{Failure, REFUSED, USAGE};
use crate::paint::Paint;
use crate::print::print;

/// Run one seed: print what happened and whether every promise held
#[derive(clap::Args)]
pub struct Run {
    /// Seed that determines the run
    #[arg(long, value_name = "N")]
    seed: u64,
    #[command(flatten)]
    common: Common,
    /// Take the faults from this file, one per line, like `3s kill leader for 2s`
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Output options of a run.
#[derive(clap::Args)]
pub struct Output {
    /// Write a space-time diagram of the run to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print only the fingerprint of the run
    #[arg(long, conflicts_with = "html")]
    fingerprint: bool,
    /// Print the logs of nodes and clients to stderr, with simulated time: a level, or directives such as
    /// info,rowlock_consensus::raft=debug
    #[arg(long, value_name = "FILTER", conflicts_with = "fingerprint")]
    log: Option<String>,
    #[command(flatten)]
    data: Data,
}

impl Run {
    /// Runs the seed. Exit code 1: a promise was broken.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut case = self.common.case(self.seed)?;
        case.script = self.script.as_deref().map(case_file::load_script).transpose()?;
        let script = self.script.map(|file| format!(" --script {}", file.display())).unwrap_or_default();
        let again = format!("{}{script}", case.command());
        show(case, again, self.output).await
    }
}

/// Runs a case and prints the result. `again`: the command that repeats the run.
pub async fn show(case: Case, again: String, output: Output) -> Result<ExitCode, Failure> {
    if let Some(why) = case.plan(false).refusal() {
        return Err(Failure::new(USAGE, why));
    }
    if let Some(filter) = &output.log {
        log::start(filter)?;
    }
    let started = time::now();
    let (record, job) = (!output.fingerprint, case.clone());
    let outcome = worker::run_blocking("simulation", move || job.run(record)).await;
    let code = if outcome.violation.is_some() { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS };
    if output.fingerprint {
        print(format!("{:016x}\n", outcome.fingerprint).as_bytes())?;
        return Ok(code);
    }
    story(&case, &outcome, started.elapsed())?;
    let kept = match outcome.violation {
        Some(_) => Some(save(&case, &outcome, &output.data.data)?),
        None => None,
    };
    if outcome.violation.is_some() {
        print(advice(&case, kept.as_ref()).as_bytes())?;
    }
    if let Some(file) = &output.html {
        page(&case, &outcome, again, file)?;
        print(format!("drawn:     {}\n", file.display()).as_bytes())?;
    }
    Ok(code)
}

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
    facts.extend(model_rows(&stats.model_events).map(|(name, value)| (name.to_owned(), value)));
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

/// Paths of the two files.
pub struct Kept {
    pub case: PathBuf,
    pub page: PathBuf,
}

/// Writes a failing run into `folder`. `outcome` must have its trace.
pub fn save(case: &Case, outcome: &Outcome, folder: &Path) -> Result<Kept, Failure> {
    let mutant = case.mistake.as_ref().map(|mistake| format!("-{mistake}")).unwrap_or_default();
    // Runs of a guided search may share a seed.
    let branch =
        case.script.as_ref().map(|_| format!("-{:08x}", outcome.fingerprint >> 32)).unwrap_or_default();
    let stem = format!("seed-{}{mutant}{branch}", case.seed);
    let kept = Kept { case: folder.join(format!("{stem}.txt")), page: folder.join(format!("{stem}.html")) };
    let found = outcome.violation.as_ref().map(ToString::to_string);
    case_file::save(&kept.case, case_file::write(case, &outcome.script, found.as_deref()).as_bytes())?;
    page(case, outcome, format!("rowlock sim replay {}", kept.case.display()), &kept.page)?;
    Ok(kept)
}

/// Returns the commands for the analysis of a failed run.
pub fn advice(case: &Case, kept: Option<&Kept>) -> String {
    let mut text = String::new();
    if case.script.is_none() {
        text.push_str(&format!("reproduce: {}\n", case.command()));
    }
    if let Some(kept) = kept {
        text.push_str(&format!("replay:    rowlock sim replay {}\n", kept.case.display()));
        text.push_str(&format!("shrink:    rowlock sim shrink {}\n", kept.case.display()));
        text.push_str(&format!("look:      {}\n", kept.page.display()));
    }
    text
}

/// Repeat the run of a file that a failing run has written, or of your own
#[derive(clap::Args)]
pub struct Replay {
    /// Settings (seed, seconds, scenario, mutant), then `faults` and the faults, each on a line of its own
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Replay {
    /// Runs the file's case. Exit code 1: a promise was broken.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let again = format!("rowlock sim replay {}", self.file.display());
        show(case_file::load(&self.file)?, again, self.output).await
    }
}
