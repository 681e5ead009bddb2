//! `rowlock sim mutants --guards`: flips each guard in turn, and names the checker that notices.
//!
//! Runs without a mistake come first: they count the outcomes of all guards. Each guard is then flipped in
//! those runs that reach it, so a run that equals its run without the flip shows a decision without effect.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;

use rowlock_env::guard::{Guard, Outcomes};
use rowlock_env::mutant::{self, Mistake};
use rowlock_sim::cluster::{Faults, Scenario};

use super::case::{Case, NO_MUTANTS};
use super::figures::guard_rows;
use super::pool::Pool;
use crate::exit::{Failure, REFUSED, UNAVAILABLE};
use crate::paint::{Paint, Progress};
use crate::print::print;
use crate::signals::Stop;

/// Default number of seeds for the faults of each name.
pub const SEEDS: u64 = 3;
/// Name in the table for a panic outside of the simulated nodes and clients.
const OUTSIDE: &str = "panic-outside";

/// Prints names and files of all guards.
pub fn list() -> Result<ExitCode, Failure> {
    let lines: String = Guard::all().map(|guard| format!("{guard:<40} {}\n", guard.file())).collect();
    print(lines.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Parameters of a search.
pub struct Flips {
    /// First seed, seconds, and the only guard, if any.
    pub example: Case,
    /// The only scenario, if any.
    pub scenario: Option<Scenario>,
    /// Seeds for the faults of each name, and runs with each flip.
    pub seeds: u64,
    pub threads: usize,
}

/// Run without a mistake.
struct Plain {
    faults: Faults,
    case: Case,
    fingerprint: u64,
    outcomes: Outcomes,
}

/// Result of the runs with a flipped guard.
enum Verdict {
    Noticed { by: String, case: Case },
    ActedUnseen { runs: usize, of: usize, first: Case },
    NoEffect { runs: usize },
    NotReached,
}

impl Flips {
    /// Flips the guards. Exit code 1: a flip was not noticed.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        if !mutant::AVAILABLE {
            return Err(Failure::new(UNAVAILABLE, NO_MUTANTS));
        }
        let mut stop = Stop::listen()?;
        let plain = tokio::select! {
            biased;
            signal = stop.signal() => {
                print(format!("{signal}: no guard was flipped yet\n").as_bytes())?;
                return Ok(ExitCode::SUCCESS);
            }
            plain = self.plain() => plain,
        };
        let mut sum = Outcomes::default();
        plain.iter().for_each(|run| sum += &run.outcomes);
        let guards: Vec<Guard> = match self.example.mistake {
            Some(Mistake::Flip(guard)) => vec![guard],
            _ => Guard::all().collect(),
        };
        let (seeds, count) = (self.seeds as usize, guards.len());
        let (plain, of) = (Arc::new(plain), guards.clone());
        let mut pool =
            Pool::start(0..=count as u64 - 1, self.threads, move |at| flip(of[at as usize], &plain, seeds));
        print(format!("{:<40} {:>10} {:>10}  noticed by\n", "guard", "false", "true").as_bytes())?;
        let mut table = Table::default();
        loop {
            tokio::select! {
                biased;
                signal = stop.signal() => {
                    print(format!("{signal}: these are the guards so far\n").as_bytes())?;
                    break;
                }
                next = pool.next() => {
                    let Some((at, verdict)) = next else { break };
                    let guard = guards[at as usize];
                    print(table.row(guard, sum.of(guard), &verdict).as_bytes())?;
                }
            }
        }
        print(table.summary().as_bytes())?;
        let rows = guard_rows(&sum).into_iter().map(|(name, value)| format!("{name:>16}  {value}\n"));
        print(rows.collect::<String>().as_bytes())?;
        Ok(if table.unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
    }

    /// Runs all seeds without a mistake. A run that breaks a promise by itself shows nothing.
    async fn plain(&self) -> Vec<Plain> {
        let mut progress = Progress::new(Paint::stdout());
        let faults = self.scenario.map_or_else(|| Faults::all().collect(), |only| vec![only.into()]);
        let cases: Vec<(Faults, Case)> = (0..self.seeds)
            .flat_map(|nth| faults.iter().map(move |faults| (nth, *faults)))
            .map(|(nth, faults)| {
                let (seed, scenario) = (faults.seed(self.example.seed, nth), faults.scenario());
                (faults, Case { seed, scenario, mistake: None, ..self.example.clone() })
            })
            .collect();
        let count = cases.len() as u64;
        let mut pool = Pool::start(0..=count - 1, self.threads, move |at| {
            let (faults, case) = cases[at as usize].clone();
            let outcome = case.run_quietly();
            let (fingerprint, outcomes) = (outcome.fingerprint, outcome.stats.guards);
            let plain = Plain { faults, case, fingerprint, outcomes };
            (plain, outcome.violation.is_some())
        });
        let mut runs = BTreeMap::new();
        while let Some((at, (run, is_broken))) = pool.next().await {
            progress.show(&format!("{} of {count} runs without a flip", runs.len() + 1));
            if !is_broken {
                runs.insert(at, run);
            }
        }
        progress.done();
        runs.into_values().collect()
    }
}

/// Returns the runs that show a guard best: those with many of both outcomes, first one for the faults of
/// each name.
fn reaching(guard: Guard, plain: &[Plain]) -> Vec<&Plain> {
    let count = |run: &Plain| run.outcomes.of(guard);
    let mut runs: Vec<&Plain> = plain.iter().filter(|run| count(run) != [0, 0]).collect();
    runs.sort_by_key(|run| {
        let [no, yes] = count(run);
        std::cmp::Reverse((no.min(yes), no.max(yes)))
    });
    let mut seen = BTreeSet::new();
    let (first, rest): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| seen.insert(run.faults));
    first.into_iter().chain(rest).collect()
}

