//! `rowlock sim mutants`: counts the seeds until a checker notices each mutant. A checker that notices no
//! mutant proves nothing.
//!
//! A mutant that no run reveals either had no effect (each run equals the run without the mutant: workload or
//! faults do not reach the code), or acted unseen (some runs differ: a checker is missing).

use std::collections::BTreeMap;

use std::process::ExitCode;
use std::time::Duration;

use rowlock_env::mutant::{self, Mistake, Mutant};
use rowlock_env::time;
use rowlock_sim::cluster::{Faults, Outcome};

use super::case::{Case, NO_MUTANTS};
use super::guards;
use super::guide::Guide;
use super::options::Common;
use super::pool::{Pool, threads};
use crate::exit::{Failure, REFUSED, UNAVAILABLE, USAGE};
use crate::paint::{Paint, Progress};
use crate::print::print;
use crate::signals::Stop;
use crate::table::table;

/// Mutants that unit tests reveal and runs cannot. All writes of our own clients have a number, so a
/// duplicated write is applied once. And replicas differ only through another mutant, which the checkers
/// notice as soon as the nodes do.
const BESIDE_RUNS: [Mutant; 2] = [Mutant::ForwardAgain, Mutant::DigestsNotJudged];

/// Default number of seeds for each mutant.
const SEEDS: u64 = 500;

/// Run each deliberate mistake until a checker notices it
#[derive(clap::Args)]
pub struct Mutants {
    /// Try at most this many seeds for each mutant [default: 500]; with --guards, run this many with
    /// the faults of each name, and each guard in at most as many runs again [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Flip each guard in turn, in runs that reach the guard
    #[arg(long, conflicts_with_all = ["guided", "markdown", "searches"])]
    guards: bool,
    /// Print a table for docs/simulation.md
    #[arg(long)]
    markdown: bool,
    /// List the mutants and exit
    #[arg(long)]
    list: bool,
    /// Choose seeds whose faults and operations have seldom met, and vary runs in which something rare
    /// happened
    #[arg(long)]
    guided: bool,
    /// Search N times without guidance and N times with it, each time from other seeds, and print the medians
    /// of the seeds needed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["guided", "markdown"])]
    searches: Option<u64>,
    /// The first seed to run
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    #[command(flatten)]
    common: Common,
}

/// Result for one mutant.
struct Row {
    mistake: Mutant,
    faults: Faults,
    verdict: Verdict,
    took: Duration,
}

/// Result of a mutant's runs.
enum Verdict {
    /// Number of the first run that noticed, counted from 1, and the broken promise.
    Noticed(u64, &'static str),
    /// Number of runs that differ from the runs without the mutant, and the first such seed.
    ActedUnseen {
        runs: usize,
        first: u64,
    },
    NoEffect,
    /// Seeds needed by each search; `None` for a search that noticed nothing.
    Searched {
        plain: Vec<Option<u64>>,
        guided: Vec<Option<u64>>,
    },
}

/// Search for a mutant: number and promise of the first run that noticed, and all remaining runs.
#[derive(Default)]
struct Search {
    caught: Option<(u64, &'static str)>,
    unnoticed: Vec<(Case, u64)>,
}

impl Verdict {
    fn is_noticed(&self) -> bool {
        matches!(self, Verdict::Noticed(..))
    }
}

/// Fingerprints of runs without a mutant.
type Plain = BTreeMap<(&'static str, u64), u64>;

impl Mutants {
    /// Runs the mutants. Exit code 1: a mutant was not noticed.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let example = self.common.case(self.from)?;
        if self.guards {
            let (seeds, threads) = (self.seeds.unwrap_or(guards::SEEDS), threads(self.jobs));
            let flips = guards::Flips { example, scenario: self.common.scenario(), seeds, threads };
            return if self.list { guards::list() } else { flips.run().await };
        }
        let in_runs = || Mutant::ALL.iter().copied().filter(|mutant| !BESIDE_RUNS.contains(mutant));
        let chosen = match example.mistake {
            Some(Mistake::Mutant(one)) => vec![one],
            Some(Mistake::Flip(guard)) => {
                return Err(Failure::new(USAGE, format!("{guard} is a guard: add --guards")));
            }
            None => in_runs().collect(),
        };
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
        let (mut rows, mut plain) = (Vec::new(), Plain::new());
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
                row = self.hunt(&example, *mistake, &mut plain) => rows.push(row?),
            }
        }
        progress.done();
        self.report(&rows)
    }

