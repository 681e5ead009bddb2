//! The command `diff`: plays scripts on two clusters and compares the transcripts.
//!
//! A script with different transcripts is played again below new roots. Only a script that differs every time
//! counts as a difference. Other scripts are counted and printed as unsteady: semantics that depend on timing
//! are a bug of the tool or of a server. After the workers have stopped, the command minimizes the
//! differences one by one.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rowlock_env::{rng, task, time};
use tokio::sync::mpsc;

use crate::clean::Cleaner;
use crate::dialect;
use crate::generate;
use crate::minimise::minimise;
use crate::player::play;
use crate::script::Script;
use crate::transcript::{Cause, Transcript};

/// Number of repetitions that must differ as well.
const CONFIRMATIONS: usize = 2;
/// Time between two lines of progress.
const PROGRESS_PERIOD: Duration = Duration::from_secs(10);
/// Roots queued for removal. Beyond: the roots stay.
const CLEANING_MAX: usize = 4096;

/// Plays random scripts on two clusters and compares their replies
#[derive(clap::Args, Clone, Debug)]
pub struct Diff {
    /// Servers of one cluster, host:port,host:port
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', required = true)]
    left: Vec<String>,
    /// Servers of the other cluster, host:port,host:port
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', required = true)]
    right: Vec<String>,
    /// Number of scripts to play
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// Seed of the first script; without --seeds only this script is played and printed
    #[arg(long, value_name = "K")]
    seed: Option<u64>,
    /// Play these steps of --seed only
    #[arg(long, value_name = "STEPS", value_delimiter = ',', requires = "seed")]
    keep: Option<Vec<usize>>,
    /// Stop after this many seconds
    #[arg(long, value_name = "SEC")]
    time: Option<u64>,
    /// Number of scripts at a time
    #[arg(long, value_name = "N", default_value_t = 24)]
    workers: usize,
    /// Stop after this many differences
    #[arg(long, value_name = "N", default_value_t = 5)]
    differences: usize,
    /// Print the intended differences and their treatment
    #[arg(long)]
    known: bool,
}

/// State shared by the workers.
struct Run {
    diff: Diff,
    /// Separates the roots of different runs.
    nonce: u64,
    next_root: AtomicU64,
    next_seed: AtomicU64,
    last_seed: u64,
    played: AtomicU64,
    steps: AtomicU64,
    deadline: Option<time::Instant>,
    found: AtomicUsize,
    cleaning: [mpsc::Sender<String>; 2],
}

/// The transcripts of both sides.
struct Verdict {
    script: Script,
    left: Transcript,
    right: Transcript,
}

impl Verdict {
    fn differs(&self) -> bool {
        self.left.render() != self.right.render()
    }
}

/// Result of a script with different transcripts.
enum Finding {
    Steady(u64),
    Unsteady(u64, Box<Verdict>),
    Broken(anyhow::Error),
}

impl Diff {
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        if self.known {
            for (difference, treatment) in dialect::KNOWN {
                println!("- {difference}: {treatment}");
            }
        }
        let single = self.keep.is_some()
            || (self.seed.is_some() && !std::env::args().any(|a| a.starts_with("--seeds")));
        let run = Arc::new(self.start());
        if single { run.single().await } else { run.many().await }
    }

    fn start(self) -> Run {
        let first = self.seed.unwrap_or(0);
        let cleaning = [&self.left, &self.right].map(|hosts| {
            let (roots, queue) = mpsc::channel(CLEANING_MAX);
            task::spawn("compat-clean", clean(hosts[0].clone(), queue));
            roots
        });
        Run {
            nonce: rng::u64(),
            next_root: AtomicU64::new(0),
            next_seed: AtomicU64::new(first),
            last_seed: first.saturating_add(self.seeds),
            played: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            deadline: self.time.map(|seconds| time::now() + Duration::from_secs(seconds)),
            found: AtomicUsize::new(0),
            cleaning,
            diff: self,
        }
    }
}

/// Removes roots until all senders are dropped.
async fn clean(host: String, mut roots: mpsc::Receiver<String>) {
    let mut cleaner = None;
    while let Some(root) = roots.recv().await {
        if cleaner.is_none() {
            cleaner = Cleaner::connect(&host).await.ok();
        }
        if let Some(connected) = &mut cleaner
            && connected.remove(&root).await.is_none()
        {
            cleaner = None;
        }
    }
}

impl Run {
    /// Plays one script on both sides and compares the transcripts.
    async fn compare(&self, seed: u64, keep: impl Fn(usize) -> bool) -> anyhow::Result<Verdict> {
        let number = self.next_root.fetch_add(1, Relaxed);
        let root = |side| format!("/compat-{:08x}-{number:08}-{side}/r", self.nonce as u32);
        let script = generate::script(seed, &root('l'));
        let right_script = generate::script(seed, &root('r'));
        let left = play(&self.diff.left, &script, &keep);
        let right = play(&self.diff.right, &right_script, &keep);
        let (left, right) = tokio::try_join!(left, right)?;
        for (roots, script) in self.cleaning.iter().zip([&script, &right_script]) {
            let _ = roots.try_send(script.above().to_owned());
        }
        Ok(Verdict { script, left, right })
    }

