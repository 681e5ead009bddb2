//! `rowlock sim mutants`: how many seeds it takes to notice each deliberate mistake. A checker that notices
//! no mistake proves nothing.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_env::mutant::{self, Mutant};
use rowlock_env::time;
use rowlock_sim::cluster::{Outcome, Scenario};

use super::case::{Case, NO_MUTANTS};
use super::options::Common;
use super::pool::{Pool, threads};
use crate::exit::{Failure, REFUSED, UNAVAILABLE};
use crate::paint::{Paint, Progress};
use crate::print::print;
use crate::signals::Stop;
use crate::table::table;

/// Noticed by a test beside its place and by no run. All that our own clients write carries a number, so that
/// a write that comes twice is run once. And no replica differs but by another mistake, which the checkers
/// see as soon as nodes do.
const BESIDE_RUNS: [Mutant; 2] = [Mutant::ForwardAgain, Mutant::DigestsNotJudged];

/// Run each deliberate mistake until a checker notices it
#[derive(clap::Args)]
pub struct Mutants {
    /// Try at most this many seeds for each mutant
    #[arg(long, value_name = "N", default_value_t = 500)]
    seeds: u64,
    /// Print a table for docs/simulation.md
    #[arg(long)]
    markdown: bool,
    /// List the mutants and exit
    #[arg(long)]
    list: bool,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    #[command(flatten)]
    common: Common,
}

/// How it went for one mistake.
struct Row {
    mistake: Mutant,
    scenario: Scenario,
    /// The first seed that noticed, counted from 1, and the promise.
    caught: Option<(u64, &'static str)>,
    took: Duration,
}

impl Mutants {
    /// Runs them. Exit code 1: one was not noticed.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let example = self.common.case(0)?;
        let in_runs = || Mutant::ALL.iter().copied().filter(|mutant| !BESIDE_RUNS.contains(mutant));
        let chosen = example.mistake.map_or_else(|| in_runs().collect(), |one| vec![one]);
        if self.list {
            let line = |mutant: &Mutant| format!("{:<28} {}\n", mutant.name(), mutant.what());
            let lines: String = chosen.iter().map(line).collect();
            print(lines.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        if !mutant::AVAILABLE {
            return Err(Failure::new(UNAVAILABLE, NO_MUTANTS));
        }
        let mut stop = Stop::listen()?;
        let mut progress = Progress::new(Paint::stdout());
        let mut rows = Vec::new();
        for (index, mistake) in chosen.iter().enumerate() {
            if !self.markdown {
                progress.show(&format!("{} of {}: {mistake}", index + 1, chosen.len()));
            }
            tokio::select! {
                biased;
                signal = stop.signal() => {
                    progress.show(&format!("{signal}: this is the table so far"));
                    break;
                }
                row = self.hunt(&example, *mistake) => rows.push(row),
            }
        }
        progress.done();
        self.report(&rows)
    }

    /// Runs seeds with this mistake until one is noticed. The lowest seed counts, whichever thread was first.
    async fn hunt(&self, example: &Case, mistake: Mutant) -> Row {
        let started = time::now();
        let scenario = self.common.scenario().unwrap_or_else(|| Scenario::that_shows(mistake));
        let case = Case { mistake: Some(mistake), scenario, ..example.clone() };
        let threads = threads(self.jobs);
        let mut pool = Pool::start(0..=self.seeds.saturating_sub(1), threads, move |seed| {
            notices(&Case { seed, ..case.clone() })
        });
        let mut caught: Option<(u64, &'static str)> = None;
        // Seeds below the one that noticed are still on their way on other threads.
        let mut after = 0;
        while let Some((seed, outcome)) = pool.next().await {
            if let Some(violation) = outcome.violation
                && caught.is_none_or(|(first, _)| seed + 1 < first)
            {
                caught = Some((seed + 1, violation.invariant));
            }
            after += usize::from(caught.is_some());
            if after >= threads {
                break;
            }
        }
        Row { mistake, scenario, caught, took: started.elapsed() }
    }

    fn report(&self, rows: &[Row]) -> Result<ExitCode, Failure> {
        let cells: Vec<[String; 5]> = rows
            .iter()
            .map(|row| {
                let (seeds, by) = match row.caught {
                    Some((seed, by)) => (seed.to_string(), by.to_owned()),
                    None => (format!("> {}", self.seeds), "nobody".to_owned()),
                };
                let took = format!("{:.1} s", row.took.as_secs_f64());
                [row.mistake.to_string(), seeds, row.scenario.to_string(), by, took]
            })
            .collect();
        let text = if self.markdown {
            let mut text = String::from(
                "| mutant | what it does | seeds | scenario | noticed by |\n|---|---|---|---|---|\n",
            );
            for (row, [name, seeds, scenario, by, _]) in rows.iter().zip(&cells) {
                text.push_str(&format!(
                    "| `{name}` | {} | {seeds} | {scenario} | {by} |\n",
                    row.mistake.what()
                ));
            }
            text
        } else {
            table(["mutant", "seeds", "scenario", "noticed by", "took"], &cells)
        };
        print(text.as_bytes())?;
        let missed = rows.iter().filter(|row| row.caught.is_none()).count();
        if !self.markdown {
            print(format!("\n{} of {} caught\n", rows.len() - missed, rows.len()).as_bytes())?;
        }
        Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
    }
}

/// Runs the seed with its mistake. What also goes wrong without the mistake is none of its doing.
fn notices(case: &Case) -> Outcome {
    let mut outcome = case.run(false);
    if outcome.violation.is_some() && (Case { mistake: None, ..case.clone() }).run(false).violation.is_some()
    {
        outcome.violation = None;
    }
    outcome
}