/// Runs with the flipped guard until a checker notices.
fn flip(guard: Guard, plain: &[Plain], most: usize) -> Verdict {
    let (mut runs, mut acted) = (0, Vec::new());
    for known in reaching(guard, plain).into_iter().take(most) {
        let case = Case { mistake: Some(Mistake::Flip(guard)), ..known.case.clone() };
        // The flip may break what observes the nodes, too: state and rules are the same code there.
        let by = match catch_unwind(AssertUnwindSafe(|| case.run_quietly())) {
            Ok(outcome) => {
                if outcome.fingerprint != known.fingerprint {
                    acted.push(case.clone());
                }
                outcome.violation.map(|violation| match violation.invariant {
                    "no-panic" => format!("no-panic ({})", one_line(&violation.what)),
                    invariant => invariant.to_owned(),
                })
            }
            Err(panic) => Some(format!("{OUTSIDE} ({})", one_line(text_of(&*panic)))),
        };
        if let Some(by) = by {
            return Verdict::Noticed { by, case };
        }
        runs += 1;
    }
    match acted.first() {
        _ if runs == 0 => Verdict::NotReached,
        Some(first) => Verdict::ActedUnseen { runs: acted.len(), of: runs, first: first.clone() },
        None => Verdict::NoEffect { runs },
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}

/// Returns the beginning of a panic's text, without line breaks.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(100).collect()
}

/// Counts of the verdicts.
#[derive(Default)]
struct Table {
    by: BTreeMap<String, usize>,
    unnoticed: usize,
    no_effect: usize,
    not_reached: usize,
}

impl Table {
    /// Counts a verdict, and returns its line.
    fn row(&mut self, guard: Guard, [no, yes]: [u64; 2], verdict: &Verdict) -> String {
        let at = |case: &Case| format!("seed {} of {}", case.seed, case.scenario);
        let verdict = match verdict {
            Verdict::Noticed { by, case } => {
                let checker = by.split(' ').next().unwrap_or_default().to_owned();
                *self.by.entry(checker).or_default() += 1;
                format!("{by}, {}", at(case))
            }
            Verdict::ActedUnseen { runs, of, first } => {
                self.unnoticed += 1;
                format!("nothing; acted in {runs} of {of} runs, first in {}", at(first))
            }
            Verdict::NoEffect { runs } => {
                self.no_effect += 1;
                format!("nothing; no effect in {runs} runs")
            }
            Verdict::NotReached => {
                self.not_reached += 1;
                "nothing; not reached".to_owned()
            }
        };
        format!("{guard:<40} {no:>10} {yes:>10}  {verdict}\n")
    }

    fn summary(&self) -> String {
        let noticed: usize = self.by.values().sum();
        let mut text = format!(
            "\n{noticed} noticed, {} acted unseen, {} without effect, {} not reached\n",
            self.unnoticed, self.no_effect, self.not_reached
        );
        let mut by: Vec<_> = self.by.iter().collect();
        by.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        by.iter().for_each(|(checker, count)| text.push_str(&format!("{count:>5}  {checker}\n")));
        text
    }
}