    async fn single(&self) -> anyhow::Result<ExitCode> {
        let seed = self.diff.seed.unwrap_or(0);
        let keep: Option<BTreeSet<usize>> =
            self.diff.keep.as_ref().map(|keep| keep.iter().copied().collect());
        let verdict =
            self.compare(seed, |step| keep.as_ref().is_none_or(|keep| keep.contains(&step))).await?;
        self.print(seed, keep.as_ref(), &verdict);
        Ok(if verdict.differs() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    async fn many(self: &Arc<Self>) -> anyhow::Result<ExitCode> {
        let began = time::now();
        let (findings, mut found) = mpsc::channel(self.diff.workers);
        for _ in 0..self.diff.workers {
            let (run, findings) = (self.clone(), findings.clone());
            task::spawn("compat-worker", async move { run.work(findings).await });
        }
        drop(findings);
        let (mut steady, mut unsteady) = (BTreeSet::new(), 0);
        loop {
            match time::timeout(PROGRESS_PERIOD, found.recv()).await {
                Err(_) => self.print_progress(began, "so far"),
                Ok(None) => break,
                Ok(Some(Finding::Steady(seed))) => {
                    println!("seed {seed} differs");
                    steady.insert(seed);
                }
                Ok(Some(Finding::Unsteady(seed, verdict))) => {
                    unsteady += 1;
                    println!("seed {seed} differs sometimes");
                    self.print(seed, None, &verdict);
                }
                Ok(Some(Finding::Broken(error))) => return Err(error),
            }
        }
        self.print_progress(began, "in all");
        for seed in steady.iter().take(self.diff.differences) {
            self.explain(*seed).await?;
        }
        println!("{} differences, {unsteady} unsteady", steady.len());
        Ok(if steady.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn print_progress(&self, began: time::Instant, when: &str) {
        let (played, steps) = (self.played.load(Relaxed), self.steps.load(Relaxed));
        let rate = played as f64 / began.elapsed().as_secs_f64();
        println!("{when}: {played} scripts, {steps} steps, {rate:.0} scripts/s");
    }

    async fn work(&self, findings: mpsc::Sender<Finding>) {
        while self.found.load(Relaxed) < self.diff.differences
            && self.deadline.is_none_or(|deadline| time::now() < deadline)
        {
            let seed = self.next_seed.fetch_add(1, Relaxed);
            if seed >= self.last_seed {
                return;
            }
            let finding = match self.check_seed(seed).await {
                Ok(None) => continue,
                Ok(Some(finding)) => finding,
                Err(error) => Finding::Broken(error.context(format!("seed {seed}"))),
            };
            let broken = matches!(finding, Finding::Broken(_));
            if findings.send(finding).await.is_err() || broken {
                return;
            }
        }
    }

    async fn check_seed(&self, seed: u64) -> anyhow::Result<Option<Finding>> {
        let verdict = self.compare(seed, |_| true).await?;
        self.played.fetch_add(1, Relaxed);
        self.steps.fetch_add(verdict.script.steps.len() as u64, Relaxed);
        if !verdict.differs() {
            return Ok(None);
        }
        for _ in 0..CONFIRMATIONS {
            if !self.compare(seed, |_| true).await?.differs() {
                return Ok(Some(Finding::Unsteady(seed, Box::new(verdict))));
            }
        }
        self.found.fetch_add(1, Relaxed);
        Ok(Some(Finding::Steady(seed)))
    }

    /// Minimizes a difference and prints the result.
    async fn explain(&self, seed: u64) -> anyhow::Result<()> {
        let steps = generate::script(seed, "/").steps.len();
        let fails = |kept: BTreeSet<usize>| async move {
            self.compare(seed, |step| kept.contains(&step)).await.is_ok_and(|verdict| verdict.differs())
        };
        let kept = minimise((0..steps).collect(), fails).await;
        let verdict = self.compare(seed, |step| kept.contains(&step)).await?;
        self.print(seed, Some(&kept), &verdict);
        Ok(())
    }

    /// Prints a script with the replies of both sides.
    fn print(&self, seed: u64, keep: Option<&BTreeSet<usize>>, verdict: &Verdict) {
        let Verdict { script, left, right } = verdict;
        let shown = |text: &str| text.replace(script.above(), "~");
        println!(
            "--- seed {seed}: clients on servers {:?}, restrictive: {}",
            script.servers, script.restrictive
        );
        for (number, step) in script.steps.iter().enumerate() {
            if keep.is_none_or(|keep| keep.contains(&number)) {
                println!("  step {number} client {}: {}", step.slot, shown(&step.action.describe()));
            }
        }
        for (client, (left, right)) in left.render().into_iter().zip(right.render()).enumerate() {
            println!("  client {client}");
            for at in 0..left.len().max(right.len()) {
                match (left.get(at), right.get(at)) {
                    (Some(left), Some(right)) if left == right => println!("     = {}", describe(left)),
                    (left, right) => {
                        let absent = "nothing".to_owned();
                        println!("  left < {}", left.map_or(absent.clone(), describe));
                        println!("  right> {}", right.map_or(absent, describe));
                    }
                }
            }
        }
        let keep = keep.map_or(String::new(), |keep| {
            let steps: Vec<String> = keep.iter().map(usize::to_string).collect();
            format!(" --keep {}", steps.join(","))
        });
        let (left, right) = (self.diff.left.join(","), self.diff.right.join(","));
        println!(
            "reproduce: cargo run --release -p rowlock-compat -- diff --left {left} --right {right} --seed {seed}{keep}"
        );
    }
}

fn describe((cause, text): &(Cause, String)) -> String {
    match cause {
        Cause::Step(number) => format!("step {number}: {text}"),
        Cause::Between => format!("between: {text}"),
        Cause::Event => text.clone(),
    }
}
