//! `rowlock sim swarm`: runs many seeds until a run breaks a promise.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rowlock_env::{time, worker};
use rowlock_sim::cluster::Outcome;
use rowlock_sim::fault::read_span;

use super::case::Case;
use super::case_file;
use super::figures::{Figures, bar, lateness};
use super::guide::Guide;
use super::options::{Common, Data};
use super::pool::{Pool, threads};
use super::run;
use crate::exit::{Failure, REFUSED};
use crate::paint::{Paint, Progress};
use crate::print::print;
use crate::signals::Stop;

/// Default number of seeds without a time limit.
const SEEDS: u64 = 200;
/// Interval of the figures on a terminal.
const REFRESH: Duration = Duration::from_millis(200);
/// Interval of the figures in a file or a pipe.
const LINE: Duration = Duration::from_secs(10);
/// Width of the bar in columns.
const BAR: usize = 24;

/// Run many seeds, each with faults of its own, until one breaks a promise
#[derive(clap::Args)]
pub struct Swarm {
    /// Number of seeds [default: 200, or as many as fit into --time]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// The first seed to run
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Stop after this time, like 10m
    #[arg(long, value_name = "TIME", value_parser = read_span)]
    time: Option<Duration>,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Continue after a broken promise
    #[arg(long)]
    keep_going: bool,
    /// Choose seeds whose faults and operations have seldom met, and vary runs in which something rare
    /// happened. The choice of these runs depends on the timing of threads, so it is not repeatable
    #[arg(long)]
    guided: bool,
    /// Folder for the runs that a guided search varies; runs that are already there come first
    #[arg(long, value_name = "DIR", requires = "guided")]
    corpus: Option<PathBuf>,
    /// Write the lateness to this file (sim/src/cli/lateness.txt is printed beside later figures)
    #[arg(long, value_name = "FILE")]
    keep_lateness: Option<PathBuf>,
    /// Print only the fingerprint of each seed
    #[arg(long, conflicts_with = "guided")]
    fingerprints: bool,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    data: Data,
}

/// Reason for the end of a swarm.
enum End {
    Done,
    Broken,
    TimeIsUp,
    Signal(&'static str),
}

impl Swarm {
    /// Runs the seeds. Exit code 1: a promise was broken.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut stop = Stop::listen()?;
        let paint = Paint::stdout();
        let started = time::now();
        let example = self.common.case(self.from)?;
        let threads = threads(self.jobs);
        let wanted = self.seeds.or(self.time.is_none().then_some(SEEDS));
        let last = wanted.map_or(u64::MAX, |n| self.from.saturating_add(n).saturating_sub(1));
        let seeds = self.from..=last;
        let case = example.clone();
        let mut pool = if self.guided {
            let guide = Guide::new(&example, self.corpus.as_deref())?;
            Pool::start(seeds, threads, move |seed| guide.run(seed, Case::run_quietly))
        } else {
            Pool::start(seeds, threads, move |seed| {
                let case = Case { seed, ..case.clone() };
                let outcome = case.run(false);
                (case, outcome)
            })
        };
        let mut figures = Figures::default();
        let mut show = Show {
            swarm: &self,
            paint,
            progress: Progress::new(paint),
            line_at: Duration::ZERO,
            due: BTreeMap::new(),
            next: self.from,
        };
        let end = loop {
            let rest = self.time.map(|limit| limit.saturating_sub(started.elapsed()));
            if rest == Some(Duration::ZERO) {
                break End::TimeIsUp;
            }
            tokio::select! {
                biased;
                signal = stop.signal() => break End::Signal(signal),
                next = pool.next() => {
                    let Some((seed, (case, outcome))) = next else { break End::Done };
                    figures.add(seed, &case, &outcome);
                    show.outcome(seed, &case, &outcome)?;
                    if outcome.violation.is_some() && !self.keep_going {
                        break End::Broken;
                    }
                }
                () = time::sleep(rest.unwrap_or(REFRESH).min(REFRESH)) => {}
            }
            show.progress(&figures, started.elapsed(), wanted);
        };
        show.progress.done();
        // Outcomes of threads still running do not count.
        drop(pool);
        self.finish(&figures, started.elapsed(), threads, end).await
    }

    async fn finish(
        &self,
        figures: &Figures,
        took: Duration,
        threads: usize,
        end: End,
    ) -> Result<ExitCode, Failure> {
        let code = if figures.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) };
        if self.fingerprints {
            return Ok(code);
        }
        let paint = Paint::stdout();
        match end {
            End::Signal(signal) => print(format!("{signal}: these are the figures so far\n").as_bytes())?,
            End::TimeIsUp => print(b"the time is up\n")?,
            End::Broken | End::Done => {}
        }
        print(figures.summary(took, threads).as_bytes())?;
        if let Some(file) = &self.keep_lateness {
            case_file::save(file, lateness(&figures.stats.lateness).as_bytes())?;
        }
        if figures.broken.is_empty() {
            print(paint.good("\nEvery promise held.\n").as_bytes())?;
        }
        for (case, violation) in &figures.broken {
            print(paint.bad(&format!("\nBROKEN  seed {}: {violation}\n", case.seed)).as_bytes())?;
            // A run that no command repeats is always saved.
            if matches!(end, End::Broken) || case.script.is_some() {
                // Runs the seed again with a trace: the same seed is the same run.
                let again = case.clone();
                let outcome = worker::run_blocking("simulation", move || again.run(true)).await;
                let kept = run::save(case, &outcome, &self.data.data)?;
                print(run::advice(case, Some(&kept)).as_bytes())?;
            } else {
                print(run::advice(case, None).as_bytes())?;
            }
        }
        Ok(code)
    }
}

/// Progress display of a swarm.
struct Show<'a> {
    swarm: &'a Swarm,
    paint: Paint,
    progress: Progress,
    line_at: Duration,
    /// Fingerprints of seeds finished before their predecessors.
    due: BTreeMap<u64, u64>,
    next: u64,
}

impl Show<'_> {
    /// Prints fingerprints in the order of the seeds, so that two outputs can be compared. Prints a broken
    /// promise at once, since a long swarm may be ended from outside.
    fn outcome(&mut self, seed: u64, case: &Case, outcome: &Outcome) -> Result<(), Failure> {
        if !self.swarm.fingerprints {
            if let Some(violation) = &outcome.violation {
                let clear = if self.paint.is_terminal() { "\r\x1b[K" } else { "" };
                let line = self.paint.bad(&format!("seed {}: {violation}", case.seed));
                print(format!("{clear}  {line}\n").as_bytes())?;
            }
            return Ok(());
        }
        self.due.insert(seed, outcome.fingerprint);
        while let Some(fingerprint) = self.due.remove(&self.next) {
            print(format!("{} {fingerprint:016x}\n", self.next).as_bytes())?;
            self.next += 1;
        }
        Ok(())
    }

    fn progress(&mut self, figures: &Figures, took: Duration, wanted: Option<u64>) {
        if self.swarm.fingerprints {
            return;
        }
        let pause = if self.paint.is_terminal() { REFRESH } else { LINE };
        if took < self.line_at + pause {
            return;
        }
        self.line_at = took;
        let line = figures.progress(took, wanted);
        let part = match (wanted, self.swarm.time) {
            (Some(wanted), _) => figures.runs() as f64 / wanted.max(1) as f64,
            (None, Some(limit)) => took.as_secs_f64() / limit.as_secs_f64().max(0.001),
            (None, None) => 0.0,
        };
        if self.paint.is_terminal() {
            self.progress.show(&format!("{} {line}", bar(part, BAR)));
        } else {
            self.progress.show(&line);
        }
    }
}