    /// Searches for this mutant, `searches` times or once.
    async fn hunt(&self, example: &Case, mistake: Mutant, plain: &mut Plain) -> Result<Row, Failure> {
        let started = time::now();
        let faults = self.common.scenario().map_or_else(|| Faults::that_show(mistake), Faults::from);
        let case = Case { mistake: Some(mistake.into()), scenario: faults.scenario(), ..example.clone() };
        let verdict = match self.searches {
            Some(searches) => {
                let (mut plain, mut guided) = (Vec::new(), Vec::new());
                for nth in 0..searches {
                    let seed = faults.seed(self.from, nth * self.seeds());
                    let case = Case { seed, ..case.clone() };
                    plain.push(self.search(&case, faults, false).await?.caught.map(|(number, _)| number));
                    guided.push(self.search(&case, faults, true).await?.caught.map(|(number, _)| number));
                }
                Verdict::Searched { plain, guided }
            }
            None => {
                let Search { caught, unnoticed } = self.search(&case, faults, self.guided).await?;
                match caught {
                    Some((number, promise)) => Verdict::Noticed(number, promise),
                    None => self.effect(unnoticed, plain).await,
                }
            }
        };
        Ok(Row { mistake, faults, verdict, took: started.elapsed() })
    }

    /// Runs seeds from the case's seed on until a run notices the mutant. The run with the lowest number
    /// counts, whichever thread finishes first.
    async fn search(&self, case: &Case, faults: Faults, guided: bool) -> Result<Search, Failure> {
        let (case, from, threads) = (case.clone(), case.seed, threads(self.jobs));
        let seeds = 0..=self.seeds() - 1;
        let mut pool = if guided {
            let guide = Guide::new(&case, None)?;
            Pool::start(seeds, threads, move |nth| guide.run(faults.seed(from, nth), notices))
        } else {
            Pool::start(seeds, threads, move |nth| {
                let case = Case { seed: faults.seed(from, nth), ..case.clone() };
                let outcome = notices(&case);
                (case, outcome)
            })
        };
        let Search { mut caught, mut unnoticed } = Search::default();
        // Earlier seeds may still run on other threads.
        let mut after = 0;
        while let Some((nth, (case, outcome))) = pool.next().await {
            let number = nth + 1;
            match outcome.violation {
                Some(violation) if caught.is_none_or(|(first, _)| number < first) => {
                    caught = Some((number, violation.invariant));
                }
                Some(_) => {}
                None => unnoticed.push((case, outcome.fingerprint)),
            }
            after += usize::from(caught.is_some());
            if after >= threads {
                break;
            }
        }
        Ok(Search { caught, unnoticed })
    }

    /// Repeats the runs without the mutant, and compares the fingerprints.
    async fn effect(&self, runs: Vec<(Case, u64)>, plain: &mut Plain) -> Verdict {
        let key = |case: &Case| case.script.is_none().then(|| (case.scenario.name(), case.seed));
        let is_known = |case: &Case| key(case).is_some_and(|key| plain.contains_key(&key));
        let open: Vec<Case> =
            runs.iter().map(|(case, _)| case.clone()).filter(|case| !is_known(case)).collect();
        let mut found = Vec::new();
        if let Some(last) = open.len().checked_sub(1) {
            let mut pool = Pool::start(0..=last as u64, threads(self.jobs), move |index| {
                let case = open[index as usize].clone();
                let outcome = Case { mistake: None, ..case.clone() }.run(false);
                (case, outcome)
            });
            while let Some((_, (case, outcome))) = pool.next().await {
                match key(&case) {
                    Some(key) => drop(plain.insert(key, outcome.fingerprint)),
                    None => found.push((case.seed, case.script, outcome.fingerprint)),
                }
            }
        }
        let fingerprint_of = |case: &Case| match key(case) {
            Some(key) => plain.get(&key).copied(),
            None => found
                .iter()
                .find(|(seed, script, _)| (*seed, script) == (case.seed, &case.script))
                .map(|(.., fingerprint)| *fingerprint),
        };
        let acted: Vec<u64> = runs
            .iter()
            .filter(|(case, fingerprint)| fingerprint_of(case).is_some_and(|plain| plain != *fingerprint))
            .map(|(case, _)| case.seed)
            .collect();
        match acted.iter().min() {
            Some(first) => Verdict::ActedUnseen { runs: acted.len(), first: *first },
            None => Verdict::NoEffect,
        }
    }

