//! `rowlock sim shrink`: finds the smallest script of faults with which a run still breaks the same promise.

use std::path::PathBuf;
use std::process::ExitCode;

use rowlock_env::{time, worker};
use rowlock_sim::cluster::Outcome;
use rowlock_sim::fault::Script;
use rowlock_sim::shrink::shrink;
use tokio::sync::mpsc;

use super::case::Case;
use super::options::{Data, Which};
use super::{case_file, run};
use crate::exit::{Failure, REFUSED};
use crate::paint::{Paint, Progress};
use crate::print::print;

/// Find the smallest script of faults that still fails
#[derive(clap::Args)]
pub struct Shrink {
    #[command(flatten)]
    which: Which,
    /// File for the smallest case [default: beside the files of failing runs]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Stop after this many runs
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    budget: usize,
    #[command(flatten)]
    data: Data,
}

/// Progress: number of runs so far, number of faults left.
type Step = (usize, usize);

impl Shrink {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let case = self.which.case()?;
        let job = case.clone();
        let first = worker::run_blocking("simulation", move || job.run(false)).await;
        let Some(violation) = first.violation.clone() else {
            let what = format!("{} keeps every promise; there is nothing to shrink", run::title(&case));
            return Err(Failure::new(REFUSED, what));
        };
        let before = first.script.steps().len();
        print(format!("{violation}\n{before} faults\n").as_bytes())?;
        let started = time::now();
        let (sender, mut steps) = mpsc::unbounded_channel::<Step>();
        let (job, budget) = (case.clone(), self.budget);
        let search = worker::run_blocking("shrink", move || search(&job, first, budget, &sender));
        tokio::pin!(search);
        let mut progress = Progress::new(Paint::stdout());
        let (small, runs) = loop {
            tokio::select! {
                biased;
                found = &mut search => break found,
                Some((runs, left)) = steps.recv() => progress.show(&format!("{left} faults left after {runs} runs")),
            }
        };
        progress.done();
        self.finish(case, small, format!("{runs} runs, {:.1} s", started.elapsed().as_secs_f64())).await
    }

    /// Runs the smallest script once more, for its story.
    async fn finish(&self, mut case: Case, small: Script, took: String) -> Result<ExitCode, Failure> {
        case.script = Some(small.clone());
        let job = case.clone();
        let outcome = worker::run_blocking("simulation", move || job.run(true)).await;
        let found = outcome.violation.as_ref().map(ToString::to_string);
        let text = case_file::write(&case, &small, found.as_deref());
        let folder = self.data.data.join("small");
        let kept = run::save(&case, &outcome, &folder)?;
        if let Some(file) = &self.output {
            case_file::save(file, text.as_bytes())?;
        }
        let file = self.output.as_ref().unwrap_or(&kept.case);
        let faults = small.steps().len();
        let mut text = format!("{faults} faults are enough ({took}):\n\n{small}\n");
        text.push_str(&format!("replay:    rowlock sim replay {}\n", file.display()));
        text.push_str(&format!("look:      {}\n", kept.page.display()));
        print(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Shrinks the script. Only the same broken promise counts; a different broken promise would be another
/// finding.
fn search(
    case: &Case,
    first: Outcome,
    budget: usize,
    sender: &mpsc::UnboundedSender<Step>,
) -> (Script, usize) {
    let wanted = first.violation.map(|violation| violation.invariant);
    let mut runs = 0;
    let small = shrink(
        first.script,
        |script| {
            runs += 1;
            let outcome = Case { script: Some(script.clone()), ..case.clone() }.run(false);
            let fails = outcome.violation.map(|violation| violation.invariant) == wanted;
            if fails {
                // The receiver is gone only after the command's end.
                let _ = sender.send((runs, script.steps().len()));
            }
            fails
        },
        budget,
    );
    (small, runs)
}