    fn seeds(&self) -> u64 {
        self.seeds.unwrap_or(SEEDS)
    }

    fn report(&self, rows: &[Row]) -> Result<ExitCode, Failure> {
        let more = format!("> {}", self.seeds());
        let cells: Vec<[String; 5]> = rows
            .iter()
            .map(|row| {
                let (seeds, by) = match &row.verdict {
                    Verdict::Noticed(seed, by) => (seed.to_string(), (*by).to_owned()),
                    Verdict::ActedUnseen { runs, first } => {
                        (more.clone(), format!("nothing; acted in {runs}, first in seed {first}"))
                    }
                    Verdict::NoEffect => (more.clone(), "nothing; no effect".to_owned()),
                    Verdict::Searched { plain, guided } => {
                        let shown = |all: &[_]| median(all).map_or(more.clone(), |number| number.to_string());
                        (shown(plain), shown(guided))
                    }
                };
                let took = format!("{:.1} s", row.took.as_secs_f64());
                [row.mistake.to_string(), seeds, row.faults.name().to_owned(), by, took]
            })
            .collect();
        if self.searches.is_some() {
            let text = table(["mutant", "seeds", "faults", "seeds, guided", "took"], &cells);
            let [plain, guided] = self.seeds_run(rows);
            let all = format!("\nseeds of all searches: {plain}, guided {guided}\n");
            print((text + &all).as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        let text = if self.markdown {
            let mut text = String::from(
                "| mutant | what it does | seeds | faults | noticed by |\n|---|---|---|---|---|\n",
            );
            for (row, [name, seeds, faults, by, _]) in rows.iter().zip(&cells) {
                text.push_str(&format!(
                    "| `{name}` | {} | {seeds} | {faults} | {by} |\n",
                    row.mistake.what()
                ));
            }
            text
        } else {
            table(["mutant", "seeds", "faults", "noticed by", "took"], &cells)
        };
        print(text.as_bytes())?;
        let missed = rows.iter().filter(|row| !row.verdict.is_noticed()).count();
        if !self.markdown {
            print(format!("\n{} of {} noticed\n", rows.len() - missed, rows.len()).as_bytes())?;
        }
        Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
    }

    /// Returns the seeds run by all searches, without guidance and with guidance. A search that noticed
    /// nothing has run all of its seeds.
    fn seeds_run(&self, rows: &[Row]) -> [u64; 2] {
        let run = |all: &[Option<u64>]| all.iter().map(|number| number.unwrap_or(self.seeds())).sum::<u64>();
        rows.iter().fold([0, 0], |[plain, guided], row| match &row.verdict {
            Verdict::Searched { plain: p, guided: g } => [plain + run(p), guided + run(g)],
            _ => [plain, guided],
        })
    }
}

/// Returns the median; of an even count, the greater of the two middle numbers. `None`: most searches noticed
/// nothing.
fn median(numbers: &[Option<u64>]) -> Option<u64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by_key(|number| number.unwrap_or(u64::MAX));
    sorted.get(sorted.len() / 2).copied().flatten()
}

/// Runs the seed with its mutant. A promise that also breaks without the mutant does not count.
fn notices(case: &Case) -> Outcome {
    let mut outcome = case.run(false);
    if outcome.violation.is_some() && (Case { mistake: None, ..case.clone() }).run(false).violation.is_some()
    {
        outcome.violation = None;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_without_a_finding_counts_as_the_longest() {
        assert_eq!(median(&[Some(9), None, Some(1)]), Some(9));
        assert_eq!(median(&[None, Some(1), None]), None);
        assert_eq!(median(&[Some(4), Some(2)]), Some(4));
    }
}
